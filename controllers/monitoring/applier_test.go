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
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	"github.com/sluice-dev/sluice/api/v1alpha1"
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
	monitors := dynamic.NewForConfigOrDie(server.Config).Resource(ServiceMonitors.GVR).Namespace("team-a")

	clk := testingclock.NewFakeClock(time.Now())
	config := ApplierConfig{Resources: []Resource{ServiceMonitors, PodMonitors}, Clock: clk, Log: testr.New(t)}
	applier, err := NewApplierForConfig(server.Config, config)
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
	all := func(context.Context) []reconcile.Request { return []reconcile.Request{service} }
	of := func(_ context.Context, object client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetLabels()[v1alpha1.LabelService]}}}
	}
	must(t, applier.Source(all, of).Start(ctx, q))
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
	desired := PoolMonitor(testPool(), Options{}).Object
	expect := func(what string, want Outcome) {
		t.Helper()
		got, err := applier.Apply(t.Context(), desired)
		if err != nil || got.Outcome != want {
			t.Errorf("%s: got %v, %v; want %s", what, got, err, want)
		}
	}
	version := func() string {
		t.Helper()
		live, err := monitors.Get(t.Context(), desired.GetName(), metav1.GetOptions{})
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
		if change, err := applier.Apply(t.Context(), desired); err != nil || change.Outcome != Applied {
			return fmt.Errorf("%v, %w", change, err)
		}
		return nil
	})
	live, err := monitors.Get(t.Context(), desired.GetName(), metav1.GetOptions{})
	must(t, err)
	object, _, err := encode(desired)
	must(t, err)
	if diff := cmp.Diff(object.Object["spec"].(map[string]any)["selector"], live.Object["spec"].(map[string]any)["selector"]); diff != "" {
		t.Errorf("selector (-want +got):\n%s", diff)
	}
	first := version()
	expect("again", Unchanged)

	restarted, err := NewApplierForConfig(server.Config, config)
	must(t, err)
	if change, err := restarted.Apply(t.Context(), desired); err != nil || change.Outcome != Unchanged {
		t.Errorf("after a restart: got %v, %v; want Unchanged", change, err)
	}
	if got := version(); got != first {
		t.Errorf("written although nothing changed: version %s, then %s", first, got)
	}

	// Somebody else's label stays, and nobody is told; somebody else's interval does not.
	edit(t, monitors, desired.GetName(), `{"metadata":{"labels":{"team":"x"}}}`)
	clk.Step(trustFor)
	expect("a label of others", Unchanged)
	edit(t, monitors, desired.GetName(), `{"spec":{"namespaceSelector":{"matchNames":["team-b"]}}}`)
	poll(t, told)
	change, err := applier.Apply(t.Context(), desired)
	if want := (Change{Restored, "spec.namespaceSelector.matchNames[0] was changed"}); err != nil || change != want {
		t.Errorf("edited: got %v, %v; want %v", change, err, want)
	}
	live, err = monitors.Get(t.Context(), desired.GetName(), metav1.GetOptions{})
	must(t, err)
	if names, _, _ := unstructured.NestedStringSlice(live.Object, "spec", "namespaceSelector", "matchNames"); cmp.Diff([]string{"team-a"}, names) != "" || live.GetLabels()["team"] != "x" {
		t.Errorf("after mending: namespaces %v, labels %v", names, live.GetLabels())
	}
	expect("mended", Unchanged)

	// Neither does a monitor go that is wanted, whether it is deleted, hidden from the operator or disowned.
	must(t, monitors.Delete(t.Context(), desired.GetName(), metav1.DeleteOptions{}))
	poll(t, told)
	change, err = applier.Apply(t.Context(), desired)
	if want := (Change{Restored, "it was deleted"}); err != nil || change != want {
		t.Errorf("deleted: got %v, %v; want %v", change, err, want)
	}
	edit(t, monitors, desired.GetName(), `{"metadata":{"labels":{"app.kubernetes.io/managed-by":null},"ownerReferences":null}}`)
	poll(t, told)
	change, err = applier.Apply(t.Context(), desired)
	if want := (Change{Restored, "metadata.labels.app.kubernetes.io/managed-by was changed"}); err != nil || change != want {
		t.Errorf("hidden: got %v, %v; want %v", change, err, want)
	}

	// The other kind takes over, and this one goes, once.
	owner := *metav1.GetControllerOf(desired)
	key := client.ObjectKeyFromObject(desired)
	for i, want := range []bool{true, false} {
		if removed, err := applier.Remove(t.Context(), ServiceMonitors, key, owner); err != nil || removed != want {
			t.Errorf("remove it, time %d: %t, %v; want %t", i+1, removed, err, want)
		}
	}
	if removed, err := applier.Remove(t.Context(), PodMonitors, key, owner); err != nil || removed {
		t.Errorf("remove what the cluster has no resource for: %t, %v", removed, err)
	}
	expect("wanted again", Applied)
	other := owner
	other.UID = "another"
	applier.Forget(key)
	if removed, err := applier.Remove(t.Context(), ServiceMonitors, key, other); err != nil || removed {
		t.Errorf("remove another's: %t, %v", removed, err)
	}
	applier.Forget(key)
	expect("it is still there", Unchanged)
	drain(q)

	desired = PoolMonitor(testPool(), Options{Interval: "30s"}).Object
	expect("another interval", Applied)
	applier.Forget(types.NamespacedName{Namespace: "team-a", Name: desired.GetName()})
	expect("forgotten and found", Unchanged)

	stranger := rest.CopyConfig(server.Config)
	stranger.Impersonate.UserName = "stranger"
	refused, err := NewApplierForConfig(stranger, config)
	must(t, err)
	if change, err := refused.Apply(t.Context(), desired); change.Outcome != Failed || err == nil || !strings.Contains(err.Error(), "apply ServiceMonitor team-a/chat-decode: ") {
		t.Errorf("without permission: got %v, %v", change, err)
	}

	must(t, crds.Delete(t.Context(), crd.Name, metav1.DeleteOptions{}))
	poll(t, told)
	expect("the resource is gone", CRDMissing)
	_, err = crds.Create(t.Context(), &crd, metav1.CreateOptions{})
	must(t, err)
	poll(t, told)
	poll(t, func() error {
		if change, err := applier.Apply(t.Context(), desired); err != nil || change.Outcome != Applied {
			return fmt.Errorf("%v, %w", change, err)
		}
		return nil
	})
}

func edit(t *testing.T, monitors dynamic.ResourceInterface, name, patch string) {
	t.Helper()
	_, err := monitors.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(t, err)
}

// drain empties the queue of what the test did itself.
func drain(q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	for q.Len() > 0 {
		request, _ := q.Get()
		q.Done(request)
	}
}

func TestDiffers(t *testing.T) {
	object := func(text string) map[string]any {
		var m map[string]any
		must(t, yaml.Unmarshal([]byte(text), &m))
		return m
	}
	for _, tc := range []struct {
		name          string
		reason        string
		live, desired string
		want          string
	}{
		{"Equal", "the same", "a: {b: [1, {c: x}]}", "a: {b: [1, {c: x}]}", ""},
		{"Default", "the server may fill in", "a: {b: [{c: x, d: y}]}", "a: {b: [{c: x}]}", ""},
		{"Other", "a value differs", "a: x", "a: y", "a"},
		{"Inner", "the first by name", "a: {b: [{c: x}], d: 2}", "a: {b: [{c: y}], d: 1}", "a.b[0].c"},
		{"Absent", "a field is missing", "{}", "a: y", "a"},
		{"Longer", "somebody added to a list that is ours", "a: [1, 2]", "a: [1]", "a"},
		{"Kind", "another kind of value", "a: [x]", "a: {x: y}", "a"},
		{"False", "false is a value", "{}", "a: false", "a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := differs(object(tc.live), object(tc.desired), ""); got != tc.want {
				t.Errorf("got %q, want %q: %s", got, tc.want, tc.reason)
			}
		})
	}
}
