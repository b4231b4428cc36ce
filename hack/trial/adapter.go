package trial

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// adapterProgram serves metrics of a Prometheus to autoscalers.
const adapterProgram = "prometheus-adapter"

// AdapterObjects is the file of prometheus-adapter's objects, relative to the checkout. The image in it is AdapterImage, which
// a cluster has to be told where it is.
const (
	AdapterObjects = "config/adapters/prometheus-adapter-deploy.yaml"
	AdapterImage   = "prometheus-adapter:v0.12.0"
)

// LoadAdapter builds prometheus-adapter from its module, loads an image of it into the dev cluster and gives the image's name.
func (t *Trial) LoadAdapter(ctx context.Context) (image string, err error) {
	images, err := t.loadTools(ctx, adapterProgram)
	if err != nil {
		return "", err
	}
	return images[adapterProgram], nil
}

// UninstallAdapter removes the objects of AdapterObjects, and the ConfigMap with the adapter's rules.
func (t *Trial) UninstallAdapter(ctx context.Context) error {
	text, err := os.ReadFile(filepath.Join(t.Root, AdapterObjects))
	if err != nil {
		return err
	}
	documents := append(strings.Split(string(text), "\n---\n"), "{apiVersion: v1, kind: ConfigMap, metadata: {name: prometheus-adapter, namespace: monitoring}}")
	slices.Reverse(documents) // the registration goes before what it leads to
	var errs []error
	for _, document := range documents {
		object, err := parse(document)
		if err != nil {
			return err
		}
		if err := t.Client.Delete(ctx, object); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete %s %s: %w", object.GetKind(), object.GetName(), err))
		}
	}
	return errors.Join(errs...)
}
