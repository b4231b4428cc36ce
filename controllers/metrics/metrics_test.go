package metrics

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/owned"
	"github.com/sluice-dev/sluice/controllers/plan"
)

var rewrite = flag.Bool("rewrite", false, "write testdata anew")

// condition is one as a status has it.
func condition(kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: "whatever"}
}

// cluster holds a service of another tenant with two pools, and one without a pool.
func cluster(t *testing.T, funcs interceptor.Funcs) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	chat := &v1alpha1.InferenceService{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "chat"}, Spec: v1alpha1.InferenceServiceSpec{Tenant: "acme"}}
	chat.Status.Conditions = []metav1.Condition{
		condition(v1alpha1.ConditionReady, metav1.ConditionFalse, "PoolNotReady"), condition(v1alpha1.ConditionMetricsFlowing, metav1.ConditionUnknown, "NoSamplesYet"),
	}
	solo := &v1alpha1.InferenceService{ObjectMeta: metav1.ObjectMeta{Namespace: "team-b", Name: "solo"}}
	solo.Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionReady, metav1.ConditionTrue, "Serving")}
	decode := &v1alpha1.EnginePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "chat-decode"},
		Spec:       v1alpha1.EnginePoolSpec{Service: "chat", Pool: "decode", Role: v1alpha1.RoleDecode, Tenant: "acme", Replicas: new(int32(7))},
	}
	decode.Status.ReplicaCounts = v1alpha1.ReplicaCounts{Allocated: 6, Replicas: 5, ReadyReplicas: 4, UpdatedReplicas: 3, DrainingReplicas: 2}
	decode.Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionMetricsFlowing, metav1.ConditionFalse, "PolicyBlocks")}
	prefill := &v1alpha1.EnginePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "chat-prefill"},
		Spec:       v1alpha1.EnginePoolSpec{Service: "chat", Pool: "prefill", Role: v1alpha1.RolePrefill},
	}
	going := &v1alpha1.InferenceService{ObjectMeta: metav1.ObjectMeta{Namespace: "team-b", Name: "going", Finalizers: []string{"test/wait"}}}
	going.Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionReady, metav1.ConditionFalse, "PoolNotReady")}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(chat, solo, decode, prefill, going).WithInterceptorFuncs(funcs).Build()
	if err := c.Delete(t.Context(), going); err != nil {
		t.Fatal(err)
	}
	return c
}

// elected is the channel of an operator that leads.
func elected() <-chan struct{} {
	leads := make(chan struct{})
	close(leads)
	return leads
}

// silent takes events and forgets them.
type silent struct{ events.EventRecorder }

func (silent) Eventf(_, _ runtime.Object, _, _, _, _ string, _ ...any) {}

// full gives a registry in which every family of this package has a value of its own.
func full(t *testing.T) (*prometheus.Registry, client.Client) {
	t.Helper()
	registry := prometheus.NewRegistry()
	m, err := New(registry)
	if err != nil {
		t.Fatal(err)
	}
	c := cluster(t, interceptor.Funcs{})
	if err := RegisterObjects(registry, ObjectsConfig{Reader: c, Elected: elected(), Log: testr.New(t)}); err != nil {
		t.Fatal(err)
	}
	for i, action := range possible() {
		for range i + 1 {
			m.Acted(action, nil)
		}
	}
	m.Acted(plan.Action{Kind: plan.CreateReplica, Cause: plan.CauseScaleOut}, errors.New("quota"))
	for range 20 {
		m.Kept(false)
	}
	for range 21 {
		m.Kept(true)
	}
	m.Scaled(v1alpha1.ScalingDecision{By: v1alpha1.ActorOther, To: 1}, true)
	for range 2 {
		m.Scaled(v1alpha1.ScalingDecision{By: v1alpha1.ActorHPA, From: 1, To: 3}, false)
	}
	for range 3 {
		m.Scaled(v1alpha1.ScalingDecision{By: v1alpha1.ActorIdle, From: 1, To: 0}, false)
	}
	hear := HearOwned(m.Changed)
	hear("Deployment", owned.Created, nil)
	for range 2 {
		hear("Deployment", owned.Updated, nil)
	}
	for range 3 {
		hear("Deployment", owned.Unchanged, nil)
	}
	for range 4 {
		hear("Deployment", owned.Unchanged, errors.New("refused"))
	}
	for range 5 {
		hear("HorizontalPodAutoscaler", owned.Deleted, nil)
	}
	m.Changed("ServiceMonitor", Restored)
	record := m.Recorder(silent{})
	record.Eventf(nil, nil, corev1.EventTypeWarning, "TargetDown", "Observe", "%s", "x")
	for range 2 {
		record.Eventf(nil, nil, corev1.EventTypeNormal, "Serving", "Observe", "%s", "x")
	}
	return registry, c
}

// TestExposition compares all that this package exports, whole. go test -rewrite writes it anew.
func TestExposition(t *testing.T) {
	registry, _ := full(t)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&got, f); err != nil {
			t.Fatal(err)
		}
	}
	const file = "testdata/exposition.txt"
	if *rewrite {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	problems, err := testutil.GatherAndLint(registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestDeletedObjects: a condition that changes, and an object that goes, leave no series behind.
func TestDeletedObjects(t *testing.T) {
	registry, c := full(t)
	series := func() (all []string) {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() != Condition.Name && f.GetName() != PoolReplicas.Name {
				continue
			}
			for _, m := range f.GetMetric() {
				labels := map[string]string{}
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = l.GetValue()
				}
				if f.GetName() == Condition.Name {
					all = append(all, fmt.Sprint(labels["kind"], " ", labels["name"], " ", labels["type"], "=", labels["status"]))
				} else if labels["state"] == stateReady {
					all = append(all, "replicas "+labels["pool"])
				}
			}
		}
		slices.Sort(all)
		return all
	}
	want := []string{
		"EnginePool chat-decode MetricsFlowing=False", "InferenceService chat MetricsFlowing=Unknown", "InferenceService chat Ready=False",
		"InferenceService solo Ready=True", "replicas decode", "replicas prefill",
	}
	if diff := cmp.Diff(want, series()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	chat := &v1alpha1.InferenceService{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "team-a", Name: "chat"}, chat); err != nil {
		t.Fatal(err)
	}
	chat.Status.Conditions[0] = condition(v1alpha1.ConditionReady, metav1.ConditionTrue, "Serving")
	if err := c.Update(t.Context(), chat); err != nil {
		t.Fatal(err)
	}
	for _, object := range []client.Object{
		&v1alpha1.InferenceService{ObjectMeta: metav1.ObjectMeta{Namespace: "team-b", Name: "solo"}},
		&v1alpha1.EnginePool{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "chat-decode"}},
	} {
		if err := c.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	want = []string{"InferenceService chat MetricsFlowing=Unknown", "InferenceService chat Ready=True", "replicas prefill"}
	if diff := cmp.Diff(want, series()); diff != "" {
		t.Errorf("after the change (-want +got):\n%s", diff)
	}
}

// TestObjectsUnread: an operator that does not lead, or cannot read, tells nothing of objects, and its scrape succeeds.
func TestObjectsUnread(t *testing.T) {
	refuse := interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
		return errors.New("not yet")
	}}
	for name, config := range map[string]ObjectsConfig{
		"follower":   {Reader: cluster(t, interceptor.Funcs{}), Elected: make(chan struct{})},
		"unreadable": {Reader: cluster(t, refuse), Elected: elected()},
	} {
		t.Run(name, func(t *testing.T) {
			config.Log = testr.New(t)
			registry := prometheus.NewRegistry()
			if err := RegisterObjects(registry, config); err != nil {
				t.Fatal(err)
			}
			if families, err := registry.Gather(); err != nil || len(families) > 0 {
				t.Errorf("%d families, %v", len(families), err)
			}
		})
	}
}

// TestTable: every row is whole, and the table has every name once.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range slices.Concat(Families(), Borrowed()) {
		switch {
		case seen[f.Name]:
			t.Errorf("%s is there twice", f.Name)
		case f.Help == "" || f.Bound == "" || !strings.HasSuffix(f.Help, "."):
			t.Errorf("%s: help %q, bound %q", f.Name, f.Help, f.Bound)
		case f.Kind == Counter != strings.HasSuffix(f.Name, "_total"):
			t.Errorf("%s is a %s", f.Name, f.Kind)
		}
		seen[f.Name] = true
	}
	for _, f := range Families() {
		if !strings.HasPrefix(f.Name, "sluice_operator_") && f.Name != Condition.Name && f.Name != PoolReplicas.Name || (f.Kind == Histogram) != (f.Buckets != nil) {
			t.Errorf("%s is a %s with buckets %v", f.Name, f.Kind, f.Buckets)
		}
	}
}

// TestTwice: a second operator in one registry is refused.
func TestTwice(t *testing.T) {
	registry, c := full(t)
	if _, err := New(registry); err == nil {
		t.Error("the counters are registered twice")
	}
	if err := RegisterObjects(registry, ObjectsConfig{Reader: c, Elected: elected()}); err == nil {
		t.Error("the objects are registered twice")
	}
}

// BenchmarkScrape scrapes an operator of 1,000 services with two pools each and 10 and 7 conditions.
func BenchmarkScrape(b *testing.B) {
	var services v1alpha1.InferenceServiceList
	var pools v1alpha1.EnginePoolList
	for i := range 1000 {
		s := v1alpha1.InferenceService{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: fmt.Sprint("chat-", i)}}
		for n := range 10 {
			s.Status.Conditions = append(s.Status.Conditions, condition(fmt.Sprint("Type", n), metav1.ConditionTrue, "Fine"))
		}
		services.Items = append(services.Items, s)
		for _, pool := range []string{"prefill", "decode"} {
			p := v1alpha1.EnginePool{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: s.Name + "-" + pool}, Spec: v1alpha1.EnginePoolSpec{Service: s.Name, Pool: pool}}
			p.Status.Conditions = s.Status.Conditions[:7]
			pools.Items = append(pools.Items, p)
		}
	}
	registry := prometheus.NewRegistry()
	if err := RegisterObjects(registry, ObjectsConfig{Reader: lists{services, pools}, Elected: elected()}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := registry.Gather(); err != nil {
			b.Fatal(err)
		}
	}
}

// lists is a cache that holds these.
type lists struct {
	services v1alpha1.InferenceServiceList
	pools    v1alpha1.EnginePoolList
}

func (l lists) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("nobody gets one")
}

func (l lists) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	switch into := into.(type) {
	case *v1alpha1.InferenceServiceList:
		*into = l.services
	case *v1alpha1.EnginePoolList:
		*into = l.pools
	}
	return nil
}
