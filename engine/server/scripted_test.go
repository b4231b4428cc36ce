package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/loads"
	"github.com/sluice-dev/sluice/engine/metrics"
	"github.com/sluice-dev/sluice/engine/profile"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/tokenizer"
)

// scriptedRank is a rank in memory that answers as a test says. It holds what it was asked, and who never ended.
type scriptedRank struct {
	info  rank.Info
	load  loads.Load
	flush error

	// script plays the answer of one request. It runs in its own goroutine and ends by Put of a Finish, or by waiting for
	// the abort.
	script func(r *request.Request, s *rank.Stream, aborted <-chan request.Outcome)

	timelines  map[string]*ledger.Record // of those that live, by rid
	unanswered error                     // of the question for them
	steps      chan int64                // is told of each step that somebody waits for, which is over once it is taken; nil: there are none

	arriving  func(rid string) // nil, or called while a request is on its way
	overtaken bool             // a pause comes before all requests that were handed over, and aborts none of them
	told      func()           // nil, or called when AbortAll has aborted what there was

	mu       sync.Mutex
	requests []*request.Request
	living   map[string]chan request.Outcome
	refusal  error
	calls    []string // control calls
	denial   error    // of control calls
	playing  sync.WaitGroup
}

func newScriptedRank() *scriptedRank {
	return &scriptedRank{
		info: rank.Info{
			PID: 4711, Ranks: []rank.RankProcess{{PID: 4711}, {Rank: 1, TPRank: 1, PID: 4712}}, ModelID: "m", DType: "float32", VocabSize: 320, NumLayers: 2, EOSTokenIDs: []int32{317}, ContextLength: 128,
			PageSize: 16, MaxTotalNumTokens: 96, MaxRunningRequests: 8, MaxRunningRequestsUnderSLO: 4, WeightBytes: 1 << 30, KVBytes: 1 << 29,
		},
		living: map[string]chan request.Outcome{},
	}
}

func (r *scriptedRank) Submit(_ context.Context, q *request.Request) (*rank.Stream, error) {
	if r.arriving != nil {
		r.arriving(q.RID)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refusal != nil {
		return nil, r.refusal
	}
	r.requests = append(r.requests, q)
	aborted := make(chan request.Outcome, 1)
	r.living[q.RID] = aborted
	stream := rank.NewStream()
	r.playing.Go(func() {
		r.script(q, stream, aborted)
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.living, q.RID)
	})
	return stream, nil
}

func (r *scriptedRank) Abort(rid string, reason request.Outcome) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if aborted, ok := r.living[rid]; ok {
		select {
		case aborted <- reason:
		default:
		}
	}
	return nil
}

func (r *scriptedRank) AbortAll(prefix string) error {
	r.mu.Lock()
	rids := slices.Collect(maps.Keys(r.living))
	r.mu.Unlock()
	for _, rid := range rids {
		if strings.HasPrefix(rid, prefix) {
			_ = r.Abort(rid, request.OutcomeAbortedOperator)
		}
	}
	if r.told != nil {
		r.told()
	}
	return nil
}

func (r *scriptedRank) Loads(context.Context) ([]loads.Load, error) {
	return []loads.Load{r.load}, nil
}
func (r *scriptedRank) Timelines(_ context.Context, rids []string) (map[string]*ledger.Record, error) {
	found := map[string]*ledger.Record{}
	for _, rid := range rids {
		if t := r.timelines[rid]; t != nil {
			found[rid] = t
		}
	}
	return found, r.unanswered
}
func (r *scriptedRank) AwaitStep(ctx context.Context, n int64) (int64, error) {
	if n == 0 {
		return 0, nil
	}
	select {
	case r.steps <- n:
		return n, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}
func (r *scriptedRank) Flush(context.Context) error { return r.flush }
func (r *scriptedRank) Info() rank.Info             { return r.info }

func (r *scriptedRank) Pause(_ context.Context, mode request.PauseMode) error {
	err := r.called("pause " + string(mode))
	if err == nil && mode == request.PauseAbort && !r.overtaken {
		err = r.AbortAll("")
	}
	return err
}
func (r *scriptedRank) Continue(context.Context) error { return r.called("continue") }
func (r *scriptedRank) OpenSession(_ context.Context, s request.Session) error {
	return r.called(fmt.Sprintf("open %+v", s))
}
func (r *scriptedRank) CloseSession(_ context.Context, id string) error {
	return r.called("close " + id)
}
func (r *scriptedRank) StartProfile(_ context.Context, o profile.Options) error {
	return r.called(fmt.Sprintf("start profile %+v", o))
}
func (r *scriptedRank) StopProfile(context.Context) ([]string, error) {
	if err := r.called("stop profile"); err != nil {
		return nil, err
	}
	return []string{"/of/the/rank"}, nil
}
func (r *scriptedRank) Collect(context.Context) error { return r.called("collect") }

// called notes a control call and gives what the test says.
func (r *scriptedRank) called(call string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, call)
	return r.denial
}

func (r *scriptedRank) asked() []*request.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.requests)
}

// say plays pieces of text, one output each, and a finish with the last. Each piece waits until the one before was taken.
func (b *bench) say(finish request.Finish, pieces ...string) func(*request.Request, *rank.Stream, <-chan request.Outcome) {
	return func(r *request.Request, s *rank.Stream, _ <-chan request.Outcome) {
		out := request.Output{RID: r.RID, PromptTokens: len(r.PromptIDs), CachedTokens: 1, Retractions: 2}
		for i, piece := range pieces {
			out.TokenIDs = b.words.Encode(piece, false)
			addLogprobs(r, &out)
			out.CompletionTokens += len(out.TokenIDs)
			if i == len(pieces)-1 {
				out.Finish = &finish
			}
			taken := b.outputs.wait()
			s.Put(out)
			if out.Finish == nil {
				<-taken
			}
		}
	}
}

// addLogprobs gives an output what its request wants, in numbers that tell positions apart: token t has logprob -t/8, and
// the likeliest and the asked ones count down from -1.
func addLogprobs(r *request.Request, out *request.Output) {
	out.Logprobs, out.PromptLogprobs = nil, nil
	want := r.Logprobs
	if want == nil {
		return
	}
	one := func(id int32) request.TokenLogprobs {
		l := request.TokenLogprobs{TokenLogprob: request.TokenLogprob{Token: id, Logprob: -float32(id) / 8}}
		for i := range want.Top {
			l.Top = append(l.Top, request.TokenLogprob{Token: id + int32(i), Logprob: -float32(i + 1)})
		}
		for _, asked := range want.TokenIDs {
			l.Asked = append(l.Asked, request.TokenLogprob{Token: asked, Logprob: -float32(asked)})
		}
		return l
	}
	for _, id := range out.TokenIDs {
		out.Logprobs = append(out.Logprobs, one(id))
	}
	if want.PromptFrom > 0 && out.CompletionTokens == 0 {
		for _, id := range r.PromptIDs[want.PromptFrom:] {
			out.PromptLogprobs = append(out.PromptLogprobs, one(id))
		}
	}
}

// waitForAbort plays a first output and then nothing until the abort.
func (b *bench) waitForAbort(first string) func(*request.Request, *rank.Stream, <-chan request.Outcome) {
	return func(r *request.Request, s *rank.Stream, aborted <-chan request.Outcome) {
		ids := b.words.Encode(first, false)
		s.Put(request.Output{RID: r.RID, TokenIDs: ids, PromptTokens: len(r.PromptIDs), CompletionTokens: len(ids)})
		s.Put(request.Output{
			RID: r.RID, PromptTokens: len(r.PromptIDs), CompletionTokens: len(ids),
			Finish: &request.Finish{Type: request.FinishAbort, Outcome: <-aborted},
		})
	}
}

// bench is a server with its parts, for tests.
type bench struct {
	*Server
	rank  *scriptedRank
	words *tokenizer.Tokenizer
	clock *ledgertest.Clock
	seen  *recorder
}

// seededTokenizer is shared by the tests of the package: it is immutable.
var seededTokenizer = sync.OnceValues(func() (*tokenizer.Tokenizer, error) {
	dir, err := mkdirTemp()
	if err != nil {
		return nil, err
	}
	if _, err := tokenizer.WriteSeeded(dir, 320, 1); err != nil {
		return nil, err
	}
	return tokenizer.Load(dir)
})

func newBench(t testing.TB, change func(*Config, *scriptedRank)) *bench {
	t.Helper()
	seen := &recorder{}
	b := newBenchTelling(t, seen, ledgertest.New(), slog.NewTextHandler(io.Discard, nil), change)
	b.seen = seen
	return b
}

// newBenchTelling is newBench with a listener, a clock and a log of the test's.
func newBenchTelling(t testing.TB, events Events, clock *ledgertest.Clock, log slog.Handler, change func(*Config, *scriptedRank)) *bench {
	t.Helper()
	words, err := seededTokenizer()
	if err != nil {
		t.Fatal(err)
	}
	cfg := Default()
	cfg.ModelPath, cfg.ServedModelName = filepath.Join("models", "tiny"), "tiny"
	cfg.MaxBodyBytes = 1 << 14
	r := newScriptedRank()
	if change != nil {
		change(&cfg, r)
	}
	cfg, err = cfg.Validate()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{rank: r, words: words, clock: clock}
	if r.script == nil {
		r.script = b.say(length(), "Hello", " world")
	}
	tracing, err := openTracing(cfg, b.clock, slog.New(slog.NewTextHandler(io.Discard, nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := closeTracing(tracing); err != nil {
			t.Error(err)
		}
	})
	b.Server = New(cfg, Options{
		Tracing: tracing,
		Clock:   b.clock, Events: events, Log: slog.New(log),
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "# metrics\n") }),
	})
	if err := b.Attach(r, words); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = r.AbortAll("")
		r.playing.Wait()
		deadline := time.Now().Add(10 * time.Second)
		for !b.empty() {
			if time.Now().After(deadline) {
				t.Error("the server holds rids or requests at the end")
				return
			}
			runtime.Gosched()
		}
	})
	return b
}

// empty reports whether nothing lives in the server.
func (b *bench) empty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.claimed) == 0 && b.inFlight == 0
}

// call sends one request to the handler.
func (b *bench) call(method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	b.ServeHTTP(w, r)
	return w
}

// recorder keeps the events.
type recorder struct {
	mu   sync.Mutex
	list []any
}

type (
	firstToken struct {
		S     metrics.Subject
		Nanos int64
	}
	interToken struct {
		S     metrics.Subject
		Nanos int64
		New   int
	}
	finished struct {
		S metrics.Subject
		F metrics.Finished
	}
	aborted struct{}
	loaded  struct{}
	counted struct {
		Submitted, Ended int
		Outcome          request.Outcome
		InFlight         int
	}
	timed struct {
		Name  string
		Nanos int64
	}
	startedIn struct {
		Phase string
		Nanos int64
	}
	keyHeld      string
	keyFreed     string
	httpBegun    struct{ Endpoint, Method string }
	httpEnded    struct{ Endpoint, Method string }
	httpAnswered struct {
		Endpoint, Method string
		Status           int
	}
)

func (r *recorder) add(event any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, event)
}

func (r *recorder) events() []any {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list)
}

func (r *recorder) FirstToken(s metrics.Subject, nanos int64)        { r.add(firstToken{s, nanos}) }
func (r *recorder) InterToken(s metrics.Subject, nanos int64, n int) { r.add(interToken{s, nanos, n}) }
func (r *recorder) Finished(s metrics.Subject, f metrics.Finished)   { r.add(finished{s, f}) }
func (r *recorder) Aborted()                                         { r.add(aborted{}) }
func (r *recorder) LoadsServed(int64)                                { r.add(loaded{}) }
func (r *recorder) Violated(law ledger.Law)                          { r.add(law) }
func (r *recorder) RequestStarted(endpoint, method string)           { r.add(httpBegun{endpoint, method}) }
func (r *recorder) ResponseStarted(endpoint, method string, status int) {
	r.add(httpAnswered{endpoint, method, status})
}
func (r *recorder) Requests(submitted, ended int, outcome request.Outcome, inFlight int) {
	r.add(counted{submitted, ended, outcome, inFlight})
}
func (r *recorder) FuncLatency(name string, nanos int64)  { r.add(timed{name, nanos}) }
func (r *recorder) StartupTime(phase string, nanos int64) { r.add(startedIn{phase, nanos}) }
func (r *recorder) StartupStep(name string, nanos int64)  { r.add(startedIn{name, nanos}) }
func (r *recorder) RoutingKeyHeld(key string)             { r.add(keyHeld(key)) }
func (r *recorder) RoutingKeyFreed(key string)            { r.add(keyFreed(key)) }
func (r *recorder) RequestEnded(endpoint, method string)  { r.add(httpEnded{endpoint, method}) }

var errRankDied = errors.New("rank 0 (pid 4711) ended: signal: killed")

// eventually polls a condition until it holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		tick := time.NewTimer(time.Millisecond)
		<-tick.C
	}
}
