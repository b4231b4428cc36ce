package autoscaling

import (
	"math"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/observe"
	"github.com/sluice-dev/sluice/controllers/plan"
	"github.com/sluice-dev/sluice/controllers/semantics"
)

// autoscaler is the arithmetic of a HorizontalPodAutoscaler over metrics of type Pods, as far as the package comment
// relies on it: selected are the names of the running pods that the scale selector picks, values their metrics in
// thousandths.
func autoscaler(current int, targetMilli int64, selected []string, values map[string]int64) (desired int) {
	const tolerance = 0.1
	ratioOf := func(values map[string]int64) float64 {
		var sum int64
		for _, v := range values {
			sum += v
		}
		return float64(sum/int64(len(values))) / float64(targetMilli)
	}
	within := func(ratio float64) bool { return math.Abs(ratio-1) <= tolerance+1e-9 }

	known := map[string]int64{}
	var missing []string
	for _, name := range selected {
		if v, ok := values[name]; ok {
			known[name] = v
			continue
		}
		missing = append(missing, name)
	}
	ratio := ratioOf(known)
	if len(missing) == 0 {
		if within(ratio) {
			return current
		}
		return int(math.Ceil(ratio * float64(len(known))))
	}
	for _, name := range missing {
		if ratio < 1 {
			known[name] = targetMilli
		} else {
			known[name] = 0
		}
	}
	again := ratioOf(known)
	wanted := int(math.Ceil(again * float64(len(known))))
	if within(again) || (ratio < 1) != (again < 1) || (again < 1 && wanted > current) || (again > 1 && wanted < current) {
		return current
	}
	return wanted
}

// TestWhatTheAutoscalerMakesOfIt checks the claims of the package comment with the pool's real selector and values.
func TestWhatTheAutoscalerMakesOfIt(t *testing.T) {
	pool := testPool()
	selector, err := labels.Parse(plan.ScaleSelector(pool.Spec))
	if err != nil {
		t.Fatal(err)
	}
	leader := func(name string, utilization float64, change ...func(*observe.PodSample)) observe.PodSample {
		p := engine(name, rank(utilization, 0, 0, 0), change...)
		p.Labels = plan.PoolLabels(pool.Spec)
		p.Labels[v1alpha1.LabelNodeRank] = "0"
		if p.Draining {
			p.Labels[v1alpha1.LabelDraining] = "true"
		}
		return p
	}
	signal, _ := semantics.SignalOf(v1alpha1.MetricUtilization)

	for _, tc := range []struct {
		name    string
		reason  string
		current int
		pods    samples
		want    int
	}{
		{"AtTarget", "nothing to do", 2, samples{leader("a", 0.8), leader("b", 0.82)}, 2},
		{"Overloaded", "the sum over the target", 1, samples{leader("a", 2)}, 3},
		{"Idle", "the sum over the target", 3, samples{leader("a", 0.1), leader("b", 0.2), leader("c", 0)}, 1},
		{"StartingDoesNotFeedScaleOut", "2.0 over 0.8 is 3, one of which starts", 2, samples{leader("a", 2), leader("b", 0, starting)}, 3},
		{"StartingIsEnough", "1.2 over 0.8 is 2, one of which starts", 2, samples{leader("a", 1.2), leader("b", 0, starting)}, 2},
		{"StartingDoesNotFeedScaleIn", "it counts as at its target", 2, samples{leader("a", 0.5), leader("b", 0, starting)}, 2},
		{"AfterScaleInNoFlapping", "three at their target with a fourth that drains stay three", 3,
			samples{leader("a", 0.81), leader("b", 0.81), leader("c", 0.81), leader("d", 0.3, draining)}, 3},
		{"DrainingLoadAsksForNothing", "its load goes away by itself", 1, samples{leader("a", 0.85), leader("b", 1.5, draining)}, 1},
		{"DrainingDoesNotHoldBackScaleOut", "1.2 over 0.8 is 2 although another drains", 1, samples{leader("a", 1.2), leader("b", 0.1, draining)}, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var selected []string
			pods := tc.pods.Select("team-a", selector)
			for _, p := range pods {
				selected = append(selected, p.Name)
			}
			readings, why := sampler{
				signal: signal, slo: func(types.NamespacedName) *v1alpha1.SLOSpec { return nil }, pool: tc.pods.Pool, now: epoch, freshFor: freshFor,
			}.read(pods)
			if why != nil {
				t.Fatal(why)
			}
			values := map[string]int64{}
			for _, r := range readings {
				values[r.pod] = r.milli
			}
			if got := autoscaler(tc.current, 800, selected, values); got != tc.want {
				t.Errorf("got %d replicas, want %d: %s", got, tc.want, tc.reason)
			}
		})
	}
}
