package plugin_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/engine/loads"
	"github.com/sluice-dev/sluice/plugin"
	"github.com/sluice-dev/sluice/plugin/cluster"
)

// chat makes a service of a pair in the middle of things: a replica of decode is of an older revision, one does not answer.
func chat(t *testing.T, namespace string) (*world, *v1alpha1.InferenceService, map[string]*v1alpha1.EnginePool) {
	t.Helper()
	w := newWorld(t, namespace)
	service := w.service(pair, v1alpha1.InferenceServiceStatus{
		URL: "http://chat-router." + namespace + ".svc:8000",
		Conditions: []metav1.Condition{
			condition(v1alpha1.ConditionMetricsFlowing, metav1.ConditionFalse, "RanksMissing", "no sample of chat-decode-1-0", 90*time.Second),
			condition(v1alpha1.ConditionReady, metav1.ConditionTrue, "Serving", "", 3*time.Hour),
			condition("Something", metav1.ConditionTrue, "New", "of a later release", 72*time.Hour),
		},
	})
	pools := w.pools(service, map[string]v1alpha1.EnginePoolStatus{
		"prefill": {Revision: "aaaa", ReplicaCounts: v1alpha1.ReplicaCounts{Replicas: 1, ReadyReplicas: 1, UpdatedReplicas: 1, Allocated: 1}},
		"decode":  {Revision: "bbbb", ReplicaCounts: v1alpha1.ReplicaCounts{Replicas: 2, ReadyReplicas: 2, UpdatedReplicas: 1, Allocated: 2}},
	})
	w.engine(pools["prefill"], 0, "aaaa", tells(t, loads.Load{
		NumRunningReqs: 1, NumWaitingReqs: 4, NumUsedTokens: 120, MaxTotalNumTokens: 1000, TokenUsage: 0.12, Utilization: -1, GenThroughput: 0, CacheHitRate: 0.5,
		Queues: &loads.Queues{Waiting: 1}, Disaggregation: &loads.Disaggregation{Mode: "prefill", PrefillBootstrapQueueReqs: 3},
	}))
	w.engine(pools["decode"], 0, "aaaa", tells(t,
		loads.Load{DPRank: 0, NumRunningReqs: 6, NumWaitingReqs: 2, NumUsedTokens: 500, MaxTotalNumTokens: 1000, TokenUsage: 0.5, Utilization: 0.6, GenThroughput: 181.25, CacheHitRate: 0,
			Queues: &loads.Queues{}, Disaggregation: &loads.Disaggregation{Mode: "decode", DecodeTransferQueueReqs: 2}},
		loads.Load{DPRank: 1, NumRunningReqs: 2, NumUsedTokens: 300, MaxTotalNumTokens: 1000, TokenUsage: 0.3, Utilization: 0.2, GenThroughput: 60.5, Queues: &loads.Queues{}},
	))
	w.engine(pools["decode"], 1, "bbbb", nil)
	w.router(service, nil)
	return w, service, pools
}

func TestStatus(t *testing.T) {
	w, _, _ := chat(t, "status")
	for _, tc := range []struct {
		file string
		form plugin.Output
		run  func(context.Context, *plugin.Plugin) error
	}{
		{"status.txt", plugin.Text, func(ctx context.Context, p *plugin.Plugin) error { return p.Status(ctx, "chat") }},
		{"status-wide.txt", plugin.Wide, func(ctx context.Context, p *plugin.Plugin) error { return p.Status(ctx, "") }},
		{"status.json", plugin.JSON, func(ctx context.Context, p *plugin.Plugin) error { return p.Status(ctx, "chat") }},
		{"ranks.txt", plugin.Text, func(ctx context.Context, p *plugin.Plugin) error { return p.Ranks(ctx, "chat") }},
		{"ranks-wide.txt", plugin.Wide, func(ctx context.Context, p *plugin.Plugin) error { return p.Ranks(ctx, "chat") }},
		{"ranks.json", plugin.JSON, func(ctx context.Context, p *plugin.Plugin) error { return p.Ranks(ctx, "chat") }},
		{"top.txt", plugin.Text, func(ctx context.Context, p *plugin.Plugin) error {
			return p.Top(ctx, "", plugin.TopOptions{Once: true, Interval: time.Second, Sort: "tokens"})
		}},
		{"top-by-rank.txt", plugin.Text, func(ctx context.Context, p *plugin.Plugin) error {
			return p.Top(ctx, "chat", plugin.TopOptions{Once: true, Interval: time.Second, Sort: "waiting", ByRank: true})
		}},
	} {
		t.Run(tc.file, func(t *testing.T) {
			p, out, _ := w.plugin("", tc.form)
			if err := tc.run(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			golden(t, tc.file, out.String())
		})
	}
}

// TestErrors: one line, and what to do.
func TestErrors(t *testing.T) {
	w := newWorld(t, "errors")
	for _, tc := range []struct {
		name, user string
		run        func(context.Context, *plugin.Plugin) error
		want       []string
	}{
		{"no service", "", func(ctx context.Context, p *plugin.Plugin) error { return p.Status(ctx, "gone") },
			[]string{"no such InferenceService as gone in namespace errors", "kubectl sluice status -A"}},
		{"forbidden", "mallory", func(ctx context.Context, p *plugin.Plugin) error { return p.Status(ctx, "") },
			[]string{"list InferenceServices: forbidden", "mallory", "ask for the right in namespace errors"}},
		{"a name and all", "", func(ctx context.Context, p *plugin.Plugin) error {
			p.AllNamespaces = true
			return p.Status(ctx, "chat")
		},
			[]string{"leave one out"}},
		{"a wrong key", "", func(ctx context.Context, p *plugin.Plugin) error {
			return p.Top(ctx, "", plugin.TopOptions{Sort: "colour", Interval: time.Second})
		}, []string{"--sort colour", "name, running"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, out, _ := w.plugin(tc.user, plugin.Text)
			err := tc.run(t.Context(), p)
			if err == nil {
				t.Fatalf("no error, but %s", out)
			}
			for _, part := range tc.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q has several lines", err)
			}
		})
	}
	p, _, _ := w.plugin("", plugin.Text)
	if err := p.Status(t.Context(), "gone"); !cluster.IsNoService(err) {
		t.Errorf("%v is not told from other errors", err)
	}
}

// TestTopEnds: Ctrl-C ends it while an engine does not answer.
func TestTopEnds(t *testing.T) {
	w, _, _ := chat(t, "top")
	hold := make(chan struct{})
	kubelet.mu.Lock()
	kubelet.hold = hold
	kubelet.mu.Unlock()
	defer func() {
		kubelet.mu.Lock()
		kubelet.hold = nil
		kubelet.mu.Unlock()
		close(hold)
	}()
	ctx, cancel := context.WithCancel(t.Context())
	p, _, _ := w.plugin("", plugin.Text)
	done := make(chan error, 1)
	go func() { done <- p.Top(ctx, "chat", plugin.TopOptions{Interval: time.Second, Sort: "name"}) }()
	for deadline := time.Now().Add(time.Minute); ; {
		kubelet.mu.Lock()
		asked := kubelet.now > 0
		kubelet.mu.Unlock()
		if asked {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no engine was asked")
		}
	}
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("it does not end")
	}
}
