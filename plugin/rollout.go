package plugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
	"github.com/sluice-dev/sluice/plugin/cluster"
	"github.com/sluice-dev/sluice/plugin/rollout"
)

// Done is the document of a command that changes a service.
type Done struct {
	Kind      string `json:"kind"` // "Done"
	Time      string `json:"time"`
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	Did       string `json:"did"`
}

// RolloutOptions are how `rollout status` waits.
type RolloutOptions struct {
	Wait     bool
	Timeout  time.Duration
	Interval time.Duration // between two looks
}

// RolloutStatus shows how far the roll-out of a service is. With Wait it looks again until it is done or the time is over, which
// is an error.
func (p *Plugin) RolloutStatus(ctx context.Context, service string, o RolloutOptions) error {
	deadline := p.Now().Add(o.Timeout)
	for {
		states, err := p.services(ctx, service)
		if err != nil {
			return err
		}
		state := states[0]
		status := rollout.NewStatus(state.Service, state.Pools, wanted(state.Service))
		status.Time = p.time()
		if o.Wait && !status.Done && p.Now().Before(deadline) {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-p.After(o.Interval):
			}
			continue
		}
		if err := p.write(status, func(bool) string { return status.Text() }); err != nil {
			return err
		}
		if o.Wait && !status.Done {
			return fmt.Errorf("the roll-out of %s is not done after %s: see kubectl sluice status %s", service, o.Timeout, service)
		}
		return nil
	}
}

// wanted are the pools as the service wants them when roll-outs are not held, by name of the EnginePool.
func wanted(service *v1alpha1.InferenceService) map[string]v1alpha1.EnginePoolSpec {
	pools := map[string]v1alpha1.EnginePoolSpec{}
	for _, pool := range plan.EnginePools(service, "") {
		pools[pool.Name] = pool.Spec
	}
	return pools
}

// RolloutPause holds the roll-outs of a service, or lets them go on.
func (p *Plugin) RolloutPause(ctx context.Context, service string, paused bool) error {
	did := "roll-outs go on"
	if paused {
		did = "roll-outs are paused"
	}
	return p.change(ctx, service, did, func(state *cluster.State) (string, error) {
		if state.Service.Spec.Rollout.Paused == paused {
			return "", nil
		}
		state.Service.Spec.Rollout.Paused = paused
		return did, nil
	})
}

// RolloutUndo makes a service what it was before its newest change, or at a revision.
func (p *Plugin) RolloutUndo(ctx context.Context, service string, revision int64) error {
	if revision < 0 {
		return fmt.Errorf("%w: --to-revision %d: see kubectl sluice rollout history %s", ErrUsage, revision, service)
	}
	return p.change(ctx, service, "it is so already", func(state *cluster.State) (string, error) {
		did, err := rollout.Undo(state.Service, state.Pools, wanted(state.Service), revision)
		if errors.Is(err, rollout.ErrNothing) {
			return "", fmt.Errorf("%w: see kubectl sluice rollout history %s", err, service)
		}
		return did, err
	})
}

// RolloutHistory lists the revisions that a service can go back to.
func (p *Plugin) RolloutHistory(ctx context.Context, service string) error {
	states, err := p.services(ctx, service)
	if err != nil {
		return err
	}
	h, err := rollout.NewHistory(states[0].Service, states[0].Pools)
	if err != nil {
		return err
	}
	h.Time = p.time()
	return p.write(h, func(bool) string { return h.Text() })
}

// writes is how often a change is tried while the operator writes the status of the service.
const writes = 10

// change edits a service and writes it; edit tells what it did, or "" when there is nothing to write, for which already stands.
// Somebody else's change of the spec in between is an error: who asked looks again. A new status is none.
func (p *Plugin) change(ctx context.Context, service, already string, edit func(*cluster.State) (string, error)) error {
	generation := int64(0)
	for try := 1; ; try++ {
		states, err := p.services(ctx, service)
		if err != nil {
			return err
		}
		state := states[0]
		if try == 1 {
			generation = state.Service.Generation
		}
		if generation != state.Service.Generation {
			return fmt.Errorf("change InferenceService %s: %w", service, cluster.ErrChanged)
		}
		did, err := edit(state)
		if err != nil {
			return err
		}
		if did == "" {
			did = already + " already"
		} else if err := p.Cluster.Update(ctx, state.Service, "change InferenceService "+service); err != nil {
			if errors.Is(err, cluster.ErrChanged) && try < writes {
				continue
			}
			return err
		}
		done := Done{Kind: "Done", Time: p.time(), Namespace: state.Service.Namespace, Service: service, Did: did}
		return p.write(done, func(bool) string { return service + ": " + did + "\n" })
	}
}
