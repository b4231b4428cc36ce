//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

var (
	monitorKind = schema.GroupVersionKind{Group: "monitoring.coreos.com", Version: "v1", Kind: "ServiceMonitor"}
	kserveKind  = schema.GroupVersionKind{Group: "serving.kserve.io", Version: "v1beta1", Kind: "InferenceService"}
)

func monitorList() *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(monitorKind.GroupVersion().WithKind("ServiceMonitorList"))
	return list
}

// TestMonitorsAppearLater installs the ServiceMonitor resource while a service is there already. The operator must notice
// without a restart, and make one monitor per pool.
func TestMonitorsAppearLater(t *testing.T) {
	ns := namespace(t, "e2e-monitors")
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "servicemonitors.monitoring.coreos.com"}}
	if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(crd), crd); !apierrors.IsNotFound(err) {
		t.Fatalf("the cluster has ServiceMonitors before the test (error %v); the test needs one without", err)
	}
	apply(t, ns, "chat", pd)
	svc, err := cluster.Service(t.Context(), ns, "chat")
	if err != nil {
		t.Fatal(err)
	}
	if c := apimeta.FindStatusCondition(svc.Status.Conditions, v1alpha1.ConditionMonitoringProvisioned); c == nil || c.Status != metav1.ConditionUnknown {
		t.Errorf("MonitoringProvisioned without the resource: %+v, want Unknown", c)
	}
	before := operatorPod(t)

	if err := cluster.InstallServiceMonitorCRD(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Client.Delete(context.Background(), crd); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
	list := monitorList()
	until(t, 2*time.Minute, "three ServiceMonitors", func(ctx context.Context) (string, bool, error) {
		err := cluster.Client.List(ctx, list, client.InNamespace(ns))
		if apimeta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return "the resource is not served yet", false, nil
		}
		return fmt.Sprintf("%d monitors", len(list.Items)), len(list.Items) == 3, err
	})
	got := map[string]string{}
	for _, item := range list.Items {
		got[item.GetName()] = item.GetLabels()[v1alpha1.LabelPool]
	}
	if diff := cmp.Diff(map[string]string{"chat-prefill": "prefill", "chat-decode": "decode", "chat-router": ""}, got); diff != "" {
		t.Errorf("monitors by pool (-want +got):\n%s", diff)
	}
	until(t, time.Minute, "MonitoringProvisioned to be True", func(ctx context.Context) (string, bool, error) {
		svc, err := cluster.Service(ctx, ns, "chat")
		if err != nil {
			return "", false, err
		}
		c := apimeta.FindStatusCondition(svc.Status.Conditions, v1alpha1.ConditionMonitoringProvisioned)
		return fmt.Sprintf("%+v", c), c != nil && c.Status == metav1.ConditionTrue, nil
	})
	after := operatorPod(t)
	if after.UID != before.UID || after.Status.ContainerStatuses[0].RestartCount != before.Status.ContainerStatuses[0].RestartCount {
		t.Error("the operator was restarted to see the new resource")
	}
	if err := cluster.DeleteService(t.Context(), ns, "chat", time.Minute); err != nil {
		t.Fatal(err)
	}
	until(t, time.Minute, "the monitors to be gone", func(ctx context.Context) (string, bool, error) {
		err := cluster.Client.List(ctx, list, client.InNamespace(ns))
		return fmt.Sprintf("%d monitors", len(list.Items)), len(list.Items) == 0, err
	})
}

// TestKServeBeside puts KServe's InferenceService beside ours: the same kind and object name in another group.
func TestKServeBeside(t *testing.T) {
	ns := namespace(t, "e2e-kserve")
	if err := cluster.InstallKServeCRD(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "inferenceservices.serving.kserve.io"}}
		if err := cluster.Client.Delete(context.Background(), crd); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
	theirs := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"predictor": map[string]any{"model": map[string]any{"storageUri": "pvc://x/y"}}}}}
	theirs.SetGroupVersionKind(kserveKind)
	theirs.SetNamespace(ns)
	theirs.SetName("plain")
	until(t, time.Minute, "the foreign resource to be served", func(ctx context.Context) (string, bool, error) {
		err := cluster.Client.Create(ctx, theirs.DeepCopy())
		if apimeta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return "not served yet", false, nil
		}
		return "", err == nil, err
	})
	apply(t, ns, "plain", unified)

	got := &unstructured.Unstructured{}
	got.SetGroupVersionKind(kserveKind)
	if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(theirs), got); err != nil {
		t.Fatal(err)
	}
	if got.GetGeneration() != 1 || got.Object["status"] != nil || len(got.GetFinalizers()) > 0 {
		t.Errorf("the operator touched the foreign object: %v", got.Object)
	}
	if err := cluster.DeleteService(t.Context(), ns, "plain", time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(theirs), got); err != nil {
		t.Errorf("the foreign object after ours was deleted: %v", err)
	}
}
