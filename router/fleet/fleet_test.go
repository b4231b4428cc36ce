package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/router/discovery"
	"github.com/sluice-dev/sluice/router/policy"
)

// events is a Listener that writes down what it hears.
type events struct {
	mu   sync.Mutex
	list []string
}

func (e *events) add(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, fmt.Sprintf(format, args...))
}

func (e *events) take() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := e.list
	e.list = nil
	return list
}

func (e *events) Changed(x discovery.Engine, from, to discovery.State) {
	e.add("%s: %s -> %s", x.Name, from, to)
}
func (e *events) Quarantined(x discovery.Engine) { e.add("%s quarantined", x.Name) }
func (e *events) Picked(x discovery.Engine)      { e.add("%s picked", x.Name) }

func newFleet(t *testing.T, p policy.Policy, engines ...discovery.Engine) (*Fleet, *events) {
	t.Helper()
	e := &events{}
	f, err := New(Config{Policy: p, Quarantine: time.Second, MaxWaiting: 3, Now: time.Now, Listener: e})
	if err != nil {
		t.Fatal(err)
	}
	f.Update(engines)
	e.take()
	return f, e
}

func prefill(name string) discovery.Engine { return made(discovery.Prefill, name) }
func decode(name string) discovery.Engine  { return made(discovery.Decode, name) }
func unified(name string) discovery.Engine { return made(discovery.Unified, name) }

func made(role discovery.Role, name string) discovery.Engine {
	return discovery.Engine{ID: "id-" + name, Name: name, Role: role, URL: "http://" + name, State: discovery.StateReady}
}

func in(state discovery.State, e discovery.Engine) discovery.Engine {
	e.State = state
	return e
}

// names of a lease, prefill first.
func names(l Lease) string {
	if l.Prefill == nil {
		return l.Decode.Engine.Name
	}
	return l.Prefill.Engine.Name + "+" + l.Decode.Engine.Name
}

func (l Lease) done(r Result) {
	l.Decode.Done(r)
	if l.Prefill != nil {
		l.Prefill.Done(r)
	}
}

// grab acquires without waiting.
func grab(f *Fleet, a *Avoid) string {
	l, err := f.Acquire(context.Background(), 0, a, 0)
	if err != nil {
		return "none"
	}
	l.done(Succeeded)
	return names(l)
}

func TestPick(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		engines      []discovery.Engine
		want         []string // of three picks in a row
	}{
		{"pairs", "each side takes turns", []discovery.Engine{prefill("p0"), decode("d0"), decode("d1")}, []string{"p0+d0", "p0+d1", "p0+d0"}},
		{"unified", "alone", []discovery.Engine{unified("u0"), unified("u1")}, []string{"u0", "u1", "u0"}},
		{"both", "unified engines and pairs take turns", []discovery.Engine{prefill("p0"), decode("d0"), unified("u0")}, []string{"u0", "p0+d0", "u0"}},
		{"no decode", "half a pair is nothing", []discovery.Engine{prefill("p0")}, []string{"none", "none", "none"}},
		{"no prefill", "half a pair is nothing, a unified engine is enough", []discovery.Engine{decode("d0"), unified("u0")}, []string{"u0", "u0", "u0"}},
		{"draining", "gets nothing new", []discovery.Engine{prefill("p0"), in(discovery.StateDraining, decode("d0")), decode("d1")}, []string{"p0+d1", "p0+d1", "p0+d1"}},
		{"not ready", "gets nothing", []discovery.Engine{in(discovery.StateNotReady, prefill("p0")), prefill("p1"), decode("d0")}, []string{"p1+d0", "p1+d0", "p1+d0"}},
		{"nothing", "an empty fleet", nil, []string{"none", "none", "none"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, _ := newFleet(t, policy.RoundRobin, tc.engines...)
			var got []string
			for range 3 {
				got = append(got, grab(f, &Avoid{}))
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, d)
			}
		})
	}
}

func TestLeastLoadSeesWhatIsOutstanding(t *testing.T) {
	f, _ := newFleet(t, policy.LeastLoad, prefill("p0"), decode("d0"), decode("d1"))
	long, err := f.Acquire(t.Context(), 100000, &Avoid{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	other := "p0+d1"
	if names(long) == other {
		other = "p0+d0"
	}
	for range 5 {
		l, _ := f.Acquire(t.Context(), 10, &Avoid{}, 0)
		if names(l) != other {
			t.Errorf("picked %s while the other decode engine has a long prompt, want %s", names(l), other)
		}
	}
}

func TestQuarantine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, e := newFleet(t, policy.RoundRobin, unified("u0"), unified("u1"))
		fail := func() {
			for {
				l, err := f.Acquire(t.Context(), 0, &Avoid{}, 0)
				if err != nil {
					t.Fatal(err)
				}
				if names(l) == "u0" {
					l.done(Failed)
					l.done(Succeeded) // only the first end counts
					return
				}
				l.done(Unknown)
			}
		}
		only := func(want string) {
			t.Helper()
			for range 4 {
				if got := grab(f, &Avoid{}); got != want {
					t.Fatalf("picked %s, want only %s", got, want)
				}
			}
		}
		fail()
		only("u1")
		time.Sleep(999 * time.Millisecond)
		only("u1")
		time.Sleep(time.Millisecond)
		// Half open: one trial at a time.
		a, _ := f.Acquire(t.Context(), 0, &Avoid{}, 0)
		b, _ := f.Acquire(t.Context(), 0, &Avoid{}, 0)
		trial, rest := a, b
		if names(a) == "u1" {
			trial, rest = b, a
		}
		if names(trial) != "u0" || names(rest) != "u1" {
			t.Fatalf("picked %s and %s, want u0 once", names(a), names(b))
		}
		only("u1")
		trial.done(Failed) // the second time lasts twice as long
		rest.done(Succeeded)
		time.Sleep(1999 * time.Millisecond)
		only("u1")
		time.Sleep(time.Millisecond)
		got := map[string]int{}
		for range 4 {
			got[grab(f, &Avoid{})]++ // the trial succeeds and lifts the quarantine
		}
		if d := cmp.Diff(map[string]int{"u0": 2, "u1": 2}, got); d != "" {
			t.Errorf("after a success (-want +got):\n%s", d)
		}
		// A new life has no past.
		fail()
		only("u1")
		f.Update([]discovery.Engine{in(discovery.StateNotReady, unified("u0")), unified("u1")})
		f.Update([]discovery.Engine{unified("u0"), unified("u1")})
		got = map[string]int{}
		for range 4 {
			got[grab(f, &Avoid{})]++
		}
		if d := cmp.Diff(map[string]int{"u0": 2, "u1": 2}, got); d != "" {
			t.Errorf("after a restart (-want +got):\n%s", d)
		}
		if err := f.Ready(); err != nil {
			t.Errorf("not ready: %v", err)
		}
		quarantines := 0
		for _, line := range e.take() {
			if line == "u0 quarantined" {
				quarantines++
			}
		}
		if quarantines != 3 {
			t.Errorf("%d quarantines were told, want 3", quarantines)
		}
	})
}

// TestAvoid checks whom a request may try again.
func TestAvoid(t *testing.T) {
	f, _ := newFleet(t, policy.RoundRobin, prefill("p0"), prefill("p1"), decode("d0"), decode("d1"))
	lease := func() Lease {
		l, err := f.Acquire(t.Context(), 0, &Avoid{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		l.done(Unknown)
		return l
	}
	var l Lease
	for l = lease(); names(l) != "p0+d0"; l = lease() {
	}
	var pair Avoid
	pair.Pair(l)
	if got := grab(f, &pair); got != "p1+d1" {
		t.Errorf("after p0+d0 did not get together: %s, want two others", got)
	}
	pair.Engine(lease2(t, f, "p1"))
	if got := grab(f, &pair); got != "p0+d1" {
		t.Errorf("without p1: %s, want at least one other", got)
	}
	pair.Engine(lease2(t, f, "d1"))
	if got := grab(f, &pair); got != "none" {
		t.Errorf("without p1 and d1: %s, want none: p0+d0 must not meet again", got)
	}
	// d1 comes back to life and may be tried again.
	f.Update([]discovery.Engine{prefill("p0"), prefill("p1"), decode("d0"), in(discovery.StateNotReady, decode("d1"))})
	f.Update([]discovery.Engine{prefill("p0"), prefill("p1"), decode("d0"), decode("d1")})
	if got := grab(f, &pair); got != "p0+d1" {
		t.Errorf("after d1's restart: %s, want p0+d1", got)
	}
}

// lease2 gives a use of the engine with that name.
func lease2(t *testing.T, f *Fleet, name string) *Use {
	t.Helper()
	for range 10 {
		l, err := f.Acquire(t.Context(), 0, &Avoid{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		l.done(Unknown)
		for _, u := range []*Use{l.Prefill, l.Decode} {
			if u.Engine.Name == name {
				return u
			}
		}
	}
	t.Fatalf("%s is never picked", name)
	return nil
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFleet(t, policy.LeastLoad, prefill("p0"))
		start := time.Now()
		_, err := f.Acquire(t.Context(), 0, &Avoid{}, 5*time.Second)
		if !errors.Is(err, ErrNone) || time.Since(start) != 5*time.Second {
			t.Errorf("error %v after %v, want ErrNone after 5 s", err, time.Since(start))
		}
		if want := "1 of 1 prefill engines are ready, 0 of them just failed"; !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}

		ctx, cancel := context.WithCancel(t.Context())
		type result struct {
			l   Lease
			err error
		}
		results := make(chan result, 10)
		wait := func(ctx context.Context) {
			l, err := f.Acquire(ctx, 0, &Avoid{}, time.Minute)
			results <- result{l, err}
		}
		for range 2 {
			go wait(t.Context())
		}
		go wait(ctx)
		synctest.Wait()
		if _, err := f.Acquire(t.Context(), 0, &Avoid{}, time.Minute); err == nil || !strings.Contains(err.Error(), "3 requests wait") {
			t.Errorf("a fourth waiting request: error %v, want a refusal", err)
		}
		cancel()
		if r := <-results; !errors.Is(r.err, context.Canceled) {
			t.Errorf("a cancelled wait: %v", r.err)
		}
		f.Update([]discovery.Engine{prefill("p0"), decode("d0")})
		for range 2 {
			if r := <-results; r.err != nil || names(r.l) != "p0+d0" {
				t.Errorf("after an engine came: %v, %v", r.l, r.err)
			} else {
				r.l.done(Failed)
			}
		}
		// The wait ends with the quarantine.
		start = time.Now()
		l, err := f.Acquire(t.Context(), 0, &Avoid{}, time.Minute)
		if err != nil || time.Since(start) != 2*time.Second {
			t.Errorf("waited %v for the end of a second failure's quarantine (%v), want 2 s", time.Since(start), err)
		}
		// And a trial that goes on makes others wait until it is over.
		go wait(t.Context())
		synctest.Wait()
		l.done(Succeeded)
		if r := <-results; r.err != nil {
			t.Errorf("after the trial: %v", r.err)
		}
	})
}

func TestUpdateTellsChanges(t *testing.T) {
	f, e := newFleet(t, policy.LeastLoad)
	f.Update([]discovery.Engine{decode("b"), in(discovery.StateNotReady, decode("a"))})
	f.Update([]discovery.Engine{decode("b"), decode("a")})
	f.Update([]discovery.Engine{in(discovery.StateDraining, decode("b")), decode("a")})
	f.Update([]discovery.Engine{decode("a")})
	want := []string{"a:  -> not_ready", "b:  -> ready", "a: not_ready -> ready", "b: ready -> draining", "b: draining -> "}
	if d := cmp.Diff(want, e.take()); d != "" {
		t.Errorf("changes (-want +got):\n%s", d)
	}
}

// TestRandom runs random operations and checks the counts after each.
func TestRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	now := time.Unix(0, 0)
	f, err := New(Config{Policy: policy.LeastLoad, Quarantine: time.Second, MaxWaiting: 1, Now: func() time.Time { return now }, Listener: &events{}})
	if err != nil {
		t.Fatal(err)
	}
	all := []discovery.Engine{prefill("p0"), prefill("p1"), decode("d0"), decode("d1"), decode("d2"), unified("u0")}
	var open []Lease
	states := []discovery.State{discovery.StateReady, discovery.StateReady, discovery.StateNotReady, discovery.StateDraining}
	for range 5000 {
		switch rng.IntN(4) {
		case 0:
			var list []discovery.Engine
			for _, e := range all {
				if rng.IntN(5) > 0 {
					list = append(list, in(states[rng.IntN(len(states))], e))
				}
			}
			f.Update(list)
		case 1:
			now = now.Add(time.Duration(rng.IntN(3000)) * time.Millisecond)
		case 2:
			if l, err := f.Acquire(t.Context(), int64(rng.IntN(100)), &Avoid{}, 0); err == nil {
				if l.Decode.Engine.State != discovery.StateReady || (l.Prefill == nil) != (l.Decode.Engine.Role == discovery.Unified) {
					t.Fatalf("picked %s", names(l))
				}
				open = append(open, l)
			}
		case 3:
			if len(open) > 0 {
				i := rng.IntN(len(open))
				open[i].done(Result(rng.IntN(3)))
				open = append(open[:i], open[i+1:]...)
			}
		}
		f.mu.Lock()
		uses := map[*member]int{}
		tokens := map[*member]int64{}
		for _, l := range open {
			for _, u := range []*Use{l.Prefill, l.Decode} {
				if u != nil {
					uses[u.member]++
					tokens[u.member] += u.tokens
				}
			}
		}
		for _, m := range f.members {
			if m.requests != uses[m] || m.tokens != tokens[m] || (m.trial && m.failures == 0) {
				t.Fatalf("%s has %d requests, %d tokens, trial %v, failures %d; %d and %d are open", m.engine.Name, m.requests, m.tokens, m.trial, m.failures, uses[m], tokens[m])
			}
		}
		f.mu.Unlock()
	}
}

// TestWake lets requests wait for engines that do not exist yet, as long as Wake says and no longer.
func TestWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := New(Config{Policy: policy.LeastLoad, Quarantine: time.Second, MaxWaiting: 3, Now: time.Now, Listener: &events{}, Wake: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Ready(); err != nil {
			t.Errorf("a router that may wake pools is not ready without engines: %v", err)
		}
		start := time.Now()
		if _, err := f.Acquire(t.Context(), 0, &Avoid{}, time.Second); !errors.Is(err, ErrNone) || time.Since(start) != time.Minute || !strings.Contains(err.Error(), "no engine is known, after a wait of 1m0s for a pool to wake up") {
			t.Errorf("error %v after %v, want ErrNone after a minute", err, time.Since(start))
		}

		results := make(chan string, 10)
		ask := func() {
			l, err := f.Acquire(t.Context(), 0, &Avoid{}, 0)
			if err != nil {
				results <- err.Error()
				return
			}
			results <- names(l)
			l.done(Succeeded)
		}
		waiting := func(want map[discovery.Role]int) {
			t.Helper()
			synctest.Wait()
			if d := cmp.Diff(want, f.Waiting()); d != "" {
				t.Errorf("waiting (-want +got):\n%s", d)
			}
		}
		waiting(map[discovery.Role]int{discovery.Prefill: 0, discovery.Decode: 0, discovery.Unified: 0})
		go ask()
		go ask()
		waiting(map[discovery.Role]int{discovery.Prefill: 2, discovery.Decode: 2, discovery.Unified: 2})
		f.Update([]discovery.Engine{in(discovery.StateNotReady, prefill("p0")), decode("d0")})
		waiting(map[discovery.Role]int{discovery.Prefill: 2, discovery.Decode: 0, discovery.Unified: 2})
		f.Update([]discovery.Engine{prefill("p0"), decode("d0")})
		waiting(map[discovery.Role]int{discovery.Prefill: 0, discovery.Decode: 0, discovery.Unified: 0})
		for range 2 {
			if got := <-results; got != "p0+d0" {
				t.Errorf("after the engines came: %s", got)
			}
		}

		// The last engine goes while a request waits for its quarantine: the request then waits for a new one.
		l, err := f.Acquire(t.Context(), 0, &Avoid{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		l.done(Failed)
		go func() {
			if l, err := f.Acquire(t.Context(), 0, &Avoid{}, 500*time.Millisecond); err == nil {
				results <- names(l)
				l.done(Succeeded)
				return
			}
			results <- "none"
		}()
		synctest.Wait()
		f.Update([]discovery.Engine{in(discovery.StateDraining, prefill("p0")), decode("d0")})
		time.Sleep(30 * time.Second)
		f.Update([]discovery.Engine{prefill("p1"), decode("d0")})
		if got := <-results; got != "p1+d0" {
			t.Errorf("after another engine came: %s", got)
		}
	})
}

// TestPatience: how long a request waits that no engine takes, and what it is told then. An engine that is ready but failed
// just now is worth the wait for a busy one, however long the wait for a pool may be.
func TestPatience(t *testing.T) {
	type at struct {
		after   time.Duration      // since the request came
		engines []discovery.Engine // another request has had each, and failed
	}
	awake := []discovery.Engine{unified("u0")}
	const busy, wake = 10 * time.Second, 5 * time.Minute
	for _, tc := range []struct {
		name, reason string
		wake         time.Duration
		steps        []at
		lasts        time.Duration
		want         string // the end of the error
	}{
		{"nothing comes", "the whole wait for a pool", wake, nil, wake, "no engine is known, after a wait of 5m0s for a pool to wake up"},
		{"nothing may wake", "as for a busy engine", 0, nil, busy, "no engine is known"},
		{"failed, awake", "pools never slept", wake, []at{{0, awake}}, busy, "1 of 1 unified engines are ready, 1 of them just failed"},
		{"wakes and fails", "the wait for a busy engine, from then on", wake, []at{{20 * time.Second, awake}}, 30 * time.Second,
			"1 of 1 unified engines are ready, 1 of them just failed, after a wait of 30s in which a pool woke up"},
		{"wakes, fails, goes", "it waits for a pool again, no longer than since it came", wake, []at{{20 * time.Second, awake}, {25 * time.Second, nil}}, wake,
			"no engine is known, after a wait of 5m0s for a pool to wake up"},
		{"failed, goes, comes and fails", "awake anew", wake, []at{{0, awake}, {5 * time.Second, nil}, {8 * time.Second, awake}}, 18 * time.Second,
			"1 of 1 unified engines are ready, 1 of them just failed, after a wait of 18s in which a pool woke up"},
		{"wakes too late", "a busy engine's wait and no more", wake, []at{{wake - time.Second, awake}, {wake + 5*time.Second, nil}}, wake + 5*time.Second,
			"no engine is known, after a wait of 5m5s for a pool to wake up"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, err := New(Config{Policy: policy.LeastLoad, Quarantine: time.Hour, MaxWaiting: 1, Now: time.Now, Listener: &events{}, Wake: tc.wake})
				if err != nil {
					t.Fatal(err)
				}
				step := func(s at) {
					f.mu.Lock() // once: who waits sees no engine before it has failed
					defer f.mu.Unlock()
					f.updateLocked(s.engines)
					for _, m := range f.members {
						m.failed(time.Now(), time.Hour)
					}
				}
				steps := tc.steps
				if len(steps) > 0 && steps[0].after == 0 {
					step(steps[0])
					steps = steps[1:]
				}
				start := time.Now()
				ended := make(chan error, 1)
				go func() {
					_, err := f.Acquire(t.Context(), 0, &Avoid{}, busy)
					ended <- err
				}()
				for _, s := range steps {
					time.Sleep(time.Until(start.Add(s.after)))
					step(s)
				}
				err = <-ended
				if lasted := time.Since(start); !errors.Is(err, ErrNone) || lasted != tc.lasts || !strings.HasSuffix(err.Error(), ": "+tc.want) {
					t.Errorf("%s: after %v %v, want after %v ...: %s", tc.reason, lasted, err, tc.lasts, tc.want)
				}
			})
		})
	}
}
