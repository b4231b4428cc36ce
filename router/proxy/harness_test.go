package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-dev/sluice/router/discovery"
	"github.com/sluice-dev/sluice/router/fleet"
	"github.com/sluice-dev/sluice/router/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second

// rooms is where the engines of a test meet, as KV would go from one to the other.
type rooms struct {
	mu   sync.Mutex
	open map[int64]*meetingRoom
}

type meetingRoom struct{ prefill, decode chan struct{} }

func (r *rooms) get(room int64) *meetingRoom {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open[room] == nil {
		r.open[room] = &meetingRoom{make(chan struct{}), make(chan struct{})}
	}
	return r.open[room]
}

// received is what an engine got.
type received struct {
	engine string
	path   string
	header http.Header
	body   string
	host   string
	port   int
	room   int64
}

// engine is a test server that speaks an engine's protocol.
type engine struct {
	t     testing.TB
	rooms *rooms
	name  string
	role  discovery.Role
	srv   *httptest.Server
	got   chan received

	// active is how many requests are in the handler; cancelled how many saw their client go.
	active, cancelled atomic.Int32

	// instead, when set, answers in place of the usual answer; it returns false to go on as usual.
	instead func(e *engine, w http.ResponseWriter, r *http.Request) bool
	// pieces of the streamed answer, one event each; step, when set, gives one token a piece.
	pieces []string
	step   chan struct{}
}

func newEngine(t testing.TB, rooms *rooms, role discovery.Role, name string) *engine {
	e := &engine{t: t, rooms: rooms, name: name, role: role, got: make(chan received, 1000), pieces: []string{"a", "b", "c"}}
	e.srv = httptest.NewServer(e)
	t.Cleanup(e.srv.Close)
	return e
}

func (e *engine) discovered() discovery.Engine {
	d := discovery.Engine{ID: e.name, Name: e.name, Role: e.role, URL: e.srv.URL, State: discovery.StateReady}
	if e.role == discovery.Prefill {
		d.BootstrapHost, d.BootstrapPort = "bootstrap-of-"+e.name, 8998
	}
	return d
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.active.Add(1)
	defer e.active.Add(-1)
	defer func() {
		if r.Context().Err() != nil {
			e.cancelled.Add(1)
		}
	}()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var fields struct {
		Stream bool   `json:"stream"`
		Host   string `json:"bootstrap_host"`
		Port   int    `json:"bootstrap_port"`
		Room   int64  `json:"bootstrap_room"`
	}
	_ = json.Unmarshal(body, &fields)
	e.got <- received{e.name, r.URL.RequestURI(), r.Header.Clone(), string(body), fields.Host, fields.Port, fields.Room}
	if e.instead != nil && e.instead(e, w, r) {
		return
	}
	w.Header().Set("X-Engine", e.name)
	switch e.role {
	case discovery.Prefill:
		room := e.rooms.get(fields.Room)
		close(room.prefill)
		select {
		case <-room.decode:
		case <-r.Context().Done():
			return
		}
		fmt.Fprint(w, `{"first":"token"}`)
		return
	case discovery.Decode:
		room := e.rooms.get(fields.Room)
		close(room.decode)
		select {
		case <-room.prefill:
		case <-r.Context().Done():
			return
		}
	}
	if !fields.Stream {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"text":%q}`, strings.Join(e.pieces, ""))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	for _, piece := range e.pieces {
		if e.step != nil {
			select {
			case <-e.step:
			case <-r.Context().Done():
				return
			}
		}
		fmt.Fprintf(w, "data: {\"text\":%q}\n\n", piece)
		w.(http.Flusher).Flush()
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// answerWith answers every request the same way.
func answerWith(status int, body string) func(*engine, http.ResponseWriter, *http.Request) bool {
	return func(_ *engine, w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-From", "engine")
		w.WriteHeader(status)
		fmt.Fprint(w, body)
		return true
	}
}

// die breaks the connection, as the kernel does for a killed process.
func die(_ *engine, w http.ResponseWriter, _ *http.Request) bool {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}
	return true
}

// hang waits until its client goes.
func hang(_ *engine, _ http.ResponseWriter, r *http.Request) bool {
	<-r.Context().Done()
	return true
}

// transcript is an Observer and a fleet.Listener that counts.
type transcript struct {
	mu       sync.Mutex
	inFlight int
	finished []string // route status outcome
	retries  []RetryReason
	set      []string // quarantined engines
}

func (o *transcript) Started(string) {
	o.mu.Lock()
	o.inFlight++
	o.mu.Unlock()
}

func (o *transcript) Finished(route string, status int, outcome Outcome, _ time.Duration) {
	o.mu.Lock()
	o.inFlight--
	o.finished = append(o.finished, fmt.Sprintf("%s %d %s", route, status, outcome))
	o.mu.Unlock()
}
func (o *transcript) Waited(time.Duration)            {}
func (o *transcript) Forwarded(string, time.Duration) {}
func (o *transcript) FirstByte(string, time.Duration) {}
func (o *transcript) Retried(r RetryReason) {
	o.mu.Lock()
	o.retries = append(o.retries, r)
	o.mu.Unlock()
}
func (o *transcript) Changed(discovery.Engine, discovery.State, discovery.State) {}
func (o *transcript) Quarantined(e discovery.Engine) {
	o.mu.Lock()
	o.set = append(o.set, e.Name)
	o.mu.Unlock()
}
func (o *transcript) Picked(discovery.Engine) {}

// router is a Proxy behind a real server.
type router struct {
	t     testing.TB
	url   string
	proxy *Proxy
	fleet *fleet.Fleet
	seen  *transcript
}

type routerOptions struct {
	config  func(*Config)
	engines []*engine
	wake    time.Duration
}

func newRouter(t testing.TB, o routerOptions) *router {
	t.Helper()
	rt := &router{t: t, seen: &transcript{}}
	var err error
	rt.fleet, err = fleet.New(fleet.Config{Policy: policy.RoundRobin, Quarantine: time.Hour, MaxWaiting: 100, Now: time.Now, Listener: rt.seen, Wake: o.wake})
	if err != nil {
		t.Fatal(err)
	}
	rt.update(o.engines...)
	var room atomic.Int64
	room.Store(1 << 62)
	cfg := Config{
		MaxBodyBytes: 1 << 20, MaxRetries: 2, QueueTimeout: 0, RequestTimeout: patience, ReadTimeout: patience, WriteTimeout: patience,
		DialTimeout: patience, Room: func() int64 { return room.Add(1) }, Now: time.Now, Log: slog.New(slog.DiscardHandler),
	}
	if o.config != nil {
		o.config(&cfg)
	}
	if rt.proxy, err = New(cfg, rt.fleet, rt.seen); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(rt.proxy)
	rt.url = srv.URL
	t.Cleanup(func() {
		srv.Close()
		rt.proxy.Close()
	})
	return rt
}

func (rt *router) update(engines ...*engine) {
	var list []discovery.Engine
	for _, e := range engines {
		list = append(list, e.discovered())
	}
	rt.fleet.Update(list)
}

// reply is an answer as a client sees it.
type reply struct {
	Status int
	Body   string
	Broken bool // the connection ended before the answer did
	header http.Header
}

func (rt *router) post(path, body string) reply {
	return rt.do(rt.t.Context(), http.MethodPost, path, body, nil)
}

func (rt *router) do(ctx context.Context, method, path, body string, header http.Header) reply {
	rt.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, rt.url+path, strings.NewReader(body))
	if err != nil {
		rt.t.Fatal(err)
	}
	if header != nil {
		req.Header = header
	}
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return reply{Broken: true}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return reply{Status: resp.StatusCode, Body: string(b), Broken: err != nil, header: resp.Header}
}

// settled waits until no request is outstanding anywhere and gives what was counted.
func (rt *router) settled() (finished []string, retries []RetryReason, quarantined []string) {
	rt.t.Helper()
	rt.poll("no outstanding request", func() bool {
		for _, w := range rt.fleet.Workers() {
			if w.Outstanding != 0 || w.Tokens != 0 {
				return false
			}
		}
		rt.seen.mu.Lock()
		defer rt.seen.mu.Unlock()
		return rt.seen.inFlight == 0
	})
	rt.seen.mu.Lock()
	defer rt.seen.mu.Unlock()
	return rt.seen.finished, rt.seen.retries, rt.seen.set
}

func (rt *router) poll(what string, cond func() bool) {
	rt.t.Helper()
	limit := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-limit:
			rt.t.Fatalf("%s: not within %v", what, patience)
		}
	}
}
