package rank

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/disagg"
	"github.com/sluice-dev/sluice/engine/loads"
	"github.com/sluice-dev/sluice/engine/request"
)

// pair is a prefill and a decode rank with the prefill engine's bootstrap server.
type pair struct {
	t               testing.TB
	prefill, decode Client
	host            string
	port            int
	rooms           int64
}

// startPair starts the bootstrap server and both ranks, or the worlds that start makes of them.
func startPair(t testing.TB, cfg Config, prefill, decode func(Config) Client) *pair {
	t.Helper()
	const secret = "for tests"
	srv := httptest.NewServer(disagg.NewBootstrap(disagg.BootstrapConfig{Secret: []byte(secret)}))
	t.Cleanup(func() {
		srv.Close()
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	host, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{t: t, host: host}
	if p.port, err = strconv.Atoi(port); err != nil {
		t.Fatal(err)
	}
	cfg.Disagg.Mode, cfg.Disagg.BootstrapURL, cfg.Disagg.Secret = ModePrefill, srv.URL, secret
	p.prefill = prefill(cfg)
	cfg.Disagg.Mode, cfg.Disagg.BootstrapURL = ModeDecode, ""
	p.decode = decode(cfg)
	return p
}

// alone starts ranks that hold the whole model.
func alone(t testing.TB, k startKind) func(Config) Client {
	return func(cfg Config) Client { return startClient(t, k, cfg) }
}

// submit sends a request to both, as the router does.
func (p *pair) submit(r *request.Request) (prefill, decode *Stream) {
	p.t.Helper()
	p.rooms++
	own := *r
	own.Bootstrap = &request.Bootstrap{Host: p.host, Port: p.port, Room: p.rooms}
	return submit(p.t, p.prefill, &own), submit(p.t, p.decode, &own)
}

func (p *pair) load(c Client) loads.Load {
	p.t.Helper()
	return loadOf(p.t, c)
}

// drained waits until a rank holds no page: transfers settle a moment after the last finish.
func (p *pair) drained(c Client) {
	p.t.Helper()
	ctx := waiting(p.t)
	for c.Flush(ctx) != nil {
		if ctx.Err() != nil {
			p.t.Fatalf("the rank still holds pages: %+v", p.load(c))
		}
	}
	if l := p.load(c); l.NumUsedTokens != 0 {
		p.t.Errorf("%d tokens are used after the end", l.NumUsedTokens)
	}
}

// TestPairEqualsUnified: greedy and seeded answers through prefill and decode equal the unified rank's, token for token,
// around page boundaries, concurrently, and with retraction on the decode rank.
func TestPairEqualsUnified(t *testing.T) {
	dir := seededModel(t)
	requests := func() (reqs []*request.Request) {
		for i, n := range []int{1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 200} {
			r := newRequest(fmt.Sprint("n", n), prompt(n), 1+(i*7)%40)
			if i%3 == 0 {
				r.Sampling.Temperature, r.Sampling.TopK, r.Sampling.Seed = 0.9, 20, new(int64(n))
			}
			reqs = append(reqs, r)
		}
		return reqs
	}
	unified := startClient(t, startKinds[0], testConfig(dir))
	want := map[string][]int32{}
	for _, r := range requests() {
		want[r.RID], _ = answer(t, submit(t, unified, r))
	}
	tests := []struct {
		name   string
		kind   startKind
		change func(*Config)
		pages  int
	}{
		{name: "page 8", kind: startKinds[0], change: func(c *Config) { c.PageSize = 8 }},
		{name: "page 64, chunks", kind: startKinds[0], change: func(c *Config) { c.PageSize, c.ChunkedPrefillSize = 64, 48 }},
		{name: "page 1, chunks", kind: startKinds[0], change: func(c *Config) { c.PageSize, c.ChunkedPrefillSize = 1, 30 }},
		{name: "retracting", kind: startKinds[0], change: func(c *Config) { c.PageSize, c.TestRetractSteps = 16, 3 }},
		{name: "tight", kind: startKinds[0], change: func(c *Config) { c.PageSize, c.MaxRunningRequests = 16, 4 }, pages: 17},
		{name: "own processes", kind: startKinds[1], change: func(*Config) {}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := testConfig(dir)
			tt.change(&cfg)
			p := startPair(t, cfg, alone(t, tt.kind), func(cfg Config) Client {
				if tt.pages > 0 {
					cfg.MaxTotalTokens = tt.pages * cfg.PageSize
				}
				return startClient(t, tt.kind, cfg)
			})
			type half struct {
				rid             string
				prefill, decode *Stream
			}
			var halves []half
			for _, r := range requests() {
				a, b := p.submit(r)
				halves = append(halves, half{r.RID, a, b})
			}
			for _, h := range halves {
				first, f := answer(t, h.prefill)
				if f.Outcome != request.OutcomeLength || !cmp.Equal(first, want[h.rid][:1]) {
					t.Errorf("%s: prefill gives %v, %v; want %v and length", h.rid, first, f, want[h.rid][:1])
				}
				tokens, f := answer(t, h.decode)
				if f.Outcome != request.OutcomeLength {
					t.Errorf("%s: decode ends with %v", h.rid, f)
				}
				if diff := cmp.Diff(want[h.rid], tokens); diff != "" {
					t.Errorf("%s (-unified +pair):\n%s", h.rid, diff)
				}
			}
			p.drained(p.prefill)
			p.drained(p.decode)
			if l := p.load(p.prefill); l.Utilization != -1 || l.Disaggregation.Mode != "prefill" || l.Disaggregation.KVTransferLatencyMs <= 0 {
				t.Errorf("load of the prefill rank is %+v, %+v", l, *l.Disaggregation)
			}
		})
	}
}

// TestPeerDies: the death of one rank ends the other's requests with an error and frees its pages.
func TestPeerDies(t *testing.T) {
	dir := seededModel(t)
	for _, victim := range []string{"prefill", "decode"} {
		t.Run(victim, func(t *testing.T) {
			cfg := testConfig(dir)
			cfg.ChunkedPrefillSize = 1 // many steps, so that transfers are under way
			// Of a decode rank that dies before it came to a room the prefill rank hears nothing; the router tells it, or
			// the time-out does.
			cfg.Disagg.BootstrapTimeout = 10 * time.Second
			p := startPair(t, cfg, alone(t, startKinds[1]), alone(t, startKinds[1]))
			var survivors []*Stream
			for i := range 40 { // work for seconds, of which a moment is looked for
				a, b := p.submit(newRequest(fmt.Sprint("r", i), prompt(300), 4))
				if victim == "prefill" {
					survivors = append(survivors, b)
				} else {
					survivors = append(survivors, a)
				}
			}
			dead, alive := p.prefill.(*Process), p.decode.(*Process)
			if victim == "decode" {
				dead, alive = alive, dead
			}
			ctx := waiting(t)
			for { // until KV is on its way and all peers have met
				l := p.load(p.decode)
				if pd := l.Disaggregation; pd.DecodeTransferQueueReqs > 0 && pd.DecodePreallocQueueReqs == l.Queues.PreallocReady {
					break
				}
				if ctx.Err() != nil {
					t.Fatalf("no transfer began: %+v", *l.Disaggregation)
				}
			}
			if err := syscall.Kill(dead.PID(), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			failed := 0
			for i, s := range survivors {
				_, f := answer(t, s)
				switch f.Outcome {
				case request.OutcomeTransferFailed, request.OutcomeBootstrapFailed:
					failed++
				case request.OutcomeLength: // its transfer was over
				default:
					t.Errorf("request %d ends with %v", i, f)
				}
			}
			if failed == 0 {
				t.Error("no request failed, so the death came after all transfers")
			}
			p.drained(alive)
			<-dead.Done()
			if dead.Err() == nil {
				t.Error("the death has no error")
			}
		})
	}
}

func TestHealthNeedsNoPeer(t *testing.T) {
	p := startPair(t, testConfig(seededModel(t)), alone(t, startKinds[0]), alone(t, startKinds[0]))
	for _, c := range []Client{p.prefill, p.decode} {
		r := newRequest("HEALTH_CHECK_1", []int32{1}, 1)
		r.LogMetrics = false
		r.Bootstrap = &request.Bootstrap{Host: request.FakeBootstrapHost}
		if tokens, f := answer(t, submit(t, c, r)); f.Outcome != request.OutcomeLength || len(tokens) != 1 {
			t.Errorf("health check ends with %v after %d tokens", f, len(tokens))
		}
	}
}

func TestPairAborts(t *testing.T) {
	cfg := testConfig(seededModel(t))
	cfg.ChunkedPrefillSize = 8
	p := startPair(t, cfg, alone(t, startKinds[0]), alone(t, startKinds[0]))
	for i := range 30 {
		rid := fmt.Sprint("r", i)
		a, b := p.submit(newRequest(rid, prompt(100), 50))
		first, second := p.prefill, p.decode
		if i%2 == 0 {
			first, second = second, first
		}
		if i%3 > 0 {
			for range i { // at different stages
				p.load(first)
			}
			if err := errors.Join(first.Abort(rid, request.OutcomeAbortedClient), second.Abort(rid, request.OutcomeAbortedClient)); err != nil {
				t.Fatal(err)
			}
		}
		for _, s := range []*Stream{a, b} {
			switch _, f := answer(t, s); f.Outcome {
			case request.OutcomeAbortedClient, request.OutcomeLength, request.OutcomeTransferFailed, request.OutcomeBootstrapFailed:
			default:
				t.Errorf("request %d ends with %v", i, f)
			}
		}
	}
	p.drained(p.prefill)
	p.drained(p.decode)
}
