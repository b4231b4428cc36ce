package rollout

import (
	"fmt"
	"strings"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/plugin/view"
)

// Status is the document of `rollout status`.
type Status struct {
	Kind      string `json:"kind"` // "RolloutStatus"
	Time      string `json:"time"`
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	Paused    bool   `json:"paused"`
	// Done: every pool runs the newest spec of the service and nothing leaves any more.
	Done bool `json:"done"`
	// Held: changes of the service wait for the end of the pause.
	Held  bool   `json:"held"`
	Pools []Pool `json:"pools"`
}

// Pool is how far one pool is.
type Pool struct {
	Name      string `json:"name"`
	Revision  string `json:"revision"` // newest, a hash
	Allocated int32  `json:"allocated"`
	Replicas  int32  `json:"replicas"`
	Updated   int32  `json:"updated"` // of the newest revision
	Ready     int32  `json:"ready"`
	Draining  int32  `json:"draining"`
	Done      bool   `json:"done"`
	Waits     string `json:"waits"` // for what; "" when it is done
}

// NewStatus shows how far a service is. wanted are its pools as its newest spec wants them.
func NewStatus(service *v1alpha1.InferenceService, pools []*v1alpha1.EnginePool, wanted map[string]v1alpha1.EnginePoolSpec) Status {
	s := Status{
		Kind: "RolloutStatus", Namespace: service.Namespace, Service: service.Name, Paused: service.Spec.Rollout.Paused, Pools: []Pool{},
		Done: len(pools) > 0 && service.Status.ObservedGeneration == service.Generation,
	}
	for _, pool := range pools {
		p := newPool(pool)
		want, listed := wanted[pool.Name]
		if listed && !madeAs(pool, want) {
			if s.Paused {
				s.Held = true
			} else if p.Done {
				p.Done, p.Waits = false, "the operator has not applied the newest spec"
			}
		}
		s.Done = s.Done && p.Done
		s.Pools = append(s.Pools, p)
	}
	s.Done = s.Done && !s.Held && len(s.Pools) >= len(service.Spec.Pools)
	return s
}

func newPool(pool *v1alpha1.EnginePool) Pool {
	status := pool.Status
	p := Pool{
		Name: pool.Spec.Pool, Revision: status.Revision, Allocated: status.Allocated, Replicas: status.Replicas, Updated: status.UpdatedReplicas,
		Ready: status.ReadyReplicas, Draining: status.DrainingReplicas,
	}
	stay := status.Replicas - status.DrainingReplicas
	switch {
	case status.ObservedGeneration != pool.Generation:
		p.Waits = "the operator has not seen the newest spec"
	case status.UpdatedReplicas < stay:
		p.Waits = fmt.Sprintf("%d of %d replicas are of an older revision", stay-status.UpdatedReplicas, stay)
	case status.UpdatedReplicas < status.Allocated:
		p.Waits = fmt.Sprintf("%d of %d replicas are made", status.UpdatedReplicas, status.Allocated)
	case status.DrainingReplicas > 0:
		p.Waits = fmt.Sprintf("%d replicas finish their requests", status.DrainingReplicas)
	case status.ReadyReplicas < status.Allocated:
		p.Waits = fmt.Sprintf("%d of %d replicas are ready", status.ReadyReplicas, status.Allocated)
	}
	p.Done = p.Waits == ""
	return p
}

// Text shows the status.
func (s *Status) Text() string {
	var b strings.Builder
	state := "is under way"
	switch {
	case s.Done:
		state = "is done"
	case s.Paused:
		state = "is paused"
	}
	fmt.Fprintf(&b, "the roll-out of %s %s", s.Service, state)
	if s.Held {
		b.WriteString(", and changes of the service are held")
	}
	if s.Paused {
		fmt.Fprintf(&b, ": kubectl sluice rollout resume %s", s.Service)
	}
	b.WriteByte('\n')
	var t view.Table
	t.Row("POOL", "REVISION", "UPDATED", "READY", "ALLOCATED", "DRAINING", "WAITS FOR")
	for _, p := range s.Pools {
		waits := p.Waits
		if waits == "" {
			waits = "-"
		}
		t.Row(p.Name, p.Revision, fmt.Sprint(p.Updated), fmt.Sprint(p.Ready), fmt.Sprint(p.Allocated), fmt.Sprint(p.Draining), waits)
	}
	b.WriteString(t.String())
	return b.String()
}
