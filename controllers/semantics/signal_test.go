package semantics

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/engine/loads"
)

// answer is the value of a signal, or the fault.
type answer struct {
	Milli int64
	Fault Fault
}

func replica(role v1alpha1.Role, ranks ...loads.Load) Replica {
	return Replica{Role: role, Want: len(ranks), Ranks: ranks}
}

func TestOf(t *testing.T) {
	fast, slow := Work{Tokens: 1000, Micros: 1e6}, Work{Tokens: 100, Micros: 1e6}
	for _, tc := range []struct {
		name   string
		reason string
		signal v1alpha1.ScalingMetricType
		in     Replica
		pool   Work
		want   answer
	}{
		{"Utilization", "rounded half up", v1alpha1.MetricUtilization, replica(v1alpha1.RoleDecode, loads.Load{Utilization: 0.8125}), Work{}, answer{813, ""}},
		{"UtilizationOfRanks", "a ratio is averaged", v1alpha1.MetricUtilization,
			replica(v1alpha1.RoleUnified, loads.Load{Utilization: 0.5}, loads.Load{Utilization: 1.5}), Work{}, answer{1000, ""}},
		{"UtilizationOnPrefill", "no owner", v1alpha1.MetricUtilization, replica(v1alpha1.RolePrefill, loads.Load{Utilization: 0.5}), Work{}, answer{0, FaultUndefined}},
		{"TokenUsage", "of any role", v1alpha1.MetricTokenUsage, replica(v1alpha1.RolePrefill, loads.Load{TokenUsage: 0.25}), Work{}, answer{250, ""}},
		{"QueueLength", "requests are added", v1alpha1.MetricQueueLength,
			replica(v1alpha1.RolePrefill, loads.Load{NumWaitingReqs: 2}, loads.Load{NumWaitingReqs: 5}), Work{}, answer{7000, ""}},
		{"Concurrency", "requests are added", v1alpha1.MetricConcurrency,
			replica(v1alpha1.RoleDecode, loads.Load{NumRunningReqs: 2}, loads.Load{NumRunningReqs: 5}), Work{}, answer{7000, ""}},
		{"RankMissing", "half of a replica is not a number", v1alpha1.MetricConcurrency,
			Replica{Role: v1alpha1.RoleDecode, Want: 2, Ranks: []loads.Load{{NumRunningReqs: 2}}}, Work{}, answer{0, FaultPartial}},
		{"NoRanks", "an empty answer is not 0", v1alpha1.MetricConcurrency, Replica{Role: v1alpha1.RoleDecode}, Work{}, answer{0, FaultPartial}},

		{"Delay", "3000 tokens at 1000 a second", v1alpha1.MetricPrefillDelay,
			Replica{Role: v1alpha1.RolePrefill, Want: 1, Ranks: []loads.Load{{NumWaitingUncached: 3000}}, Work: []Work{fast}}, slow, answer{3000, ""}},
		{"DelayOfRanks", "3300 tokens at 1000 + 100 a second", v1alpha1.MetricPrefillDelay,
			Replica{Role: v1alpha1.RolePrefill, Want: 2, Ranks: []loads.Load{{NumWaitingUncached: 3000}, {NumWaitingUncached: 300}}, Work: []Work{fast, slow}}, Work{}, answer{3000, ""}},
		{"DelayAtTheRateOfOthers", "a new engine is taken to be as fast as its pool", v1alpha1.MetricPrefillDelay,
			Replica{Role: v1alpha1.RoleUnified, Want: 1, Ranks: []loads.Load{{NumWaitingUncached: 50}}, Work: []Work{{}}}, slow, answer{500, ""}},
		{"DelayWithoutRate", "prompts wait and nobody knows for how long", v1alpha1.MetricPrefillDelay,
			Replica{Role: v1alpha1.RolePrefill, Want: 1, Ranks: []loads.Load{{NumWaitingUncached: 50}}, Work: []Work{{}}}, Work{}, answer{0, FaultNoRate}},
		{"DelayAtRateZero", "busy without a token is no rate", v1alpha1.MetricPrefillDelay,
			Replica{Role: v1alpha1.RolePrefill, Want: 1, Ranks: []loads.Load{{NumWaitingUncached: 50}}, Work: []Work{{Micros: 5}}}, Work{}, answer{0, FaultNoRate}},
		{"NothingWaits", "no delay, whatever the rate", v1alpha1.MetricPrefillDelay, replica(v1alpha1.RolePrefill, loads.Load{}), Work{}, answer{0, ""}},
		{"DelayMissing", "the engine does not tell what waits", v1alpha1.MetricPrefillDelay,
			Replica{Role: v1alpha1.RolePrefill, Want: 1, Ranks: []loads.Load{{NumWaitingUncached: -1}}, Work: []Work{fast}}, fast, answer{0, FaultSentinel}},
		{"DelayOnDecode", "it computes no prompts", v1alpha1.MetricPrefillDelay, replica(v1alpha1.RoleDecode, loads.Load{}), fast, answer{0, FaultUndefined}},
		{"DelayRankMissing", "half of a replica is not a number", v1alpha1.MetricPrefillDelay,
			Replica{Role: v1alpha1.RolePrefill, Want: 2, Ranks: []loads.Load{{NumWaitingUncached: 1}}, Work: []Work{fast}}, fast, answer{0, FaultPartial}},
		{"Shared", "a quantile of one replica means little", v1alpha1.MetricTTFT, replica(v1alpha1.RoleDecode, loads.Load{}), Work{}, answer{0, FaultUndefined}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			signal, ok := SignalOf(tc.signal)
			if !ok {
				t.Fatalf("no signal %s", tc.signal)
			}
			milli, fault := signal.Of(tc.in, tc.pool)
			if diff := cmp.Diff(tc.want, answer{milli, fault}); diff != "" {
				t.Errorf("(-want +got), %s:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestNeverANumber gives every signal every bad value in every field that it reads, in every rank: none becomes a number.
func TestNeverANumber(t *testing.T) {
	bad := map[string]float64{"-1": -1, "NaN": math.NaN(), "+Inf": math.Inf(1), "-Inf": math.Inf(-1), "huge": 2e9, "-0.001": -0.001}
	slo := &v1alpha1.SLOSpec{
		TTFT: &v1alpha1.LatencyObjective{Threshold: metav1.Duration{Duration: time.Second}, Objective: resource.MustParse("0.99")},
		ITL:  &v1alpha1.LatencyObjective{Threshold: metav1.Duration{Duration: time.Second}, Objective: resource.MustParse("0.99")},
	}
	for _, signal := range Signals() {
		if signal.Shared {
			for name, x := range bad {
				d := Distribution{Bounds: []float64{1, 2}, Counts: []float64{x, 50, 50}}
				if milli, fault := signal.Latency(signal.Roles[0], d, true, slo); fault == NoFault {
					t.Errorf("%s of a count %s is %d", signal.Type, name, milli)
				}
			}
			if milli, fault := signal.Latency(signal.Roles[0], Distribution{}, true, slo); fault == NoFault {
				t.Errorf("%s without a histogram is %d", signal.Type, milli)
			}
			continue
		}
		for name, x := range bad {
			if _, fault := signal.Of(withField(signal, x, 0), Work{}); fault == NoFault {
				t.Errorf("%s of %s is a number", signal.Type, name)
			}
			if _, fault := signal.Of(withField(signal, x, 1), Work{}); fault == NoFault {
				t.Errorf("%s of %s in the second rank is a number", signal.Type, name)
			}
		}
		if _, fault := signal.Of(Replica{Role: signal.Roles[0], Want: 2, Ranks: withField(signal, 1, 0).Ranks[:1]}, Work{Tokens: 1, Micros: 1}); fault != FaultPartial {
			t.Errorf("%s with one of two ranks: fault %q", signal.Type, fault)
		}
		if milli, fault := signal.Of(withField(signal, 1, 0), Work{Tokens: 1, Micros: 1e6}); fault != NoFault {
			t.Errorf("%s of good values has fault %q (%d): the test proves nothing", signal.Type, fault, milli)
		}
	}
}

// withField gives two ranks of which one has a value in the field that the signal reads first. What is no integer becomes
// -1 in a field of integers, as the poller does it.
func withField(s Signal, x float64, at int) Replica {
	whole := -1
	if IsNumber(x) {
		whole = int(x)
	}
	r := Replica{Role: s.Roles[0], Want: 2, Ranks: make([]loads.Load, 2), Work: make([]Work, 2)}
	l := &r.Ranks[at]
	switch name := s.Reads[0].Name; name {
	case "utilization":
		l.Utilization = x
	case "token_usage":
		l.TokenUsage = x
	case "num_waiting_reqs":
		l.NumWaitingReqs = whole
	case "num_running_reqs":
		l.NumRunningReqs = whole
	case "num_waiting_uncached_tokens":
		l.NumWaitingUncached = whole
	default:
		panic("no field " + name)
	}
	return r
}

func TestSignals(t *testing.T) {
	kinds := []v1alpha1.ScalingMetricType{
		v1alpha1.MetricUtilization, v1alpha1.MetricPrefillDelay, v1alpha1.MetricQueueLength, v1alpha1.MetricTokenUsage,
		v1alpha1.MetricTTFT, v1alpha1.MetricITL, v1alpha1.MetricConcurrency,
	}
	var got []v1alpha1.ScalingMetricType
	for _, s := range Signals() {
		got = append(got, s.Type)
		if again, ok := SignalNamed(s.Metric); !ok || again.Type != s.Type {
			t.Errorf("%s is not found by its metric", s.Type)
		}
		for _, ref := range s.Reads {
			row, ok := Lookup(ref.Source, ref.Name)
			if !ok {
				t.Errorf("%s reads %s, which has no row", s.Type, ref.Name)
				continue
			}
			for _, role := range s.Roles {
				if !row.Owned(role) {
					t.Errorf("%s is defined for %s, whose engines do not have %s", s.Type, role, ref.Name)
				}
			}
		}
		if s.Unit == "ratio" && s.Pool == Sum {
			t.Errorf("%s: ratios do not add up", s.Type)
		}
	}
	if diff := cmp.Diff(kinds, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestReadsEveryField reads each field of /v1/loads by its row, from a load with a different value in every one.
func TestReadsEveryField(t *testing.T) {
	l := loads.Load{
		NumRunningReqs: 1, NumWaitingReqs: 2, NumWaitingUncached: 3, NumUsedTokens: 4, NumTotalTokens: 5, NumActiveTokens: 6, MaxTotalNumTokens: 7,
		MaxRunningRequests: 8, TokenUsage: 9, GenThroughput: 10, CacheHitRate: 11, Utilization: 12, TotalPrefillUncached: 13, TotalPrefillBusyMicro: 14,
		TotalGenerated: 15,
		Memory:         &loads.Memory{WeightGB: 16, KVCacheGB: 17, GraphGB: 18, TokenCapacity: 19},
		Disaggregation: &loads.Disaggregation{PrefillBootstrapQueueReqs: 20, PrefillInflightQueueReqs: 21, DecodePreallocQueueReqs: 22,
			DecodeTransferQueueReqs: 23, DecodeRetractedQueueReqs: 24, KVTransferSpeedGBs: 25, KVTransferLatencyMs: 26},
		Queues: &loads.Queues{Waiting: 27, Grammar: 28, Paused: 29, Retracted: 30, PreallocReady: 31},
	}
	want := 0.0
	for _, n := range Numbers() {
		if n.Source != FromLoads {
			if _, ok := n.Read(l); ok {
				t.Errorf("%s is no field", n.Name)
			}
			continue
		}
		want++
		if got, ok := n.Read(l); !ok || got != want {
			t.Errorf("%s reads %v, %t; want %v", n.Name, got, ok, want)
		}
		if _, ok := n.Read(loads.Load{}); ok != (want <= 15) {
			t.Errorf("%s of a load without sections: %t", n.Name, ok)
		}
	}
}

// TestMilliAgainstRationals compares with exact arithmetic on the shortest decimal that the engine writes.
func TestMilliAgainstRationals(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 10_000 {
		tenThousandths := random.Int64N(5_000_000)
		x := float64(tenThousandths) / 10_000
		exact := big.NewRat(tenThousandths, 10) // in thousandths
		half := new(big.Rat).Add(exact, big.NewRat(1, 2))
		want := new(big.Int).Div(half.Num(), half.Denom()).Int64()
		if got, ok := Milli(x); !ok || got != want {
			t.Fatalf("Milli(%v) = %d, %t; want %d", x, got, ok, want)
		}
	}
}

func TestLatency(t *testing.T) {
	slo := func(threshold time.Duration, objective string) *v1alpha1.SLOSpec {
		return &v1alpha1.SLOSpec{TTFT: &v1alpha1.LatencyObjective{Threshold: metav1.Duration{Duration: threshold}, Objective: resource.MustParse(objective)}}
	}
	events := func(counts ...float64) Distribution { return Distribution{Bounds: []float64{1, 2, 4}, Counts: counts} }
	for _, tc := range []struct {
		name   string
		reason string
		role   v1alpha1.Role
		events Distribution
		busy   bool
		slo    *v1alpha1.SLOSpec
		want   answer
	}{
		{"Half", "the median is in the middle of the second bucket", v1alpha1.RoleDecode, events(40, 20, 40, 0), true, slo(time.Second, "0.5"), answer{1500, ""}},
		{"OverThreshold", "1.5 s of 3 s", v1alpha1.RoleUnified, events(40, 20, 40, 0), true, slo(3*time.Second, "0.5"), answer{500, ""}},
		{"BeyondBounds", "what is above all bounds counts as the largest", v1alpha1.RoleDecode, events(0, 0, 0, 100), true, slo(time.Second, "0.99"), answer{4000, ""}},
		{"Idle", "nobody waits", v1alpha1.RoleDecode, Distribution{}, false, slo(time.Second, "0.99"), answer{0, ""}},
		{"NoneWhileBusy", "an engine that answers nobody has no latency, which is not 0", v1alpha1.RoleDecode, events(0, 0, 0, 0), true, slo(time.Second, "0.99"), answer{0, FaultFewEvents}},
		{"Few", "one slow event would be the quantile", v1alpha1.RoleDecode, events(18, 0, 1, 0), false, slo(time.Second, "0.99"), answer{0, FaultFewEvents}},
		{"NoObjective", "nothing to compare with", v1alpha1.RoleDecode, events(40, 20, 40, 0), true, nil, answer{0, FaultNoObjective}},
		{"OtherObjective", "ITL alone is set", v1alpha1.RoleDecode, events(40, 20, 40, 0), true, &v1alpha1.SLOSpec{ITL: slo(time.Second, "0.9").TTFT}, answer{0, FaultNoObjective}},
		{"Prefill", "it sends no tokens", v1alpha1.RolePrefill, events(40, 20, 40, 0), true, slo(time.Second, "0.5"), answer{0, FaultUndefined}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			signal, _ := SignalOf(v1alpha1.MetricTTFT)
			milli, fault := signal.Latency(tc.role, tc.events, tc.busy, tc.slo)
			if diff := cmp.Diff(tc.want, answer{milli, fault}); diff != "" {
				t.Errorf("(-want +got), %s:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestQuantileAgainstSorting compares with the naive way: give each event its place in its bucket, sort, and look.
func TestQuantileAgainstSorting(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 500 {
		d := Distribution{Bounds: []float64{0.1, 0.5, 1, 3}, Counts: make([]float64, 5)}
		var places []float64
		for i := range d.Counts {
			n := random.IntN(30)
			d.Counts[i] = float64(n)
			for k := 1; k <= n; k++ {
				lower, upper := 0.0, d.Bounds[min(i, 3)]
				if i > 0 {
					lower = d.Bounds[i-1]
				}
				if i == 4 {
					lower = upper
				}
				places = append(places, lower+(upper-lower)*float64(k)/float64(n))
			}
		}
		if len(places) == 0 {
			continue
		}
		slices.Sort(places)
		at := random.IntN(len(places))
		q := float64(at+1) / float64(len(places))
		if q >= 1 || slices.Contains(d.Bounds, places[at]) { // between two buckets, rounding decides
			continue
		}
		got, ok := d.Quantile(q)
		if !ok || math.Abs(got-places[at]) > 1e-6 {
			t.Fatalf("quantile %v of %v is %v, %t; want %v", q, d.Counts, got, ok, places[at])
		}
	}
}

func TestDistributions(t *testing.T) {
	d := func(counts ...float64) Distribution { return Distribution{Bounds: []float64{1}, Counts: counts} }
	other := Distribution{Bounds: []float64{2}, Counts: []float64{1, 1}}
	sum, ok := d(1, 2).Add(d(3, 4))
	if diff := cmp.Diff(fmt.Sprint(d(4, 6), true), fmt.Sprint(sum, ok)); diff != "" {
		t.Error(diff)
	}
	if _, ok := d(1, 2).Add(other); ok {
		t.Error("histograms of other bounds were added")
	}
	for _, tc := range []struct {
		reason       string
		now, earlier Distribution
		want         Distribution
	}{
		{reason: "what came in between", now: d(5, 7), earlier: d(2, 7), want: d(3, 0)},
		{reason: "a count that fell is another process's", now: d(1, 8), earlier: d(2, 7), want: d(1, 8)},
		{reason: "other bounds are another process's", now: d(1, 8), earlier: other, want: d(1, 8)},
	} {
		if diff := cmp.Diff(tc.want, tc.now.Since(tc.earlier)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
		}
	}
}
