package docs

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/config/crd"
	"github.com/sluice-dev/sluice/hack/devcluster/apiserver"
)

// TestManifests: an API server takes every manifest of the pages, and every part of one: a block that begins with spec is put on a
// service that has what it leaves out.
func TestManifests(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	server, err := apiserver.Start(ctx, apiserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Stop() }()
	if err := crd.Install(ctx, server.Config); err != nil {
		t.Fatal(err)
	}
	api, err := client.New(server.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	whole, parts := 0, 0
	for _, page := range pages(t) {
		for _, block := range page.Blocks {
			if block.Lang != "yaml" {
				continue
			}
			for document := range strings.SplitSeq(block.Text, "\n---\n") {
				var tree map[string]any
				if err := yaml.UnmarshalStrict([]byte(document), &tree); err != nil {
					t.Errorf("%s: %v", block.Where(), err)
					continue
				}
				switch {
				case tree["kind"] != nil:
					whole++
				case tree["spec"] != nil:
					parts++
					tree = completed(tree["spec"].(map[string]any))
				default:
					continue // values of another chart
				}
				object := &unstructured.Unstructured{Object: tree}
				object.SetNamespace("default")
				if err := api.Create(ctx, object, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict)); err != nil {
					t.Errorf("%s: %v", block.Where(), err)
				}
			}
		}
	}
	if whole < 3 || parts < 3 {
		t.Errorf("the pages have %d manifests and %d parts, want more", whole, parts)
	}
}

// completed is a service with a part of its spec.
func completed(part map[string]any) map[string]any {
	spec := map[string]any{
		"model": map[string]any{"name": "tiny", "uri": "pvc://models/tiny"},
		"pools": []any{map[string]any{"name": "prefill", "role": "Prefill"}, map[string]any{"name": "decode", "role": "Decode"}},
	}
	maps.Copy(spec, part)
	return map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "InferenceService", "metadata": map[string]any{"name": "part"}, "spec": spec,
	}
}
