package trial

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// adapterProgram serves metrics of a Prometheus to autoscalers.
const adapterProgram = "prometheus-adapter"

// adapterObjects are the adapter with the rights that an aggregated API server needs. Its certificate is made at start, so
// its registrations do not verify it: this is for trials.
const adapterObjects = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: prometheus-adapter}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: prometheus-adapter}
rules:
- {apiGroups: [""], resources: [pods, services, namespaces, configmaps], verbs: [get, list, watch]}
- {apiGroups: [inference.sluice.dev], resources: [enginepools, inferenceservices], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: prometheus-adapter}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: prometheus-adapter}
subjects:
- {kind: ServiceAccount, name: prometheus-adapter, namespace: monitoring}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: prometheus-adapter-auth-delegator}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:auth-delegator"}
subjects:
- {kind: ServiceAccount, name: prometheus-adapter, namespace: monitoring}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: prometheus-adapter-auth-reader, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects:
- {kind: ServiceAccount, name: prometheus-adapter, namespace: monitoring}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: prometheus-adapter-metrics-reader}
rules:
- {apiGroups: [custom.metrics.k8s.io, external.metrics.k8s.io], resources: ["*"], verbs: [get, list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: prometheus-adapter-autoscaler}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: prometheus-adapter-metrics-reader}
subjects:
- {kind: ServiceAccount, name: horizontal-pod-autoscaler, namespace: kube-system}
---
apiVersion: v1
kind: Service
metadata: {name: prometheus-adapter}
spec:
  selector: {app: prometheus-adapter}
  ports:
  - {name: https, port: 443, targetPort: 6443}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: prometheus-adapter}
spec:
  replicas: 1
  selector: {matchLabels: {app: prometheus-adapter}}
  template:
    metadata: {labels: {app: prometheus-adapter}}
    spec:
      serviceAccountName: prometheus-adapter
      containers:
      - name: adapter
        image: IMAGE
        args:
        - --prometheus-url=URL
        - --config=/etc/adapter/config.yaml
        - --metrics-relist-interval=10s
        - --cert-dir=/tmp
        - --secure-port=6443
        readinessProbe:
          httpGet: {path: /readyz, port: 6443, scheme: HTTPS}
          periodSeconds: 2
        volumeMounts:
        - {name: config, mountPath: /etc/adapter}
      volumes:
      - {name: config, configMap: {name: prometheus-adapter}}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.custom.metrics.k8s.io}
spec:
  group: custom.metrics.k8s.io
  version: v1beta1
  service: {name: prometheus-adapter, namespace: monitoring}
  insecureSkipTLSVerify: true
  groupPriorityMinimum: 100
  versionPriority: 100
`

// InstallAdapter installs prometheus-adapter before the Prometheus of InstallPrometheus, with the given configuration, and
// waits until custom.metrics.k8s.io is served by it. Where that API belongs to somebody else, uninstall it first.
func (t *Trial) InstallAdapter(ctx context.Context, config string) error {
	images, err := t.loadTools(ctx, adapterProgram)
	if err != nil {
		return err
	}
	values := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": adapterProgram, "namespace": MonitoringNamespace},
		"data":     map[string]any{"config.yaml": config},
	}}
	if err := t.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(values), client.FieldOwner(FieldOwner), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply the adapter's configuration: %w", err)
	}
	objects := strings.NewReplacer("IMAGE", images[adapterProgram], "URL", PrometheusURL).Replace(adapterObjects)
	if err := t.Apply(ctx, MonitoringNamespace, objects); err != nil {
		return err
	}
	if err := t.untilAvailable(ctx, MonitoringNamespace, adapterProgram); err != nil {
		return err
	}
	return t.Until(ctx, installLimit, "the adapter to be registered", func(ctx context.Context) (string, bool, error) {
		service := &unstructured.Unstructured{}
		service.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"})
		if err := t.Client.Get(ctx, client.ObjectKey{Name: "v1beta1.custom.metrics.k8s.io"}, service); err != nil {
			return "", false, err
		}
		conditions, _, err := unstructured.NestedSlice(service.Object, "status", "conditions")
		if err != nil {
			return "", false, err
		}
		for _, c := range conditions {
			condition, _ := c.(map[string]any)
			if condition["type"] == "Available" {
				return fmt.Sprint(condition["message"]), condition["status"] == "True", nil
			}
		}
		return "not looked at yet", false, nil
	})
}

// UninstallAdapter removes what InstallAdapter made.
func (t *Trial) UninstallAdapter(ctx context.Context) error {
	var errs []error
	documents := strings.Split(adapterObjects, "\n---\n")
	slices.Reverse(documents)
	for _, text := range documents {
		object, err := parse(text)
		if err != nil {
			return err
		}
		if object.GetNamespace() == "" {
			object.SetNamespace(MonitoringNamespace)
		}
		if err := t.Client.Delete(ctx, object); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete %s %s: %w", object.GetKind(), object.GetName(), err))
		}
	}
	return errors.Join(errs...)
}
