// Package crd holds the CustomResourceDefinitions of inference.sluice.dev, which controller-gen writes into bases from
// the types of api/v1alpha1, and installs them into a cluster. It knows no controller. Callers: integration tests; users
// install the same files with the chart.
package crd

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

//go:embed bases/*.yaml
var bases embed.FS

// Definitions returns the resources in the order of their file names, or an error when a file does not decode.
func Definitions() ([]apiextensionsv1.CustomResourceDefinition, error) {
	names, err := fs.Glob(bases, "bases/*.yaml")
	if err != nil {
		return nil, fmt.Errorf("list the CRD files: %w", err)
	}
	definitions := make([]apiextensionsv1.CustomResourceDefinition, 0, len(names))
	for _, name := range names {
		data, err := bases.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		var definition apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(data, &definition); err != nil {
			return nil, fmt.Errorf("decode %s: %w", name, err)
		}
		definitions = append(definitions, definition)
	}
	return definitions, nil
}

// Install creates the resources where they are missing and returns when the API server serves them. It leaves a
// definition that exists as it is.
func Install(ctx context.Context, config *rest.Config) error {
	definitions, err := Definitions()
	if err != nil {
		return err
	}
	return Create(ctx, config, definitions...)
}

// Create creates definitions where they are missing and returns when the API server serves them.
func Create(ctx context.Context, config *rest.Config, definitions ...apiextensionsv1.CustomResourceDefinition) error {
	clients, err := apiextensions.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client of apiextensions.k8s.io: %w", err)
	}
	for i := range definitions {
		name := definitions[i].Name
		_, err := clients.CustomResourceDefinitions().Create(ctx, &definitions[i], metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create CustomResourceDefinition %s: %w", name, err)
		}
		err = wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			live, err := clients.CustomResourceDefinitions().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			return isEstablished(live) && isServed(discovery.NewDiscoveryClient(clients.RESTClient()), live), nil
		})
		if err != nil {
			return fmt.Errorf("wait for CustomResourceDefinition %s: %w", name, err)
		}
	}
	return nil
}

// isServed says whether clients find every version of the resource: discovery follows the condition Established with a
// delay.
func isServed(lister discovery.ServerResourcesInterface, definition *apiextensionsv1.CustomResourceDefinition) bool {
	for _, version := range definition.Spec.Versions {
		if !version.Served {
			continue
		}
		list, err := lister.ServerResourcesForGroupVersion(definition.Spec.Group + "/" + version.Name)
		if err != nil || !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == definition.Spec.Names.Plural }) {
			return false
		}
	}
	return true
}

func isEstablished(definition *apiextensionsv1.CustomResourceDefinition) bool {
	for _, condition := range definition.Status.Conditions {
		if condition.Type == apiextensionsv1.Established {
			return condition.Status == apiextensionsv1.ConditionTrue
		}
	}
	return false
}
