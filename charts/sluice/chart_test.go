package sluice

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/hack/devcluster/apiserver"
	"github.com/sluice-dev/sluice/internal/buildcache"
)

// render runs helm template with --set arguments.
func render(t *testing.T, set ...string) (string, error) {
	t.Helper()
	cache, err := buildcache.Open(os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	helm, err := cache.Path(t.Context(), "helm")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"template", "sluice", ".", "--namespace", "sluice-system", "--kube-version", "1.36.3"}
	for _, pair := range set {
		args = append(args, "--set-json", pair)
	}
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(t.Context(), helm, args...)
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		return "", errors.New(stderr.String())
	}
	return stdout.String(), nil
}

func decode(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("decode the rendered chart: %v", err)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

func list(objects []*unstructured.Unstructured) []string {
	all := make([]string, 0, len(objects))
	for _, object := range objects {
		all = append(all, object.GetKind()+" "+object.GetName())
	}
	slices.Sort(all)
	return all
}

func TestRender(t *testing.T) {
	text, err := render(t)
	if err != nil {
		t.Fatal(err)
	}
	operator := []string{
		"ClusterRole sluice-edit", "ClusterRole sluice-operator", "ClusterRole sluice-plugin", "ClusterRole sluice-view", "ClusterRoleBinding sluice-operator",
		"ConfigMap sluice-operator-dashboard", "CustomResourceDefinition enginepools.inference.sluice.dev", "CustomResourceDefinition inferenceservices.inference.sluice.dev",
		"Deployment sluice-operator", "Role sluice-operator", "RoleBinding sluice-operator", "ServiceAccount sluice-operator",
	}
	metricsAPI := []string{
		"APIService v1beta1.custom.metrics.k8s.io", "APIService v1beta2.custom.metrics.k8s.io", "ClusterRole sluice-metrics-api-reader",
		"ClusterRoleBinding sluice-metrics-api-auth-delegator", "ClusterRoleBinding sluice-metrics-api-reader",
		"RoleBinding sluice-metrics-api-auth-reader", "Service sluice-metrics-api",
	}
	want := slices.Sorted(slices.Values(slices.Concat(operator, metricsAPI)))
	if diff := cmp.Diff(want, list(decode(t, text))); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}

	text, err = render(t, `metricsAPI.external=true`, `prometheus.url="http://prometheus.monitoring:9090"`)
	if err != nil {
		t.Fatal(err)
	}
	want = slices.Sorted(slices.Values(append(want, "APIService v1beta1.external.metrics.k8s.io")))
	if diff := cmp.Diff(want, list(decode(t, text))); diff != "" {
		t.Errorf("objects with external metrics (-want +got):\n%s", diff)
	}
	for _, arg := range []string{"--metrics-api-external", "--prometheus-url=http://prometheus.monitoring:9090"} {
		if !strings.Contains(text, arg) {
			t.Errorf("the operator is not started with %s", arg)
		}
	}

	text, err = render(t, `metricsAPI.enabled=false`)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(operator, list(decode(t, text))); diff != "" {
		t.Errorf("objects without the metrics API (-want +got):\n%s", diff)
	}
	if !strings.Contains(text, "--disable-metrics-api") {
		t.Error("the operator is not told that the metrics API is off")
	}
}

// TestRights: an operator for some namespaces has no rights in others.
func TestRights(t *testing.T) {
	text, err := render(t, `operator.watchNamespaces=["team-a","team-b"]`)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, object := range decode(t, text) {
		if strings.HasSuffix(object.GetKind(), "RoleBinding") {
			role, _, _ := unstructured.NestedString(object.Object, "roleRef", "name")
			got = append(got, strings.TrimSpace(object.GetNamespace()+" "+object.GetKind()+" to "+role))
		}
	}
	slices.Sort(got)
	want := []string{
		"ClusterRoleBinding to sluice-metrics-api-reader",
		"ClusterRoleBinding to sluice-metrics-api-registrar",
		"ClusterRoleBinding to system:auth-delegator",
		"kube-system RoleBinding to extension-apiserver-authentication-reader",
		"sluice-system RoleBinding to sluice-operator",
		"team-a RoleBinding to sluice-operator",
		"team-b RoleBinding to sluice-operator",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("bindings (-want +got):\n%s", diff)
	}
}

// TestApply: a real API server takes every object, with every value set.
func TestApply(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	server, err := apiserver.Start(ctx, apiserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Stop() }()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	api, err := client.New(server.Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sluice-system", "team-a", "team-b"} {
		if err := api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	tests := map[string][]string{
		"defaults": nil,
		"everything": {
			`replicas=2`, `operator.watchNamespaces=["team-a","team-b"]`, `operator.extraArgs=["--log-level=debug"]`, `operator.allowHostAccess=true`, `image.pullSecrets=[{"name":"pull"}]`,
			`monitors.labels={"release":"prometheus"}`, `podLabels={"a":"b"}`, `podAnnotations={"c":"d"}`, `nodeSelector={"e":"f"}`,
			`tolerations=[{"key":"g","operator":"Exists"}]`, `affinity={"nodeAffinity":{}}`, `crds.keep=false`, `resources={"limits":{"cpu":"1"}}`,
		},
	}
	for name, set := range tests {
		t.Run(name, func(t *testing.T) {
			text, err := render(t, set...)
			if err != nil {
				t.Fatal(err)
			}
			for _, object := range decode(t, text) {
				err := api.Create(ctx, object, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict))
				if err != nil {
					t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
				}
			}
		})
	}
}

func TestValuesRefused(t *testing.T) {
	tests := []struct {
		name string
		set  string
		want string
	}{
		{"no image", `image.engine=""`, "/image/engine"},
		{"an unknown value", `replica=2`, "replica"},
		{"an unknown image", `image.proxy="x"`, "proxy"},
		{"no operator", `replicas=0`, "/replicas"},
		{"a level that is none", `operator.logLevel="loud"`, "/operator/logLevel"},
		{"an interval without a unit", `operator.observeInterval="2"`, "/operator/observeInterval"},
		{"a namespace with capitals", `operator.watchNamespaces=["Team"]`, "/operator/watchNamespaces/0"},
		{"a privileged port", `metricsAPI.port=443`, "/metricsAPI/port"},
		{"a text for a switch", `metricsAPI.enabled="no"`, "/metricsAPI/enabled"},
		{"a monitor of another kind", `monitors.operatorKind="Probe"`, "/monitors/operatorKind"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := render(t, test.set)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error that names %s", err, test.want)
			}
		})
	}
}
