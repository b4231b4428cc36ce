package dashboards

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/owned"
	"github.com/sluice-dev/sluice/hack/devcluster/apiserver"
)

// TestApplier follows a set on a real API server: made by two services at once, left alone, edited, deleted, handed from owner
// to owner, found by another operator, in the way of somebody else's object, and removed.
func TestApplier(t *testing.T) {
	server, err := apiserver.Start(t.Context(), apiserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	plain, err := client.NewWithWatch(server.Config, client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	reads, writes := 0, 0
	count := func(n *int) {
		mu.Lock()
		defer mu.Unlock()
		*n++
	}
	api := interceptor.NewClient(plain, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, more ...client.CreateOption) error {
			count(&writes)
			return c.Create(ctx, o, more...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, more ...client.UpdateOption) error {
			count(&writes)
			return c.Update(ctx, o, more...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, more ...client.DeleteOption) error {
			count(&writes)
			return c.Delete(ctx, o, more...)
		},
	})
	live := interceptor.NewClient(plain, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, more ...client.GetOption) error {
			count(&reads)
			return c.Get(ctx, key, o, more...)
		},
	})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(plain.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}}))
	applier := &Applier{Client: api, Live: live, Options: DefaultOptions()}
	set := NewSet("team-a", "acme", []v1alpha1.InferenceService{service("a", "acme", 0), service("b", "acme", 1)})
	const count7 = 7
	// apply expects the changes and the number of writes and reads of the API server.
	apply := func(what string, a *Applier, s Set, want []Change, wantWrites, wantReads int) {
		t.Helper()
		reads, writes = 0, 0
		anchor, changes, err := a.Apply(t.Context(), s)
		must(err)
		if diff := cmp.Diff(want, changes); diff != "" {
			t.Errorf("%s: changes (-want +got):\n%s", what, diff)
		}
		if writes != wantWrites || reads != wantReads {
			t.Errorf("%s: %d writes and %d reads, want %d and %d", what, writes, reads, wantWrites, wantReads)
		}
		if (anchor == nil) != (len(s.Owners) == 0) {
			t.Errorf("%s: anchor %v", what, anchor)
		}
	}
	get := func(name string) *corev1.ConfigMap {
		t.Helper()
		object := &corev1.ConfigMap{}
		must(plain.Get(t.Context(), types.NamespacedName{Namespace: "team-a", Name: name}, object))
		return object
	}
	const anchorOf, overview = "sluice-dashboards-acme", "sluice-dashboard-acme-overview"
	const file = "team-a." + overview + ".json"

	// Two services of the tenant come at once.
	var wg sync.WaitGroup
	var all [2][]Change
	var faults [2]error
	for i := range all {
		wg.Go(func() { _, all[i], faults[i] = applier.Apply(t.Context(), set) })
	}
	wg.Wait()
	must(errors.Join(faults[:]...))
	if n := len(all[0]) + len(all[1]); n != count7 || writes != count7 {
		t.Errorf("two services at once: %d changes, %d writes, want %d", n, writes, count7)
	}
	if diff := cmp.Diff(set.Owners, get(anchorOf).OwnerReferences); diff != "" {
		t.Errorf("owners of the anchor (-want +got):\n%s", diff)
	}
	if controller := metav1.GetControllerOf(get(overview)); controller == nil || controller.UID != get(anchorOf).UID {
		t.Errorf("the dashboard belongs to %v", controller)
	}

	apply("idle", applier, set, nil, 0, 0)

	edited := get(overview)
	edited.Data[file] = "{}"
	edited.Annotations["note"] = "mine"
	must(plain.Update(t.Context(), edited))
	apply("edited", applier, set, []Change{{Name: overview, Restored: true}}, 1, count7)
	if restored := get(overview); len(restored.Data[file]) < 1000 || restored.Annotations["note"] != "mine" {
		t.Errorf("restored: %d bytes, annotations %v", len(restored.Data[file]), restored.Annotations)
	}

	must(plain.Delete(t.Context(), get(overview)))
	apply("deleted", applier, set, []Change{{Name: overview, Restored: true}}, 1, count7)

	// Another operator finds all as it should be, and what was edited meanwhile.
	second := &Applier{Client: api, Live: live, Options: DefaultOptions()}
	apply("found by another operator", second, set, nil, 0, count7)
	edited = get(overview)
	edited.Labels["grafana_dashboard"] = "0"
	must(plain.Update(t.Context(), edited))
	third := &Applier{Client: api, Live: live, Options: DefaultOptions()}
	apply("edited between two operators", third, set, []Change{{Name: overview, Restored: true}}, 1, count7)
	applier = third

	// b alone is left.
	heir := NewSet("team-a", "acme", []v1alpha1.InferenceService{service("b", "acme", 1)})
	apply("an owner goes", applier, heir, []Change{{Name: anchorOf}}, 1, count7)
	if diff := cmp.Diff([]metav1.OwnerReference{owner("b")}, get(anchorOf).OwnerReferences); diff != "" {
		t.Errorf("owners of the anchor (-want +got):\n%s", diff)
	}

	// b belongs to somebody else now.
	tenants, err := applier.Foreign(t.Context(), "team-a", "other", "uid-b")
	must(err)
	if diff := cmp.Diff([]string{"acme"}, tenants); diff != "" {
		t.Errorf("foreign sets (-want +got):\n%s", diff)
	}
	if tenants, err := applier.Foreign(t.Context(), "team-a", "acme", "uid-b"); err != nil || len(tenants) > 0 {
		t.Errorf("foreign sets of its own tenant: %v, %v", tenants, err)
	}

	// The other tenant's dashboard has a name that is taken.
	taken := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "sluice-dashboard-other-ranks", Namespace: "team-a"}, Data: map[string]string{"mine": "yes"}}
	must(plain.Create(t.Context(), taken))
	other := NewSet("team-a", "other", []v1alpha1.InferenceService{service("b", "other", 1)})
	_, changes, err := applier.Apply(t.Context(), other)
	var notOwned *owned.NotOwnedError
	if !errors.As(err, &notOwned) || notOwned.Name != "team-a/sluice-dashboard-other-ranks" || len(changes) != count7-1 {
		t.Errorf("name taken: %d changes, %v", len(changes), err)
	}
	if got := get(taken.Name); got.Data["mine"] != "yes" {
		t.Errorf("the other's object is now %v", got.Data)
	}
	must(plain.Delete(t.Context(), taken))
	apply("name free", applier, other, []Change{{Name: taken.Name}}, 1, count7)

	// Nobody wants acme's any more.
	want := []Change{}
	for _, name := range slices.Backward(set.names()) {
		want = append(want, Change{Name: name, Removed: true})
	}
	apply("nobody is left", applier, NewSet("team-a", "acme", nil), want, count7, 0)
	apply("nobody is left, again", applier, NewSet("team-a", "acme", nil), nil, 0, 0)
	var rest corev1.ConfigMapList
	must(plain.List(t.Context(), &rest, client.InNamespace("team-a"), client.MatchingLabels{v1alpha1.LabelComponent: v1alpha1.ComponentDashboards}))
	for _, object := range rest.Items {
		if object.Labels[v1alpha1.LabelTenant] != "other" {
			t.Errorf("%s is left", object.Name)
		}
	}
	if len(rest.Items) != count7 {
		t.Error(fmt.Sprint(len(rest.Items), " objects of the other tenant"))
	}
}
