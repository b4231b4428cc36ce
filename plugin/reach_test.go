package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/engine/loads"
	"github.com/sluice-dev/sluice/plugin"
	"github.com/sluice-dev/sluice/plugin/reach"
)

// TestKey: the header of an engine with a key arrives, and one that has none is told what to give.
func TestKey(t *testing.T) {
	w := newWorld(t, "key")
	service := w.service(uni, v1alpha1.InferenceServiceStatus{})
	pools := w.pools(service, nil)
	loads := tells(t, loads.Load{NumRunningReqs: 3})
	w.engine(pools["main"], 0, "a", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer s3cret" {
			http.Error(rw, "no", http.StatusUnauthorized)
			return
		}
		loads.ServeHTTP(rw, r)
	}))
	for _, tc := range []struct{ key, want string }{{"s3cret", "running 3"}, {"", "the engine wants a key: give --api-key-file"}, {"wrong", "the engine wants a key"}} {
		p, out, _ := w.plugin("", plugin.Text)
		var err error
		if p.Pods, err = reach.New(p.Cluster.Config, tc.key, reach.DefaultLimits()); err != nil {
			t.Fatal(err)
		}
		if err := p.Status(t.Context(), "uni"); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), tc.want) {
			t.Errorf("with the key %q %q is not in\n%s", tc.key, tc.want, out)
		}
	}
}

// TestTunnelsAreBounded: many engines are asked through a few tunnels at once, and all answer.
func TestTunnelsAreBounded(t *testing.T) {
	w := newWorld(t, "many")
	service := w.service(uni, v1alpha1.InferenceServiceStatus{})
	pools := w.pools(service, nil)
	for i := range int32(12) {
		w.engine(pools["main"], i, "a", tells(t, loads.Load{NumRunningReqs: 1}))
	}
	kubelet.mu.Lock()
	kubelet.most = kubelet.now
	kubelet.mu.Unlock()
	limits := reach.DefaultLimits()
	limits.Tunnels = 2
	p, out, _ := w.plugin("", plugin.Text)
	var err error
	if p.Pods, err = reach.New(p.Cluster.Config, "", limits); err != nil {
		t.Fatal(err)
	}
	if err := p.Top(t.Context(), "uni", plugin.TopOptions{Once: true, Interval: time.Second, Sort: "name"}); err != nil {
		t.Fatal(err)
	}
	if !containsFields(out.String(), "12 0 0.00") {
		t.Errorf("not all answered:\n%s", out)
	}
	kubelet.mu.Lock()
	defer kubelet.mu.Unlock()
	// One that is closed may still be counted while the next is open.
	if kubelet.most > 2*limits.Tunnels {
		t.Errorf("%d tunnels at once, want %d", kubelet.most, limits.Tunnels)
	}
}

// TestSilentPod: a pod that does not answer costs its time-out and no more.
func TestSilentPod(t *testing.T) {
	w := newWorld(t, "silent")
	service := w.service(uni, v1alpha1.InferenceServiceStatus{})
	pools := w.pools(service, nil)
	w.engine(pools["main"], 0, "a", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	limits := reach.DefaultLimits()
	limits.Timeout = 300 * time.Millisecond
	p, out, _ := w.plugin("", plugin.Text)
	var err error
	if p.Pods, err = reach.New(p.Cluster.Config, "", limits); err != nil {
		t.Fatal(err)
	}
	if err := p.Status(t.Context(), "uni"); err != nil {
		t.Fatal(err)
	}
	if want := "no answer within 300ms"; !strings.Contains(out.String(), want) {
		t.Errorf("%q is not in\n%s", want, out)
	}
}

// TestViewer: who may look at objects and not reach pods sees the objects, and what is missing.
func TestViewer(t *testing.T) {
	w, _, pools := chat(t, "viewer")
	sampled := metav1.NewTime(now.Add(-12 * time.Second))
	for name, load := range map[string]*v1alpha1.PoolLoad{
		"prefill": {TokenUsage: &v1alpha1.Spread{Min: "0.12", Mean: "0.12", Max: "0.12"}, RunningRequests: 1, WaitingRequests: 1, PrefillBootstrapQueue: new(int64(3)), GenThroughput: "0.00", Ranks: 1, ExpectedRanks: 1, SampleTime: &sampled},
		"decode":  {Utilization: &v1alpha1.Spread{Min: "0.20", Mean: "0.40", Max: "0.60"}, RunningRequests: 8, DecodeTransferQueue: new(int64(2)), GenThroughput: "241.75", Ranks: 2, ExpectedRanks: 3},
	} {
		pools[name].Status.Load = load
		w.writeStatus(pools[name])
	}
	w.create(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "viewer", Name: "viewer"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"*"}, Verbs: []string{"get", "list"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list"}},
	}})
	w.create(&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "viewer", Name: "viewer"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "viewer"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "vera"}}})
	p, out, _ := w.plugin("vera", plugin.Text)
	if err := p.Status(t.Context(), "chat"); err != nil {
		t.Fatal(err)
	}
	golden(t, "status-viewer.txt", out.String())
	p, out, _ = w.plugin("vera", plugin.Text)
	if err := p.Top(t.Context(), "chat", plugin.TopOptions{Once: true, Interval: time.Second, Sort: "running"}); err != nil {
		t.Fatal(err)
	}
	if !containsFields(out.String(), "chat decode Decode 2/2 8 2 - 0.40 242 - 0") {
		t.Errorf("top does not show the load of the status:\n%s", out)
	}

	// Who may not even list pods sees how many replicas there are.
	w.create(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "viewer", Name: "narrow"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"*"}, Verbs: []string{"get", "list"}},
	}})
	w.create(&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "viewer", Name: "narrow"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "narrow"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "nora"}}})
	p, out, _ = w.plugin("nora", plugin.Text)
	if err := p.Status(t.Context(), "chat"); err != nil {
		t.Fatal(err)
	}
	golden(t, "status-narrow.txt", out.String())
	for name, run := range map[string]func(context.Context, *plugin.Plugin) error{
		"diagnose": func(ctx context.Context, p *plugin.Plugin) error {
			return p.Diagnose(ctx, "chat", plugin.DiagnoseOptions{Interval: time.Second, Polls: 1})
		},
		"pause": func(ctx context.Context, p *plugin.Plugin) error { return p.RolloutPause(ctx, "chat", true) },
		"logs":  func(ctx context.Context, p *plugin.Plugin) error { return p.Logs(ctx, "chat", "", plugin.LogOptions{}) },
		"trace": func(ctx context.Context, p *plugin.Plugin) error { return p.Trace(ctx, "r", "chat") },
	} {
		p, out, _ := w.plugin("vera", plugin.Text)
		text := ""
		if err := run(t.Context(), p); err != nil {
			text = err.Error()
		}
		if text += out.String(); !strings.Contains(text, "forbidden") && !strings.Contains(text, "you may not create pods/portforward") {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// TestRollout: what is paused, resumed and undone is written to the service.
func TestRollout(t *testing.T) {
	w, service, _ := chat(t, "rollout")
	run := func(f func(*plugin.Plugin) error) string {
		t.Helper()
		p, out, _ := w.plugin("", plugin.Text)
		if err := f(p); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	pause := func(paused bool) func(*plugin.Plugin) error {
		return func(p *plugin.Plugin) error { return p.RolloutPause(t.Context(), "chat", paused) }
	}
	for _, tc := range []struct {
		paused bool
		want   string
	}{{true, "chat: roll-outs are paused\n"}, {true, "chat: roll-outs are paused already\n"}, {false, "chat: roll-outs go on\n"}} {
		if got := run(pause(tc.paused)); got != tc.want {
			t.Errorf("it says %q, want %q", got, tc.want)
		}
	}
	service.ResourceVersion = ""
	if err := w.api.Get(t.Context(), keyOf(service), service); err != nil {
		t.Fatal(err)
	}
	service.Spec.Engine.Image = "engine:bad"
	if err := w.api.Update(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	if got, want := run(func(p *plugin.Plugin) error { return p.RolloutUndo(t.Context(), "chat", 0) }), "chat: the changes that the pools have not taken over are dropped\n"; got != want {
		t.Errorf("undo says %q, want %q", got, want)
	}
	if err := w.api.Get(t.Context(), keyOf(service), service); err != nil || service.Spec.Engine.Image != "" {
		t.Errorf("the image is %q, %v", service.Spec.Engine.Image, err)
	}
	if got := run(func(p *plugin.Plugin) error { return p.RolloutHistory(t.Context(), "chat") }); !strings.Contains(got, "chat was not changed") {
		t.Errorf("history: %s", got)
	}
	p, _, _ := w.plugin("", plugin.Text)
	if err := p.RolloutUndo(t.Context(), "chat", 0); err == nil || !strings.Contains(err.Error(), "nothing to go back to") {
		t.Errorf("nothing to undo: %v", err)
	}
	if got := run(func(p *plugin.Plugin) error { return p.RolloutStatus(t.Context(), "chat", plugin.RolloutOptions{}) }); !strings.Contains(got, "the roll-out of chat is under way") || !containsFields(got, "decode bbbb 1 2 2 0") {
		t.Errorf("status: %s", got)
	}
	p, _, _ = w.plugin("", plugin.Text)
	at := now
	p.Now = func() time.Time { at = at.Add(time.Second); return at }
	if err := p.RolloutStatus(t.Context(), "chat", plugin.RolloutOptions{Wait: true, Timeout: 5 * time.Second, Interval: time.Second}); err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "is not done after 5s") {
		t.Errorf("it waits: %v", err)
	}
	if got := run(func(p *plugin.Plugin) error { return p.ScaleExplain(t.Context(), "chat", "decode") }); !strings.Contains(got, "autoscaling between 1 and 4 by MetricsAPI; its HorizontalPodAutoscaler is not there") {
		t.Errorf("scale explain: %s", got)
	}
	names, err := p.PoolNames(t.Context(), "chat")
	if err != nil || fmt.Sprint(names) != "[prefill decode]" {
		t.Errorf("pools for completion: %v, %v", names, err)
	}
}
