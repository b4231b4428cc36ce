package scheduler

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
)

func TestQueueOrder(t *testing.T) {
	tests := []struct {
		name, reason string
		policy       Policy
		waiters      []waiter
		want         []int64 // arrivals
	}{
		{name: "fcfs", reason: "the cache does not matter", policy: FCFS,
			waiters: []waiter{{arrival: 2, cached: 9}, {arrival: 1}, {arrival: 3, alike: true}}, want: []int64{1, 2, 3}},
		{name: "retracted first", reason: "who has part of an answer goes on with it", policy: FCFS,
			waiters: []waiter{{arrival: 1}, {arrival: 3, retracted: true}, {arrival: 2, retracted: true}}, want: []int64{2, 3, 1}},
		{name: "urgent first", reason: "urgency comes before everything", policy: FCFS,
			waiters: []waiter{{arrival: 1, retracted: true}, {arrival: 2, urgency: 5}, {arrival: 3, urgency: leastUrgent}, {arrival: 4, urgency: 5}},
			want:    []int64{2, 4, 1, 3}},
		{name: "lpm", reason: "the longest cached prefix first, then arrival", policy: LPM,
			waiters: []waiter{{arrival: 1, cached: 4}, {arrival: 2, cached: 8}, {arrival: 3}, {arrival: 4, cached: 8}}, want: []int64{2, 4, 1, 3}},
		{name: "lpm within a priority", reason: "priority scheduling comes first", policy: LPM,
			waiters: []waiter{{arrival: 1, cached: 64}, {arrival: 2, urgency: 1}}, want: []int64{2, 1}},
		{name: "lpm, alike", reason: "those that will find their prefix in the cache later come last", policy: LPM,
			waiters: []waiter{{arrival: 1}, {arrival: 2, alike: true}, {arrival: 3}}, want: []int64{1, 3, 2}},
		{name: "lpm, overtaken", reason: "nobody is overtaken for ever", policy: LPM,
			waiters: []waiter{{arrival: 1, overtaken: patienceRequests}, {arrival: 2, cached: 64}, {arrival: 3, alike: true, overtaken: patienceRequests + 9},
				{arrival: 4, cached: 80, overtaken: patienceRequests - 1}},
			want: []int64{1, 3, 4, 2}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			slices.SortFunc(tt.waiters, queueOrder(tt.policy))
			var got []int64
			for _, w := range tt.waiters {
				got = append(got, w.arrival)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}

// The order is total, so that it does not depend on the sort or on where the waiters were.
func TestQueueOrderIsTotal(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for _, p := range []Policy{FCFS, LPM} {
		for range 200 {
			var ws []waiter
			for i := range 12 {
				ws = append(ws, waiter{
					arrival: int64(i), urgency: urgency(rng.IntN(3)), retracted: rng.IntN(3) == 0, cached: rng.IntN(3), alike: rng.IntN(2) == 0,
					overtaken: rng.IntN(2) * patienceRequests,
				})
			}
			want := slices.SortedFunc(slices.Values(ws), queueOrder(p))
			rng.Shuffle(len(ws), func(i, j int) { ws[i], ws[j] = ws[j], ws[i] })
			slices.SortFunc(ws, queueOrder(p))
			if !slices.Equal(want, ws) {
				t.Fatalf("%s: two orders of one queue:\n%v\n%v", p, want, ws)
			}
			for i := range ws {
				for j := range ws {
					if c := queueOrder(p)(ws[i], ws[j]); (c < 0) != (i < j) || (c == 0) != (i == j) {
						t.Fatalf("%s: %v and %v compare as %d, but are at %d and %d", p, ws[i], ws[j], c, i, j)
					}
				}
			}
		}
	}
}

func TestActivePolicy(t *testing.T) {
	for _, tt := range []struct {
		p    Policy
		n    int
		want Policy
	}{{FCFS, 1, FCFS}, {LPM, 128, LPM}, {LPM, 129, FCFS}, {FCFS, 1000, FCFS}} {
		if got := tt.p.active(tt.n); got != tt.want {
			t.Errorf("%s is %s in a queue of %d, want %s", tt.p, got, tt.n, tt.want)
		}
	}
}

func TestParsePolicies(t *testing.T) {
	for name, want := range map[string]Policy{"fcfs": FCFS, "lpm": LPM} {
		if got, err := ParsePolicy(name); got != want || err != nil || got.String() != name {
			t.Errorf("policy %q is %v, %v", name, got, err)
		}
	}
	for name, want := range map[string]RetractionPolicy{"length": RetractByLength, "priority": RetractByPriority} {
		if got, err := ParseRetractionPolicy(name); got != want || err != nil || got.String() != name {
			t.Errorf("retraction policy %q is %v, %v", name, got, err)
		}
	}
	if _, err := ParsePolicy("lof"); err == nil || err.Error() != `schedule policy is "lof": use fcfs or lpm` {
		t.Errorf("lof: %v", err)
	}
	if _, err := ParseRetractionPolicy(""); err == nil || err.Error() != `retraction policy is "": use length or priority` {
		t.Errorf("empty: %v", err)
	}
	if got := fmt.Sprint(Policy(9), RetractionPolicy(9)); got != "Policy(9) RetractionPolicy(9)" {
		t.Errorf("values that do not exist are %s", got)
	}
}

func TestMarkAlike(t *testing.T) {
	long := func(salt int, more ...int32) []int32 { return append(testPrompt(sharedPrefix, salt), more...) }
	tests := []struct {
		name, reason string
		prompts      []prompt
		want         []bool
	}{
		{name: "alike", reason: "all but the first wait for its prefix",
			prompts: []prompt{{tokens: long(1)}, {tokens: long(1, 5)}, {tokens: long(2)}, {tokens: long(1, 6)}}, want: []bool{false, true, false, true}},
		{name: "short", reason: "little can be saved", prompts: []prompt{{tokens: long(1)[1:]}, {tokens: long(1)[1:]}}, want: []bool{false, false}},
		{name: "cached", reason: "what is in the cache need not be waited for",
			prompts: []prompt{{tokens: long(1, 1, 2), cached: sharedPrefix + 1}, {tokens: long(1, 1, 3), cached: sharedPrefix + 1}}, want: []bool{false, false}},
		{name: "keys", reason: "other keys share no prefix", prompts: []prompt{{tokens: long(1)}, {key: "a", tokens: long(1)}}, want: []bool{false, false}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, markAlike(tt.prompts)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}

func TestUrgency(t *testing.T) {
	high, low := Priorities{Enabled: true}, Priorities{Enabled: true, LowFirst: true}
	tests := []struct {
		name, reason string
		p            Priorities
		a, b         *int // a is more urgent than b, or both are equal when same
		same         bool
	}{
		{name: "off", reason: "priorities are ignored", a: new(5), b: new(1), same: true},
		{name: "higher", reason: "SGLang's default", p: high, a: new(5), b: new(1)},
		{name: "lower", reason: "--schedule-low-priority-values-first", p: low, a: new(1), b: new(5)},
		{name: "none", reason: "less urgent than any", p: high, a: new(math.MinInt), b: nil},
		{name: "none, lower", reason: "less urgent than any", p: low, a: new(math.MaxInt), b: nil},
		{name: "extremes", reason: "no overflow", p: low, a: new(math.MinInt), b: new(math.MaxInt)},
		{name: "default", reason: "who brings none has the default", p: Priorities{Enabled: true, Default: new(3)}, a: nil, b: new(2)},
		{name: "default is given", reason: "and no other", p: Priorities{Enabled: true, Default: new(3)}, a: nil, b: new(3), same: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := tt.p.urgency(tt.a), tt.p.urgency(tt.b)
			if (a == b) != tt.same || !tt.same && a < b {
				t.Errorf("%s: urgencies are %d and %d", tt.reason, a, b)
			}
		})
	}
}

func TestExceeds(t *testing.T) {
	for _, tt := range []struct {
		a, b      urgency
		threshold int
		want      bool
	}{
		{11, 0, 10, true}, {10, 0, 10, false}, {1, 0, 0, true}, {0, 0, 0, false}, {-5, -16, 10, true}, {0, 11, 10, false},
		{math.MaxInt64, math.MinInt64, math.MaxInt64, true}, {math.MinInt64, math.MaxInt64, 0, false},
	} {
		if got := tt.a.exceeds(tt.b, tt.threshold); got != tt.want {
			t.Errorf("%d exceeds %d by more than %d: %t, want %t", tt.a, tt.b, tt.threshold, got, tt.want)
		}
	}
}

func TestPreempted(t *testing.T) {
	running := []runner{
		{urgency: 0, arrival: 1, tokens: 10, window: 2}, {urgency: -3, arrival: 2, tokens: 4, window: 1}, {urgency: -3, arrival: 3, tokens: 6, window: 4},
		{urgency: 20, arrival: 4, tokens: 50, window: 50},
	}
	tests := []struct {
		name, reason string
		urgency      urgency
		threshold    int
		lack         shortage
		want         []int
	}{
		{name: "one", reason: "the least urgent, of those the last to come", urgency: 20, threshold: 10, lack: shortage{places: 1}, want: []int{2}},
		{name: "more", reason: "until memory suffices", urgency: 20, threshold: 10, lack: shortage{places: 1, tokens: 11}, want: []int{2, 1, 0}},
		{name: "memory", reason: "places may be there", urgency: 20, threshold: 10, lack: shortage{places: -3, tokens: 7}, want: []int{2, 1}},
		{name: "window", reason: "each pool must suffice", urgency: 20, threshold: 10, lack: shortage{window: 5}, want: []int{2, 1}},
		{name: "too much of a window", reason: "nobody gives way in vain", urgency: 20, threshold: 10, lack: shortage{places: 1, window: 99}},
		{name: "too much", reason: "nobody gives way in vain", urgency: 20, threshold: 10, lack: shortage{places: 1, tokens: 21}},
		{name: "too close", reason: "the difference must exceed the threshold", urgency: 7, threshold: 10, lack: shortage{places: 1}},
		{name: "just enough", reason: "it does for some", urgency: 8, threshold: 10, lack: shortage{places: 1, tokens: 6}, want: []int{2}},
		{name: "equal", reason: "no threshold, but equals do not preempt each other", urgency: -3, threshold: 0, lack: shortage{places: 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, preempted(running, tt.urgency, tt.threshold, tt.lack)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}

func TestPushedOut(t *testing.T) {
	queue := []queued{{urgency: 3, arrival: 1}, {urgency: 1, arrival: 2}, {urgency: 1, arrival: 3}, {urgency: 0, arrival: 4, begun: true}}
	for _, tt := range []struct {
		reason string
		u      urgency
		want   int
	}{
		{"the least urgent, of those the last", 5, 2}, {"it is enough to be more urgent than one", 2, 2}, {"an equal is refused", 1, -1},
		{"an answer that has begun is not refused", 0, -1},
	} {
		if got := pushedOut(queue, tt.u); got != tt.want {
			t.Errorf("%s: %d makes way for %d, want %d", tt.reason, got, tt.u, tt.want)
		}
	}
}

func TestRetractionOrder(t *testing.T) {
	running := []runner{
		{arrival: 1, prompt: 5, generated: 3, urgency: 9}, {arrival: 2, prompt: 8, generated: 2, urgency: 9}, {arrival: 3, prompt: 9, generated: 2},
		{arrival: 4, prompt: 9, generated: 2}, {arrival: 5, prompt: 1, generated: 7, urgency: -1},
	}
	for policy, want := range map[RetractionPolicy][]int64{
		RetractByLength:   {4, 3, 2, 1, 5},
		RetractByPriority: {5, 4, 3, 2, 1},
	} {
		var got []int64
		for _, r := range slices.SortedFunc(slices.Values(running), policy.compare) {
			got = append(got, r.arrival)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", policy, diff)
		}
	}
}

func TestTimeouts(t *testing.T) {
	const second = int64(time.Second)
	both := Timeouts{WaitingNanos: 5 * second, RunningNanos: 20 * second}
	tests := []struct {
		name, reason string
		t            Timeouts
		x            timed
		now          int64
		want         timeoutKind
	}{
		{name: "none", reason: "0 is no bound", x: timed{waiting: true, began: true}, now: 1 << 60},
		{name: "waits", reason: "not yet", t: both, x: timed{waiting: true, since: second}, now: 6*second - 1},
		{name: "waited", reason: "the bound is reached", t: both, x: timed{waiting: true, since: second}, now: 6 * second, want: waitedTooLong},
		{name: "runs", reason: "the wait before does not count", t: both, x: timed{since: second, forward: 3 * second, began: true}, now: 22 * second},
		{name: "ran", reason: "from the first forward", t: both, x: timed{forward: 3 * second, began: true}, now: 23 * second, want: ranTooLong},
		{name: "retracted", reason: "waits anew, and its running time goes on", t: both,
			x: timed{waiting: true, since: 19 * second, forward: second, began: true}, now: 21 * second, want: ranTooLong},
		{name: "retracted, waited", reason: "the earlier bound", t: both,
			x: timed{waiting: true, since: 10 * second, forward: second, began: true}, now: 30 * second, want: waitedTooLong},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.t.exceeded(tt.x, tt.now); got != tt.want {
				t.Errorf("%s: %d, want %d", tt.reason, got, tt.want)
			}
		})
	}
}

func TestStopwatch(t *testing.T) {
	var w stopwatch
	var got []int64
	resume := func(now int64) { w.resume(now) }
	for _, step := range []struct {
		do  func(int64)
		now int64
	}{{nil, 5}, {w.pause, 7}, {nil, 100}, {w.pause, 200}, {resume, 207}, {nil, 210}, {resume, 300}, {nil, 301}} {
		if step.do != nil {
			step.do(step.now)
		}
		got = append(got, w.read(step.now))
	}
	if diff := cmp.Diff([]int64{5, 7, 7, 7, 7, 10, 100, 101}, got); diff != "" {
		t.Errorf("unpaused time (-want +got):\n%s", diff)
	}
}

// One that comes back after a retraction overtakes nobody anew: it was counted when it was admitted for the first time.
func TestRetractedOnesOvertakeOnce(t *testing.T) {
	cfg := testConfig(Unified, 1, 64)
	cfg.Policy = LPM
	s, err := New(cfg, Deps{Executor: newTapeOf(cfg), Clock: ledgertest.New(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	early := &sequence{arrival: 1, state: stateWaiting}
	s.in[stateWaiting].add(early)
	late := &sequence{arrival: 2}
	for range 3 {
		s.overtake(late)
		late.retractions++
	}
	if early.overtaken != 1 {
		t.Errorf("it was overtaken %d times, by one request", early.overtaken)
	}
}
