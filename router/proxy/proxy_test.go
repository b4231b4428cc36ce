package proxy

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-dev/sluice/router/discovery"
)

var ignoreHeader = cmpopts.IgnoreUnexported(reply{})

// set is a fleet of a test: p0, p1… and d0, d1… (and u0…).
type set struct {
	rooms           *rooms
	prefill, decode []*engine
	unified         []*engine
	all             []*engine
}

func newSet(t testing.TB, prefills, decodes, unifieds int) *set {
	s := &set{rooms: &rooms{open: map[int64]*meetingRoom{}}}
	for _, g := range []struct {
		n      int
		role   discovery.Role
		letter string
		list   *[]*engine
	}{{prefills, discovery.Prefill, "p", &s.prefill}, {decodes, discovery.Decode, "d", &s.decode}, {unifieds, discovery.Unified, "u", &s.unified}} {
		for i := range g.n {
			e := newEngine(t, s.rooms, g.role, fmt.Sprintf("%s%d", g.letter, i))
			*g.list = append(*g.list, e)
			s.all = append(s.all, e)
		}
	}
	return s
}

const stream = "data: {\"text\":\"a\"}\n\ndata: {\"text\":\"b\"}\n\ndata: {\"text\":\"c\"}\n\ndata: [DONE]\n\n"

func TestPair(t *testing.T) {
	for _, route := range []string{"/v1/completions", "/v1/chat/completions", "/generate"} {
		t.Run(route, func(t *testing.T) {
			s := newSet(t, 1, 1, 0)
			rt := newRouter(t, routerOptions{engines: s.all})
			got := rt.do(t.Context(), http.MethodPost, route+"?x=1", `{"prompt":"hi","stream":true}`, http.Header{
				"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, "X-Custom-Labels": {"{}"}, "Authorization": {"Bearer k"}, "Connection": {"X-Hop"}, "X-Hop": {"1"}, "Te": {"trailers"},
			})
			if d := cmp.Diff(reply{Status: 200, Body: stream}, got, ignoreHeader); d != "" {
				t.Errorf("answer (-want +got):\n%s", d)
			}
			if from := got.header.Get("X-Engine"); from != "d0" {
				t.Errorf("the answer is %q's, want d0's", from)
			}
			p, d := <-s.prefill[0].got, <-s.decode[0].got
			if p.body != d.body || p.path != route+"?x=1" || p.path != d.path {
				t.Errorf("prefill got %s %s, decode got %s %s", p.path, p.body, d.path, d.body)
			}
			wantBody := `{"prompt":"hi","stream":true,"bootstrap_host":"bootstrap-of-p0","bootstrap_port":8998,"bootstrap_room":4611686018427387905}`
			if p.body != wantBody {
				t.Errorf("engines got\n%s, want\n%s", p.body, wantBody)
			}
			for _, r := range []received{p, d} {
				delete(r.header, "Content-Length")
				want := http.Header{"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, "X-Custom-Labels": {"{}"}, "Authorization": {"Bearer k"}}
				if diff := cmp.Diff(want, r.header, cmpopts.IgnoreMapEntries(func(k string, _ []string) bool { return k == "User-Agent" })); diff != "" {
					t.Errorf("%s got headers (-want +got):\n%s", r.engine, diff)
				}
			}
			finished, _, _ := rt.settled()
			if diff := cmp.Diff([]string{route + " 200 ok"}, finished); diff != "" {
				t.Errorf("counted (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUnifiedGetsTheBodyAsItIs(t *testing.T) {
	s := newSet(t, 0, 0, 1)
	rt := newRouter(t, routerOptions{engines: s.all})
	body := "{ \"prompt\" : \"hi\",\"seed\":1.50 }"
	if d := cmp.Diff(reply{Status: 200, Body: `{"text":"abc"}`}, rt.post("/generate", body), ignoreHeader); d != "" {
		t.Errorf("answer (-want +got):\n%s", d)
	}
	if got := <-s.unified[0].got; got.body != body {
		t.Errorf("the engine got %q, want %q", got.body, body)
	}
}

// TestStreamsAtOnce takes each event before the engine makes the next.
func TestStreamsAtOnce(t *testing.T) {
	s := newSet(t, 1, 1, 0)
	s.decode[0].step = make(chan struct{})
	rt := newRouter(t, routerOptions{engines: s.all})
	resp, err := http.Post(rt.url+"/v1/completions", "application/json", nil)
	if err != nil || resp.StatusCode != http.StatusBadRequest {
		t.Fatalf("no body: %v, %v, want status 400", resp, err)
	}
	resp.Body.Close()
	done := make(chan *http.Response)
	go func() {
		resp, err := http.Post(rt.url+"/v1/completions", "application/json", strings.NewReader(`{"stream":true}`))
		if err != nil {
			t.Error(err)
		}
		done <- resp
	}()
	s.decode[0].step <- struct{}{}
	resp = <-done
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	for i, want := range []string{"a", "b", "c"} {
		if i > 0 {
			s.decode[0].step <- struct{}{}
		}
		line, err := lines.ReadString('\n')
		if err != nil || line != fmt.Sprintf("data: {\"text\":%q}\n", want) {
			t.Fatalf("line %q, %v", line, err)
		}
		lines.ReadString('\n')
	}
	io.Copy(io.Discard, lines)
	http.DefaultClient.CloseIdleConnections()
}

// TestFailures is the table of what can go wrong before the first byte, with two engines of each role.
func TestFailures(t *testing.T) {
	ok := reply{Status: 200, Body: `{"text":"abc"}`}
	const endedByOperator = `{"error":{"code":"aborted_operator"}}`
	bad := `{"object":"error","message":"max_tokens must be positive"}`
	type behaviour = func(*engine, http.ResponseWriter, *http.Request) bool
	for _, tc := range []struct {
		name, reason   string
		p0, d0, p1, d1 behaviour
		alone          bool // one engine of each role
		want           reply
		retries        []RetryReason
		quarantined    []string
		outcome        string
		wantErr        string // part of the body instead of want.Body
	}{
		{name: "prefill refuses the request", reason: "a 4xx goes to the client as it is", p0: answerWith(400, bad), d0: hang, want: reply{Status: 400, Body: bad}, outcome: "400 client_error"},
		{name: "decode refuses the request", reason: "a 4xx goes to the client as it is", d0: answerWith(422, bad), want: reply{Status: 422, Body: bad}, outcome: "422 client_error"},
		{name: "too many requests", reason: "429 is a 4xx", d0: answerWith(429, bad), want: reply{Status: 429, Body: bad}, outcome: "429 client_error"},
		{name: "prefill refuses, decode suffers", reason: "the cause is told, not the consequence", p0: answerWith(400, bad), d0: answerWith(502, "transfer"), want: reply{Status: 400, Body: bad}, outcome: "400 client_error"},
		{name: "internal error", reason: "500 is not another engine's business", d0: answerWith(500, "bug"), want: reply{Status: 500, Body: "bug"}, outcome: "500 engine_error"},
		{name: "decode rank is killed", reason: "the engine's last word is heard", d0: answerWith(502, `{"error":{"code":"engine_failed"}}`), want: ok, retries: []RetryReason{RetryReset}, quarantined: []string{"d0"}, outcome: "200 ok"},
		{name: "decode is killed", reason: "another decode engine answers", d0: die, want: ok, retries: []RetryReason{RetryReset}, quarantined: []string{"d0"}, outcome: "200 ok"},
		{name: "prefill is killed", reason: "another prefill engine answers", p0: die, d0: hang, want: ok, retries: []RetryReason{RetryReset}, quarantined: []string{"p0"}, outcome: "200 ok"},
		{name: "prefill is killed, decode suffers", reason: "the decode engine is not to blame", p0: die, d0: answerWith(502, "transfer"), want: ok, retries: []RetryReason{RetryReset}, quarantined: []string{"p0"}, outcome: "200 ok"},
		{name: "busy", reason: "503 is tried elsewhere, without quarantine", d0: answerWith(503, "full"), want: ok, retries: []RetryReason{RetryBusy}, outcome: "200 ok"},
		{name: "prefill busy", reason: "503 is tried elsewhere, without quarantine", p0: answerWith(503, "full"), d0: hang, want: ok, retries: []RetryReason{RetryBusy}, outcome: "200 ok"},
		{name: "bad gateway", reason: "a transfer that failed is tried with others", d0: answerWith(502, "transfer"), p0: hang, want: ok, retries: []RetryReason{RetryTransfer}, outcome: "200 ok"},
		{name: "gateway time-out", reason: "as 502", d0: answerWith(504, "transfer"), p0: answerWith(504, "x"), want: ok, retries: []RetryReason{RetryTransfer}, outcome: "200 ok"},
		{name: "error event of prefill", reason: "a stream's error is found", p0: func(_ *engine, w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, "data: {\"error\":{\"message\":\"no KV\"}}\n\n")
			return true
		}, d0: hang, want: ok, retries: []RetryReason{RetryTransfer}, outcome: "200 ok"},
		{name: "the other engine lost its client", reason: "the client is this router and is here", d0: answerWith(499, `{"error":{"code":"aborted_client"}}`), p0: hang, want: ok, retries: []RetryReason{RetryTransfer}, outcome: "200 ok"},
		{name: "an operator ends it at one engine", reason: "both say so, and neither is asked again: which one it was is not known", p0: answerWith(503, endedByOperator), d0: answerWith(503, endedByOperator), want: ok, retries: []RetryReason{RetryBusy}, outcome: "200 ok"},
		{name: "an operator ends it at the only prefill engine", reason: "the engine's own answer, as soon as it is known that there is no other pair", alone: true, p0: answerWith(503, endedByOperator), d0: answerWith(503, endedByOperator), want: reply{Status: 503, Body: endedByOperator}, retries: []RetryReason{RetryBusy}, outcome: "503 engine_error"},
		{name: "all killed", reason: "the client gets an error after all engines were tried", d0: die, d1: die, want: reply{Status: 502}, wantErr: "d1", retries: []RetryReason{RetryReset, RetryReset}, quarantined: []string{"d0", "d1"}, outcome: "502 engine_error"},
		{name: "all busy", reason: "the client gets the engine's own answer", d0: answerWith(503, "full"), d1: answerWith(503, "also full"), want: reply{Status: 503, Body: "also full"}, retries: []RetryReason{RetryBusy, RetryBusy}, outcome: "503 engine_error"},
		{name: "one engine, busy", reason: "nobody else to ask: the engine's own answer at once", alone: true, d0: answerWith(503, "full"), want: reply{Status: 503, Body: "full"}, retries: []RetryReason{RetryBusy}, outcome: "503 engine_error"},
		{name: "one pair, transfer", reason: "the same pair is not tried again", alone: true, d0: answerWith(502, "kv"), want: reply{Status: 502, Body: "kv"}, retries: []RetryReason{RetryTransfer}, outcome: "502 engine_error"},
	} {
		for _, streaming := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, stream=%v", tc.name, streaming), func(t *testing.T) {
				n := 2
				if tc.alone {
					n = 1
				}
				s := newSet(t, n, n, 0)
				for i, b := range []behaviour{tc.p0, tc.p1}[:n] {
					s.prefill[i].instead = b
				}
				for i, b := range []behaviour{tc.d0, tc.d1}[:n] {
					s.decode[i].instead = b
				}
				rt := newRouter(t, routerOptions{engines: s.all})
				got := rt.post("/v1/completions", fmt.Sprintf(`{"stream":%v}`, streaming))
				want := tc.want
				if streaming && want.Status == 200 {
					want.Body = stream
				}
				if tc.wantErr != "" {
					if !strings.Contains(got.Body, tc.wantErr) {
						t.Errorf("%s: body %s, want %q in it", tc.reason, got.Body, tc.wantErr)
					}
					want.Body = got.Body
				}
				if d := cmp.Diff(want, got, ignoreHeader); d != "" {
					t.Errorf("%s: answer (-want +got):\n%s", tc.reason, d)
				}
				finished, retries, quarantined := rt.settled()
				if d := cmp.Diff([]string{"/v1/completions " + tc.outcome}, finished); d != "" {
					t.Errorf("%s: counted (-want +got):\n%s", tc.reason, d)
				}
				if d := cmp.Diff(tc.retries, retries); d != "" {
					t.Errorf("%s: retries (-want +got):\n%s", tc.reason, d)
				}
				if d := cmp.Diff(tc.quarantined, quarantined); d != "" {
					t.Errorf("%s: quarantined (-want +got):\n%s", tc.reason, d)
				}
				rt.poll("every engine is left alone", func() bool {
					for _, e := range s.all {
						if e.active.Load() != 0 {
							return false
						}
					}
					return true
				})
			})
		}
	}
}

func TestMaxRetries(t *testing.T) {
	s := newSet(t, 1, 5, 0)
	for _, d := range s.decode {
		d.instead = die
	}
	rt := newRouter(t, routerOptions{engines: s.all, config: func(c *Config) { c.MaxRetries = 1 }})
	if got := rt.post("/generate", `{}`); got.Status != 502 {
		t.Errorf("status %d, want 502", got.Status)
	}
	if _, retries, set := rt.settled(); len(retries) != 1 || len(set) != 2 {
		t.Errorf("%d retries and %d engines tried, want 1 and 2", len(retries), len(set))
	}
}

// TestBroken kills the decode engine after its first byte.
func TestBroken(t *testing.T) {
	cut := func(contentType, first string) func(*engine, http.ResponseWriter, *http.Request) bool {
		return func(e *engine, w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Content-Type", contentType)
			fmt.Fprint(w, first)
			w.(http.Flusher).Flush()
			<-e.step
			return die(e, w, r)
		}
	}
	event := (&apiError{status: 502, code: "engine_failed", message: "decode engine d0 broke off its answer"}).event()
	for _, tc := range []struct {
		name, contentType, first, want string
		broken                         bool
	}{
		{name: "stream between events", contentType: "text/event-stream", first: "data: 1\n\n", want: "data: 1\n\n" + string(event)},
		{name: "stream within an event", contentType: "text/event-stream; charset=utf-8", first: "data: {\"te", want: "data: {\"te\n\n" + string(event)},
		{name: "JSON", contentType: "application/json", first: `{"te`, want: `{"te`, broken: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSet(t, 1, 2, 0)
			s.decode[0].step = make(chan struct{})
			s.decode[0].instead = cut(tc.contentType, tc.first)
			rt := newRouter(t, routerOptions{engines: s.all})
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, rt.url+"/v1/completions", strings.NewReader(`{"stream":true}`))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			first := make([]byte, len(tc.first)) // it is on its way to the client before the engine dies
			if _, err := io.ReadFull(resp.Body, first); err != nil {
				t.Fatal(err)
			}
			close(s.decode[0].step)
			rest, err := io.ReadAll(resp.Body)
			if d := cmp.Diff(reply{Status: 200, Body: tc.want, Broken: tc.broken}, reply{Status: resp.StatusCode, Body: string(first) + string(rest), Broken: err != nil}, ignoreHeader); d != "" {
				t.Errorf("answer (-want +got):\n%s", d)
			}
			finished, retries, set := rt.settled()
			if d := cmp.Diff([]string{"/v1/completions 200 broken"}, finished); d != "" {
				t.Errorf("counted (-want +got):\n%s", d)
			}
			if len(retries) != 0 || len(set) != 1 {
				t.Errorf("%d retries and %d quarantines, want 0 and 1", len(retries), len(set))
			}
		})
	}
}

// TestClientGoes cancels in the two phases of a request; both engines must notice.
func TestClientGoes(t *testing.T) {
	for _, phase := range []string{"before the first byte", "in the stream"} {
		t.Run(phase, func(t *testing.T) {
			s := newSet(t, 1, 1, 0)
			s.decode[0].step = make(chan struct{})
			s.prefill[0].instead = hang
			if phase == "in the stream" {
				s.decode[0].instead = func(e *engine, w http.ResponseWriter, r *http.Request) bool {
					fmt.Fprint(w, "data: 1\n\n")
					w.(http.Flusher).Flush()
					return hang(e, w, r)
				}
			}
			rt := newRouter(t, routerOptions{engines: s.all})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan reply, 1)
			go func() { ended <- rt.do(ctx, http.MethodPost, "/v1/completions", `{"stream":true}`, nil) }()
			<-s.prefill[0].got
			<-s.decode[0].got
			cancel()
			<-ended
			rt.poll("both engines see the client go", func() bool {
				return s.prefill[0].cancelled.Load() == 1 && s.decode[0].cancelled.Load() == 1
			})
			finished, _, set := rt.settled()
			if len(finished) != 1 || !strings.HasSuffix(finished[0], " client_closed") || len(set) != 0 {
				t.Errorf("counted %v, quarantined %v, want one client_closed and none", finished, set)
			}
		})
	}
}

func TestWaitsForAnEngine(t *testing.T) {
	s := newSet(t, 1, 1, 0)
	rt := newRouter(t, routerOptions{config: func(c *Config) { c.QueueTimeout = patience }})
	answers := make(chan reply, 1)
	go func() { answers <- rt.post("/generate", `{}`) }()
	rt.poll("a waiting request", func() bool {
		rt.seen.mu.Lock()
		defer rt.seen.mu.Unlock()
		return rt.seen.inFlight == 1
	})
	rt.update(s.prefill[0]) // not enough
	rt.update(s.all...)
	if got := <-answers; got.Status != 200 {
		t.Errorf("status %d: %s, want 200", got.Status, got.Body)
	}
}

func TestNoEngine(t *testing.T) {
	s := newSet(t, 1, 0, 0)
	rt := newRouter(t, routerOptions{engines: s.all, config: func(c *Config) { c.QueueTimeout = 10 * time.Millisecond }})
	got := rt.post("/v1/chat/completions", `{}`)
	want := `{"object":"error","message":"no engine can take the request now: 1 of 1 prefill engines are ready, 0 of them just failed; try again later","type":"overloaded_error","param":null,"code":503,"error":{"message":"no engine can take the request now: 1 of 1 prefill engines are ready, 0 of them just failed; try again later","type":"overloaded_error","param":null,"code":"no_engine"}}`
	if d := cmp.Diff(reply{Status: 503, Body: want}, got, ignoreHeader); d != "" {
		t.Errorf("answer (-want +got):\n%s", d)
	}
	if got.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After is %q, want 1", got.header.Get("Retry-After"))
	}
	if finished, _, _ := rt.settled(); finished[0] != "/v1/chat/completions 503 no_engine" {
		t.Errorf("counted %v", finished)
	}
}

func TestRequestTimeout(t *testing.T) {
	s := newSet(t, 1, 1, 0)
	s.decode[0].instead, s.prefill[0].instead = hang, hang
	rt := newRouter(t, routerOptions{engines: s.all, config: func(c *Config) { c.RequestTimeout = 50 * time.Millisecond }})
	if got := rt.post("/generate", `{}`); got.Status != http.StatusGatewayTimeout || !strings.Contains(got.Body, "--request-timeout") {
		t.Errorf("answer %d %s, want 504", got.Status, got.Body)
	}
	if finished, _, set := rt.settled(); finished[0] != "/generate 504 timeout" || len(set) != 0 {
		t.Errorf("counted %v, quarantined %v", finished, set)
	}
}

func TestHostileClients(t *testing.T) {
	s := newSet(t, 1, 1, 0)
	rt := newRouter(t, routerOptions{engines: s.all, config: func(c *Config) { c.MaxBodyBytes = 100 }})
	for _, tc := range []struct {
		name, method, path, body string
		status                   int
		text                     string
	}{
		{"too large", "POST", "/v1/completions", `{"p":"` + strings.Repeat("x", 200) + `"}`, 413, "--max-body-bytes"},
		{"not JSON", "POST", "/v1/completions", `hello`, 400, "not a JSON object"},
		{"cut", "POST", "/generate", `{"a":`, 400, "not valid JSON"},
		{"wrong method", "GET", "/v1/completions", ``, 405, "/v1/completions takes POST"},
		{"no route", "POST", "/v2/things", `{}`, 404, "no route /v2/things"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := rt.do(t.Context(), tc.method, tc.path, tc.body, nil)
			var e struct {
				Error struct{ Message, Type string }
			}
			if err := json.Unmarshal([]byte(got.Body), &e); err != nil || got.Status != tc.status || !strings.Contains(e.Error.Message, tc.text) || e.Error.Type != "invalid_request_error" {
				t.Errorf("answer %d %s, want %d with %q in OpenAI's shape", got.Status, got.Body, tc.status, tc.text)
			}
		})
	}
	select {
	case r := <-s.decode[0].got:
		t.Errorf("an engine got %+v", r)
	default:
	}
}

func TestOtherRoutes(t *testing.T) {
	s := newSet(t, 1, 1, 0)
	for _, e := range s.all {
		e.instead = answerWith(200, `{"object":"list"}`)
	}
	rt := newRouter(t, routerOptions{engines: s.all})
	get := func(path string) reply { return rt.do(t.Context(), http.MethodGet, path, "", nil) }
	for _, path := range []string{"/v1/models", "/v1/models/tiny"} {
		if d := cmp.Diff(reply{Status: 200, Body: `{"object":"list"}`}, get(path), ignoreHeader); d != "" {
			t.Errorf("%s (-want +got):\n%s", path, d)
		}
	}
	s.decode[0].instead = die
	if got := get("/v1/models"); got.Status != 200 {
		t.Errorf("/v1/models with a dead engine: %d %s, want the other engine's answer", got.Status, got.Body)
	}
	for _, path := range []string{"/health", "/ready"} {
		if got := get(path); got.Status != 200 || got.Body != "{\"status\":\"ok\"}\n" {
			t.Errorf("%s: %d %s", path, got.Status, got.Body)
		}
	}
	want := fmt.Sprintf(`{"workers":[{"name":"d0","role":"decode","url":%q,"state":"ready","draining":false,"quarantined":false,"consecutive_failures":0,"outstanding_requests":0,"outstanding_prompt_tokens":0},`+
		`{"name":"p0","role":"prefill","url":%q,"state":"ready","draining":false,"quarantined":false,"consecutive_failures":0,"outstanding_requests":0,"outstanding_prompt_tokens":0}]}`+"\n", s.decode[0].srv.URL, s.prefill[0].srv.URL)
	if got := get("/workers"); got.Body != want {
		t.Errorf("/workers:\n got %s\nwant %s", got.Body, want)
	}
	rt.update(s.prefill[0])
	if got := get("/health"); got.Status != 503 || !strings.Contains(got.Body, "1 of 1 prefill engines are ready") {
		t.Errorf("/health without decode engines: %d %s", got.Status, got.Body)
	}
	rt.update(s.all...)
	rt.proxy.Drain()
	if got := get("/health"); got.Status != 503 || !strings.Contains(got.Body, "draining") {
		t.Errorf("/health while draining: %d %s", got.Status, got.Body)
	}
	rt.fleet.Update(nil)
	if got := get("/v1/models"); got.Status != 503 {
		t.Errorf("/v1/models without engines: %d %s", got.Status, got.Body)
	}
}

// TestDrainMovesConnections: what is served while the router drains is the last answer of its connection, so that the end
// of the server finds no connection on which a client is about to send.
func TestDrainMovesConnections(t *testing.T) {
	s := newSet(t, 0, 0, 1)
	rt := newRouter(t, routerOptions{engines: s.all})
	connection := func() string {
		w := httptest.NewRecorder()
		rt.proxy.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(`{"prompt":"a"}`)))
		if w.Code != http.StatusOK {
			t.Fatalf("status %d: %s", w.Code, w.Body)
		}
		return w.Header().Get("Connection")
	}
	if got := connection(); got != "" {
		t.Errorf("Connection %q before the drain, want none", got)
	}
	rt.proxy.Drain()
	if got := connection(); got != "close" {
		t.Errorf("Connection %q while draining, want close", got)
	}
}

// TestManyAtOnce sends many requests while engines die and come back; every answer must be whole.
func TestManyAtOnce(t *testing.T) {
	s := newSet(t, 2, 3, 1)
	var mu sync.Mutex
	n := 0
	s.decode[1].instead = func(e *engine, w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		n++
		sick := n%3 == 0
		mu.Unlock()
		return sick && die(e, w, r)
	}
	rt := newRouter(t, routerOptions{engines: s.all, config: func(c *Config) { c.QueueTimeout = patience; c.MaxRetries = 5 }})
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 20 {
				if got := rt.post("/v1/completions", `{"stream":true}`); got.Status != 200 || got.Body != stream {
					t.Errorf("answer %+v", got)
				}
			}
		})
	}
	wg.Wait()
	finished, _, _ := rt.settled()
	for _, f := range finished {
		if f != "/v1/completions 200 ok" {
			t.Errorf("counted %s", f)
		}
	}
}
