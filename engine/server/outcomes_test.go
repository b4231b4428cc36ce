package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/metrics"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/request"
)

// outcomes gives how often the requests ended in each outcome, and checks that as many came.
func (r *recorder) outcomes(t *testing.T) map[request.Outcome]int {
	t.Helper()
	ended, submitted, inFlight := map[request.Outcome]int{}, 0, 0
	for _, event := range r.events() {
		switch e := event.(type) {
		case counted:
			submitted += e.Submitted
			if e.Ended > 0 {
				ended[e.Outcome] += e.Ended
			}
			inFlight = e.InFlight
			sum := inFlight
			for _, n := range ended {
				sum += n
			}
			if sum != submitted {
				t.Errorf("%d submitted, but %v ended and %d in flight", submitted, ended, inFlight)
			}
		case ledger.Law:
			t.Errorf("law %s is violated", e)
		}
	}
	if inFlight != 0 {
		t.Errorf("%d are in flight at the end", inFlight)
	}
	return ended
}

var inferenceBodies = map[string]string{
	"/generate":            `{"input_ids":[1,2],"rid":"r","stream":%t}`,
	"/v1/completions":      `{"prompt":[1,2],"rid":"r","stream":%t}`,
	"/v1/chat/completions": `{"messages":[{"role":"user","content":"Hi"}],"rid":"r","stream":%t}`,
}

// TestStatusAgreesWithOutcome: on every route, streamed or not, before the first byte and after it.
func TestStatusAgreesWithOutcome(t *testing.T) {
	for path, body := range inferenceBodies {
		for _, outcome := range request.Outcomes() {
			for _, stream := range []bool{false, true} {
				for _, late := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s %s stream=%t late=%t", path, outcome, stream, late), func(t *testing.T) {
						b := newBench(t, nil)
						finish := &request.Finish{Type: request.FinishAbort, Outcome: outcome, Message: "because"}
						if outcome == request.OutcomeStop || outcome == request.OutcomeLength {
							finish.Type, finish.Message = request.FinishType(outcome), ""
						}
						b.rank.script = func(r *request.Request, s *rank.Stream, _ <-chan request.Outcome) {
							out := request.Output{RID: r.RID, PromptTokens: 2}
							if late {
								out.TokenIDs, out.CompletionTokens = []int32{120}, 1
								taken := b.outputs.wait()
								s.Put(out)
								<-taken
								out.TokenIDs = nil
							}
							out.Finish = finish
							s.Put(out)
						}
						w := b.call(http.MethodPost, path, fmt.Sprintf(body, stream))
						status := outcome.HTTPStatus()
						if stream && late { // the status was sent before; the stream says the rest
							status = http.StatusOK
							failed := strings.Contains(w.Body.String(), `data: {"error":{"message":"because"`)
							if failed != (outcome.HTTPStatus() != http.StatusOK) || failed == strings.Contains(w.Body.String(), "[DONE]") {
								t.Errorf("the stream ends by %q", w.Body)
							}
						}
						if w.Code != status {
							t.Errorf("status %d, want %d: %s", w.Code, status, w.Body)
						}
						if diff := cmp.Diff(map[request.Outcome]int{outcome: 1}, b.seen.outcomes(t)); diff != "" {
							t.Errorf("(-want +got)\n%s", diff)
						}
					})
				}
			}
		}
	}
}

// TestOutcomesOfRefusals: what ends before it is at the rank is counted once too, in the outcome that its status says.
func TestOutcomesOfRefusals(t *testing.T) {
	long := strings.TrimSuffix(strings.Repeat("1,", 200), ",")
	for _, tc := range []struct {
		name, reason string
		change       func(*bench)
		body         string
		status       int
		want         map[request.Outcome]int
	}{
		{"no JSON", "nobody knows how many sequences it asks for", nil, `{`, 400, map[request.Outcome]int{request.OutcomeInvalid: 1}},
		{"a field", "the same", nil, `{"prompt":[[1],[2]],"temperature":-1}`, 400, map[request.Outcome]int{request.OutcomeInvalid: 1}},
		{"another model", "", nil, `{"prompt":[1],"model":"other"}`, 404, map[request.Outcome]int{request.OutcomeInvalid: 1}},
		{"a prompt", "it fits no engine", nil, `{"prompt":[` + long + `]}`, 400, map[request.Outcome]int{request.OutcomeTooLong: 1}},
		{"a body", "it is too large", nil, `{"prompt":"` + strings.Repeat("x", 20000) + `"}`, 413, map[request.Outcome]int{request.OutcomeTooLong: 1}},
		{"draining", "another engine may take it", func(b *bench) { b.Refuse() }, `{"prompt":[1]}`, 503, map[request.Outcome]int{request.OutcomeRefused: 1}},
		{"rank gone", "no sequence gets there, and all end", func(b *bench) { b.rank.refusal = errRankDied }, `{"prompt":[[1],[2],[3]]}`, 502, map[request.Outcome]int{request.OutcomeInternal: 3}},
		{"second sequence", "the first is taken back", func(b *bench) {
			b.rank.script = b.waitForAbort("x")
			b.rank.arriving = func(rid string) {
				if strings.HasSuffix(rid, "_1") {
					b.rank.mu.Lock()
					defer b.rank.mu.Unlock()
					b.rank.refusal = errRankDied
				}
			}
		}, `{"prompt":[[1],[2],[3]]}`, 502, map[request.Outcome]int{request.OutcomeInternal: 3}},
		{"a panic on the way", "the handler's goroutine fails", func(b *bench) {
			b.rank.script = b.waitForAbort("x")
			b.rank.arriving = func(rid string) {
				if strings.HasSuffix(rid, "_1") {
					panic("boom")
				}
			}
		}, `{"prompt":[[1],[2],[3]]}`, 500, map[request.Outcome]int{request.OutcomeInternal: 3}},
		{"one of several", "the client gets the error for all", func(b *bench) {
			b.rank.script = func(r *request.Request, s *rank.Stream, aborted <-chan request.Outcome) {
				out := request.Output{RID: r.RID, PromptTokens: 1, Finish: &request.Finish{Type: request.FinishStop, Outcome: request.OutcomeStop}}
				if strings.HasSuffix(r.RID, "_2") {
					out.Finish = &request.Finish{Type: request.FinishAbort, Outcome: request.OutcomeTimeout}
				}
				s.Put(out)
			}
		}, `{"prompt":[[1],[2],[3]],"rid":"r"}`, 504, map[request.Outcome]int{request.OutcomeTimeout: 3}},
		{"not counted", "log_metrics=false", nil, `{"prompt":[1],"log_metrics":false}`, 200, map[request.Outcome]int{}},
		{"refused and not counted", "", func(b *bench) { b.Refuse() }, `{"prompt":[1],"log_metrics":false}`, 503, map[request.Outcome]int{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, nil)
			if tc.change != nil {
				tc.change(b)
			}
			if w := b.call(http.MethodPost, "/v1/completions", tc.body); w.Code != tc.status {
				t.Errorf("status %d, want %d: %s", w.Code, tc.status, w.Body)
			}
			if diff := cmp.Diff(tc.want, b.seen.outcomes(t)); diff != "" {
				t.Errorf("%s (-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}

// A part of a stream that came to its end before another failed keeps its own outcome.
func TestOutcomesOfAStream(t *testing.T) {
	b := newBench(t, nil)
	ended := make(chan struct{})
	b.rank.script = func(r *request.Request, s *rank.Stream, _ <-chan request.Outcome) {
		out := request.Output{RID: r.RID, TokenIDs: []int32{120}, CompletionTokens: 1, PromptTokens: 1, Finish: &request.Finish{Type: request.FinishStop, Outcome: request.OutcomeStop}}
		if r.RID == "r_0" {
			taken := b.outputs.wait()
			s.Put(out)
			<-taken
			close(ended)
			return
		}
		<-ended
		out.Finish = &request.Finish{Type: request.FinishAbort, Outcome: request.OutcomeTransferFailed}
		s.Put(out)
	}
	b.call(http.MethodPost, "/v1/completions", `{"prompt":[[1],[2]],"rid":"r","stream":true}`)
	got := b.seen.outcomes(t)
	// Whether the failure overtakes the end on its way to the client is not decided.
	late, early := map[request.Outcome]int{request.OutcomeStop: 1, request.OutcomeTransferFailed: 1}, map[request.Outcome]int{request.OutcomeTransferFailed: 2}
	if !maps.Equal(got, late) && !maps.Equal(got, early) {
		t.Errorf("outcomes %v", got)
	}
}

// A breach of the law is counted and logged with all numbers of the equation.
func TestBooksTellBreaches(t *testing.T) {
	seen, log := &recorder{}, &bytes.Buffer{}
	b := newBooks(seen, slog.New(slog.NewTextHandler(log, nil)))
	e := b.enter(2)
	b.end(e[0], request.OutcomeStop)
	breach := func() {
		defer func() { _ = recover() }() // of builds with invariants
		b.end(e[0], request.OutcomeStop)
	}
	breach()
	want := []any{counted{Submitted: 2, InFlight: 2}, counted{Ended: 1, Outcome: request.OutcomeStop, InFlight: 1}, counted{Ended: 1, Outcome: request.OutcomeStop, InFlight: 1}, ledger.LawOutcomes}
	if diff := cmp.Diff(want, seen.events()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for _, part := range []string{"law=E3", "submitted=2", " stop:2 ", "in_flight=1"} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("the log lacks %s: %s", part, log)
		}
	}
}

// TestBooksTellLosses: an entry that nobody ends is found when no request is being answered.
func TestBooksTellLosses(t *testing.T) {
	seen := &recorder{}
	b := newBooks(seen, slog.New(slog.DiscardHandler))
	b.enter(1)
	func() {
		defer func() { _ = recover() }() // of builds with invariants
		b.checkEmpty()
	}()
	if events := seen.events(); len(events) < 2 || events[1] != any(ledger.LawOutcomes) {
		t.Errorf("events %v", events)
	}
}

// equation reads both sides of law E3 at one scrape.
func equation(t *testing.T, g *metrics.Gatherer) (submitted, ended, inFlight float64) {
	families, err := g.Gather()
	if err != nil {
		t.Error(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			switch f.GetName() {
			case "sluice_requests_submitted_total":
				submitted += m.Counter.GetValue()
			case "sluice_request_outcomes_total":
				ended += m.Counter.GetValue()
			case "sluice_requests_in_flight":
				inFlight += m.Gauge.GetValue()
			case "sluice_ledger_violations_total":
				if m.Counter.GetValue() != 0 {
					t.Errorf("violations: %v", m)
				}
			}
		}
	}
	return submitted, ended, inFlight
}

// TestE3OutcomesAccountForEveryRequest: submitted = Σ outcomes + in flight at every scrape, whatever clients, ranks and
// operators do: clients that go at any moment, refusals, losses, panics, aborts, a drain.
func TestE3OutcomesAccountForEveryRequest(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	dir := t.TempDir()
	store, err := metrics.OpenStore(dir, "api", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	clock := ledgertest.New()
	front := metrics.NewFront(store, metrics.FrontLabels{ModelName: "tiny", EngineType: "unified"}, metrics.Buckets{}, clock)
	gatherer := metrics.NewGatherer(dir)
	defer gatherer.Close()
	gatherer.Guard(store, front.Cut())

	b := newBenchTelling(t, front, clock, slog.DiscardHandler, nil)
	var draws atomic.Uint64
	b.rank.script = func(r *request.Request, s *rank.Stream, aborted <-chan request.Outcome) {
		unruly(rand.New(rand.NewPCG(seed, draws.Add(1))), r, s, aborted)
	}
	var arrivals atomic.Uint64
	b.rank.arriving = func(string) {
		if rng := rand.New(rand.NewPCG(seed+1, arrivals.Add(1))); rng.IntN(40) == 0 {
			panic("boom")
		}
	}
	listening := httptest.NewServer(b)
	defer listening.Close()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()

	stop := make(chan struct{})
	var scrapers, clients sync.WaitGroup
	var scrapes atomic.Int64
	for range 2 {
		scrapers.Go(func() {
			for {
				if submitted, ended, inFlight := equation(t, gatherer); submitted != ended+inFlight || inFlight < 0 {
					t.Errorf("%v submitted, %v ended, %v in flight", submitted, ended, inFlight)
					return
				}
				scrapes.Add(1)
				select {
				case <-stop:
					return
				default:
					runtime.Gosched()
				}
			}
		})
	}
	const workers, each = 6, 60
	var sure, atMost atomic.Int64 // sequences that were certainly asked for, and that may have been
	for w := range workers {
		clients.Go(func() {
			rng := rand.New(rand.NewPCG(seed+2, uint64(w)))
			for i := range each {
				if w == 0 && i == each-5 {
					b.Refuse()
				}
				known, possible := ask(t, rng, client, listening.URL, fmt.Sprintf("w%d-%d", w, i))
				sure.Add(int64(known))
				atMost.Add(int64(possible))
			}
		})
	}
	clients.Wait()
	_ = b.rank.AbortAll("")
	if err := b.Drained(t.Context()); err != nil {
		t.Error(err)
	}
	eventually(t, "nothing is in flight", func() bool { _, _, inFlight := equation(t, gatherer); return inFlight == 0 })
	listening.Close() // handlers have ended
	close(stop)
	scrapers.Wait()
	submitted, ended, inFlight := equation(t, gatherer)
	if submitted != ended || inFlight != 0 || int64(submitted) < sure.Load() || int64(submitted) > atMost.Load() {
		t.Errorf("at the end: %v submitted of %d to %d, %v ended, %v in flight", submitted, sure.Load(), atMost.Load(), ended, inFlight)
	}
	t.Logf("%v sequences in %d scrapes", submitted, scrapes.Load())
}

// unruly plays a rank that ends requests in every way.
func unruly(rng *rand.Rand, r *request.Request, s *rank.Stream, aborted <-chan request.Outcome) {
	out := request.Output{RID: r.RID, PromptTokens: len(r.PromptIDs)}
	for range rng.IntN(4) {
		out.TokenIDs = []int32{120}
		out.CompletionTokens++
		s.Put(out)
		runtime.Gosched()
	}
	out.TokenIDs = nil
	switch rng.IntN(6) {
	case 0:
		s.Fail(errRankDied)
	case 1:
		outcomes := request.Outcomes()[2:]
		out.Finish = &request.Finish{Type: request.FinishAbort, Outcome: outcomes[rng.IntN(len(outcomes))]}
		s.Put(out)
	case 2: // until somebody aborts it; the abort may be lost
		timeout := time.NewTimer(time.Duration(rng.IntN(20)) * time.Millisecond)
		defer timeout.Stop()
		select {
		case outcome := <-aborted:
			out.Finish = &request.Finish{Type: request.FinishAbort, Outcome: outcome}
			s.Put(out)
		case <-timeout.C:
			s.Fail(errRankDied)
		}
	default:
		out.Finish = &request.Finish{Type: request.FinishStop, Outcome: request.OutcomeStop}
		s.Put(out)
	}
}

// ask sends one request. known is how many sequences the server has certainly counted for it, possible how many at most.
func ask(t *testing.T, rng *rand.Rand, client *http.Client, url, rid string) (known, possible int) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	prompts := 1 + rng.IntN(3)
	list := strings.TrimSuffix(strings.Repeat("[1,2],", prompts), ",")
	path, body := "/v1/completions", fmt.Sprintf(`{"prompt":[%s],"rid":%q,"stream":%t}`, list, rid, rng.IntN(2) == 0)
	known, possible = 1, prompts // what the server refuses at once is one
	switch rng.IntN(10) {
	case 0:
		body, possible = `{"prompt":`, 1
	case 1:
		body, known, possible = fmt.Sprintf(`{"prompt":[1],"log_metrics":false,"rid":%q}`, rid), 0, 0
	case 2:
		path, body, known, possible = "/abort_request", `{"rid":"w"}`, 0, 0
	case 3:
		path, body = "/generate", fmt.Sprintf(`{"input_ids":[%s],"rid":%q,"stream":%t,"routing_key":"k"}`, list, rid, rng.IntN(2) == 0)
	}
	if rng.IntN(3) == 0 {
		known = 0 // it may not even arrive
		leave := time.NewTimer(time.Duration(rng.IntN(3000)) * time.Microsecond)
		go func() {
			defer leave.Stop()
			select {
			case <-leave.C:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+path, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return known, possible
	}
	answer, err := client.Do(r)
	if err != nil {
		if ctx.Err() == nil {
			t.Error(err)
		}
		return known, possible
	}
	_, _ = io.Copy(io.Discard, answer.Body) // an error says that it was left
	_ = answer.Body.Close()
	if answer.StatusCode == http.StatusOK && ctx.Err() == nil && possible > 0 {
		known = possible
	}
	return known, possible
}

// BenchmarkBooks is what the account of one sequence costs, besides its metrics.
func BenchmarkBooks(b *testing.B) {
	books := newBooks(noEvents{}, slog.New(slog.DiscardHandler))
	b.ReportAllocs()
	for b.Loop() {
		for _, e := range books.enter(1) {
			books.end(e, request.OutcomeStop)
		}
	}
}
