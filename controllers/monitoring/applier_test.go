package monitoring

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	"github.com/sluice-dev/sluice/hack/devcluster/apiserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serviceMonitorCRD has the resource's names, and a default in a place that the operator leaves out.
const serviceMonitorCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: servicemonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  names: {kind: ServiceMonitor, listKind: ServiceMonitorList, plural: servicemonitors, singular: servicemonitor}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            x-kubernetes-preserve-unknown-fields: true
            properties:
              endpoints:
                type: array
                items:
                  type: object
                  x-kubernetes-preserve-unknown-fields: true
                  properties:
                    scrapeTimeout: {type: string, default: 10s}
`

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// poll tries until the check succeeds.
func poll(t *testing.T, check func() error) {
	t.Helper()
	deadline := time.NewTimer(60 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("after 60 s: %v", err)
		case <-tick.C:
		}
	}
}

// TestApplier follows a cluster that has no ServiceMonitor resource, gets it, and loses it again.
func TestApplier(t *testing.T) {
	server, err := apiserver.Start(t.Context(), apiserver.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, server.Stop()) })
	_, err = kubernetes.NewForConfigOrDie(server.Config).CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}}, metav1.CreateOptions{})
	must(t, err)
	crds := apiextensionsclient.NewForConfigOrDie(server.Config).ApiextensionsV1().CustomResourceDefinitions()
	monitors := dynamic.NewForConfigOrDie(server.Config).Resource(ServiceMonitorResource).Namespace("team-a")

	clk := testingclock.NewFakeClock(time.Now())
	applier, err := NewApplierForConfig(server.Config, clk, testr.New(t))
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- applier.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-done)
	})
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	t.Cleanup(q.ShutDown)
	service := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "team-a", Name: "chat"}}
	must(t, applier.Source(func(context.Context) []reconcile.Request { return []reconcile.Request{service} }).Start(ctx, q))
	// told says whether the controller was told since it was last asked, moving the clock.
	told := func() error {
		if clk.HasWaiters() {
			clk.Step(time.Second)
		}
		if q.Len() == 0 {
			return fmt.Errorf("the controller was not told")
		}
		request, _ := q.Get()
		q.Done(request)
		if diff := cmp.Diff(service, request); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		return nil
	}
	desired := BuildServiceMonitor(testPool(), Options{})
	expect := func(what string, want Outcome) {
		t.Helper()
		got, err := applier.Apply(t.Context(), desired)
		if err != nil || got != want {
			t.Errorf("%s: got %s, %v; want %s", what, got, err, want)
		}
	}
	version := func() string {
		t.Helper()
		live, err := monitors.Get(t.Context(), desired.Name, metav1.GetOptions{})
		must(t, err)
		return live.GetResourceVersion()
	}

	expect("no resource", CRDMissing)

	var crd apiextensionsv1.CustomResourceDefinition
	must(t, yaml.UnmarshalStrict([]byte(serviceMonitorCRD), &crd))
	_, err = crds.Create(t.Context(), &crd, metav1.CreateOptions{})
	must(t, err)
	poll(t, told)
	poll(t, func() error {
		if outcome, err := applier.Apply(t.Context(), desired); err != nil || outcome != Applied {
			return fmt.Errorf("%s, %w", outcome, err)
		}
		return nil
	})
	live, err := monitors.Get(t.Context(), desired.Name, metav1.GetOptions{})
	must(t, err)
	object, _, err := encode(desired)
	must(t, err)
	if diff := cmp.Diff(object.Object["spec"].(map[string]any)["selector"], live.Object["spec"].(map[string]any)["selector"]); diff != "" {
		t.Errorf("selector (-want +got):\n%s", diff)
	}
	first := version()
	expect("again", Unchanged)

	restarted, err := NewApplierForConfig(server.Config, clk, testr.New(t))
	must(t, err)
	if outcome, err := restarted.Apply(t.Context(), desired); err != nil || outcome != Unchanged {
		t.Errorf("after a restart: got %s, %v; want Unchanged", outcome, err)
	}
	if got := version(); got != first {
		t.Errorf("written although nothing changed: version %s, then %s", first, got)
	}

	// Somebody else's label stays; somebody else's interval does not.
	edit(t, monitors, desired.Name, `{"metadata":{"labels":{"team":"x"}}}`)
	clk.Step(trustFor)
	expect("a label of others", Unchanged)
	edit(t, monitors, desired.Name, `{"spec":{"namespaceSelector":{"matchNames":["team-b"]}}}`)
	expect("trusted for a while", Unchanged)
	clk.Step(trustFor)
	expect("mended", Applied)
	live, err = monitors.Get(t.Context(), desired.Name, metav1.GetOptions{})
	must(t, err)
	if names, _, _ := unstructured.NestedStringSlice(live.Object, "spec", "namespaceSelector", "matchNames"); cmp.Diff([]string{"team-a"}, names) != "" || live.GetLabels()["team"] != "x" {
		t.Errorf("after mending: namespaces %v, labels %v", names, live.GetLabels())
	}

	desired = BuildServiceMonitor(testPool(), Options{Interval: "30s"})
	expect("another interval", Applied)
	applier.Forget(types.NamespacedName{Namespace: "team-a", Name: desired.Name})
	expect("forgotten and found", Unchanged)

	stranger := rest.CopyConfig(server.Config)
	stranger.Impersonate.UserName = "stranger"
	refused, err := NewApplierForConfig(stranger, clk, testr.New(t))
	must(t, err)
	if outcome, err := refused.Apply(t.Context(), desired); outcome != Failed || err == nil || !strings.Contains(err.Error(), "apply ServiceMonitor team-a/chat-decode: ") {
		t.Errorf("without permission: got %s, %v", outcome, err)
	}

	must(t, crds.Delete(t.Context(), crd.Name, metav1.DeleteOptions{}))
	poll(t, told)
	expect("the resource is gone", CRDMissing)
	_, err = crds.Create(t.Context(), &crd, metav1.CreateOptions{})
	must(t, err)
	poll(t, told)
	poll(t, func() error {
		if outcome, err := applier.Apply(t.Context(), desired); err != nil || outcome != Applied {
			return fmt.Errorf("%s, %w", outcome, err)
		}
		return nil
	})
}

func edit(t *testing.T, monitors dynamic.ResourceInterface, name, patch string) {
	t.Helper()
	_, err := monitors.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(t, err)
}

func TestContains(t *testing.T) {
	object := func(text string) map[string]any {
		var m map[string]any
		must(t, yaml.Unmarshal([]byte(text), &m))
		return m
	}
	for _, tc := range []struct {
		name          string
		reason        string
		live, desired string
		want          bool
	}{
		{"Equal", "the same", "a: {b: [1, {c: x}]}", "a: {b: [1, {c: x}]}", true},
		{"Default", "the server may fill in", "a: {b: [{c: x, d: y}]}", "a: {b: [{c: x}]}", true},
		{"Other", "a value differs", "a: x", "a: y", false},
		{"Absent", "a field is missing", "{}", "a: y", false},
		{"Longer", "somebody added to a list that is ours", "a: [1, 2]", "a: [1]", false},
		{"Kind", "another kind of value", "a: [x]", "a: {x: y}", false},
		{"False", "false is a value", "{}", "a: false", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := contains(object(tc.live), object(tc.desired)); got != tc.want {
				t.Errorf("got %t, want %t: %s", got, tc.want, tc.reason)
			}
		})
	}
}
