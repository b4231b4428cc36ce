package disagg

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/engine/request"
)

// model is the KV of a prompt as one rank would hold it: a value for each place, made by hashing.
type model struct {
	layers, heads, headBytes, pageSize int
	window                             string
	windowTokens                       int
}

// value is byte i of what one token's key (kind 0) or value (kind 1) of a head holds.
func (m model) value(layer, kind, position, head, i int) byte {
	h := uint32(layer*7919+kind*104729+position*1299709+head*15485863+i*32452843) * 2654435761
	return byte(h >> 13)
}

// layout is that of a rank with so many heads of its own.
func (m model) layout(heads int) Layout {
	return Layout{
		Layers: m.layers, KVHeads: m.heads, PageSize: m.pageSize, PageBytesPerLayer: 2 * m.pageSize * heads * m.headBytes,
		DType: "float32", ModelID: "m", WindowLayers: m.window, WindowTokens: m.windowTokens,
	}
}

// page is what a rank that holds c must have for a page of a prompt, byte by byte from the definition of the layout.
func (m model) page(c cut, layer, ordinal int) []byte {
	var b []byte
	for kind := range 2 {
		for slot := range m.pageSize {
			for head := c.heads.from; head < c.heads.to; head++ {
				for i := range m.headBytes {
					b = append(b, m.value(layer, kind, ordinal*m.pageSize+slot, head, i))
				}
			}
		}
	}
	return b
}

// kv is the KV memory of one rank: whole pages by layer of the rank and by page, and who may touch them.
type kv struct {
	t  testing.TB
	mu sync.Mutex
	at map[[2]int][]byte // layer, page

	bytes  int
	frozen bool // no session is alive: a touch is an error
	bad    error
}

func newKV(t testing.TB, bytes int) *kv { return &kv{t: t, at: map[[2]int][]byte{}, bytes: bytes} }

func (k *kv) page(layer int, page int32) []byte {
	if k.frozen {
		k.t.Errorf("layer %d of page %d is touched after the end", layer, page)
	}
	key := [2]int{layer, int(page)}
	if k.at[key] == nil {
		k.at[key] = bytes.Repeat([]byte{0xEE}, k.bytes)
	}
	return k.at[key]
}

func (k *kv) ReadPage(layer int, page int32, dst []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if copy(dst, k.page(layer, page)) != k.bytes || len(dst) != k.bytes {
		k.t.Errorf("a page of %d bytes is read into %d", k.bytes, len(dst))
	}
}

func (k *kv) WritePage(layer int, page int32, src []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if copy(k.page(layer, page), src) != k.bytes || len(src) != k.bytes {
		k.t.Errorf("a page of %d bytes is written from %d", k.bytes, len(src))
	}
	return k.bad
}

func (k *kv) freeze() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.frozen = true
}

// directKV is a kv that gives its pages' memory away.
type directKV struct{ *kv }

func (k directKV) PageBytes(layer int, page int32) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.page(layer, page)
}

// engines are a prefill and a decode engine of several ranks each, around one bootstrap server.
type engines struct {
	t               testing.TB
	m               model
	prefill, decode world
	at              request.Bootstrap
	server          *Bootstrap
	prefills        []*Prefill
	decodes         []*Decode
	pkv, dkv        []*kv
}

func newEngines(t testing.TB, m model, prefill, decode world, direct bool, change func(*Config)) *engines {
	t.Helper()
	e := &engines{t: t, m: m, prefill: prefill, decode: decode, server: NewBootstrap(BootstrapConfig{Secret: []byte("s3cret")})}
	server := httptest.NewServer(e.server)
	t.Cleanup(server.Close)
	host, port, _ := net.SplitHostPort(strings.TrimPrefix(server.URL, "http://"))
	e.at = request.Bootstrap{Host: host}
	e.at.Port, _ = strconv.Atoi(port)
	config := func(w world, c coordinate) Config {
		cfg := Config{
			Listen: "127.0.0.1:0", Secret: []byte("s3cret"), Bootstrap: host + ":" + port, Place: w.place(c),
			BootstrapTimeout: patience, WaitingTimeout: patience, IdleTimeout: patience,
		}
		if change != nil {
			change(&cfg)
		}
		return cfg
	}
	store := func(bytes int) (*kv, Pages) {
		k := newKV(t, bytes)
		if direct {
			return k, directKV{k}
		}
		return k, k
	}
	shape := m.layout(1).shape()
	for _, c := range prefill.ranks() {
		layout := m.layout(prefill.holds(shape, c).heads.len())
		k, pages := store(layout.PageBytesPerLayer)
		p, err := NewPrefill(config(prefill, c), layout, pages)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		e.prefills, e.pkv = append(e.prefills, p), append(e.pkv, k)
	}
	for _, c := range decode.ranks() {
		layout := m.layout(decode.holds(shape, c).heads.len())
		k, pages := store(layout.PageBytesPerLayer)
		d, err := NewDecode(config(decode, c), layout, pages)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		e.decodes, e.dkv = append(e.decodes, d), append(e.dkv, k)
	}
	for _, p := range e.prefills {
		waitFor(t, "registration", p.Registered())
	}
	return e
}

// open opens a room at every rank, in a random order.
func (e *engines) open(rng *rand.Rand, room int64, tokens int) (senders []*Sender, receivers []*Receiver) {
	e.t.Helper()
	senders, receivers = make([]*Sender, len(e.prefills)), make([]*Receiver, len(e.decodes))
	at := e.at
	at.Room = room
	for _, i := range rng.Perm(len(senders) + len(receivers)) {
		var err error
		if i < len(senders) {
			senders[i], err = e.prefills[i].Open(room, tokens)
		} else {
			receivers[i-len(senders)], err = e.decodes[i-len(senders)].Open(at, tokens)
		}
		if err != nil {
			e.t.Fatal(err)
		}
	}
	return senders, receivers
}

func (e *engines) until(s stateful, want State) { (&pair{t: e.t}).until(s, want) }

// ready brings a room to where pages may be sent. Page i of a prompt is page 100+i at prefill and 300+i at decode, 500+i
// and 700+i for layers with a window.
func (e *engines) ready(senders []*Sender, receivers []*Receiver, pages int) {
	e.t.Helper()
	for _, r := range receivers {
		e.until(r, WaitingPages)
	}
	for _, r := range receivers {
		r.Allocate(seq(300, pages), seq(700, pages))
	}
	for _, s := range senders {
		e.until(s, Ready)
	}
}

// send fills the pages of a prefill rank's layer and sends them.
func (e *engines) send(s *Sender, rank, layer, tokens int) {
	holds, k := e.prefills[rank].shard.holds, e.pkv[rank]
	l := &e.prefills[rank].shard.layout
	global := holds.layers.from + layer
	for ordinal := range l.NumPages(tokens) {
		page := int32(100 + ordinal)
		if l.windowed(global) {
			page = int32(500 + ordinal)
		}
		k.mu.Lock()
		copy(k.page(layer, page), e.m.page(holds, global, ordinal))
		k.mu.Unlock()
		s.Send(layer, ordinal, page)
	}
}

// check compares every page of every decode rank with what the definition says.
func (e *engines) check(tokens int) {
	e.t.Helper()
	for i, d := range e.decodes {
		l := &d.shard.layout
		for layer := d.shard.holds.layers.from; layer < d.shard.holds.layers.to; layer++ {
			for ordinal := range l.NumPages(tokens) {
				page, wanted := 300+ordinal, true
				if l.windowed(layer) {
					page, wanted = 700+ordinal, ordinal >= l.FirstWindowPage(tokens)
				}
				got := e.dkv[i].at[[2]int{layer - d.shard.holds.layers.from, page}]
				if !wanted {
					if got != nil {
						e.t.Fatalf("decode rank %v: page %d of layer %d is out of the window and came", d.shard.at, ordinal, layer)
					}
					continue
				}
				if want := e.m.page(d.shard.holds, layer, ordinal); !bytes.Equal(got, want) {
					e.t.Fatalf("decode rank %v: page %d of layer %d is %x, want %x", d.shard.at, ordinal, layer, got, want)
				}
			}
		}
	}
}

// run hands one prompt over: every prefill rank sends its layers in order, all at the same time.
func (e *engines) run(rng *rand.Rand, room int64, tokens int) {
	e.t.Helper()
	for _, k := range e.dkv {
		clear(k.at)
	}
	senders, receivers := e.open(rng, room, tokens)
	e.ready(senders, receivers, e.m.layout(1).NumPages(tokens))
	want := exampleFirst()
	want.CachedTokens = tokens - 1
	if tokens < 3 {
		want.Prompt = nil
	}
	var work sync.WaitGroup
	for i, s := range senders {
		work.Go(func() {
			for layer := range e.prefills[i].shard.holds.layers.len() {
				e.send(s, i, layer, tokens)
			}
			first := want
			if i > 0 {
				first.Logprobs, first.Prompt = nil, nil // known to the first rank alone
			}
			s.Finish(first)
		})
	}
	work.Wait()
	for _, s := range senders {
		waitFor(e.t, "the end of a sender", s.Settled())
		if s.State() != Done {
			e.t.Fatalf("a sender ends as %v: %v", s.State(), s.Err())
		}
	}
	logprobs := 0
	for _, r := range receivers {
		waitFor(e.t, "the end of a receiver", r.Settled())
		first, ok := r.First()
		if !ok || first.Token != want.Token || first.Seed != want.Seed || first.CachedTokens != tokens-1 {
			e.t.Fatalf("a receiver ends as %v (%v) with %+v", r.State(), r.Err(), first)
		}
		if first.Logprobs != nil {
			logprobs++
		}
	}
	if first, _ := receivers[0].First(); first.Logprobs == nil || logprobs == 0 {
		e.t.Errorf("the first decode rank has no logprobs")
	}
	e.check(tokens)
}

// TestWorlds hands prompts over between worlds of every kind and compares every byte with the definition of the layout.
func TestWorlds(t *testing.T) {
	const seed = 5
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, m := range []model{
		{layers: 3, heads: 4, headBytes: 12, pageSize: 4},
		{layers: 2, heads: 2, headBytes: 8, pageSize: 1},
		{layers: 2, heads: 1, headBytes: 20, pageSize: 8},
		{layers: 4, heads: 2, headBytes: 8, pageSize: 4, window: "0101", windowTokens: 10},
		{layers: 2, heads: 4, headBytes: 2 << 10, pageSize: 16}, // large enough for pages to go to their place
	} {
		for _, prefill := range []world{{1, 1}, {2, 1}, {4, 1}, {1, 2}, {2, 2}} {
			for _, decode := range []world{{1, 1}, {2, 1}, {4, 1}, {1, 2}, {4, 2}} {
				direct := rng.IntN(2) == 0
				name := fmt.Sprintf("L%dH%dp%d/tp%dpp%d-tp%dpp%d", m.layers, m.heads, m.pageSize, prefill.tp, prefill.pp, decode.tp, decode.pp)
				t.Run(name, func(t *testing.T) {
					e := newEngines(t, m, prefill, decode, direct, nil)
					for room := range 3 {
						e.run(rng, int64(room+1), 1+rng.IntN(9*m.pageSize))
					}
					if t.Failed() {
						t.Logf("seed %d, direct %v", seed, direct)
					}
				})
			}
		}
	}
}

// TestManyRooms hands over many prompts at once.
func TestManyRooms(t *testing.T) {
	e := newEngines(t, model{layers: 2, heads: 4, headBytes: 8, pageSize: 4}, world{4, 1}, world{2, 2}, false, nil)
	const rooms, tokens = 16, 11
	var work sync.WaitGroup
	for room := range int64(rooms) {
		senders, receivers := e.open(rand.New(rand.NewPCG(1, uint64(room))), room+1, tokens)
		work.Go(func() {
			e.ready(senders, receivers, 3)
			for i, s := range senders {
				for layer := range 2 {
					e.send(s, i, layer, tokens)
				}
				s.Finish(First{Token: int32(room)})
			}
			for _, r := range receivers {
				waitFor(t, "the end of a receiver", r.Settled())
				if first, ok := r.First(); !ok || first.Token != int32(room) {
					t.Errorf("room %d: %v (%v), first token %d", room, r.State(), r.Err(), first.Token)
				}
			}
		})
	}
	work.Wait()
	e.check(tokens)
}

// TestEndsOfWorlds ends a room at one of its ranks in different ways and states. Each rank of either side has both ranks of
// the other as its peers, so every one of them must learn of it by itself, and nobody may touch a page from then on.
func TestEndsOfWorlds(t *testing.T) {
	type room struct {
		senders   []*Sender
		receivers []*Receiver
	}
	ends := []struct {
		name   string
		reason Reason // at every rank, or what the peer of an abort makes of it
		// outcome of the request, as every rank hears it.
		outcome request.Outcome
		end     func(e *engines, r room)
	}{
		{"a sender aborts", ReasonAborted, request.OutcomeAbortedOperator, func(_ *engines, r room) {
			r.senders[1].Abort(&Ended{Outcome: request.OutcomeAbortedOperator, Text: "the operator ends it"})
		}},
		{"a receiver aborts", ReasonAborted, "", func(_ *engines, r room) { r.receivers[1].Abort(nil) }},
		{"a prefill rank ends", ReasonAborted, "", func(e *engines, _ room) { e.prefills[1].Close() }},
		{"a decode rank ends", ReasonAborted, "", func(e *engines, _ room) { e.decodes[0].Close() }},
		{"the connections of a prefill rank break", ReasonPeerDied, "", func(e *engines, _ room) {
			p := e.prefills[1]
			p.mu.Lock()
			defer p.mu.Unlock()
			for l := range p.links {
				l.conn.(*net.TCPConn).SetLinger(0)
				l.close()
			}
		}},
	}
	for _, phase := range []string{"bootstrap", "allocated", "half sent", "all but one finished"} {
		for _, end := range ends {
			t.Run(phase+"/"+end.name, func(t *testing.T) {
				e := newEngines(t, model{layers: 2, heads: 4, headBytes: 8, pageSize: 4}, world{2, 1}, world{1, 2}, false, nil)
				var r room
				r.senders, r.receivers = e.open(rand.New(rand.NewPCG(1, 1)), 1, 9)
				for _, one := range r.receivers {
					e.until(one, WaitingPages)
				}
				if phase != "bootstrap" {
					e.ready(r.senders, r.receivers, 3)
				}
				switch phase {
				case "half sent":
					e.send(r.senders[0], 0, 0, 9)
				case "all but one finished":
					e.send(r.senders[0], 0, 0, 9)
					e.send(r.senders[0], 0, 1, 9)
					r.senders[0].Finish(First{})
				}
				end.end(e, r)
				check := func(s stateful, settled <-chan struct{}) {
					t.Helper()
					waitFor(t, "the end", settled)
					reason := ReasonOf(s.Err())
					if s.State() != Failed || reason != end.reason && (end.reason != ReasonAborted || reason != ReasonPeerAborted) {
						t.Errorf("a rank ends as %v: %v", s.State(), s.Err())
					}
					endedIn(t, s, end.outcome)
				}
				for _, one := range r.senders {
					check(one, one.Settled())
				}
				for _, one := range r.receivers {
					check(one, one.Settled())
				}
				for _, k := range append(e.pkv, e.dkv...) {
					k.freeze()
				}
			})
		}
	}
}

// TestDisagreement fails a room whose prefill ranks tell different first tokens.
func TestDisagreement(t *testing.T) {
	e := newEngines(t, model{layers: 2, heads: 4, headBytes: 8, pageSize: 4}, world{2, 1}, world{1, 1}, false, nil)
	senders, receivers := e.open(rand.New(rand.NewPCG(1, 1)), 1, 5)
	e.ready(senders, receivers, 2)
	for i, s := range senders {
		e.send(s, i, 0, 5)
		e.send(s, i, 1, 5)
		s.Finish(First{Token: int32(i)})
	}
	for _, s := range senders {
		waitFor(t, "the end of a sender", s.Settled())
		if s.State() != Failed {
			t.Errorf("a sender ends as %v", s.State())
		}
	}
	waitFor(t, "the end of the receiver", receivers[0].Settled())
	if err := receivers[0].Err(); ReasonOf(err) != ReasonProtocol || !strings.Contains(err.Error(), "prefill ranks disagree about the first token") {
		t.Errorf("error %v", err)
	}
}

// TestWorldMismatch refuses decode ranks that can't have the prefill ranks' KV, and says why on both sides.
func TestWorldMismatch(t *testing.T) {
	m := model{layers: 2, heads: 4, headBytes: 8, pageSize: 4}
	tests := []struct {
		name, want string
		change     func(*Layout)
	}{
		{"heads", "kv_heads differs: prefill has 4, decode has 8", func(l *Layout) { l.KVHeads, l.PageBytesPerLayer = 8, 2*l.PageBytesPerLayer }},
		{"head size", "page_bytes_per_layer differs: prefill has 256, decode has 512", func(l *Layout) { l.PageBytesPerLayer *= 2 }},
		{"window", "attention window differs", func(l *Layout) { l.WindowLayers, l.WindowTokens = "01", 8 }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEngines(t, m, world{1, 1}, world{1, 1}, false, nil)
			layout := m.layout(4)
			tt.change(&layout)
			d, err := NewDecode(e.decodes[0].cfg, layout, newKV(t, layout.PageBytesPerLayer))
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			at := e.at
			at.Room = 1
			s, err := e.prefills[0].Open(1, 5)
			if err != nil {
				t.Fatal(err)
			}
			r, err := d.Open(at, 5)
			if err != nil {
				t.Fatal(err)
			}
			for _, one := range []interface {
				stateful
				Settled() <-chan struct{}
			}{s, r} {
				waitFor(t, "the end", one.Settled())
				if err := one.Err(); ReasonOf(err) != ReasonMismatch || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("error %v, want one with %q", err, tt.want)
				}
			}
		})
	}
}

// TestShardOfLayout refuses layouts that a place can't have.
func TestShardOfLayout(t *testing.T) {
	good := model{layers: 4, heads: 4, headBytes: 8, pageSize: 4}
	tests := []struct {
		name, want string
		layout     Layout
		w          world
		c          coordinate
	}{
		{name: "heads", layout: good.layout(4), w: world{3, 1}, want: "4 KV heads over 3 tensor-parallel ranks"},
		{name: "stages", layout: good.layout(4), w: world{1, 5}, want: "4 layers over 5 stages"},
		{name: "odd page", layout: Layout{Layers: 4, KVHeads: 4, PageSize: 4, PageBytesPerLayer: 100}, w: world{2, 1}, want: "want a multiple of 16"},
		{name: "outside", layout: good.layout(2), w: world{2, 1}, c: coordinate{tp: 2}, want: "not in a world"},
		{name: "window", layout: Layout{Layers: 2, PageSize: 4, PageBytesPerLayer: 96, WindowLayers: "01"}, w: world{1, 1}, want: "want both or none"},
		{name: "window layers", layout: Layout{Layers: 2, PageSize: 4, PageBytesPerLayer: 96, WindowLayers: "012", WindowTokens: 4}, w: world{1, 1}, want: "a 0 or 1 for each of 2 layers"},
	}
	for _, tt := range tests {
		if _, err := newShard(tt.layout, tt.w.place(tt.c)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want one with %q", tt.name, err, tt.want)
		}
	}
}

// TestReplicas asks for rooms of an engine with several replicas.
func TestReplicas(t *testing.T) {
	b := NewBootstrap(BootstrapConfig{})
	server := httptest.NewServer(b)
	defer server.Close()
	d, err := NewDecode(Config{BootstrapTimeout: patience, RouteTimeout: 20 * time.Millisecond}, testLayout, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	ask := func(room int64) (replicaRoute, error) { return getReplica(t.Context(), d.client, address, room) }
	fails := func(room int64, status int, text string) {
		t.Helper()
		_, err := ask(room)
		var s *statusError
		if !errors.As(err, &s) || s.status != status || !strings.Contains(s.text, text) {
			t.Errorf("room %d: %v, want status %d with %q", room, err, status, text)
		}
	}
	fails(1, 404, "no prefill rank has registered")
	store := func(method string, dp, tp int) {
		status, err := b.store(registration{
			AttnTPSize: 2, AttnTPRank: tp, AttnCPSize: 1, AttnDPSize: 1, PPSize: 1, SystemDPSize: 3, SystemDPRank: dp,
			RankIP: "127.0.0.1", RankPort: 100 + 10*dp + tp, PageSize: 4, LoadBalanceMethod: method, Incarnation: fmt.Sprint(dp, tp),
		})
		if err != nil {
			t.Fatal(status, err)
		}
	}
	store(FollowRoom, 1, 0)
	fails(4, 404, "dp=1 tp=1 pp=0 has not registered")
	store(FollowRoom, 1, 1)
	route, err := ask(4)
	if err != nil || route.DPRank != 1 || route.Ranks[1].RankPort != 111 || route.Ranks[1].Incarnation != "1 1" {
		t.Errorf("%+v, %v", route, err)
	}
	fails(5, 404, "dp=2 tp=0 pp=0 has not registered")

	store("round_robin", 2, 0)
	store("round_robin", 2, 1)
	fails(4, 425, "the DP rank of room 4 is not known yet")
	r := &Receiver{d: d, ctx: t.Context(), server: address}
	r.group = newGroup(&d.cfg, 4, WaitingPages, nil)
	asked := make(chan replicaRoute, 1)
	go func() {
		route, err := r.ask()
		if err != nil {
			t.Error(err)
		}
		asked <- route
	}()
	register := func(body string) int {
		response, err := d.client.Post(server.URL+"/register_dp_rank", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return response.StatusCode
	}
	for body, want := range map[string]int{`{`: 400, `{"bootstrap_room":4}`: 400, `{"bootstrap_room":4,"dp_rank":-1}`: 400, `{"bootstrap_room":4,"dp_rank":2}`: 200} {
		if got := register(body); got != want {
			t.Errorf("%s: status %d, want %d", body, got, want)
		}
	}
	if route := <-asked; route.DPRank != 2 || len(route.Ranks) != 2 {
		t.Errorf("%+v", route)
	}
	response, err := d.client.Post(server.URL+"/query_dp_ranks", "application/json", strings.NewReader(`{"bootstrap_rooms":[4,9]}`))
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	text.ReadFrom(response.Body)
	response.Body.Close()
	if got := text.String(); got != "{\"4\":2}\n" {
		t.Errorf("query: %q", got)
	}
	for room := range int64(maxRooms + 10) {
		b.Assign(room, 0)
	}
	if len(b.rooms) != maxRooms || len(b.order) != maxRooms {
		t.Errorf("%d and %d rooms are kept in mind", len(b.rooms), len(b.order))
	}
}

// FuzzReplica reads answers of a bootstrap server that may say anything: what is taken names every rank once.
func FuzzReplica(f *testing.F) {
	f.Add(2, 1, 0, 0, 1, 0, 80)
	f.Add(1, 2, 0, 0, 0, 1, 80)
	f.Add(-1, 1<<40, 5, 5, 5, 5, 0)
	f.Fuzz(func(t *testing.T, tp, pp, tp0, pp0, tp1, pp1, port int) {
		r := replicaRoute{AttnTPSize: tp, PPSize: pp, Ranks: []memberRoute{
			{AttnTPRank: tp0, PPRank: pp0, rankRoute: rankRoute{RankIP: "a", RankPort: port}},
			{AttnTPRank: tp1, PPRank: pp1, rankRoute: rankRoute{RankIP: "b", RankPort: port}},
		}}
		if r.validate() != nil {
			return
		}
		w := world{tp: tp, pp: pp}
		if !w.has(coordinate{tp0, pp0}) || !w.has(coordinate{tp1, pp1}) || len(w.ranks()) != 2 || tp0 == tp1 && pp0 == pp1 {
			t.Errorf("%+v is taken", r)
		}
	})
}
