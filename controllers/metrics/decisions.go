package metrics

import (
	"errors"
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
	"github.com/sluice-dev/sluice/internal/version"
)

// Values of labels that no other package has a word for.
const (
	actionKeep     = "keep"
	keptAllocated  = "AsAllocated"
	keptWaiting    = "Waiting"
	resultDone     = "done"
	resultRefused  = "refused"
	directionUp    = "up"
	directionDown  = "down"
	directionBegin = "begin"
)

// Change is what was done with an object.
type Change string

// The changes.
const (
	Created   Change = "created"
	Updated   Change = "updated"
	Applied   Change = "applied" // created or updated, by server-side apply
	Restored  Change = "restored"
	Deleted   Change = "deleted"
	Unchanged Change = "unchanged"
	Failed    Change = "failed"
)

// Metrics counts what the controllers decide. It is safe for concurrent use.
type Metrics struct {
	actions, decisions, changes, events *prometheus.CounterVec
}

// New registers the counters, with the values of labels that are known at the start at 0.
func New(registry prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{actions: PlanActions.CounterVec(), decisions: ScalingDecisions.CounterVec(), changes: ObjectChanges.CounterVec(), events: Events.CounterVec()}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: BuildInfo.Name, Help: BuildInfo.Help}, BuildInfo.Labels)
	build.WithLabelValues(version.Version).Set(1)
	var faults []error
	for _, c := range []prometheus.Collector{m.actions, m.decisions, m.changes, m.events, build} {
		faults = append(faults, registry.Register(c))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("register the operator's counters: %w", err)
	}
	for _, a := range possible() {
		for _, result := range []string{resultDone, resultRefused} {
			m.actions.WithLabelValues(word(a.Kind), string(a.Cause), result)
		}
	}
	for _, reason := range []string{keptAllocated, keptWaiting} {
		m.actions.WithLabelValues(actionKeep, reason, resultDone)
	}
	return m, nil
}

// possible lists the actions that plans hold, with their causes.
func possible() []plan.Action {
	return []plan.Action{
		{Kind: plan.CreateReplica, Cause: plan.CauseScaleOut}, {Kind: plan.CreateReplica, Cause: plan.CauseRollOut},
		{Kind: plan.UndrainReplica, Cause: plan.CauseUndrain}, {Kind: plan.ReplaceReplica, Cause: plan.CauseReplace},
		{Kind: plan.DrainReplica, Cause: plan.CauseScaleIn}, {Kind: plan.DrainReplica, Cause: plan.CauseRollOut},
		{Kind: plan.DeleteReplica, Cause: plan.CauseScaleIn}, {Kind: plan.DeleteReplica, Cause: plan.CauseRollOut}, {Kind: plan.DeleteReplica, Cause: plan.CauseReplace},
	}
}

// word gives create for CreateReplica.
func word(kind plan.ActionKind) string {
	return strings.ToLower(strings.TrimSuffix(string(kind), "Replica"))
}

// Acted counts an action of a plan that was applied, or that was refused with an error.
func (m *Metrics) Acted(action plan.Action, err error) {
	result := resultDone
	if err != nil {
		result = resultRefused
	}
	m.actions.WithLabelValues(word(action.Kind), string(action.Cause), result).Inc()
}

// Kept counts a plan without an action. progressing says that replicas are not yet as allocated.
func (m *Metrics) Kept(progressing bool) {
	reason := keptAllocated
	if progressing {
		reason = keptWaiting
	}
	m.actions.WithLabelValues(actionKeep, reason, resultDone).Inc()
}

// Scaled counts a decision about the demand of a pool. first says that the pool had none before.
func (m *Metrics) Scaled(decision v1alpha1.ScalingDecision, first bool) {
	direction := directionDown
	switch {
	case first:
		direction = directionBegin
	case decision.To > decision.From:
		direction = directionUp
	}
	m.decisions.WithLabelValues(string(decision.By), direction).Inc()
}

// Changed counts what was done with an object of a kind.
func (m *Metrics) Changed(kind string, change Change) {
	m.changes.WithLabelValues(kind, string(change)).Inc()
}

// Recorder counts events on their way to next.
func (m *Metrics) Recorder(next events.EventRecorder) events.EventRecorder {
	return &recorder{EventRecorder: next, events: m.events}
}

// recorder counts the events that pass it.
type recorder struct {
	events.EventRecorder
	events *prometheus.CounterVec
}

// Eventf implements events.EventRecorder.
func (r *recorder) Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any) {
	if eventtype != corev1.EventTypeNormal && eventtype != corev1.EventTypeWarning {
		eventtype = corev1.EventTypeNormal
	}
	r.events.WithLabelValues(eventtype, reason).Inc()
	r.EventRecorder.Eventf(regarding, related, eventtype, reason, action, note, args...)
}
