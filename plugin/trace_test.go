package plugin_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/engine/loads"
	"github.com/sluice-dev/sluice/plugin"
)

// wall is the beginning of the request in these tests, Unix nanoseconds.
const wall = 1796040000_000000000

func timeline(form string, start int64, visits ...any) string {
	var list []string
	at := int64(0)
	for i := 0; i < len(visits); i += 2 {
		nanos := int64(visits[i+1].(int))
		list = append(list, fmt.Sprintf(`{"stage": %q, "start": %d, "nanos": %d}`, visits[i], at, nanos))
		at += nanos
	}
	return fmt.Sprintf(`{"form": %q, "stage": "done", "start_wall_nanos": %d, "nanos": %d, "visits": [%s], "visits_not_listed": 0, "stages": [], "laps": [{"stage": "decode_loop", "count": 4, "nanos": 2000000}]}`,
		form, start, at, strings.Join(list, ", "))
}

func record(rid, room, api, rank string) string {
	return fmt.Sprintf(`{"rid": %q, "in_flight": false, "stage": "done", "outcome": "length", "received_wall_nanos": %d, "dp_rank": 1, "bootstrap_room": %s,
"prompt_tokens": 27, "cached_tokens": 24, "computed_tokens": 3, "completion_tokens": 5, "e2e_nanos": 9000000, "ttft_nanos": 4000000, "api_server": %s, "scheduler": %s}`, rid, wall+1000000, room, api, rank)
}

const routed = `{"rid": "r-1", "route": "/generate", "in_flight": false, "stage": "done", "status": 200, "outcome": "ok", "received": "2026-11-30T12:00:00Z", "received_wall_nanos": 1796040000000000000, "nanos": 12000000,
"stages": [{"stage": "receive", "start": 0, "nanos": 500000}, {"stage": "pick", "start": 500000, "nanos": 100000}, {"stage": "await", "start": 600000, "nanos": 5400000}, {"stage": "stream", "start": 6000000, "nanos": 6000000}],
"attempts": [{"prefill": {"name": "chat-prefill-0-0", "url": "http://10.0.0.5:30000"}, "decode": {"name": "chat-decode-0-0", "url": "http://10.0.0.5:30000"}, "bootstrap_room": 77, "prefill_answered_nanos": 3000000, "failed": ""}]}`

// pairOf makes a service of one prefill and one decode engine that answer what is given.
func pairOf(t *testing.T, namespace string, prefill, decode, router routes) *world {
	t.Helper()
	w := newWorld(t, namespace)
	service := w.service(pair, v1alpha1.InferenceServiceStatus{})
	pools := w.pools(service, nil)
	w.engine(pools["prefill"], 0, "a", prefill)
	w.engine(pools["decode"], 0, "a", decode)
	w.router(service, router)
	return w
}

func TestTrace(t *testing.T) {
	list := func(records ...string) string {
		return `{"in_flight": 0, "kept": 1, "requests": [` + strings.Join(records, ",") + `]}`
	}
	prefill := record("r-1_p", "77", timeline("api_server", wall+1000000, "tokenize", 200000, "await_output", 1800000), timeline("prefill", wall+1300000, "prefill_waiting", 100000, "prefill_forward", 1500000))
	decode := record("r-1_d", "77", timeline("api_server", wall+1000000, "tokenize", 200000, "await_output", 3800000, "stream_output", 5000000), timeline("decode", wall+1300000, "decode_transferred", 2500000, "decode_forward", 5000000))
	w := pairOf(t, "trace",
		routes{"/debug/requests": list(prefill)},
		routes{"/debug/requests": list(decode), "/debug/requests/r-1_d": decode},
		routes{"/debug/requests/r-1": routed, "/debug/requests/77": routed})
	for _, tc := range []struct {
		file, rid string
		form      plugin.Output
	}{
		{"trace.txt", "r-1", plugin.Text},
		{"trace.json", "r-1", plugin.JSON},
		{"trace.txt", "r-1_d", plugin.Text}, // the engine's own rid leads to the room, and that to the rest
	} {
		t.Run(tc.file+" "+tc.rid, func(t *testing.T) {
			p, out, _ := w.plugin("", tc.form)
			if err := p.Trace(t.Context(), tc.rid, ""); err != nil {
				t.Fatal(err)
			}
			golden(t, tc.file, out.String())
		})
	}
	p, _, _ := w.plugin("", plugin.Text)
	err := p.Trace(t.Context(), "no/such?one", "chat")
	if err == nil || !strings.Contains(err.Error(), "remembers request no/such?one") {
		t.Errorf("a request that nobody knows: %v", err)
	}
}

// TestTraceWithoutRouter: what the router would have told is missing, and said so.
func TestTraceWithoutRouter(t *testing.T) {
	decode := record("r-2", "null", timeline("api_server", wall+1000000, "tokenize", 200000), "null")
	w := newWorld(t, "trace-alone")
	service := w.service(pair, v1alpha1.InferenceServiceStatus{})
	pools := w.pools(service, nil)
	w.engine(pools["decode"], 0, "a", routes{"/debug/requests/r-2": decode})
	w.router(service, nil)
	p, out, _ := w.plugin("", plugin.Text)
	if err := p.Trace(t.Context(), "r-2", "chat"); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"decode chat-decode-0-0  r-2  length", "missing: chat-router-5d9c7b-x2x4z: reach pod", "nobody listens"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%q is not in\n%s", part, out)
		}
	}
}

func TestLogs(t *testing.T) {
	w := pairOf(t, "logs", nil, nil, nil)
	kubelet.mu.Lock()
	kubelet.logs["logs/chat-prefill-0-0"] = "prefill starts\r\nprefill ends"
	kubelet.logs["logs/chat-decode-0-0"] = strings.Repeat("x", 70<<10) + "\n"
	kubelet.logs["logs/chat-router-5d9c7b-x2x4z"] = "router starts\n"
	kubelet.mu.Unlock()
	run := func(form plugin.Output, pool string, o plugin.LogOptions) string {
		t.Helper()
		p, out, _ := w.plugin("", form)
		if err := p.Logs(t.Context(), "chat", pool, o); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if got, want := run(plugin.Text, "prefill", plugin.LogOptions{Tail: 2}), "chat-prefill-0-0  prefill starts\nchat-prefill-0-0  prefill ends\n"; got != want {
		t.Errorf("it shows %q, want %q", got, want)
	}
	if got, want := run(plugin.JSON, "prefill", plugin.LogOptions{Tail: -1}), `{"pod":"chat-prefill-0-0","pool":"prefill","line":"prefill starts"}`+"\n"+`{"pod":"chat-prefill-0-0","pool":"prefill","line":"prefill ends"}`+"\n"; got != want {
		t.Errorf("it shows %q, want %q", got, want)
	}
	all := run(plugin.Text, "", plugin.LogOptions{Tail: -1, Router: true})
	for _, part := range []string{"chat-decode-0-0 xxxx", "chat-prefill-0-0 prefill ends", "chat-router-5d9c7b-x2x4z router starts"} {
		if !containsFields(all, part) {
			t.Errorf("%q is not shown", part)
		}
	}
	p, _, _ := w.plugin("", plugin.Text)
	if err := p.Logs(t.Context(), "chat", "encode", plugin.LogOptions{}); err == nil || !strings.Contains(err.Error(), "has no pool encode: it has prefill, decode") {
		t.Errorf("a pool that is not there: %v", err)
	}

	// It follows until Ctrl-C.
	ctx, cancel := context.WithCancel(t.Context())
	p, out, _ := w.plugin("", plugin.Text)
	done := make(chan error, 1)
	go func() { done <- p.Logs(ctx, "chat", "prefill", plugin.LogOptions{Follow: true, Tail: -1}) }()
	for deadline := time.Now().Add(time.Minute); !strings.Contains(out.String(), "prefill starts"); {
		if time.Now().After(deadline) {
			t.Fatal("nothing is shown")
		}
	}
	cancel()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("it does not end")
	}
}

// containsFields says whether a line has the same words.
func containsFields(text, line string) bool {
	for l := range strings.Lines(text) {
		if strings.Contains(strings.Join(strings.Fields(l), " "), strings.Join(strings.Fields(line), " ")) {
			return true
		}
	}
	return false
}

const uni = `
apiVersion: inference.sluice.dev/v1alpha1
kind: InferenceService
metadata: {name: uni}
spec:
  model: {name: tiny, uri: "pvc://models/tiny"}
  pools:
  - {name: main, role: Unified}
`

func TestDiagnose(t *testing.T) {
	w := newWorld(t, "diagnose")
	service := w.service(uni, v1alpha1.InferenceServiceStatus{Conditions: []metav1.Condition{}})
	pools := w.pools(service, nil)
	engine := tells(t, loads.Load{NumRunningReqs: 4, NumWaitingReqs: 6, MaxRunningRequests: 4, TokenUsage: 0.3, Queues: &loads.Queues{Waiting: 6}})
	engine["/metrics"] = "# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs 4\n"
	w.engine(pools["main"], 0, "a", engine)
	w.router(service, nil) // which does not answer
	for _, tc := range []struct {
		file string
		form plugin.Output
	}{{"diagnose.txt", plugin.Text}, {"diagnose-wide.txt", plugin.Wide}, {"diagnose.json", plugin.JSON}} {
		t.Run(tc.file, func(t *testing.T) {
			p, out, _ := w.plugin("", tc.form)
			at := now
			var mu sync.Mutex
			p.Now = func() time.Time {
				mu.Lock()
				defer mu.Unlock()
				return at
			}
			p.After = func(d time.Duration) <-chan time.Time {
				mu.Lock()
				defer mu.Unlock()
				c := make(chan time.Time, 1)
				at = at.Add(max(0, d))
				c <- at
				return c
			}
			if err := p.Diagnose(t.Context(), "uni", plugin.DiagnoseOptions{Interval: 10 * time.Second, Polls: 5}); err != nil {
				t.Fatal(err)
			}
			golden(t, tc.file, out.String())
		})
	}
	p, _, _ := w.plugin("", plugin.Text)
	if err := p.Diagnose(t.Context(), "uni", plugin.DiagnoseOptions{Interval: time.Millisecond, Polls: 5}); err == nil || !strings.Contains(err.Error(), "--interval") {
		t.Errorf("an interval that is too short: %v", err)
	}
}
