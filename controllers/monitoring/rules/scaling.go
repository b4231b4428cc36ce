package rules

import (
	"fmt"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
	"github.com/sluice-dev/sluice/controllers/semantics"
)

// scalingInterval is how often the series are recorded, as often as an autoscaler looks.
const scalingInterval = "15s"

// scalingSeries are recorded for pools that scale on a latency by another adapter than the operator: the objective is known to
// the service alone, so the adapter's own rules cannot divide by it. Each leader has the value of its pool.
func scalingSeries() map[v1alpha1.ScalingMetricType]string {
	return map[v1alpha1.ScalingMetricType]string{v1alpha1.MetricTTFT: "pod:sluice_ttft_slo:ratio", v1alpha1.MetricITL: "pod:sluice_itl_slo:ratio"}
}

// scalingRecordings are the series that the pools of a service with autoscaling.provider External are scaled on.
func scalingRecordings(s *scope, service *v1alpha1.InferenceService) ([]recording, error) {
	var list []recording
	for _, pool := range service.Spec.Pools {
		if pool.Autoscaling == nil || pool.Autoscaling.Provider != v1alpha1.ProviderExternal {
			continue
		}
		layout, err := plan.NewLayout(pool.EngineShape)
		if err != nil {
			return nil, fmt.Errorf("spec.pools %s: %w", pool.Name, err)
		}
		selector := s.matchers([]string{fmt.Sprintf("pool=%q", pool.Name)})
		for _, m := range pool.Autoscaling.Metrics {
			name, ok := scalingSeries()[m.Type]
			if !ok {
				continue
			}
			signal, _ := semantics.SignalOf(m.Type)
			query, ok := signal.Query(selector, int(layout.Data), service.Spec.SLO)
			if !ok {
				return nil, fmt.Errorf("spec.pools %s: autoscaling.metrics type %s needs its objective in spec.slo", pool.Name, m.Type)
			}
			list = append(list, recording{
				name: name, labels: map[string]string{"pool": pool.Name, "engine_type": pool.Role.EngineType()},
				expr: fmt.Sprintf("group by (pod) ({__name__=~\"sglang[:_]num_running_reqs\",%s,priority=\"\"}) * on () group_left () (%s)", selector, query),
			})
		}
	}
	return list, nil
}
