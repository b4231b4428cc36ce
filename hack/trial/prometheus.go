package trial

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/hack/images/image"
	"github.com/sluice-dev/sluice/internal/buildcache"
)

// Where InstallPrometheus puts everything, and the Service under which Prometheus answers.
const (
	MonitoringNamespace = "monitoring"
	PrometheusService   = "prometheus"
)

// installLimit is how long a part of the monitoring stack may take to be ready.
const installLimit = 3 * time.Minute

// Programs of the monitoring stack, each an image of its own.
const (
	operatorProgram   = "prometheus-operator"
	reloaderProgram   = "prometheus-config-reloader"
	prometheusProgram = "prometheus"
)

// PrometheusURL is where Prometheus answers inside the cluster.
const PrometheusURL = "http://" + PrometheusService + "." + MonitoringNamespace + ".svc:9090"

// UnmonitoredLabel is the label of namespaces whose monitors the Prometheus of InstallPrometheus passes over.
const UnmonitoredLabel = "sluice.dev/unmonitored"

// prometheusObjects are a Prometheus that reads every monitor and rule of the cluster, but for the monitors of some namespaces,
// with a Service of its own. Its right to read is in the module of the prometheus-operator.
const prometheusObjects = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: prometheus}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: prometheus}
rules:
- {apiGroups: [""], resources: [nodes, nodes/metrics, services, endpoints, pods], verbs: [get, list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [get, list, watch]}
- {nonResourceURLs: [/metrics], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: prometheus}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: prometheus}
subjects:
- {kind: ServiceAccount, name: prometheus, namespace: monitoring}
---
apiVersion: v1
kind: Service
metadata: {name: prometheus}
spec:
  selector: {prometheus: main}
  ports:
  - {name: web, port: 9090, targetPort: 9090}
---
apiVersion: monitoring.coreos.com/v1
kind: Prometheus
metadata: {name: main}
spec:
  version: v3.5.0
  image: IMAGE
  replicas: 1
  serviceAccountName: prometheus
  scrapeInterval: 5s
  evaluationInterval: 5s
  retention: 2h
  serviceMonitorSelector: {}
  serviceMonitorNamespaceSelector: &monitored
    matchExpressions: [{key: sluice.dev/unmonitored, operator: DoesNotExist}]
  podMonitorSelector: {}
  podMonitorNamespaceSelector: *monitored
  ruleSelector: {}
  ruleNamespaceSelector: {}
`

// InstallPrometheus installs the prometheus-operator as its own module describes it, and a Prometheus that reads every
// monitor and rule of the cluster, but for the monitors of namespaces with the UnmonitoredLabel. Programs are built from their modules, images from the programs. It waits until
// Prometheus serves, and is safe to call again. Only a dev cluster gets the images, so another cluster is refused.
func (t *Trial) InstallPrometheus(ctx context.Context) error {
	images, err := t.loadTools(ctx, operatorProgram, reloaderProgram, prometheusProgram)
	if err != nil {
		return err
	}
	bundle, err := t.operatorBundle(ctx, images)
	if err != nil {
		return err
	}
	if err := t.EnsureNamespace(ctx, MonitoringNamespace); err != nil {
		return err
	}
	for _, object := range bundle {
		if err := t.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(FieldOwner), client.ForceOwnership); err != nil {
			return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	if err := t.untilAvailable(ctx, MonitoringNamespace, operatorProgram); err != nil {
		return err
	}
	objects := strings.ReplaceAll(prometheusObjects, "IMAGE", images[prometheusProgram])
	err = t.Until(ctx, installLimit, "the Prometheus resource to be served", func(ctx context.Context) (string, bool, error) {
		err := t.Apply(ctx, MonitoringNamespace, objects)
		if apimeta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return "not served yet", false, nil
		}
		return "", err == nil, err
	})
	if err != nil {
		return err
	}
	return t.Until(ctx, installLimit, "Prometheus to be ready", func(ctx context.Context) (string, bool, error) {
		var set appsv1.StatefulSet
		err := t.Client.Get(ctx, client.ObjectKey{Namespace: MonitoringNamespace, Name: "prometheus-main"}, &set)
		return fmt.Sprintf("%d pods ready", set.Status.ReadyReplicas), set.Status.ReadyReplicas > 0, client.IgnoreNotFound(err)
	})
}

// UninstallPrometheus removes what InstallPrometheus made, the definitions of its resources included.
func (t *Trial) UninstallPrometheus(ctx context.Context) error {
	bundle, err := t.operatorBundle(ctx, nil)
	if err != nil {
		return err
	}
	var errs []error
	for _, text := range strings.Split(prometheusObjects, "\n---\n") {
		object, err := parse(text)
		if err != nil {
			return err
		}
		if object.GetNamespace() == "" {
			object.SetNamespace(MonitoringNamespace)
		}
		bundle = append(bundle, object)
	}
	// The resources go before their definitions, and the operator after what it acts on.
	slices.Reverse(bundle)
	for _, object := range bundle {
		if err := t.Client.Delete(ctx, object); err != nil && !apierrors.IsNotFound(err) && !apimeta.IsNoMatchError(err) {
			errs = append(errs, fmt.Errorf("delete %s %s: %w", object.GetKind(), object.GetName(), err))
		}
	}
	return errors.Join(append(errs, t.RemoveNamespace(ctx, MonitoringNamespace))...)
}

// operatorBundle reads the objects of the prometheus-operator's installation, with our namespace and images.
func (t *Trial) operatorBundle(ctx context.Context, images map[string]string) ([]*unstructured.Unstructured, error) {
	dir, err := t.moduleDir(ctx, prometheusOperator)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, "bundle.yaml"))
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("parse the bundle of %s: %w", prometheusOperator, err)
		}
		if len(object.Object) == 0 {
			continue
		}
		if err := relocate(object, images); err != nil {
			return nil, fmt.Errorf("change %s %s: %w", object.GetKind(), object.GetName(), err)
		}
		objects = append(objects, object)
	}
}

// relocate moves an object of the bundle into our namespace and names our images.
func relocate(object *unstructured.Unstructured, images map[string]string) error {
	if object.GetNamespace() != "" {
		object.SetNamespace(MonitoringNamespace)
	}
	switch object.GetKind() {
	case "ClusterRoleBinding":
		subjects, _, err := unstructured.NestedSlice(object.Object, "subjects")
		if err != nil {
			return err
		}
		for _, subject := range subjects {
			subject.(map[string]any)["namespace"] = MonitoringNamespace
		}
		return unstructured.SetNestedSlice(object.Object, subjects, "subjects")
	case "Deployment":
		path := []string{"spec", "template", "spec", "containers"}
		containers, _, err := unstructured.NestedSlice(object.Object, path...)
		if err != nil || len(containers) != 1 {
			return errors.Join(err, fmt.Errorf("%d containers, want 1", len(containers)))
		}
		container := containers[0].(map[string]any)
		container["image"] = images[operatorProgram]
		container["args"] = []any{"--prometheus-config-reloader=" + images[reloaderProgram]}
		delete(container, "resources") // its limit of 0.2 processors is meant for larger machines
		return unstructured.SetNestedSlice(object.Object, containers, path...)
	}
	return nil
}

// loadTools builds pinned programs, makes an image of each and loads it into the dev cluster. The result is keyed by program.
func (t *Trial) loadTools(ctx context.Context, names ...string) (map[string]string, error) {
	if _, foreign, err := target(ctx, t.Root); err != nil {
		return nil, err
	} else if foreign {
		return nil, errors.New("the monitoring stack is installed on the dev cluster only; unset KUBECONFIG to use it")
	}
	cache, err := buildcache.Open(t.log)
	if err != nil {
		return nil, err
	}
	images := map[string]string{}
	for _, name := range names {
		path, err := cache.Path(ctx, name)
		if err != nil {
			return nil, err
		}
		built, err := image.Build(ctx, t.Root, image.Spec{Name: name, Executable: path, Alias: "/bin/" + name}, filepath.Join(t.Root, "dist", "images"))
		if err != nil {
			return nil, err
		}
		if err := run(ctx, t.Root, t.log, "go", "run", "./hack/devcluster", "load-image", built.Path); err != nil {
			return nil, err
		}
		images[name] = built.Pinned
	}
	return images, nil
}

// untilAvailable waits until a Deployment has a pod that is available.
func (t *Trial) untilAvailable(ctx context.Context, namespace, name string) error {
	return t.Until(ctx, installLimit, name+" to be available", func(ctx context.Context) (string, bool, error) {
		var deployment appsv1.Deployment
		err := t.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &deployment)
		for _, c := range deployment.Status.Conditions {
			if c.Type == appsv1.DeploymentAvailable && c.Status == corev1.ConditionTrue && deployment.Status.ObservedGeneration == deployment.Generation {
				return "", true, err
			}
		}
		return fmt.Sprintf("%d pods available", deployment.Status.AvailableReplicas), false, err
	})
}

// moduleDir gives the folder of a module's files in the module cache.
func (t *Trial) moduleDir(ctx context.Context, module string) (string, error) {
	raw, err := output(ctx, t.Root, "go", "mod", "download", "-json", module)
	if err != nil {
		return "", err
	}
	var found struct{ Dir string }
	if err := json.Unmarshal([]byte(raw), &found); err != nil {
		return "", fmt.Errorf("read what go mod download prints: %w", err)
	}
	return found.Dir, nil
}
