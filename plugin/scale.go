package plugin

import (
	"context"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/plugin/scaling"
)

// ScaleExplain shows why the pools of a service, or one of them, have as many replicas as they have.
func (p *Plugin) ScaleExplain(ctx context.Context, service, pool string) error {
	states, err := p.services(ctx, service)
	if err != nil {
		return err
	}
	state := states[0]
	pools := state.Pools
	if pool != "" {
		one, err := state.Pool(pool)
		if err != nil {
			return err
		}
		pools = []*v1alpha1.EnginePool{one}
	}
	e := scaling.Explanation{
		Kind: "ScaleExplanation", Time: p.time(), Namespace: state.Service.Namespace, Service: service, Pools: []scaling.Pool{}, Notes: append([]string{}, state.Notes...),
	}
	for _, pool := range pools {
		e.Pools = append(e.Pools, scaling.NewPool(pool, state.Scalers[pool.Name]))
	}
	return p.write(e, func(bool) string { return e.Text() })
}
