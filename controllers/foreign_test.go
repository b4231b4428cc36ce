package controllers_test

import (
	"context"
	"fmt"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
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
	trial.untilCondition("uni", v1alpha1.ConditionMonitoringProvisioned, metav1.ConditionTrue, "Provisioned")
}
