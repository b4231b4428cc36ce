package autoscaling

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/semantics"
)

const (
	// maxDecisions is how many decisions a status keeps.
	maxDecisions = 8

	// attribution is how long a new demand may wait for its author to tell: an autoscaler writes the demand first and its
	// own status, which has the numbers, afterwards.
	attribution = 5 * time.Second

	// toleranceMilli is how far value over target may be from 1 without a change, in thousandths, by the autoscaler's default.
	toleranceMilli = 100
)

// DemandChange is what a decision about a pool's demand is read from.
type DemandChange struct {
	Pool *v1alpha1.EnginePool
	// HPA is the pool's autoscaler as it is now, KEDA's with provider KEDA; nil when there is none.
	HPA *autoscalingv2.HorizontalPodAutoscaler
	// Ready is how many leaders are ready and take requests: those have values. KEDA's metrics are divided by the autoscaler's own
	// count of replicas instead.
	Ready int32
	// Seen is when the new demand was first seen.
	Seen time.Time
	Now  time.Time
}

// Decisions gives the newest decisions of a pool with the one that made its present demand, when that is not among them yet.
// After the time again one may have to look anew, since the author of the demand has not told why; 0 is never. The list of
// the pool is not changed.
func Decisions(c DemandChange) (list []v1alpha1.ScalingDecision, again time.Duration) {
	pool := c.Pool
	list = pool.Status.LastDecisions
	if pool.Spec.Autoscaling == nil && len(list) == 0 {
		return nil, 0 // a pool that nothing scales
	}
	demand, from := int32(1), int32(0)
	if pool.Spec.Replicas != nil {
		demand = *pool.Spec.Replicas
	}
	var since time.Time
	if n := len(list); n > 0 {
		from, since = list[n-1].To, list[n-1].Time.Time
		if from == demand {
			return list, 0
		}
	}
	decision := v1alpha1.ScalingDecision{Time: metav1.NewTime(c.Seen.Truncate(time.Second)), From: from, To: demand}
	if scaling := pool.Spec.Autoscaling; scaling != nil {
		decision.MinReplicas, decision.MaxReplicas = new(scaling.Min()), new(scaling.MaxReplicas)
	}
	left := c.Seen.Add(attribution).Sub(c.Now)
	switch note := noteOf(pool); {
	case len(list) == 0:
		decision.By, decision.Bound = v1alpha1.ActorOther, "none"
		decision.Reason = fmt.Sprintf("the pool began with demand %d", demand)
	case note != nil && note.From == from && note.To == demand:
		decision.By, decision.Bound, decision.Reason = note.By, "none", note.Reason
	case byHPA(c.HPA, demand, since):
		decision.By = v1alpha1.ActorHPA
		explain(&decision, c)
	case left > 0 && pool.Spec.Autoscaling != nil:
		return list, left
	default:
		decision.By, decision.Bound = v1alpha1.ActorOther, "none"
		decision.Reason = fmt.Sprintf("somebody changed the demand from %d to %d: a person, another controller or the service", from, demand)
	}
	list = append(append([]v1alpha1.ScalingDecision(nil), list...), decision)
	return list[max(0, len(list)-maxDecisions):], 0
}

func noteOf(pool *v1alpha1.EnginePool) *Scaled {
	text, ok := pool.Annotations[v1alpha1.AnnotationScaled]
	if !ok {
		return nil
	}
	note := &Scaled{}
	if err := json.Unmarshal([]byte(text), note); err != nil {
		return nil // somebody else's hand was there
	}
	return note
}

// byHPA says whether the autoscaler tells that it made the demand, later than a time.
func byHPA(hpa *autoscalingv2.HorizontalPodAutoscaler, demand int32, since time.Time) bool {
	return hpa != nil && hpa.Status.DesiredReplicas == demand && hpa.Status.LastScaleTime != nil && !hpa.Status.LastScaleTime.Time.Before(since)
}

// explain fills in the autoscaler's arithmetic from the numbers that it tells.
func explain(d *v1alpha1.ScalingDecision, c DemandChange) {
	var terms []string
	for i, m := range c.Pool.Spec.Autoscaling.Metrics {
		signal, ok := semantics.SignalOf(m.Type)
		if !ok {
			continue
		}
		value, replicas := current(c, i, signal)
		if value == nil {
			terms = append(terms, fmt.Sprintf("%s has no value", m.Type))
			continue
		}
		desired := desiredReplicas(value.MilliValue(), m.Target.MilliValue(), replicas, d.From)
		d.Inputs = append(d.Inputs, v1alpha1.ScalingInput{
			Signal: m.Type, Metric: signal.Metric, Value: value.String(), Target: m.Target.String(), Replicas: replicas, Desired: desired,
		})
		if d.RawDesired == nil || desired > *d.RawDesired {
			d.RawDesired = new(desired)
		}
		terms = append(terms, fmt.Sprintf("%s: ceil(%s * %d / %s) = %d", m.Type, value.String(), replicas, m.Target.String(), desired))
	}
	d.Bound = bound(d, c.HPA)
	d.Reason = fmt.Sprintf("%s; bound: %s: demand %d becomes %d", strings.Join(terms, "; "), d.Bound, d.From, d.To)
}

// current is the autoscaler's newest value of the signal that stands at a place of the pool's metrics, a mean over so many
// replicas; nil when it has none.
func current(c DemandChange, at int, signal semantics.Signal) (value *resource.Quantity, replicas int32) {
	for _, m := range c.HPA.Status.CurrentMetrics {
		switch {
		case m.Pods != nil && m.Pods.Metric.Name == signal.Metric:
			return m.Pods.Current.AverageValue, c.Ready
		case m.External == nil || m.External.Metric.Name != triggerMetric(at):
		case signal.Shared: // one value for all, times the replicas that are ready
			return m.External.Current.Value, c.Ready
		default:
			return m.External.Current.AverageValue, c.HPA.Status.CurrentReplicas
		}
	}
	return nil, 0
}

// desiredReplicas is ceil(value * replicas / target), or what there is while value / target is within the tolerance of 1.
func desiredReplicas(valueMilli, targetMilli int64, replicas, from int32) int32 {
	if targetMilli <= 0 {
		return from
	}
	if distance := valueMilli - targetMilli; max(distance, -distance)*1000 <= toleranceMilli*targetMilli {
		return from
	}
	return int32(min((valueMilli*int64(replicas)+targetMilli-1)/targetMilli, math.MaxInt32))
}

// bound says what made the demand another than the raw one.
func bound(d *v1alpha1.ScalingDecision, hpa *autoscalingv2.HorizontalPodAutoscaler) string {
	if d.RawDesired == nil || *d.RawDesired == d.To {
		return "none"
	}
	for _, condition := range hpa.Status.Conditions {
		switch {
		case condition.Type == autoscalingv2.ScalingLimited && condition.Status == corev1.ConditionTrue:
			switch condition.Reason {
			case "TooManyReplicas":
				return fmt.Sprintf("maxReplicas %d", hpa.Spec.MaxReplicas)
			case "TooFewReplicas":
				return fmt.Sprintf("minReplicas %d", *hpa.Spec.MinReplicas)
			case "ScaleUpLimit":
				return "behavior.scaleUp policies"
			case "ScaleDownLimit":
				return "behavior.scaleDown policies"
			}
			return condition.Reason
		case condition.Type == autoscalingv2.AbleToScale && condition.Reason == "ScaleDownStabilized":
			return "behavior.scaleDown.stabilizationWindowSeconds"
		case condition.Type == autoscalingv2.AbleToScale && condition.Reason == "ScaleUpStabilized":
			return "behavior.scaleUp.stabilizationWindowSeconds"
		}
	}
	if *d.RawDesired > d.To {
		return "replicas that start: they have no value and count as 0"
	}
	return "the autoscaler's own numbers of that moment"
}
