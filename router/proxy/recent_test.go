package proxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/router/discovery"
)

func remembering(n int) func(*Config) { return func(c *Config) { c.DebugRequests = n } }

// list asks the router for what it remembers.
func (rt *router) list(query string) (views []trailView) {
	rt.t.Helper()
	var body struct{ Requests []trailView }
	got := rt.do(rt.t.Context(), http.MethodGet, "/debug/requests"+query, "", nil)
	if err := json.Unmarshal([]byte(got.Body), &body); err != nil || got.Status != http.StatusOK {
		rt.t.Fatalf("%d %s: %v", got.Status, got.Body, err)
	}
	return body.Requests
}

// TestDebugRequests: what became of a request, where its time went, and which engines it went to.
func TestDebugRequests(t *testing.T) {
	meet := &rooms{open: map[int64]*meetingRoom{}}
	bad := newEngine(t, meet, discovery.Decode, "d0")
	bad.instead = answerWith(http.StatusServiceUnavailable, `{"error":{"message":"busy"}}`)
	prefill, decode := newEngine(t, meet, discovery.Prefill, "p"), newEngine(t, meet, discovery.Decode, "d1")
	rt := newRouter(t, routerOptions{config: remembering(10), engines: []*engine{prefill, bad, decode}})
	if got := rt.post("/generate", `{"text":"secret","rid" : "a\u0062"}`); got.Status != http.StatusOK {
		t.Fatalf("%+v", got)
	}
	rt.settled()
	one := rt.do(t.Context(), http.MethodGet, "/debug/requests/ab", "", nil)
	var v trailView
	if err := json.Unmarshal([]byte(one.Body), &v); err != nil {
		t.Fatalf("%s: %v", one.Body, err)
	}
	if strings.Contains(one.Body, "secret") {
		t.Error("the prompt is shown")
	}
	var stages []string
	var sum int64
	for i, s := range v.Stages {
		stages = append(stages, s.Stage)
		if s.Start != sum || s.Nanos < 0 {
			t.Errorf("stage %d begins at %d, the one before ended at %d", i, s.Start, sum)
		}
		sum += s.Nanos
	}
	last := len(v.Attempts) - 1
	want := []string{stageReceive}
	for range v.Attempts {
		want = append(want, stagePick, stageDispatch, stageAwait)
	}
	if want = append(want, stageStream); sum != v.Nanos || !slices.Equal(stages, want) {
		t.Errorf("stages %v of %d ns sum to %d ns, want %v", stages, v.Nanos, sum, want)
	}
	if v.Outcome == nil || *v.Outcome != OutcomeOK || v.Status != http.StatusOK || v.InFlight || v.Stage != "done" || v.RID != "ab" || v.Route != routeGenerate {
		t.Errorf("request is %+v", v)
	}
	a := v.Attempts[last]
	if a.Prefill == nil || a.Prefill.Name != "p" || a.Decode.Name != "d1" || a.Room == nil || a.Reason != "" {
		t.Errorf("the last attempt is %+v", a)
	}
	for _, failed := range v.Attempts[:last] {
		if failed.Decode.Name != "d0" || failed.Reason != RetryBusy || failed.Error != "d0 answered 503 Service Unavailable" {
			t.Errorf("a failed attempt is %+v", failed)
		}
	}
	byRoom := rt.do(t.Context(), http.MethodGet, fmt.Sprint("/debug/requests/", *a.Room), "", nil)
	if byRoom.Body != one.Body {
		t.Errorf("by its room: %s, by its rid: %s", byRoom.Body, one.Body)
	}

	text := rt.do(t.Context(), http.MethodGet, "/debug/requests/ab?format=text", "", nil).Body
	text = regexp.MustCompile(`[0-9]+\.[0-9]+`).ReplaceAllString(text, "N")
	for _, line := range []string{
		"ab  /generate  ok (200)  received ", fmt.Sprintf("attempt %d: prefill p, decode d1, room %d", last+1, *a.Room), "  router: N ms\n", "    stream  ",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("the text has no %q:\n%s", line, text)
		}
	}
}

func TestDebugRequestsRing(t *testing.T) {
	meet := &rooms{open: map[int64]*meetingRoom{}}
	e := newEngine(t, meet, discovery.Unified, "u")
	rt := newRouter(t, routerOptions{config: remembering(2), engines: []*engine{e}})
	for _, rid := range []string{"a", "b", "c"} {
		rt.post("/generate", `{"rid":"`+rid+`"}`)
		rt.settled()
	}
	rt.post("/v1/tokenize", `{"rid":"t"}`) // is no inference
	rt.settled()
	for query, want := range map[string][]string{
		"": {"c", "b"}, "?limit=1": {"c"}, "?outcome=ok": {"c", "b"}, "?outcome=broken": nil, "?outcome=in_flight": nil, "?since=1h": {"c", "b"}, "?since=2999-01-01T00:00:00Z": nil,
		"?room=5": nil,
	} {
		var rids []string
		for _, v := range rt.list(query) {
			rids = append(rids, v.RID)
		}
		if diff := cmp.Diff(want, rids); diff != "" {
			t.Errorf("%s (-want +got):\n%s", query, diff)
		}
	}
	if slowest := rt.list("?slowest=2"); len(slowest) != 2 || slowest[0].Nanos < slowest[1].Nanos {
		t.Errorf("the slowest are %+v", slowest)
	}
	if got := rt.do(t.Context(), http.MethodGet, "/debug/requests?room=5&format=text", "", nil); got.Status != http.StatusOK || got.Body != "no request that is remembered is as the query asks\n" {
		t.Errorf("as text, none is %d %q", got.Status, got.Body)
	}
	for path, want := range map[string]string{
		"/debug/requests/a":                 "no request with the rid or room a is remembered",
		"/debug/requests?slowest=x":         `slowest must be an integer from 1 to 10000, not \"x\"`,
		"/debug/requests?room=x":            `room must be an integer, not \"x\"`,
		"/debug/requests?format=yaml":       `format must be json or text, not \"yaml\"`,
		"/debug/requests?since=yesterday":   `since must be a duration back from now`,
		"/debug/requests/%0a?format=json&":  "is remembered",
		"/debug/requests?outcome=nonsense":  `outcome must be in_flight or one of [ok client_error client_closed no_engine engine_error broken timeout], not \"nonsense\"`,
		"/debug/requests?limit=1;slowest=2": `the query of the URL: \"limit=1;slowest=2\" has a semicolon`,
		"/debug/requests?slowset=5":         `\"slowset\" is not known: the parameters are slowest, limit, outcome, room, since, format`,
		"/debug/requests?limit=1&limit=2":   `\"limit\" comes 2 times: give it once`,
		"/debug/requests/c?limit=1":         `\"limit\" is not known: the parameters are format`,
		"/workers?role=prefill":             `\"role\" is not known: there are no parameters here`,
		"/debug/requests/c?format=%":        `the query of the URL: \"format=%\" can't be read`,
	} {
		if got := rt.do(t.Context(), http.MethodGet, path, "", nil); got.Status == http.StatusOK || !strings.Contains(got.Body, want) {
			t.Errorf("%s answers %d %s, want %q", path, got.Status, got.Body, want)
		}
	}
	if got := rt.do(t.Context(), http.MethodPost, "/debug/requests", "", nil); got.Status != http.StatusMethodNotAllowed {
		t.Errorf("POST answers %d", got.Status)
	}
	off := newRouter(t, routerOptions{engines: []*engine{e}})
	off.post("/generate", `{"rid":"a"}`)
	off.settled()
	if got := off.do(t.Context(), http.MethodGet, "/debug/requests", "", nil); got.Status != http.StatusNotFound || !strings.Contains(got.Body, "--debug-requests") {
		t.Errorf("when it is off: %d %s", got.Status, got.Body)
	}
}

// A stage that was entered after the time of a view has lasted for no time, and nothing is null that is a list.
func TestViewOfALateStage(t *testing.T) {
	start := time.Unix(1700000000, 0)
	x := &trail{start: start, visits: []visit{{stage: stageReceive}, {stage: stageStream, at: 5 * time.Millisecond}}}
	v := x.view(start.Add(3 * time.Millisecond))
	want := []stageView{{stageReceive, 0, 5e6}, {stageStream, 5e6, 0}}
	if diff := cmp.Diff(want, v.Stages); diff != "" || v.Nanos != 5e6 || v.Attempts == nil {
		t.Errorf("%d ns, attempts %v (-want +got):\n%s", v.Nanos, v.Attempts, diff)
	}
}

func TestDebugRequestsInFlight(t *testing.T) {
	meet := &rooms{open: map[int64]*meetingRoom{}}
	e := newEngine(t, meet, discovery.Unified, "u")
	e.step = make(chan struct{})
	rt := newRouter(t, routerOptions{config: remembering(2), engines: []*engine{e}})
	done := make(chan reply)
	go func() { done <- rt.post("/generate", `{"rid":"a","stream":true}`) }()
	e.step <- struct{}{}
	rt.poll("the first byte", func() bool {
		v := rt.list("?outcome=in_flight")
		return len(v) == 1 && v[0].InFlight && v[0].Outcome == nil && v[0].Stage == stageStream && v[0].Attempts[0].Decode.Name == "u" && v[0].Attempts[0].Prefill == nil
	})
	close(e.step)
	<-done
	rt.settled()
	if v := rt.list(""); len(v) != 1 || v[0].InFlight {
		t.Errorf("at the end: %+v", v)
	}
}

func TestRIDOf(t *testing.T) {
	for body, want := range map[string]string{
		`{}`: "", `{"rid":"x"}`: "x", `{"a":{"rid":"n"},"rid" :	"x" }`: "x", `{"rid":["x","y"]}`: "", `{"rid":null}`: "", `{"rid":1}`: "",
		`{"rid":"` + strings.Repeat("x", maxRID) + `"}`: strings.Repeat("x", maxRID), `{"rid":"` + strings.Repeat("x", maxRID+1) + `"}`: "",
		`{"rid":"` + strings.Repeat("x", 1<<20) + `"}`: "", `{"rid":"a","rid":"b"}`: "b",
	} {
		l, err := objectLayout([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if got := ridOf([]byte(body), l); got != want {
			t.Errorf("rid of %.60s is %q, want %q", body, got, want)
		}
	}
}
