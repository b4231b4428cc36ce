package scheduler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/sluice-dev/sluice/engine/disagg"
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

const (
	testVocab  = 1000
	testLayers = 2
)

// tape is an executor whose KV is the tokens themselves: the next token is a function of all tokens that it reads back
// through the page table, so a wrong page, a lost token or a page that another sequence wrote shows in the answer.
type tape struct {
	pageSize int
	mu       sync.Mutex        // of the map and fail alone: that nobody else touches a page is the scheduler's to see to
	pages    map[int32][]int32 // [pageSize] tokens, -1 where nothing was written
	window   map[int32][]int32 // the same of the pool of sliding-window layers
	sees     int               // tokens that such a layer sees; 0: there are none
	fail     error
	onBatch  func(rows []Row) // nil, or told of each batch before it is computed
	previous []Sampled        // of the call before
	wrongAt  int              // the call that gives wrong tokens; 0: none
	calls    int
}

func newTape(pageSize int) *tape {
	return &tape{pageSize: pageSize, pages: map[int32][]int32{}, window: map[int32][]int32{}}
}

// newTapeOf is the device of a configuration.
func newTapeOf(cfg Config) *tape {
	x := newTape(cfg.PageSize)
	x.sees = cfg.WindowTokens
	return x
}

func (x *tape) page(id int32) []int32       { return x.pageOf(x.pages, id) }
func (x *tape) windowPage(id int32) []int32 { return x.pageOf(x.window, id) }

func (x *tape) pageOf(pool map[int32][]int32, id int32) []int32 {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := pool[id]
	if p == nil {
		p = slices.Repeat([]int32{-1}, x.pageSize)
		pool[id] = p
	}
	return p
}

// slideRow writes a row's tokens into the window pages and reads back what each of them sees.
func (x *tape) slideRow(r Row) error {
	if x.sees == 0 {
		return nil
	}
	if len(r.Window) != len(r.Pages) {
		return fmt.Errorf("%d window pages with %d pages", len(r.Window), len(r.Pages))
	}
	for i, token := range r.Tokens {
		at := r.Start + i
		page := r.Window[at/x.pageSize]
		if page < 0 {
			return fmt.Errorf("token %d has no window page", at)
		}
		x.windowPage(page)[at%x.pageSize] = token
	}
	for i := range r.Tokens {
		for at := max(0, r.Start+i-x.sees+1); at <= r.Start+i; at++ {
			page := r.Window[at/x.pageSize]
			if page < 0 {
				return fmt.Errorf("token %d sees token %d, whose window page was freed", r.Start+i, at)
			}
			got, want := x.windowPage(page)[at%x.pageSize], x.page(r.Pages[at/x.pageSize])[at%x.pageSize]
			if got != want {
				return fmt.Errorf("token %d sees %d at %d in the window, and %d in the full pages", r.Start+i, got, at, want)
			}
		}
	}
	return nil
}

func (x *tape) Execute(ctx context.Context, rows []Row, layerDone func(int)) ([]Sampled, error) {
	x.mu.Lock()
	fail := x.fail
	x.mu.Unlock()
	if err := errors.Join(ctx.Err(), fail); err != nil {
		return nil, err
	}
	if x.onBatch != nil {
		x.onBatch(rows)
	}
	writers := map[int32]int{}
	rows = slices.Clone(rows)
	for i := range rows {
		if r := &rows[i]; r.Future {
			r.Tokens = []int32{x.previous[r.PreviousRow].Token}
		}
	}
	for i, r := range rows {
		if len(r.Tokens) == 0 || r.Params == nil || len(r.Pages)*x.pageSize < r.Start+len(r.Tokens) {
			return nil, fmt.Errorf("row %d is not whole: %+v", i, r)
		}
		for j, token := range r.Tokens {
			at := r.Start + j
			page := r.Pages[at/x.pageSize]
			if w, ok := writers[page]; ok && w != i {
				return nil, fmt.Errorf("rows %d and %d write page %d", w, i, page)
			}
			writers[page] = i
			x.page(page)[at%x.pageSize] = token
		}
		if err := x.slideRow(r); err != nil {
			return nil, fmt.Errorf("row %d, tokens [%d,%d): %w", i, r.Start, r.Start+len(r.Tokens), err)
		}
	}
	for layer := range testLayers {
		if layerDone != nil {
			layerDone(layer)
		}
	}
	out := make([]Sampled, len(rows))
	for i, r := range rows {
		if r.Sample {
			out[i].Token = masked(nextToken(x.read(r.Pages, r.Start+len(r.Tokens)), r.Seed, r.Index), r.Mask)
			out[i].Logprob = -float32(r.Start + len(r.Tokens))
		}
	}
	for i, r := range rows {
		if r.Logprobs != nil {
			out[i].Logprobs = testLogprobs(r, out[i].Token)
		}
	}
	if x.calls++; x.calls == x.wrongAt {
		for i := range out {
			out[i].Token = (out[i].Token + 1) % testVocab
		}
	}
	x.previous = out
	return out, nil
}

// testLogprobs tells of each position the negative of it, and as many others as are wanted.
func testLogprobs(r Row, token int32) *Logprobs {
	at := func(position int, token int32) request.TokenLogprobs {
		l := request.TokenLogprobs{TokenLogprob: request.TokenLogprob{Token: token, Logprob: -float32(position)}}
		for i := range r.Logprobs.Top {
			l.Top = append(l.Top, request.TokenLogprob{Token: int32(position + i)})
		}
		return l
	}
	l := &Logprobs{}
	end := r.Start + len(r.Tokens)
	if from := r.Logprobs.PromptFrom; from > 0 {
		for position := max(from, r.Start+1); position <= min(end, r.PromptTokens-1); position++ {
			l.Prompt = append(l.Prompt, at(position, r.History[position]))
		}
	}
	if r.Sample {
		l.Sampled = new(at(end, token))
	}
	return l
}

// checkLogprobs verifies that a sink got what its request wants, each position once and in order.
func (s *inboxSink) checkLogprobs(t testing.TB, r *request.Request) {
	t.Helper()
	var want []request.TokenLogprobs
	row := Row{Logprobs: r.Logprobs, History: r.PromptIDs, PromptTokens: len(r.PromptIDs), Tokens: r.PromptIDs}
	if r.Logprobs != nil {
		row.Logprobs = new(*r.Logprobs)
		want = testLogprobs(row, 0).Prompt
	}
	got := s.prompt
	if len(s.tokens) == 0 { // it ended before its prompt was computed
		want = want[:min(len(want), len(got))]
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("request %s: logprobs of the prompt (-want +got):\n%s", r.RID, diff)
	}
	want = nil
	for i, token := range s.tokens {
		if r.Logprobs == nil {
			break
		}
		l := *testLogprobs(Row{Logprobs: r.Logprobs, Start: len(r.PromptIDs) + i, Sample: true}, token).Sampled
		want = append(want, l)
	}
	if diff := cmp.Diff(want, s.logprobs, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("request %s: logprobs of the answer (-want +got):\n%s", r.RID, diff)
	}
}

// read gives the first n tokens through a page table.
func (x *tape) read(pages []int32, n int) []int32 {
	tokens := make([]int32, n)
	for at := range tokens {
		tokens[at] = x.page(pages[at/x.pageSize])[at%x.pageSize]
	}
	return tokens
}

// nextToken is the model: token 0 is its end token.
func nextToken(tokens []int32, seed uint64, index int) int32 {
	h := uint64(14695981039346656037) ^ seed
	for _, t := range tokens {
		h = (h ^ uint64(uint32(t))) * 1099511628211
	}
	return int32((h ^ h>>29 + uint64(index)) % testVocab)
}

// expected is the answer of a request that nothing disturbs.
func expected(r *request.Request, limit int) []int32 {
	var seed uint64
	if r.Sampling.Seed != nil {
		seed = uint64(*r.Sampling.Seed)
	}
	var matcher Matcher
	var mask []uint64
	if r.Grammar != nil {
		g, err := testGrammars{}.Compile(context.Background(), *r.Grammar)
		if err != nil {
			panic(err)
		}
		matcher, mask = g.Matcher(), make([]uint64, g.Words())
		if err := matcher.Mask(mask); err != nil {
			panic(err)
		}
	}
	tokens := slices.Clone(r.PromptIDs)
	for {
		t := masked(nextToken(tokens, seed, len(tokens)-len(r.PromptIDs)), mask)
		tokens = append(tokens, t)
		if matcher != nil {
			if err := matcher.Follow(context.Background(), t, mask); err != nil {
				panic(err)
			}
			if matcher.Done() {
				return tokens[len(r.PromptIDs):]
			}
		}
		n := len(tokens) - len(r.PromptIDs)
		if t == 0 && !r.Sampling.IgnoreEOS || n >= r.Sampling.MaxNewTokens || len(tokens) >= limit {
			return tokens[len(r.PromptIDs):]
		}
	}
}

// letters decodes a token as one letter, or as the word for it where words has one.
type letters struct{ words map[int32]string }

func (d letters) Decode(ids []int32, _ bool) string {
	var b strings.Builder
	for _, id := range ids {
		if w, ok := d.words[id]; ok {
			b.WriteString(w)
			continue
		}
		b.WriteByte('a' + byte(id%26))
	}
	return b.String()
}

// inboxSink records the pieces of one request and refuses what the contract forbids.
type inboxSink struct {
	mu               sync.Mutex
	tokens           []int32
	logprobs, prompt []request.TokenLogprobs
	finish           *request.Finish
	cached           int
	onPiece          func(request.Output)
	ended            chan struct{} // closed at the Finish
}

func newSink() *inboxSink { return &inboxSink{ended: make(chan struct{})} }

func (s *inboxSink) Put(o request.Output) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finish != nil {
		panic("a piece after the finish of " + o.RID)
	}
	if len(o.PromptLogprobs) > 0 && len(s.tokens) > 0 {
		panic("logprobs of the prompt after a token of " + o.RID)
	}
	if len(o.Logprobs) > 0 && len(o.Logprobs) != len(o.TokenIDs) {
		panic(fmt.Sprintf("request %s: %d tokens with %d logprobs", o.RID, len(o.TokenIDs), len(o.Logprobs)))
	}
	s.tokens = append(s.tokens, o.TokenIDs...)
	s.logprobs, s.prompt = append(s.logprobs, o.Logprobs...), append(s.prompt, o.PromptLogprobs...)
	if o.CompletionTokens != len(s.tokens) {
		panic(fmt.Sprintf("request %s: %d tokens came, completion tokens are %d", o.RID, len(s.tokens), o.CompletionTokens))
	}
	s.finish = o.Finish
	s.cached = o.CachedTokens
	if s.onPiece != nil {
		s.onPiece(o)
	}
	if o.Finish != nil {
		close(s.ended)
	}
}

// count is the number of tokens that have come.
func (s *inboxSink) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.tokens)
}

// recorder keeps what a scheduler reports.
type recorder struct {
	mu        sync.Mutex
	lines     []string
	snapshots []report.Snapshot
	stages    map[ledger.Stage]int
	queue     int
	retracted [3]int
	realtime  [3]int
	transfers []report.KVTransfer
	moved     []report.KVMoved
	failed    [2]int // bootstrap, transfer
	constants []report.Constants
	loop      report.LoopTime // the sum
	queueOf   map[report.Priority]int
	released  map[report.ReleaseOutcome]int
	rejected  map[report.Rejection]int
	retries   int
	effective [2]int // computed, cached
	forward   map[report.ForwardMode]int64
	cost      report.Cost // the sum
	evicted   [2]int      // passes, tokens
	grammars  []report.Grammar
	masks     [][2]int64
}

func newRecorder() *recorder {
	return &recorder{
		stages: map[ledger.Stage]int{}, queueOf: map[report.Priority]int{}, released: map[report.ReleaseOutcome]int{},
		rejected: map[report.Rejection]int{}, forward: map[report.ForwardMode]int64{},
	}
}

func (r *recorder) Report(s report.Snapshot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.snapshots = append(r.snapshots, s)
	r.lines = append(r.lines, fmt.Sprintf("report %s: running %d, queued %d, used %d of %d, usage %.2f, utilization %.3g, throughput %.3g",
		s.Kind, s.NumRunningReqs.Total, s.NumQueueReqs.Total, s.NumUsedTokens, s.MaxTotalNumTokens, s.TokenUsage, s.Utilization, s.GenThroughput))
}
func (r *recorder) Started(c report.Constants) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.constants = append(r.constants, c)
}
func (r *recorder) LoopTime(t report.LoopTime) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loop.Iterations += t.Iterations
	r.loop.IdleNanos += t.IdleNanos
	r.loop.CPUNanos += t.CPUNanos
	for s := range t.StageNanos {
		for o, n := range t.StageNanos[s] {
			r.loop.StageNanos[s][o] += n
		}
	}
}
func (r *recorder) QueueTime(_ int64, p report.Priority) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue++
	r.queueOf[p]++
}
func (r *recorder) KVMoved(m report.KVMoved) {
	r.mu.Lock()
	r.moved = append(r.moved, m)
	r.mu.Unlock()
}
func (r *recorder) KVReleased(o report.ReleaseOutcome, _ int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.released[o]++
}
func (r *recorder) PrefillRetried() { r.mu.Lock(); r.retries++; r.mu.Unlock() }
func (r *recorder) Rejected(reason report.Rejection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rejected[reason]++
}
func (r *recorder) PrefillTokens(computed, cached int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.effective[0] += computed
	r.effective[1] += cached
}
func (r *recorder) Forward(mode report.ForwardMode, nanos int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forward[mode] += nanos
}
func (r *recorder) Estimated(c report.Cost) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cost.Flops += c.Flops
	r.cost.ReadBytes += c.ReadBytes
	r.cost.WriteBytes += c.WriteBytes
}
func (r *recorder) Evicted(tokens int, _ int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.evicted[0]++
	r.evicted[1] += tokens
}
func (r *recorder) Grammar(g report.Grammar) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.grammars = append(r.grammars, g)
}
func (r *recorder) GrammarMasks(mean, most int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.masks = append(r.masks, [2]int64{mean, most})
}
func (r *recorder) StageTime(stage ledger.Stage, _ int64) {
	r.mu.Lock()
	r.stages[stage]++
	r.mu.Unlock()
}
func (r *recorder) KVTransfer(t report.KVTransfer) {
	r.mu.Lock()
	r.transfers = append(r.transfers, t)
	r.mu.Unlock()
}
func (r *recorder) BootstrapFailed() { r.mu.Lock(); r.failed[0]++; r.mu.Unlock() }
func (r *recorder) TransferFailed()  { r.mu.Lock(); r.failed[1]++; r.mu.Unlock() }
func (r *recorder) Retracted(reqs, input, output int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.retracted[0] += reqs
	r.retracted[1] += input
	r.retracted[2] += output
	r.lines = append(r.lines, fmt.Sprintf("retracted %d: %d prompt tokens, %d answer tokens", reqs, input, output))
}
func (r *recorder) RealtimeTokens(compute, cache, decode int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.realtime[0] += compute
	r.realtime[1] += cache
	r.realtime[2] += decode
}
func (r *recorder) Violated(law ledger.Law) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf("violated %s: %s", law.Number(), law))
}

// wire is a hand-over between two tapes, or with one end in a test's hands.
type wire struct {
	mu       sync.Mutex
	rooms    map[int64]*room
	sender   *tape
	receiver *tape
	wake     []func()
	auto     bool  // rooms go on by themselves
	lost     int64 // bytes by which what the peers say is wrong
	latency  int64 // nanoseconds that a transfer says it took
	pageSize int
}

// room is one hand-over; both ends share it.
type room struct {
	w      *wire
	id     int64
	prompt int

	opened    [2]bool // prefill, decode
	state     [2]disagg.State
	err       error
	sent      map[[2]int]int32 // (layer, ordinal) → page of the prefill side
	dst       []int32
	dstWindow []int32
	first     *disagg.First
	lingering bool // Abort does not settle by itself
	aborted   error
}

func newWire(pageSize int) *wire {
	return &wire{rooms: map[int64]*room{}, auto: true, pageSize: pageSize, latency: 1e6}
}

func (w *wire) room(id int64, prompt int) *room {
	r := w.rooms[id]
	if r == nil {
		r = &room{w: w, id: id, prompt: prompt, sent: map[[2]int]int32{}}
		w.rooms[id] = r
	}
	return r
}

func (w *wire) changed() {
	for _, wake := range w.wake {
		wake()
	}
}

// advance moves a room on as far as both ends allow.
func (r *room) advance() {
	if !r.w.auto || r.err != nil {
		return
	}
	if r.opened[0] && r.opened[1] && r.state[1] == disagg.Bootstrapping {
		r.state[1] = disagg.WaitingPages
	}
	if r.dst != nil && r.state[0] == disagg.Bootstrapping {
		r.state[0] = disagg.Ready
	}
	if r.first != nil && r.state[1] == disagg.Transferring {
		pages := (r.prompt + r.w.pageSize - 1) / r.w.pageSize
		want := pages * testLayers
		if sees := r.w.sender.sees; sees > 0 { // the last layer has a window
			want -= max(0, r.prompt-sees+1) / r.w.pageSize
		}
		if len(r.sent) != want || len(r.dst) != pages {
			r.failLocked(fmt.Errorf("room %d: %d pages came, %d pages are there, want %d of %d layers, %d in all", r.id, len(r.sent), len(r.dst), pages, testLayers, want))
			return
		}
		for ordinal := range pages {
			copy(r.w.receiver.page(r.dst[ordinal]), r.w.sender.page(r.sent[[2]int{0, ordinal}]))
			if page, ok := r.sent[[2]int{testLayers - 1, ordinal}]; ok && r.w.sender.sees > 0 {
				copy(r.w.receiver.windowPage(r.dstWindow[ordinal]), r.w.sender.windowPage(page))
			}
		}
		r.state = [2]disagg.State{disagg.Done, disagg.Done}
	}
}

func (r *room) failLocked(err error) {
	r.err = err
	for i := range r.state {
		if !r.lingering && r.state[i] != disagg.Done {
			r.state[i] = disagg.Failed
		}
	}
}

// end is one side of a room: 0 prefill, 1 decode.
type end struct {
	*room
	side int
}

func (e end) State() disagg.State {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	return e.state[e.side]
}

func (e end) Err() error {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	return e.err
}

func (e end) Stats() disagg.TransferStats {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	bytes := int64(len(e.sent)) << 20
	return disagg.TransferStats{TotalBytes: bytes, PeerBytes: bytes + e.w.lost, PeerKnown: e.state[e.side] == disagg.Done, LatencyNanos: e.w.latency, BootstrapNanos: 2e6, AllocNanos: 3e6}
}

func (e end) Abort(err error) {
	e.w.mu.Lock()
	e.aborted = err
	if e.err == nil {
		failed := &disagg.Error{Step: e.state[e.side], Reason: disagg.ReasonAborted, Room: e.id, Err: err}
		if ended := (*disagg.Ended)(nil); errors.As(err, &ended) && ended.Outcome.Common() {
			failed.Outcome = ended.Outcome
		}
		e.failLocked(failed)
	}
	e.w.mu.Unlock()
	e.w.changed()
}

func (e end) Send(layer, ordinal int, page int32) {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	if _, ok := e.sent[[2]int{layer, ordinal}]; ok {
		panic(fmt.Sprintf("room %d: layer %d of page %d is sent twice", e.id, layer, ordinal))
	}
	e.sent[[2]int{layer, ordinal}] = page
	if e.state[0] == disagg.Ready {
		e.state[0] = disagg.Sending
	}
}

func (e end) Finish(first disagg.First) {
	e.w.mu.Lock()
	e.first = &first
	e.advance()
	e.w.mu.Unlock()
	e.w.changed()
}

func (e end) Allocate(pages, window []int32) {
	e.w.mu.Lock()
	e.dst, e.dstWindow = slices.Clone(pages), slices.Clone(window)
	if e.state[1] == disagg.WaitingPages {
		e.state[1] = disagg.Transferring
	}
	e.advance()
	e.w.mu.Unlock()
	e.w.changed()
}

func (e end) First() (disagg.First, bool) {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	if e.first == nil {
		return disagg.First{}, false
	}
	return *e.first, true
}

func (w *wire) open(id int64, prompt, side int) (end, error) {
	if id < 0 {
		return end{}, fmt.Errorf("open room %d: no such room", id)
	}
	w.mu.Lock()
	r := w.room(id, prompt)
	r.opened[side] = true
	r.advance()
	w.mu.Unlock()
	w.changed()
	return end{room: r, side: side}, nil
}

type wireSender struct{ *wire }

func (w wireSender) Open(id int64, prompt int) (Sending, error) { return w.open(id, prompt, 0) }

type wireReceiver struct{ *wire }

func (w wireReceiver) Open(at request.Bootstrap, prompt int) (Receiving, error) {
	return w.open(at.Room, prompt, 1)
}

// apart is a Finish without its timeline and token counts, which tests of the books look at.
func apart(f request.Finish) request.Finish {
	f.Timeline, f.ComputedTokens, f.ReprocessedTokens = nil, 0, 0
	return f
}

// begin starts the executor of a scheduler that a test steps by hand.
func begin(t testing.TB, s *Scheduler) {
	t.Cleanup(s.start(context.Background()))
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// testConfig is a small engine.
func testConfig(role Role, pageSize, capacity int) Config {
	return Config{
		Role: role, PageSize: pageSize, CapacityTokens: capacity, ContextLength: 1 << 20, VocabSize: testVocab,
		EOS: []int32{0}, MaxRunning: 8, MaxRunningUnderSLO: 8, MaxPrefillTokens: 1 << 20, DecodeInterval: 4,
	}
}
