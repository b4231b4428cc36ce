package scaling

import (
	"math"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// Explanation is the document of `scale explain`.
type Explanation struct {
	Kind      string `json:"kind"` // "ScaleExplanation"
	Time      string `json:"time"`
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	Pools     []Pool `json:"pools"`
	// Notes say what could not be read.
	Notes []string `json:"notes"`
}

// Pool explains one pool.
type Pool struct {
	Name      string `json:"name"`
	Role      string `json:"role"`
	Demand    int32  `json:"demand"`    // replicas that are asked for
	Allocated int32  `json:"allocated"` // replicas that are granted
	Ready     int32  `json:"ready"`
	// Scaled: the pool has autoscaling; Min and Max are its bounds then.
	Scaled   bool   `json:"scaled"`
	Provider string `json:"provider"` // of the signals; "" without autoscaling
	Min      int32  `json:"min"`
	Max      int32  `json:"max"`
	// Now is what the autoscaler makes of the newest values; null without a HorizontalPodAutoscaler.
	Now *Now `json:"now"`
	// Condition is the pool's ScalingActive in words; "" when it has none.
	Condition string `json:"condition"`
	// Decisions are the recorded changes of the demand, newest first.
	Decisions []Decision `json:"decisions"`
	// LastChange is the newest change of the replicas; null: none was recorded.
	LastChange *Change `json:"last_change"`
}

// Now is the state of a HorizontalPodAutoscaler.
type Now struct {
	Current int32    `json:"current"` // replicas, as the autoscaler sees them
	Desired int32    `json:"desired"`
	Inputs  []Input  `json:"inputs"`
	Says    []string `json:"says"` // its conditions that are not as they should be, or that limit it
}

// Decision is a change of the demand, computed again.
type Decision struct {
	Time   string  `json:"time"`
	By     string  `json:"by"`
	From   int32   `json:"from"`
	To     int32   `json:"to"`
	Inputs []Input `json:"inputs"`
	// Raw is the largest desired number of the inputs; null without inputs.
	Raw   *int32 `json:"raw"`
	Min   *int32 `json:"min"`
	Max   *int32 `json:"max"`
	Bound string `json:"bound"`
	// Bounded is Raw within Min and Max: what the arithmetic gives.
	Bounded *int32 `json:"bounded"`
	// Agrees: Bounded is To. False where something else held it, which Bound and Reason tell of.
	Agrees bool   `json:"agrees"`
	Reason string `json:"reason"`
}

// Input is one signal with its arithmetic: desired = ceil(value * replicas / target), or the replicas as they were while
// value / target is within a tenth of 1.
type Input struct {
	Signal   string `json:"signal"`
	Metric   string `json:"metric"`
	Value    string `json:"value"` // mean over the replicas; "" when the autoscaler has none
	Target   string `json:"target"`
	Replicas int32  `json:"replicas"`
	Within   bool   `json:"within"`   // value / target is within a tenth of 1
	Computed *int32 `json:"computed"` // by the formula; null: it can't be computed
	Recorded *int32 `json:"recorded"` // that the operator recorded; null: of the autoscaler's newest values
}

// Change is a change of the replica set.
type Change struct {
	Time   string `json:"time"`
	Action string `json:"action"`
	Reason string `json:"reason"`
}

// NewPool explains a pool; scaler is its HorizontalPodAutoscaler, nil when it has none.
func NewPool(pool *v1alpha1.EnginePool, scaler *autoscalingv2.HorizontalPodAutoscaler) Pool {
	p := Pool{
		Name: pool.Spec.Pool, Role: string(pool.Spec.Role), Demand: 1, Allocated: pool.Status.Allocated, Ready: pool.Status.ReadyReplicas, Decisions: []Decision{},
	}
	if pool.Spec.Replicas != nil {
		p.Demand = *pool.Spec.Replicas
	}
	if spec := pool.Spec.Autoscaling; spec != nil {
		p.Scaled, p.Provider, p.Min, p.Max = true, string(spec.Provider), spec.Min(), spec.MaxReplicas
	}
	if c := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionScalingActive); c != nil {
		p.Condition = string(c.Status) + ", " + c.Reason
		if c.Message != "" {
			p.Condition += ": " + c.Message
		}
	}
	if scaler != nil {
		p.Now = newNow(scaler)
	}
	for i := len(pool.Status.LastDecisions) - 1; i >= 0; i-- {
		p.Decisions = append(p.Decisions, newDecision(pool.Status.LastDecisions[i]))
	}
	if d := pool.Status.LastDecision; d != nil {
		p.LastChange = &Change{Time: d.Time.UTC().Format(time.RFC3339), Action: d.Action, Reason: d.Reason}
	}
	return p
}

func newDecision(d v1alpha1.ScalingDecision) Decision {
	out := Decision{
		Time: d.Time.UTC().Format(time.RFC3339), By: string(d.By), From: d.From, To: d.To, Min: d.MinReplicas, Max: d.MaxReplicas, Bound: d.Bound, Reason: d.Reason, Inputs: []Input{},
	}
	for _, in := range d.Inputs {
		input := Input{Signal: string(in.Signal), Metric: in.Metric, Value: in.Value, Target: in.Target, Replicas: in.Replicas, Recorded: new(in.Desired)}
		input.compute(d.From)
		out.Inputs = append(out.Inputs, input)
		if c := input.Computed; c != nil && (out.Raw == nil || *c > *out.Raw) {
			out.Raw = c
		}
	}
	if out.Raw == nil {
		out.Agrees = len(d.Inputs) == 0
		return out
	}
	bounded := *out.Raw
	if d.MinReplicas != nil {
		bounded = max(bounded, *d.MinReplicas)
	}
	if d.MaxReplicas != nil {
		bounded = min(bounded, *d.MaxReplicas)
	}
	out.Bounded, out.Agrees = &bounded, bounded == d.To
	return out
}

// compute does the arithmetic in thousandths; current is the number of replicas that stays when the value is near the target.
func (in *Input) compute(current int32) {
	value, err := resource.ParseQuantity(in.Value)
	if err != nil {
		return
	}
	target, err := resource.ParseQuantity(in.Target)
	if err != nil || target.MilliValue() <= 0 || value.MilliValue() < 0 {
		return
	}
	v, t := value.MilliValue(), target.MilliValue()
	if 10*v >= 9*t && 10*v <= 11*t {
		in.Within, in.Computed = true, new(current)
		return
	}
	in.Computed = new(int32(min((v*int64(in.Replicas)+t-1)/t, math.MaxInt32)))
}

func newNow(scaler *autoscalingv2.HorizontalPodAutoscaler) *Now {
	status := scaler.Status
	now := &Now{Current: status.CurrentReplicas, Desired: status.DesiredReplicas, Inputs: []Input{}, Says: []string{}}
	for i, spec := range scaler.Spec.Metrics {
		metric, target := metricOf(spec)
		input := Input{Metric: metric, Target: target, Replicas: status.CurrentReplicas}
		if i < len(status.CurrentMetrics) {
			if value, ok := valueOf(status.CurrentMetrics[i], metric); ok {
				input.Value = value
				input.compute(status.CurrentReplicas)
			}
		}
		now.Inputs = append(now.Inputs, input)
	}
	for _, c := range status.Conditions {
		good := c.Status == "True"
		if c.Type == autoscalingv2.ScalingLimited {
			good = c.Status == "False"
		}
		if !good {
			now.Says = append(now.Says, string(c.Type)+" is "+string(c.Status)+", "+c.Reason+": "+c.Message)
		}
	}
	return now
}

func metricOf(spec autoscalingv2.MetricSpec) (name, target string) {
	quantity := func(t autoscalingv2.MetricTarget) string {
		switch {
		case t.AverageValue != nil:
			return t.AverageValue.String()
		case t.Value != nil:
			return t.Value.String()
		default:
			return ""
		}
	}
	switch {
	case spec.Pods != nil:
		return spec.Pods.Metric.Name, quantity(spec.Pods.Target)
	case spec.Object != nil:
		return spec.Object.Metric.Name, quantity(spec.Object.Target)
	case spec.External != nil:
		return spec.External.Metric.Name, quantity(spec.External.Target)
	default:
		return string(spec.Type), ""
	}
}

// valueOf gives the mean over replicas that the autoscaler read of a metric; ok is false when it is of another one or absent.
func valueOf(status autoscalingv2.MetricStatus, metric string) (value string, ok bool) {
	var name string
	var current autoscalingv2.MetricValueStatus
	switch {
	case status.Pods != nil:
		name, current = status.Pods.Metric.Name, status.Pods.Current
	case status.Object != nil:
		name, current = status.Object.Metric.Name, status.Object.Current
	case status.External != nil:
		name, current = status.External.Metric.Name, status.External.Current
	}
	if name != metric {
		return "", false
	}
	switch {
	case current.AverageValue != nil:
		return current.AverageValue.String(), true
	case current.Value != nil:
		return current.Value.String(), true
	}
	return "", false
}
