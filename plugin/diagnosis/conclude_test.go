package diagnosis

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// even is a rank that works well: half its cap, no queue.
func even(engine string, dp int, change ...func(*Rank)) Rank {
	r := Rank{
		Pool: "main", Role: "Unified", Engine: engine, DP: dp, Seconds: 10, Running: 8, Cap: 16, Usage: 0.5, Occupied: 1, PrefillShare: 0.1,
		Decoded: 400, Computed: 50, Found: 150, Effective: 200, Idle: 0.05, CPU: 0.9,
	}
	for _, f := range change {
		f(&r)
	}
	return r
}

func queue(n float64) func(*Rank) {
	return func(r *Rank) { r.Waiting, r.LeastWaiting = n, n }
}

func role(role string) func(*Rank) { return func(r *Rank) { r.Role = role } }

// calm is a way in that holds nothing up.
func calm(engine string, change ...func(*Front)) Front {
	f := Front{
		Pool: "main", Role: "Unified", Engine: engine, Seconds: 10, Tokenizing: 0.01, Dispatching: 0.01, TokenizeMean: 0.001, BeforeFirst: 1, InRanks: 0.9, InFlight: 8,
		CPU: 0.2, TTFT: 0.1, ITL: 0.02, E2E: 2, Ended: 4, FoundBy: map[string]float64{"device": 150},
	}
	for _, g := range change {
		g(&f)
	}
	return f
}

func TestConclude(t *testing.T) {
	nan := math.NaN()
	for _, tc := range []struct {
		name, reason string
		ranks        []Rank
		fronts       []Front
		routers      []Router
		want         Cause
		where        string
		also         []Cause
	}{
		{name: "well", reason: "no number is out of bounds", ranks: []Rank{even("a", 0), even("a", 1)}, fronts: []Front{calm("a")}, want: NothingWrong, where: "all pools"},
		{name: "nothing seen", reason: "no engine answered", want: NoData, where: "all pools"},
		{name: "idle", reason: "nobody asks",
			ranks: []Rank{even("a", 0, func(r *Rank) { *r = Rank{Pool: "main", Role: "Unified", Engine: "a", Seconds: 10, Idle: 1} })}, want: NoRequests, where: "all pools"},
		{name: "health checks", reason: "their tokens are nobody's requests",
			ranks: []Rank{even("a", 0, func(r *Rank) {
				*r = Rank{Pool: "main", Role: "Unified", Engine: "a", Seconds: 10, Idle: 1, Computed: 0.5, Decoded: 0.5}
			})},
			fronts: []Front{{Pool: "main", Engine: "a"}}, want: NoRequests, where: "all pools"},
		{name: "full batch", reason: "the cap is the limit", ranks: []Rank{even("a", 0, queue(5), func(r *Rank) { r.Running = 16 })}, want: QueueBound, where: "pool main, a DP rank 0"},
		{name: "a moment's queue", reason: "what waits at one poll alone is no queue",
			ranks: []Rank{even("a", 0, func(r *Rank) { r.Running, r.Waiting = 16, 3 })}, want: NothingWrong, where: "all pools"},
		{name: "full memory", reason: "there is room in the batch and none in memory", ranks: []Rank{even("a", 0, queue(5), func(r *Rank) { r.Usage = 0.95 })}, want: MemoryBound, where: "pool main, a DP rank 0"},
		{name: "prompts", reason: "the step is prompts", ranks: []Rank{even("a", 0, queue(5), func(r *Rank) { r.PrefillShare = 0.8 })}, want: PrefillBound, where: "pool main, a DP rank 0"},
		{name: "held", reason: "there is room for what waits", ranks: []Rank{even("a", 0, queue(5), func(r *Rank) { r.Grammar = 5 })}, want: AdmissionHeld, where: "pool main, a DP rank 0"},
		{name: "prefill engine", reason: "it has no cap: it is busy", ranks: []Rank{even("a", 0, role("Prefill"), queue(9), func(r *Rank) { r.PrefillShare = nan })}, want: PrefillBound, where: "pool main, a DP rank 0"},
		{name: "no decode engine", reason: "prompts wait for one that takes them",
			ranks: []Rank{even("a", 0, role("Prefill"), queue(9), func(r *Rank) { r.PrefillShare, r.Idle, r.Bootstrap = 0.1, 0.9, 8 })}, want: TransferStall, where: "pool main, a DP rank 0"},
		{name: "late prefill", reason: "decode has room and waits for KV",
			ranks: []Rank{even("a", 0, role("Decode"), queue(6), func(r *Rank) { r.Transfer = 6 })}, want: TransferStall, where: "pool main, a DP rank 0"},
		{name: "decode memory", reason: "requests wait for pages",
			ranks: []Rank{even("a", 0, role("Decode"), queue(6), func(r *Rank) { r.Prealloc, r.Usage = 6, 0.97 })}, want: MemoryBound, where: "pool main, a DP rank 0"},
		{name: "retraction", reason: "the queue follows from it",
			ranks: []Rank{even("a", 0, queue(4), func(r *Rank) { r.Usage, r.Retractions, r.LostTokens, r.Effective = 0.97, 2, 40, 120 })},
			want:  Retraction, where: "pool main, a DP rank 0", also: []Cause{MemoryBound}},
		{name: "one retraction", reason: "few tokens are lost: it costs little",
			ranks: []Rank{even("a", 0, func(r *Rank) { r.Retractions, r.LostTokens = 0.1, 1 })}, want: NothingWrong, where: "all pools"},
		{name: "storage", reason: "what is found is found in slower places",
			ranks: []Rank{even("a", 0)}, fronts: []Front{calm("a", func(f *Front) { f.FoundBy = map[string]float64{"device": 50, "host": 60, "storage": 40} })}, want: StorageHits, where: "pool main"},
		{name: "pinned", reason: "one has all and the other nothing; the queue follows from it",
			ranks: []Rank{even("a", 0, queue(9), func(r *Rank) { r.Running = 16 }), even("a", 1, func(r *Rank) { r.Running, r.Decoded, r.Computed, r.Idle, r.Occupied = 0, 0, 0, 1, 0 })},
			want:  UnevenRouting, where: "pool main, a DP rank 0", also: []Cause{QueueBound}},
		{name: "pinned to a replica", reason: "replicas of a pool are compared too",
			ranks: []Rank{even("a", 0), even("b", 0, func(r *Rank) { r.Running, r.Decoded, r.Computed, r.Idle, r.Occupied = 0, 0, 0, 1, 0 })},
			want:  UnevenRouting, where: "pool main, a DP rank 0"},
		{name: "one request", reason: "there is too little to compare",
			ranks: []Rank{even("a", 0, func(r *Rank) { r.Running = 1 }), even("a", 1, func(r *Rank) { r.Running, r.Decoded, r.Computed, r.Idle, r.Occupied = 0, 0, 0, 1, 0 })},
			want:  NothingWrong, where: "all pools"},
		{name: "throttled", reason: "as many requests, a fifth of the tokens",
			ranks: []Rank{even("a", 0), even("a", 1, func(r *Rank) { r.Decoded, r.Computed, r.CPU = 80, 10, 0.2 })}, want: SlowRank, where: "pool main, a DP rank 1"},
		{name: "throttled, and piled up", reason: "the slow one gets a queue, and is not the one with the most work",
			ranks: []Rank{even("a", 0, func(r *Rank) { r.Running, r.Idle = 2, 0.5 }), even("a", 1, queue(9), func(r *Rank) { r.Running, r.Decoded, r.Computed = 16, 80, 10 })},
			want:  SlowRank, where: "pool main, a DP rank 1", also: []Cause{QueueBound}},
		{name: "long prompts on one", reason: "it computes prompts meanwhile: that is no slow rank",
			ranks: []Rank{even("a", 0), even("a", 1, func(r *Rank) { r.Decoded, r.Computed = 80, 5000 })}, want: NothingWrong, where: "all pools"},
		{name: "small batch", reason: "fewer requests give fewer tokens: that is no slow rank",
			ranks: []Rank{even("a", 0), even("a", 1, func(r *Rank) { r.Running, r.Decoded, r.Computed = 3, 150, 20 })}, want: NothingWrong, where: "all pools"},
		{name: "front", reason: "no rank has the requests, and the ranks are idle",
			ranks:  []Rank{even("a", 0, func(r *Rank) { r.Idle = 0.8 })},
			fronts: []Front{calm("a", func(f *Front) { f.Tokenizing, f.BeforeFirst, f.InRanks = 6, 10, 1 })}, want: FrontEnd, where: "pool main, a"},
		{name: "long steps", reason: "ranks that are busy take requests late: the way in is not to blame",
			ranks:  []Rank{even("a", 0, queue(5), func(r *Rank) { r.Running = 16 })},
			fronts: []Front{calm("a", func(f *Front) { f.Dispatching, f.Tokenizing, f.BeforeFirst, f.InRanks = 6, 2, 10, 1 })}, want: QueueBound, where: "pool main, a DP rank 0"},
		{name: "no engine to use", reason: "the router has the requests", ranks: []Rank{even("a", 0)}, routers: []Router{{Router: "r", Waiting: 4, WaitMean: 2}}, want: RouterWait, where: "router, r"},
		{name: "faults", reason: "requests end badly", ranks: []Rank{even("a", 0)}, fronts: []Front{calm("a", func(f *Front) { f.Failed = 1 })}, want: Failing, where: "pool main, a"},
		{name: "nothing told", reason: "a number that is not told is beyond no bound",
			ranks: []Rank{
				{Pool: "main", Role: "Unified", Engine: "a", Running: 8, Cap: 16, Occupied: 1, Usage: nan, PrefillShare: nan, Decoded: nan, Computed: nan, Found: nan, Effective: nan, Idle: nan, CPU: nan, Retractions: nan, LostTokens: nan},
				{Pool: "main", Role: "Unified", Engine: "b", Running: 8, Cap: 16, Occupied: 1, Usage: nan, PrefillShare: nan, Decoded: nan, Computed: nan, Found: nan, Effective: nan, Idle: nan, CPU: nan, Retractions: nan, LostTokens: nan},
			},
			fronts:  []Front{{Pool: "main", Engine: "a", Tokenizing: nan, Dispatching: nan, TokenizeMean: nan, BeforeFirst: nan, InRanks: nan, CPU: nan, TTFT: nan, ITL: nan, E2E: nan, Ended: nan, Refused: nan, Failed: nan}},
			routers: []Router{{Router: "r", Waiting: nan, WaitMean: nan, Added: nan, Requests: nan, Retries: nan, CPU: nan}}, want: NothingWrong, where: "all pools"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := Conclude(Facts{Seconds: 10, Ranks: tc.ranks, Fronts: tc.fronts, Routers: tc.routers})
			also := tc.also
			if also == nil {
				also = []Cause{}
			}
			if r.Cause != tc.want || r.Conclusion.Cause != tc.want || r.Conclusion.Where != tc.where || !cmp.Equal(also, r.Also) {
				t.Errorf("%s: it is %s at %s, also %v; want %s at %s, also %v\n%s", tc.reason, r.Cause, r.Conclusion.Where, r.Also, tc.want, tc.where, also, r.Text(true))
			}
			if len(r.Paths) != 5 {
				t.Errorf("%d paths", len(r.Paths))
			}
			check := func(list []Evidence) {
				for _, e := range list {
					if math.IsNaN(e.Value) || math.IsInf(e.Value, 0) {
						t.Errorf("%q is no number for JSON", e.What)
					}
				}
			}
			check(r.Conclusion.Evidence)
			for _, path := range r.Paths {
				check(path.Evidence)
			}
			if r.Cause != NothingWrong && r.Cause != NoData && r.Cause != NoRequests {
				for _, e := range r.Conclusion.Evidence {
					if e.Bound != "" && !e.Beyond {
						t.Errorf("a number does not speak for it: %s", e)
					}
				}
			}
		})
	}
}
