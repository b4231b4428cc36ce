package scheduler

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/engine/kvcache"
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/request"
)

// eachLife runs engines of every kind through random lives; verify is called when everything has ended.
func eachLife(t *testing.T, step, verify func(t *testing.T, l *life)) {
	for _, roles := range [][]Role{{Unified}, {Prefill, Decode}} {
		for round := range 6 {
			seed := uint64(time.Now().UnixNano()) + uint64(round)
			t.Run(fmt.Sprintf("%v seed %d", roles, seed), func(t *testing.T) {
				t.Parallel()
				l := newLife(t, rand.New(rand.NewPCG(seed, 3)), roles)
				for _, x := range l.sides {
					x.stepped = func() { step(t, l) }
				}
				l.run()
				verify(t, l)
				for _, x := range l.sides {
					for _, line := range x.said.lines {
						if strings.HasPrefix(line, "violated") {
							t.Errorf("%s: %s", x.s.cfg.Role, line)
						}
					}
				}
			})
		}
	}
}

// TestE1PagesOfEveryPool: after every step, and in every report, the pages of every pool are where somebody has them.
func TestE1PagesOfEveryPool(t *testing.T) {
	eachLife(t, func(t *testing.T, l *life) {
		for _, x := range l.sides {
			if err := x.s.auditPages(); err != nil {
				t.Fatalf("%s: %v", x.s.cfg.Role, err)
			}
			for _, pool := range []*kvcache.Pool{x.s.pool, x.s.window} {
				if pool == nil {
					continue
				}
				if st := pool.Stats(); st.Available+st.Evictable+st.Used+st.Reserved != st.Capacity {
					t.Fatalf("%s: %+v", x.s.cfg.Role, st)
				}
			}
		}
	}, func(t *testing.T, l *life) {
		for _, x := range l.sides {
			for _, snap := range x.said.snapshots {
				if snap.KVAvailableTokens+snap.KVEvictableTokens+snap.KVUsedTokens != snap.MaxTotalNumTokens {
					t.Fatalf("%s: report %+v", x.s.cfg.Role, snap)
				}
				if x.s.windowed() && snap.SWAAvailableTokens+snap.SWAEvictableTokens+snap.SWAUsedTokens != x.s.window.Stats().Capacity {
					t.Fatalf("%s: report %+v", x.s.cfg.Role, snap)
				}
			}
			if len(x.said.snapshots) == 0 {
				t.Errorf("%s: nothing was reported", x.s.cfg.Role)
			}
		}
	})
}

// TestE2PromptTokens: each prompt is what was cached of it and what was computed, each pass what was found and computed, and
// the sums over requests are what the counters of tokens say.
func TestE2PromptTokens(t *testing.T) {
	eachLife(t, func(t *testing.T, l *life) {
		for _, x := range l.sides {
			if err := x.s.auditPasses(); err != nil {
				t.Fatalf("%s: %v", x.s.cfg.Role, err)
			}
		}
	}, func(t *testing.T, l *life) {
		for _, x := range l.sides {
			p, complete := x.s.passes, 0
			if p.admitted != p.found+p.computed+p.cut {
				t.Errorf("%s: at the end %+v", x.s.cfg.Role, p)
			}
			if got, want := x.said.realtime, [2]int64{p.computed + p.vain, p.found}; int64(got[0]) != want[0] || int64(got[1]) != want[1] {
				t.Errorf("%s: counters say %d computed and %d cached, requests %d and %d", x.s.cfg.Role, got[0], got[1], want[0], want[1])
			}
			effective, again := x.said.effective, 0
			if effective[0] > x.said.realtime[0] || effective[1] > x.said.realtime[1] {
				t.Errorf("%s: effective tokens are %v, all tokens %v", x.s.cfg.Role, effective, x.said.realtime)
			}
			var computed int64
			for i, sink := range x.sinks {
				f := sink.finish
				again += f.ReprocessedTokens
				computed += int64(f.ComputedTokens + f.ReprocessedTokens)
				if x.s.cfg.Role == Decode || f.Outcome != request.OutcomeStop && f.Outcome != request.OutcomeLength {
					continue
				}
				complete++
				if prompt := len(l.reqs[i].PromptIDs); f.ComputedTokens+sink.cached != prompt {
					t.Errorf("%s: request %d has %d prompt tokens, %d computed and %d cached", x.s.cfg.Role, i, prompt, f.ComputedTokens, sink.cached)
				}
			}
			if again == 0 && p.cut == 0 && (effective[0] != x.said.realtime[0] || effective[1] != x.said.realtime[1]) {
				t.Errorf("%s: nothing was computed again, but effective tokens are %v, all tokens %v", x.s.cfg.Role, effective, x.said.realtime)
			}
			if computed != p.computed {
				t.Errorf("%s: %d tokens were computed for requests, of %d in all", x.s.cfg.Role, computed, p.computed)
			}
			t.Logf("%s: %+v, %d complete", x.s.cfg.Role, p, complete)
		}
	})
}

// TestE4StagesOfEveryRequest: the timeline that a Finish carries sums up, whatever became of the request.
func TestE4StagesOfEveryRequest(t *testing.T) {
	eachLife(t, func(*testing.T, *life) {}, func(t *testing.T, l *life) {
		for _, x := range l.sides {
			for i, sink := range x.sinks {
				r := sink.finish.Timeline
				if r == nil {
					t.Fatalf("%s: the Finish of request %d has no timeline", x.s.cfg.Role, i)
				}
				if err := r.Check(); err != nil {
					t.Errorf("%s: request %d: %v", x.s.cfg.Role, i, err)
				}
				if err := r.Durations().Check(); err != nil {
					t.Errorf("%s: request %d: %v", x.s.cfg.Role, i, err)
				}
				if r.Form != x.s.cfg.Role.form() || r.QueueNanos != sink.finish.QueueNanos || r.Stage != ledger.StageDone {
					t.Errorf("%s: request %d: queue time %d, timeline %+v", x.s.cfg.Role, i, sink.finish.QueueNanos, r)
				}
			}
		}
	})
}

// Checks that can't fail are none: each sum is damaged in turn, and the next report, pass or end says so.
func TestBreachesAreFound(t *testing.T) {
	cases := []struct {
		name, reason string
		damage       func(s *Scheduler, q *sequence)
		law          ledger.Law
		says         string
	}{
		{"a page too many", "a sequence claims a page that the pool does not know as its own",
			func(_ *Scheduler, q *sequence) { q.pages = append(q.pages, 7) }, ledger.LawPages, "KV pool: capacity 64, available"},
		{"a held page too many", "pages are held that nobody reserved",
			func(s *Scheduler, _ *sequence) { s.held = append(s.held, held{pages: []int32{7}, step: 1 << 40}) }, ledger.LawPages, "1 are held"},
		{"tokens out of nowhere", "the sums over passes differ",
			func(s *Scheduler, _ *sequence) { s.passes.found += 3 }, ledger.LawPromptTokens, "tokens were admitted"},
		{"a chunk twice", "a pass has more tokens than its sequence",
			func(_ *Scheduler, q *sequence) { q.pass.computed++ }, ledger.LawPromptTokens, "request a: 6 tokens are computed, 0 were found and 7 computed"},
		{"cached tokens that were not", "the prompt is more than its parts",
			func(_ *Scheduler, q *sequence) { q.book.cached++ }, ledger.LawPromptTokens,
			"request a: the prompt has 6 tokens, 0 were received, 1 cached and 6 computed"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			said := newRecorder()
			cfg := testConfig(Unified, 1, 64)
			cfg.ChunkTokens, cfg.Overlap, cfg.NoCache = 4, false, true
			s, err := New(cfg, Deps{Executor: newTapeOf(cfg), Clock: ledgertest.New(), Reporter: said, Decoder: letters{},
				Log: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			begin(t, s)
			sink := newSink()
			if err := s.Submit(&request.Request{RID: "a", PromptIDs: testPrompt(6, 0), LogMetrics: true, Sampling: request.Sampling{MaxNewTokens: 4}}, sink); err != nil {
				t.Fatal(err)
			}
			turn := func() (panicked any) {
				defer func() { panicked = recover() }()
				if _, _, err := s.step(false); err != nil {
					t.Fatal(err)
				}
				return nil
			}
			if p := turn(); p != nil { // the first chunk
				t.Fatal(p)
			}
			if len(s.in[statePrefilling]) != 1 {
				t.Fatalf("the request is not in its prefill: %v", s.in)
			}
			c.damage(s, s.live["a"])
			panicked := turn()
			want := fmt.Sprintf("violated %s: %s", c.law.Number(), c.law)
			told := false
			for _, line := range said.lines {
				told = told || line == want
			}
			if !told || !strings.Contains(log.String(), "law="+c.law.Number()) || !strings.Contains(log.String(), c.says) {
				t.Errorf("%s: told %v, want %q; the log says %s", c.reason, said.lines, want, log.String())
			}
			if kvcache.Invariants != (panicked != nil) {
				t.Errorf("builds with invariants: %t; the step panicked with %v", kvcache.Invariants, panicked)
			}
		})
	}
}

// The same for the bytes of a hand-over: both ranks find that what the other says differs.
func TestE5BreachesAreFound(t *testing.T) {
	for _, lost := range []int64{0, 1, -1} {
		t.Run(fmt.Sprint(lost), func(t *testing.T) {
			l := newLife(t, rand.New(rand.NewPCG(8, 3)), []Role{Prefill, Decode})
			l.wire.lost = lost
			panicked := func() (panicked any) {
				defer func() { panicked = recover() }()
				for range 4 {
					l.submit()
				}
				for range 60 {
					l.clock.Advance(time.Millisecond)
					l.step()
				}
				return nil
			}()
			for _, x := range l.sides {
				told := 0
				for _, line := range x.said.lines {
					if line == "violated E5: kv_bytes" {
						told++
					}
				}
				if kvcache.Invariants {
					continue // the first one ends it
				}
				if lost == 0 && told > 0 || lost != 0 && told == 0 {
					t.Errorf("%s: told of %d breaches", x.s.cfg.Role, told)
				}
			}
			if panicked != nil && !kvcache.Invariants || panicked == nil && kvcache.Invariants && lost != 0 {
				t.Errorf("builds with invariants: %t; it panicked with %v", kvcache.Invariants, panicked)
			}
		})
	}
}

// TestE5SumsOverEngines: what has ended adds up over a pair: nothing is sent that was not received, and what was received is
// accounted for by its sender, done or failed. Each hand-over is told once.
func TestE5SumsOverEngines(t *testing.T) {
	eachLife(t, func(*testing.T, *life) {}, func(t *testing.T, l *life) {
		var sent, failed, received int64
		for _, x := range l.sides {
			if n := len(x.said.moved); n > len(l.reqs) || len(l.sides) == 1 && n > 0 {
				t.Errorf("%s: %d hand-overs are told of %d requests", x.s.cfg.Role, n, len(l.reqs))
			}
			for _, m := range x.said.moved {
				switch {
				case m.Received != (x.s.cfg.Role == Decode) || m.Bytes <= 0:
					t.Errorf("%s tells %+v", x.s.cfg.Role, m)
				case m.Received && m.Done:
					received += m.Bytes
				case m.Done:
					sent += m.Bytes
				case !m.Received:
					failed += m.Bytes
				}
			}
		}
		if sent > received || received > sent+failed {
			t.Errorf("%d bytes sent, %d failed, %d received", sent, failed, received)
		}
	})
}

func TestAssertTimesNamesTheRequest(t *testing.T) {
	clock := ledgertest.New()
	cfg := testConfig(Unified, 1, 64)
	cfg.AssertTimes = true
	s, err := New(cfg, Deps{Executor: newTapeOf(cfg), Clock: clock, Reporter: newRecorder(), Decoder: letters{}, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	begin(t, s)
	for _, step := range []time.Duration{5, -3} {
		if err := s.Submit(&request.Request{RID: "bad", PromptIDs: testPrompt(6, 0), Sampling: request.Sampling{MaxNewTokens: 1}}, newSink()); err != nil {
			t.Fatal(err)
		}
		clock.Advance(step)
		if step < 0 {
			clock.SetStep(step) // each reading is before the one before it
		}
		func() {
			defer func() {
				got, want := fmt.Sprint(recover()), "scheduler: times of request bad: the clock went back: "
				if step < 0 && !strings.HasPrefix(got, want) {
					t.Errorf("panics with %q, want %q and both times", got, want)
				}
				if step > 0 && got != fmt.Sprint(nil) {
					t.Errorf("panics with %q although its times are sound", got)
				}
			}()
			for range 6 {
				if _, _, err := s.step(false); err != nil {
					t.Fatal(err)
				}
			}
		}()
	}
}
