package controllers_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	eventsv1 "k8s.io/api/events/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/config/crd"
)

// foreign makes a resource of another project that takes any fields, for as long as the test runs.
func foreign(t *testing.T, group, version, kind, plural string) {
	t.Helper()
	definition := apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: kind, ListKind: kind + "List", Plural: plural},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: version, Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", XPreserveUnknownFields: new(true),
				}},
			}},
		},
	}
	if err := crd.Create(t.Context(), server.Config, definition); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		clients, err := apiextensions.NewForConfig(server.Config)
		if err != nil {
			t.Fatal(err)
		}
		if err := clients.CustomResourceDefinitions().Delete(context.Background(), definition.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		// Its objects go first; the next test may want the same one.
		deadline, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		for {
			_, err := clients.CustomResourceDefinitions().Get(deadline, definition.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return
			}
			if err != nil {
				t.Errorf("wait for %s to be gone: %v", definition.Name, err)
				return
			}
		}
	})
}

// TestBesideKServe: another project's InferenceService of the same name is another object.
func TestBesideKServe(t *testing.T) {
	foreign(t, "serving.kserve.io", "v1beta1", "InferenceService", "inferenceservices")
	trial := newTrial(t)
	theirs := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"predictor": map[string]any{"minReplicas": int64(0)}}}}
	theirs.SetGroupVersionKind(schema.GroupVersionKind{Group: "serving.kserve.io", Version: "v1beta1", Kind: "InferenceService"})
	theirs.SetNamespace(trial.namespace)
	theirs.SetName("uni")
	if err := trial.Create(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	version := theirs.GetResourceVersion()
	trial.apply(unified)
	trial.untilSettled("uni")
	if err := trial.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs); err != nil {
		t.Fatal(err)
	}
	if theirs.GetResourceVersion() != version {
		t.Errorf("the other project's object was written: version %s, was %s", theirs.GetResourceVersion(), version)
	}
}

// TestMonitorsAppear: when the cluster gets the ServiceMonitor resource, each pool gets one, without a restart.
func TestMonitorsAppear(t *testing.T) {
	trial := newTrial(t)
	trial.apply(unified)
	trial.untilSettled("uni")
	trial.untilCondition("uni", v1alpha1.ConditionMonitoringProvisioned, metav1.ConditionUnknown, "CRDMissing")
	foreign(t, "monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors")
	monitor := &unstructured.Unstructured{}
	monitor.SetGroupVersionKind(schema.GroupVersionKind{Group: "monitoring.coreos.com", Version: "v1", Kind: "ServiceMonitor"})
	trial.until("a ServiceMonitor", func() (bool, string) {
		err := trial.Get(t.Context(), client.ObjectKey{Namespace: trial.namespace, Name: "uni-main"}, monitor)
		return err == nil, fmt.Sprint(err)
	})
	if controller := metav1.GetControllerOf(monitor); controller == nil || controller.UID != trial.pool("uni", "main").UID {
		t.Errorf("the ServiceMonitor's controller is %v, want the pool", controller)
	}
	service := trial.untilCondition("uni", v1alpha1.ConditionMonitoringProvisioned, metav1.ConditionTrue, "Provisioned")
	var got []string
	for _, m := range service.Status.Observability.Monitors {
		got = append(got, fmt.Sprintf("%s %s, limit above series: %t", m.Kind, m.Name, m.SampleLimit > m.Series))
	}
	want := []string{"ServiceMonitor uni-main, limit above series: true", "ServiceMonitor uni-router, limit above series: true"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("status.observability.monitors (-want +got):\n%s", diff)
	}
}

// TestMonitorsAreRestored: what somebody changes or deletes is as it was again, with an event; another kind replaces it.
func TestMonitorsAreRestored(t *testing.T) {
	foreign(t, "monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors")
	foreign(t, "monitoring.coreos.com", "v1", "PodMonitor", "podmonitors")
	trial := newTrial(t)
	trial.apply(unified)
	trial.untilSettled("uni")
	trial.untilCondition("uni", v1alpha1.ConditionMonitoringProvisioned, metav1.ConditionTrue, "Provisioned")
	get := func(kind, name string) (*unstructured.Unstructured, error) {
		monitor := &unstructured.Unstructured{}
		monitor.SetGroupVersionKind(schema.GroupVersionKind{Group: "monitoring.coreos.com", Version: "v1", Kind: kind})
		err := trial.Get(t.Context(), client.ObjectKey{Namespace: trial.namespace, Name: name}, monitor)
		return monitor, err
	}
	restored := func(note string) {
		t.Helper()
		trial.until("the event "+note, func() (bool, string) {
			var list eventsv1.EventList
			if err := trial.List(t.Context(), &list, client.InNamespace(trial.namespace)); err != nil {
				return false, err.Error()
			}
			var notes []string
			for _, event := range list.Items {
				if event.Reason == "MonitorRestored" {
					notes = append(notes, event.Note)
				}
			}
			return slices.Contains(notes, note), fmt.Sprint(notes)
		})
	}

	router, err := get("ServiceMonitor", "uni-router")
	if err != nil {
		t.Fatal(err)
	}
	edited := router.DeepCopy()
	if err := unstructured.SetNestedStringMap(edited.Object, map[string]string{"app": "other"}, "spec", "selector", "matchLabels"); err != nil {
		t.Fatal(err)
	}
	if err := trial.Update(t.Context(), edited); err != nil {
		t.Fatal(err)
	}
	restored("ServiceMonitor uni-router is as it was again: spec.selector.matchLabels.inference.sluice.dev/component was changed")
	if again, err := get("ServiceMonitor", "uni-router"); err != nil || cmp.Diff(router.Object["spec"].(map[string]any)["endpoints"], again.Object["spec"].(map[string]any)["endpoints"]) != "" {
		t.Errorf("after the event it is %v, %v", again, err)
	}
	main, err := get("ServiceMonitor", "uni-main")
	if err != nil {
		t.Fatal(err)
	}
	if err := trial.Client.Delete(t.Context(), main); err != nil {
		t.Fatal(err)
	}
	restored("ServiceMonitor uni-main is as it was again: it was deleted")

	service := &v1alpha1.InferenceService{ObjectMeta: metav1.ObjectMeta{Namespace: trial.namespace, Name: "uni"}}
	change(trial, service, func(s *v1alpha1.InferenceService) { s.Spec.Observability.Monitor = v1alpha1.MonitorPod })
	trial.until("PodMonitors instead", func() (bool, string) {
		_, pods := get("PodMonitor", "uni-main")
		_, services := get("ServiceMonitor", "uni-main")
		_, router := get("ServiceMonitor", "uni-router")
		return pods == nil && apierrors.IsNotFound(services) && apierrors.IsNotFound(router), fmt.Sprintf("pod %v, service %v, router %v", pods, services, router)
	})
	change(trial, service, func(s *v1alpha1.InferenceService) { s.Spec.Observability.Monitor = v1alpha1.MonitorNone })
	trial.untilCondition("uni", v1alpha1.ConditionMonitoringProvisioned, metav1.ConditionTrue, "NotWanted")
	trial.until("no monitor", func() (bool, string) {
		_, err := get("PodMonitor", "uni-main")
		return apierrors.IsNotFound(err), fmt.Sprint(err)
	})
}
