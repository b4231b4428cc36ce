package disagg

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-dev/sluice/engine/request"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a rank's KV pool of a test. It fails the test when a page is touched that no session owns.
type memory struct {
	t      testing.TB
	layout Layout

	mu    sync.Mutex
	data  map[string][]byte
	owned map[int32]bool // nil: all pages may be touched
	slow  chan struct{}  // not nil: every ReadPage takes one token
	bad   error          // what WritePage returns
	blank bool           // pages hold zeros before they are written
}

func newMemory(t testing.TB, l Layout) *memory {
	return &memory{t: t, layout: l, data: map[string][]byte{}}
}

func key(layer int, page int32) string { return fmt.Sprintf("%d/%d", layer, page) }

// content is what layer of page holds in a filled memory.
func (m *memory) content(layer int, page int32) []byte {
	b := make([]byte, m.layout.PageBytesPerLayer)
	for i := range b {
		b[i] = byte(layer*31 + int(page)*7 + i)
	}
	return b
}

func (m *memory) ReadPage(layer int, page int32, dst []byte) {
	if m.slow != nil {
		<-m.slow
	}
	m.check("read", page)
	copy(dst, m.content(layer, page))
}

func (m *memory) WritePage(layer int, page int32, src []byte) error {
	m.check("written", page)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.data[key(layer, page)] = bytes.Clone(src)
	return m.bad
}

// directMemory is a memory whose pages are read and written in their place.
type directMemory struct{ *memory }

func (m directMemory) PageBytes(layer int, page int32) []byte {
	m.check("touched", page)
	m.mu.Lock()
	defer m.mu.Unlock()
	k := key(layer, page)
	if m.data[k] == nil {
		m.data[k] = m.content(layer, page)
		if m.blank {
			clear(m.data[k])
		}
	}
	return m.data[k]
}

func (m *memory) check(verb string, page int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.owned != nil && !m.owned[page] {
		m.t.Errorf("page %d was %s while no session owned it", page, verb)
	}
}

func (m *memory) own(pages []int32, yes bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.owned == nil {
		m.owned = map[int32]bool{}
	}
	for _, p := range pages {
		m.owned[p] = yes
	}
}

var testLayout = Layout{Layers: 3, PageSize: 4, PageBytesPerLayer: 96, DType: "float32", ModelID: "tiny"}

// pair is a prefill and a decode rank with a bootstrap server in between.
type pair struct {
	t        testing.TB
	wake     chan struct{}
	registry *Bootstrap
	server   *httptest.Server
	prefill  *Prefill
	decode   *Decode
	pm, dm   *memory
	events   chan Event
}

type pairOptions struct {
	layoutP, layoutD Layout
	prefill, decode  func(*Config)
	noRegister       bool
	direct           bool // both memories are Direct
}

func newPair(t testing.TB, o pairOptions) *pair {
	t.Helper()
	if o.layoutP.Layers == 0 {
		o.layoutP = testLayout
	}
	if o.layoutD.Layers == 0 {
		o.layoutD = o.layoutP
	}
	p := &pair{t: t, wake: make(chan struct{}, 1), events: make(chan Event, 1000)}
	cfg := Config{
		Listen: "127.0.0.1:0", Secret: []byte("s3cret"), BootstrapTimeout: 20 * time.Second, WaitingTimeout: 20 * time.Second,
		IdleTimeout: 10 * time.Second, HandshakeTimeout: 5 * time.Second, RouteTimeout: 5 * time.Second,
		Wake: func() {
			select {
			case p.wake <- struct{}{}:
			default:
			}
		},
		Listener: func(e Event) {
			select {
			case p.events <- e:
			default:
			}
		},
	}
	pc, dc := cfg, cfg
	if o.prefill != nil {
		o.prefill(&pc)
	}
	if o.decode != nil {
		o.decode(&dc)
	}
	p.registry = NewBootstrap(BootstrapConfig{Secret: pc.Secret})
	p.server = httptest.NewServer(p.registry)
	t.Cleanup(p.server.Close)
	pc.Bootstrap = strings.TrimPrefix(p.server.URL, "http://")
	p.pm, p.dm = newMemory(t, o.layoutP), newMemory(t, o.layoutD)
	p.dm.blank = true
	var pages, dpages Pages = p.pm, p.dm
	if o.direct {
		pages, dpages = directMemory{p.pm}, directMemory{p.dm}
	}
	var err error
	if p.prefill, err = NewPrefill(pc, o.layoutP, pages); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.prefill.Close() })
	if p.decode, err = NewDecode(dc, o.layoutD, dpages); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.decode.Close() })
	if !o.noRegister {
		waitFor(t, "registration", p.prefill.Registered())
	}
	return p
}

func (p *pair) bootstrap(room int64) request.Bootstrap {
	host, port, _ := net.SplitHostPort(strings.TrimPrefix(p.server.URL, "http://"))
	n, _ := strconv.Atoi(port)
	return request.Bootstrap{Host: host, Port: n, Room: room}
}

func (p *pair) open(room int64, tokens int) (*Sender, *Receiver) {
	p.t.Helper()
	s, err := p.prefill.Open(room, tokens)
	if err != nil {
		p.t.Fatal(err)
	}
	r, err := p.decode.Open(p.bootstrap(room), tokens)
	if err != nil {
		p.t.Fatal(err)
	}
	return s, r
}

const patience = 30 * time.Second

func waitFor(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("%s did not happen within %v", what, patience)
	}
}

type stateful interface {
	State() State
	Err() error
}

// until waits, woken by the sessions, until s is in state want.
func (p *pair) until(s stateful, want State) {
	p.t.Helper()
	limit := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for s.State() != want {
		if s.State().Terminal() {
			p.t.Fatalf("state is %v (%v), want %v", s.State(), s.Err(), want)
		}
		select {
		case <-p.wake:
		case <-tick.C: // another session of the test may have taken the wake-up
		case <-limit:
			p.t.Fatalf("state is %v, want %v", s.State(), want)
		}
	}
}

func seq(from, n int) []int32 {
	s := make([]int32, n)
	for i := range s {
		s[i] = int32(from + i)
	}
	return s
}

// transfer runs one room from open sessions to Done and compares every page.
func (p *pair) transfer(s *Sender, r *Receiver, src, dst []int32, first First) {
	p.t.Helper()
	p.until(r, WaitingPages)
	r.Allocate(dst, nil)
	p.until(s, Ready)
	for layer := range p.pm.layout.Layers {
		for i, page := range src {
			s.Send(layer, i, page)
		}
	}
	s.Finish(first)
	waitFor(p.t, "prefill's end", s.Settled())
	waitFor(p.t, "decode's end", r.Settled())
	if s.State() != Done || r.State() != Done {
		p.t.Fatalf("states are %v (%v) and %v (%v), want Done", s.State(), s.Err(), r.State(), r.Err())
	}
	p.compare(src, dst)
	if got, ok := r.First(); !ok || !reflect.DeepEqual(got, first) {
		p.t.Errorf("first token: got %+v, %v, want %+v", got, ok, first)
	}
}

func (p *pair) compare(src, dst []int32) {
	p.t.Helper()
	p.dm.mu.Lock()
	defer p.dm.mu.Unlock()
	for layer := range p.pm.layout.Layers {
		for i := range src {
			if !bytes.Equal(p.dm.data[key(layer, dst[i])], p.pm.content(layer, src[i])) {
				p.t.Fatalf("layer %d, page %d of the prompt: decode's bytes differ from prefill's", layer, i)
			}
		}
	}
}

func TestTransfer(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		tokens       int
		layout       Layout
		direct       bool
	}{
		{name: "one token", reason: "the smallest prompt takes one page", tokens: 1},
		{name: "page-1", reason: "the last page is not full", tokens: 3},
		{name: "page", reason: "exactly one page", tokens: 4},
		{name: "page+1", reason: "a second page with one token", tokens: 5},
		{name: "many", reason: "several pages", tokens: 41},
		{name: "batches", reason: "more than one write", tokens: 400, layout: Layout{Layers: 2, PageSize: 4, PageBytesPerLayer: 16 << 10}},
		{name: "direct", reason: "pages go from their place to their place", tokens: 401, layout: Layout{Layers: 3, PageSize: 4, PageBytesPerLayer: 32 << 10}, direct: true},
		{name: "direct, one page", reason: "the first frame follows the first page", tokens: 4, layout: Layout{Layers: 1, PageSize: 4, PageBytesPerLayer: directBytes}, direct: true},
		{name: "direct, large pages", reason: "a page is larger than a batch", tokens: 9, layout: Layout{Layers: 2, PageSize: 4, PageBytesPerLayer: 1 << 20}, direct: true},
		{name: "direct, odd pages", reason: "nothing is aligned", tokens: 77, layout: Layout{Layers: 2, PageSize: 4, PageBytesPerLayer: directBytes + 13}, direct: true},
		{name: "direct, small pages", reason: "they are copied after all", tokens: 77, layout: Layout{Layers: 2, PageSize: 4, PageBytesPerLayer: 96}, direct: true},
		{name: "large pages", reason: "a page is larger than a batch and than the read buffer", tokens: 9, layout: Layout{Layers: 2, PageSize: 4, PageBytesPerLayer: 1 << 20}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPair(t, pairOptions{layoutP: tc.layout, direct: tc.direct})
			if got := p.decode.direct != nil; got != (tc.direct && tc.layout.PageBytesPerLayer >= directBytes) {
				t.Errorf("pages travel without a copy: %v", got)
			}
			s, r := p.open(7, tc.tokens)
			n := p.pm.layout.NumPages(tc.tokens)
			p.transfer(s, r, seq(10, n), seq(900, n), First{Token: 42, Logprob: -1.5, CachedTokens: tc.tokens, Seed: 1 << 63})
			want := int64(n * p.pm.layout.Layers * p.pm.layout.PageBytesPerLayer)
			if s.Stats().TotalBytes != want || r.Stats().TotalBytes != want {
				t.Errorf("bytes: prefill says %d, decode %d, want %d", s.Stats().TotalBytes, r.Stats().TotalBytes, want)
			}
			if st := s.Stats(); st.LatencyNanos <= 0 || st.BootstrapNanos <= 0 || st.AllocNanos <= 0 {
				t.Errorf("times of the prefill side must be positive: %+v", st)
			}
		})
	}
}

func TestManyRoomsAtOnce(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	p := newPair(t, pairOptions{})
	var wg sync.WaitGroup
	for room := range int64(40) {
		tokens := 1 + rng.IntN(60)
		prefillFirst := rng.IntN(2) == 0
		n := p.pm.layout.NumPages(tokens)
		wg.Go(func() {
			var s *Sender
			var r *Receiver
			var err1, err2 error
			if prefillFirst {
				s, err1 = p.prefill.Open(room, tokens)
				r, err2 = p.decode.Open(p.bootstrap(room), tokens)
			} else {
				r, err2 = p.decode.Open(p.bootstrap(room), tokens)
				s, err1 = p.prefill.Open(room, tokens)
			}
			if err1 != nil || err2 != nil {
				t.Error(err1, err2)
				return
			}
			p.transfer(s, r, seq(int(room)*100, n), seq(int(room)*100+5000, n), First{Token: int32(room)})
		})
	}
	wg.Wait()
}

func TestDecodeArrivesFirst(t *testing.T) {
	p := newPair(t, pairOptions{})
	r, err := p.decode.Open(p.bootstrap(3), 6)
	if err != nil {
		t.Fatal(err)
	}
	p.untilParked(1)
	if r.State() != Bootstrapping {
		t.Fatalf("state before the room is open is %v, want Bootstrapping", r.State())
	}
	s, err := p.prefill.Open(3, 6)
	if err != nil {
		t.Fatal(err)
	}
	p.transfer(s, r, seq(0, 2), seq(4, 2), First{Token: 1})
}

// untilParked waits until n decode ranks are parked.
func (p *pair) untilParked(n int) {
	p.t.Helper()
	p.poll(fmt.Sprintf("%d parked decode ranks", n), func() bool {
		p.prefill.mu.Lock()
		defer p.prefill.mu.Unlock()
		return len(p.prefill.parked) == n
	})
}

func (p *pair) poll(what string, cond func() bool) {
	p.t.Helper()
	limit := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-limit:
			p.t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// failed waits for the end of a session and returns its error, which must have the reason.
func (p *pair) failed(s interface {
	stateful
	Settled() <-chan struct{}
}, step State, reason Reason, texts ...string) *Error {
	p.t.Helper()
	waitFor(p.t, "the end", s.Settled())
	var e *Error
	if !errors.As(s.Err(), &e) {
		p.t.Fatalf("state %v, error %v: want an *Error", s.State(), s.Err())
	}
	if e.Step != step || e.Reason != reason {
		p.t.Errorf("failed in %v with reason %s, want %v and %s: %v", e.Step, e.Reason, step, reason, e)
	}
	for _, text := range texts {
		if !strings.Contains(e.Error(), text) {
			p.t.Errorf("error %q does not say %q", e, text)
		}
	}
	return e
}

func TestMismatch(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Layout)
		text   string
	}{
		{"model", func(l *Layout) { l.ModelID = "other" }, `model_id differs: prefill has "tiny", decode has "other"`},
		{"dtype", func(l *Layout) { l.DType = "bfloat16" }, `dtype differs: prefill has "float32", decode has "bfloat16"`},
		{"layers", func(l *Layout) { l.Layers = 4 }, "layers differs: prefill has 3, decode has 4"},
		{"page size", func(l *Layout) { l.PageSize = 8 }, "page_size differs: prefill has 4, decode has 8"},
		{"bytes", func(l *Layout) { l.PageBytesPerLayer = 97 }, "page_bytes_per_layer differs: prefill has 96, decode has 97"},
	} {
		for _, order := range []string{"prefill first", "decode first"} {
			t.Run(tc.name+", "+order, func(t *testing.T) {
				l := testLayout
				tc.change(&l)
				p := newPair(t, pairOptions{layoutD: l})
				var s *Sender
				var r *Receiver
				if order == "prefill first" {
					s, r = p.open(1, 9)
				} else {
					r, _ = p.decode.Open(p.bootstrap(1), 9)
					waitFor(t, "decode's end", r.Settled())
					s, _ = p.prefill.Open(1, 9)
				}
				p.failed(s, Bootstrapping, ReasonMismatch, tc.text)
				e := p.failed(r, Bootstrapping, ReasonMismatch, tc.text)
				if !e.Bootstrap() || !e.FromPeer {
					t.Errorf("Bootstrap() = %v, FromPeer = %v, want both true", e.Bootstrap(), e.FromPeer)
				}
			})
		}
	}
}

func TestPromptLengthMismatch(t *testing.T) {
	p := newPair(t, pairOptions{})
	s, err := p.prefill.Open(1, 9)
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.decode.Open(p.bootstrap(1), 10)
	if err != nil {
		t.Fatal(err)
	}
	p.failed(s, Bootstrapping, ReasonMismatch, "prompt_tokens differs: prefill has 9, decode has 10")
	p.failed(r, Bootstrapping, ReasonMismatch, "prompt_tokens differs: prefill has 9, decode has 10")
}

func TestSecrets(t *testing.T) {
	for _, tc := range []struct {
		name            string
		prefill, decode string
		text            string
	}{
		{"different", "one", "two", "the secrets of the prefill and the decode engine differ"},
		{"decode without", "one", "", "the decode engine has none"},
		{"prefill without", "", "two", "the prefill engine has none"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPair(t, pairOptions{
				prefill: func(c *Config) { c.Secret = []byte(tc.prefill); c.BootstrapTimeout = 300 * time.Millisecond },
				decode:  func(c *Config) { c.Secret = []byte(tc.decode) },
			})
			s, r := p.open(1, 9)
			p.failed(r, Bootstrapping, ReasonAuth, tc.text)
			// A stranger must not be able to end a room: it goes on waiting, and its time-out tells what was refused.
			p.failed(s, Bootstrapping, ReasonTimeout, "no decode rank came", tc.text)
			for {
				select {
				case e := <-p.events:
					if e.Kind == EventRefused && ReasonOf(e.Err) == ReasonAuth {
						return
					}
					continue
				default:
				}
				t.Fatal("the prefill rank reported no refused connection")
			}
		})
	}
}

func TestNoSecretOnLoopback(t *testing.T) {
	none := func(c *Config) { c.Secret = nil }
	p := newPair(t, pairOptions{prefill: none, decode: none})
	s, r := p.open(1, 9)
	p.transfer(s, r, seq(0, 3), seq(4, 3), First{Token: 1})
}

func TestNoSecretElsewhere(t *testing.T) {
	_, err := NewPrefill(Config{Listen: "0.0.0.0:0", AdvertiseHost: "10.1.2.3"}, testLayout, nil)
	if err == nil || !strings.Contains(err.Error(), "--disaggregation-secret-file") {
		t.Errorf("prefill without a secret on all addresses: error %v, want one with the remedy", err)
	}
	b := NewBootstrap(BootstrapConfig{})
	req := httptest.NewRequest(http.MethodPut, "/route", strings.NewReader("{}"))
	req.RemoteAddr = "10.1.2.3:999"
	w := httptest.NewRecorder()
	b.ServeHTTP(w, req)
	if w.Code != http.StatusForbidden {
		t.Errorf("registration from elsewhere without a secret: status %d, want 403", w.Code)
	}
}

func TestTimeouts(t *testing.T) {
	short := func(c *Config) { c.BootstrapTimeout = 50 * time.Millisecond }
	t.Run("no decode rank", func(t *testing.T) {
		p := newPair(t, pairOptions{prefill: short})
		s, _ := p.prefill.Open(1, 9)
		p.failed(s, Bootstrapping, ReasonTimeout, "no decode rank came within 50ms")
	})
	t.Run("room never opened, prefill's clock", func(t *testing.T) {
		p := newPair(t, pairOptions{prefill: short})
		r, _ := p.decode.Open(p.bootstrap(1), 9)
		p.failed(r, Bootstrapping, ReasonTimeout, "the peer reports", "was not opened within 50ms")
	})
	t.Run("room never opened, decode's clock", func(t *testing.T) {
		p := newPair(t, pairOptions{decode: func(c *Config) { c.BootstrapTimeout = 200 * time.Millisecond }})
		r, _ := p.decode.Open(p.bootstrap(1), 9)
		p.failed(r, Bootstrapping, ReasonTimeout, "200ms")
	})
	t.Run("decode allocates nothing", func(t *testing.T) {
		p := newPair(t, pairOptions{prefill: func(c *Config) { c.BootstrapTimeout = 300 * time.Millisecond }})
		s, r := p.open(1, 9)
		p.failed(s, Bootstrapping, ReasonTimeout, "allocated no pages within 300ms")
		p.failed(r, WaitingPages, ReasonTimeout, "the peer reports", "allocated no pages")
	})
	t.Run("no pages", func(t *testing.T) {
		p := newPair(t, pairOptions{decode: func(c *Config) { c.WaitingTimeout = 50 * time.Millisecond; c.IdleTimeout = 60 * time.Millisecond }})
		s, r := p.open(1, 9)
		p.until(r, WaitingPages)
		r.Allocate(seq(0, 3), nil)
		p.failed(r, Transferring, ReasonTimeout, "no page came within 50ms; 0/9 have arrived")
		p.failed(s, Ready, ReasonTimeout, "the peer reports", "no page came")
	})
	t.Run("a waiting peer that answers pings is not idle", func(t *testing.T) {
		p := newPair(t, pairOptions{
			prefill: func(c *Config) { c.IdleTimeout = 200 * time.Millisecond },
			decode:  func(c *Config) { c.IdleTimeout = 200 * time.Millisecond; c.BootstrapTimeout = time.Second },
		})
		r, _ := p.decode.Open(p.bootstrap(1), 9)
		p.failed(r, Bootstrapping, ReasonTimeout, "1s")
	})
}

func TestUnreachable(t *testing.T) {
	p := newPair(t, pairOptions{decode: func(c *Config) { c.RouteTimeout = 50 * time.Millisecond }})
	p.server.Close()
	r, err := p.decode.Open(p.bootstrap(1), 9)
	if err != nil {
		t.Fatal(err)
	}
	p.failed(r, Bootstrapping, ReasonUnreachable, "ask the bootstrap server at "+strings.TrimPrefix(p.server.URL, "http://"))

	b := p.bootstrap(1)
	for _, tc := range []struct {
		name   string
		b      request.Bootstrap
		tokens int
	}{
		{"no host", request.Bootstrap{Port: b.Port}, 1},
		{"no port", request.Bootstrap{Host: b.Host}, 1},
		{"no tokens", b, 0},
	} {
		if _, err := p.decode.Open(tc.b, tc.tokens); err == nil {
			t.Errorf("%s: Open gave no error", tc.name)
		}
	}
}

func TestRestartedPrefill(t *testing.T) {
	p := newPair(t, pairOptions{})
	// Another run listens at the address that the bootstrap server still knows from the former one.
	_, port, _ := net.SplitHostPort(p.prefill.Addr().String())
	n, _ := strconv.Atoi(port)
	bs := NewBootstrap(BootstrapConfig{})
	bs.store(registration{AttnTPSize: 1, AttnCPSize: 1, AttnDPSize: 1, PPSize: 1, SystemDPSize: 1, RankIP: "127.0.0.1", RankPort: n, PageSize: 4, Incarnation: "old"})
	srv := httptest.NewServer(bs)
	defer srv.Close()
	host, sport, _ := net.SplitHostPort(strings.TrimPrefix(srv.URL, "http://"))
	sn, _ := strconv.Atoi(sport)
	r, err := p.decode.Open(request.Bootstrap{Host: host, Port: sn, Room: 5}, 9)
	if err != nil {
		t.Fatal(err)
	}
	p.failed(r, Bootstrapping, ReasonStale, "it was restarted")
}

func TestRoomIsOver(t *testing.T) {
	p := newPair(t, pairOptions{})
	s, r := p.open(1, 9)
	p.transfer(s, r, seq(0, 3), seq(4, 3), First{Token: 1})
	late, _ := p.decode.Open(p.bootstrap(1), 9)
	p.failed(late, Bootstrapping, ReasonStale, "room 1 is over", "done")

	s2, _ := p.prefill.Open(2, 9)
	s2.Abort(errors.New("the client went away"))
	p.failed(s2, Bootstrapping, ReasonAborted, "the client went away")
	late, _ = p.decode.Open(p.bootstrap(2), 9)
	p.failed(late, Bootstrapping, ReasonStale, "the client went away")
}

func TestSecondDecodeIsRefused(t *testing.T) {
	p := newPair(t, pairOptions{})
	s, r := p.open(1, 9)
	p.until(r, WaitingPages)
	second, _ := p.decode.Open(p.bootstrap(1), 9)
	p.failed(second, Bootstrapping, ReasonProtocol, "has its decode rank already")
	p.transfer(s, r, seq(0, 3), seq(4, 3), First{Token: 1})

	r3, _ := p.decode.Open(p.bootstrap(3), 9)
	p.untilParked(1)
	second, _ = p.decode.Open(p.bootstrap(3), 9)
	p.failed(second, Bootstrapping, ReasonProtocol, "has its decode rank already")
	if _, err := p.prefill.Open(3, 9); err != nil {
		t.Fatal(err)
	}
	p.until(r3, WaitingPages)
	if _, err := p.prefill.Open(3, 9); err == nil || !strings.Contains(err.Error(), "open already") {
		t.Errorf("second Open of a room: error %v, want one that says it is open already", err)
	}
}

func TestParkedLimit(t *testing.T) {
	p := newPair(t, pairOptions{prefill: func(c *Config) { c.MaxParked = 2 }})
	for room := range int64(2) {
		if _, err := p.decode.Open(p.bootstrap(room), 9); err != nil {
			t.Fatal(err)
		}
	}
	p.untilParked(2)
	r, _ := p.decode.Open(p.bootstrap(9), 9)
	p.failed(r, Bootstrapping, ReasonOverload, "2 decode ranks wait")
}

func TestWrongCalls(t *testing.T) {
	for _, tc := range []struct {
		name  string
		early bool
		call  func(*Sender)
		text  string
	}{
		{"send early", true, func(s *Sender) { s.Send(0, 0, 1) }, "Send in state Bootstrapping"},
		{"finish early", true, func(s *Sender) { s.Finish(First{}) }, "Finish in state Bootstrapping"},
		{"layer", false, func(s *Sender) { s.Send(3, 0, 1) }, "layers 0 to 2"},
		{"ordinal", false, func(s *Sender) { s.Send(0, 3, 1) }, "pages 0 to 2"},
		{"negative", false, func(s *Sender) { s.Send(0, -1, 1) }, "pages 0 to 2"},
		{"twice", false, func(s *Sender) { s.Send(0, 1, 1); s.Send(0, 1, 1) }, "a duplicate"},
		{"missing", false, func(s *Sender) { s.Send(0, 0, 1); s.Finish(First{}) }, "8 of 9 pages are missing, first page 1 of layer 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPair(t, pairOptions{})
			s, r := p.open(1, 9)
			if !tc.early {
				p.until(r, WaitingPages)
				r.Allocate(seq(0, 3), nil)
				p.until(s, Ready)
			}
			tc.call(s)
			waitFor(t, "the end", s.Settled())
			if ReasonOf(s.Err()) != ReasonLocal || !strings.Contains(s.Err().Error(), tc.text) {
				t.Errorf("error %v, want reason local and %q", s.Err(), tc.text)
			}
			waitFor(t, "the end", r.Settled())
		})
	}
	t.Run("allocate", func(t *testing.T) {
		p := newPair(t, pairOptions{})
		s, r := p.open(1, 9)
		p.until(r, WaitingPages)
		r.Allocate(seq(0, 2), nil)
		p.failed(r, WaitingPages, ReasonLocal, "Allocate got 2 pages, the prompt of 9 tokens takes 3")
		p.failed(s, Bootstrapping, ReasonLocal, "the peer reports")
	})
}

func TestConfigErrors(t *testing.T) {
	ok := Config{Listen: "127.0.0.1:0"}
	for _, tc := range []struct {
		name   string
		cfg    Config
		layout func(*Layout)
		text   string
	}{
		{"layers", ok, func(l *Layout) { l.Layers = 0 }, "layers is 0"},
		{"page size", ok, func(l *Layout) { l.PageSize = 0 }, "page_size is 0"},
		{"bytes", ok, func(l *Layout) { l.PageBytesPerLayer = 1 << 30 }, "page_bytes_per_layer"},
		{"listen", Config{Listen: "nothing"}, func(*Layout) {}, "listen address"},
		{"advertise", Config{Listen: ":0", Secret: []byte("x")}, func(*Layout) {}, "--disaggregation-host"},
	} {
		l := testLayout
		tc.layout(&l)
		if p, err := NewPrefill(tc.cfg, l, nil); err == nil || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: error %v, want %q", tc.name, err, tc.text)
			if p != nil {
				p.Close()
			}
		}
	}
}

func TestIllegalTransitionPanics(t *testing.T) {
	defer func() {
		if got := fmt.Sprint(recover()); got != "disagg: illegal transition Done → Sending" {
			t.Errorf("panic says %q", got)
		}
	}()
	checkTransition(Done, Sending)
}
