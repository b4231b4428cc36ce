package proxy

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/router/demand"
	"github.com/sluice-dev/sluice/router/discovery"
)

// demand reads what the router has to do.
func (rt *router) demand() demand.Report {
	rt.t.Helper()
	var report demand.Report
	if r := rt.do(rt.t.Context(), http.MethodGet, demand.Path, "", nil); r.Status != http.StatusOK || json.Unmarshal([]byte(r.Body), &report) != nil {
		rt.t.Fatalf("demand: %+v", r)
	}
	return report
}

// TestHeldUntilEnginesCome sends requests to a router without engines that may hold them, and makes engines when it says
// that somebody waits.
func TestHeldUntilEnginesCome(t *testing.T) {
	meet := &rooms{open: map[int64]*meetingRoom{}}
	rt := newRouter(t, routerOptions{wake: time.Hour})
	if r := rt.do(t.Context(), http.MethodGet, "/ready", "", nil); r.Status != http.StatusOK {
		t.Errorf("readiness without engines: %+v", r)
	}
	replies := make(chan reply, 2)
	for range 2 {
		go func() { replies <- rt.post("/generate", `{"text":"hello"}`) }()
	}
	rt.poll("two waiting requests", func() bool { return rt.demand().Waiting["decode"] == 2 })
	want := demand.Report{Waiting: map[string]int{"prefill": 2, "decode": 2, "unified": 2}, Begun: 2, Open: 2}
	if d := cmp.Diff(want, rt.demand()); d != "" {
		t.Errorf("demand (-want +got):\n%s", d)
	}
	p, d := newEngine(t, meet, discovery.Prefill, "p0"), newEngine(t, meet, discovery.Decode, "d0")
	rt.update(p)
	rt.poll("the prefill engine to be known", func() bool { return rt.demand().Waiting["prefill"] == 0 })
	if got := rt.demand().Waiting["decode"]; got != 2 {
		t.Errorf("%d requests wait for decode, want 2", got)
	}
	rt.update(p, d)
	for range 2 {
		if r := <-replies; r.Status != http.StatusOK || r.Body != `{"text":"abc"}` {
			t.Errorf("a request that waited: %+v", r)
		}
	}
	rt.settled()
	want = demand.Report{Waiting: map[string]int{"prefill": 0, "decode": 0, "unified": 0}, Begun: 2}
	if d := cmp.Diff(want, rt.demand()); d != "" {
		t.Errorf("demand (-want +got):\n%s", d)
	}
}

// TestHeldTooLong refuses a request for which no engine came, and one more than may wait.
func TestHeldTooLong(t *testing.T) {
	rt := newRouter(t, routerOptions{wake: 50 * time.Millisecond})
	r := rt.post("/generate", `{"text":"hello"}`)
	if r.Status != http.StatusServiceUnavailable || r.header.Get("Retry-After") == "" {
		t.Errorf("after the wait: %+v, want 503 and when to come back", r)
	}
	finished, _, _ := rt.settled()
	if d := cmp.Diff([]string{"/generate 503 no_engine"}, finished); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestDrainedAway retries a request whose engine stopped admission on the way: it waits for the next engine.
func TestDrainedAway(t *testing.T) {
	meet := &rooms{open: map[int64]*meetingRoom{}}
	u0, u1 := newEngine(t, meet, discovery.Unified, "u0"), newEngine(t, meet, discovery.Unified, "u1")
	rt := newRouter(t, routerOptions{wake: time.Hour, engines: []*engine{u0}})
	u0.instead = func(e *engine, w http.ResponseWriter, r *http.Request) bool {
		rt.update() // the operator has marked it, and the router sees that now
		return answerWith(http.StatusServiceUnavailable, `{"error":{"code":"draining"}}`)(e, w, r)
	}
	replies := make(chan reply, 1)
	go func() { replies <- rt.post("/generate", `{"text":"hello"}`) }()
	rt.poll("the request to wait", func() bool { return rt.demand().Waiting["unified"] == 1 })
	rt.update(u1)
	if r := <-replies; r.Status != http.StatusOK || r.header.Get("X-Engine") != "u1" {
		t.Errorf("got %+v, want the answer of the next engine", r)
	}
}
