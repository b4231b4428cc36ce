package trial

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// prometheusOperator is the module whose definition of ServiceMonitor is installed.
const prometheusOperator = "github.com/prometheus-operator/prometheus-operator@v0.85.0"

// InstallServiceMonitorCRD installs the definition of ServiceMonitor from the prometheus-operator's module, with nothing
// that acts on it. It is safe to call again.
func (t *Trial) InstallServiceMonitorCRD(ctx context.Context) error {
	dir, err := t.moduleDir(ctx, prometheusOperator)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(dir, "example", "prometheus-operator-crd", "monitoring.coreos.com_servicemonitors.yaml"))
	if err != nil {
		return err
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(text, &crd); err != nil {
		return fmt.Errorf("parse the ServiceMonitor definition: %w", err)
	}
	return t.createIfAbsent(ctx, &crd)
}

// InstallKServeCRD installs a small definition of KServe's InferenceService, whose kind name is the same as ours.
func (t *Trial) InstallKServeCRD(ctx context.Context) error {
	return t.createIfAbsent(ctx, &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "inferenceservices.serving.kserve.io"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "serving.kserve.io",
			Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: "inferenceservices", Singular: "inferenceservice", Kind: "InferenceService",
				ListKind: "InferenceServiceList", ShortNames: []string{"isvc"},
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1beta1", Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", XPreserveUnknownFields: ptr.To(true),
				}},
			}},
		},
	})
}

func (t *Trial) createIfAbsent(ctx context.Context, obj client.Object) error {
	if err := t.Client.Create(ctx, obj); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create %s: %w", obj.GetName(), err)
	}
	return nil
}
