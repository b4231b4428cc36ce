package rules

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// external is a pair whose decode pool is scaled on both latencies by another adapter.
func external() *v1alpha1.InferenceService {
	s := pair()
	s.Spec.Pools[1].Autoscaling = &v1alpha1.AutoscalingSpec{MaxReplicas: 4, Provider: v1alpha1.ProviderExternal, Metrics: []v1alpha1.ScalingMetric{
		{Type: v1alpha1.MetricUtilization, Target: resource.MustParse("0.8")},
		{Type: v1alpha1.MetricTTFT, Target: resource.MustParse("0.9")}, {Type: v1alpha1.MetricITL, Target: resource.MustParse("0.9")},
	}}
	return s
}

// TestScalingRecordings: each engine of a pool that another adapter scales on a latency has the share of the threshold that the
// pool takes, from all of its events, and no engine has one while a part of the pool is not known or few events have come.
func TestScalingRecordings(t *testing.T) {
	engine := func(replica, up, running, events string) string {
		to := "decode/" + replica + " "
		return strings.Join([]string{
			to + "up " + up, to + `sglang:num_running_reqs{priority="",dp_rank="0",tp_rank="0"} ` + running,
			to + `sglang:time_to_first_token_seconds_bucket{le="0.5"} 0+` + events + `x10`, to + `sglang:time_to_first_token_seconds_bucket{le="1"} 0+` + events + `x10`,
			to + `sglang:time_to_first_token_seconds_bucket{le="+Inf"} 0+` + events + `x10`, to + `sglang:time_to_first_token_seconds_count 0+` + events + `x10`,
		}, "\n") + "\n"
	}
	const a, b = `{engine_type="decode", pod="chat-decode-0-0", pool="decode"}`, `{engine_type="decode", pod="chat-decode-1-0", pool="decode"}`
	for _, tc := range []struct {
		name, reason, lines string
		want                map[string]float64
	}{
		{"Busy", "the 99th percentile of all events is just below the bound of half a second, and each engine has it",
			engine("0", "1x10", "3x10", "30") + engine("1", "1x10", "3x10", "60"), map[string]float64{a: 0.495, b: 0.495}},
		{"Idle", "nobody waits", engine("0", "1x10", "0x10", "0") + engine("1", "1x10", "0x10", "0"), map[string]float64{a: 0, b: 0}},
		{"Few", "one slow event would be the quantile", engine("0", "1x10", "1x10", "1") + engine("1", "1x10", "1x10", "1"), map[string]float64{}},
		{"Stopped", "an engine has stopped telling", engine("0", "1x10", "3x10", "30") + engine("1", "1x9 0", "3x9 stale", "60"), map[string]float64{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, respell := range []bool{false, true} {
				p := newPrometheus(t)
				end := p.append(t, time.Minute, load{time.Minute, tc.lines}.series(t, here, respell))
				rule := build(t, external(), Options{})
				p.evaluate(t, rule, end, end, time.Minute)
				if diff := cmp.Diff(tc.want, normal(p.instant(t, "pod:sluice_ttft_slo:ratio", end), "pod:sluice_ttft_slo:ratio")); diff != "" {
					t.Errorf("%s, names spelled anew: %t (-want +got):\n%s", tc.reason, respell, diff)
				}
			}
		})
	}
}

// TestScalingRecordingsOfWhom: only pools of another adapter have them, and only where the service has the objective.
func TestScalingRecordingsOfWhom(t *testing.T) {
	recorded := func(s *v1alpha1.InferenceService) (names []string) {
		each(build(t, s, Options{}), func(r monitoringv1.Rule) {
			if strings.HasPrefix(r.Record, "pod:") {
				names = append(names, r.Record+" "+r.Labels["pool"])
			}
		})
		return names
	}
	if diff := cmp.Diff([]string{"pod:sluice_ttft_slo:ratio decode", "pod:sluice_itl_slo:ratio decode"}, recorded(external())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	own := external()
	own.Spec.Pools[1].Autoscaling.Provider = v1alpha1.ProviderMetricsAPI
	if names := recorded(own); len(names) > 0 {
		t.Errorf("a pool of the operator's own metrics API has %v", names)
	}
	without := external()
	without.Spec.SLO = nil
	if _, err := Build(without, Options{}); err == nil || !strings.Contains(err.Error(), "spec.slo") {
		t.Errorf("without an objective: %v", err)
	}
}
