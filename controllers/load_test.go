package controllers_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// TestLoadAndCost: the status of a pool tells of each DP rank, the busiest first, and what the pool took and gave; another
// operator goes on counting from there, and writes nothing while nothing changes.
func TestLoadAndCost(t *testing.T) {
	trial := newTrial(t)
	trial.apply(strings.Replace(unified, "role: Unified}", "role: Unified, parallelism: {data: 2}, replicas: 2}", 1))
	trial.untilSettled("uni")
	pods := trial.pods("main")
	trial.kubelet.setRunning(pods[1], 4)
	trial.kubelet.generate(pods[1], 900)
	trial.kubelet.generate(pods[0], 100)
	var status v1alpha1.EnginePoolStatus
	trial.until("the load in the status", func() (bool, string) {
		status = trial.pool("uni", "main").Status
		return len(status.Ranks) == 4 && status.Ranks[0].RunningRequests == 4 && status.Cost != nil && status.Cost.GeneratedTokens == 1000, fmt.Sprintf("%+v, %+v", status.Ranks, status.Cost)
	})
	var got []string
	for _, r := range status.Ranks {
		got = append(got, fmt.Sprintf("%s/%d %d %s", r.Pod, r.DPRank, r.RunningRequests, r.Utilization))
	}
	if diff := cmp.Diff([]string{"uni-main-1-0/0 4 0.40", "uni-main-0-0/0 0 0.00", "uni-main-0-0/1 0 0.00", "uni-main-1-0/1 0 0.00"}, got); diff != "" {
		t.Errorf("ranks (-want +got):\n%s", diff)
	}
	if status.Load.MostLoaded != "uni-main-1-0/0" {
		t.Errorf("the most loaded rank is %q, want uni-main-1-0/0", status.Load.MostLoaded)
	}
	// The engines request no device, so each of the four ranks counts as one.
	if cost := status.Cost; cost.Device != "rank" || cost.Devices != 4 || cost.DeviceSecondsPer1kTokens == "" || cost.Since.After(cost.AsOf.Time) {
		t.Errorf("cost %+v", cost)
	}
	trial.until("the service to tell of it", func() (bool, string) {
		service := trial.untilCondition("uni", v1alpha1.ConditionReady, "True", "Serving")
		return strings.HasPrefix(service.Status.Summary.Cost, "unified=") && service.Status.Pools[0].Cost.GeneratedTokens == 1000, fmt.Sprintf("%+v", service.Status.Summary)
	})

	trial.operator.stop(t)
	trial.operator = startOperator(t, trial.namespace)
	trial.untilPolled(10)
	if diff := cmp.Diff(map[string]int{}, trial.operator.written()); diff != "" {
		t.Errorf("writes of another operator (-want +got):\n%s", diff)
	}
	trial.kubelet.generate(pods[0], 500)
	trial.until("the totals to go on", func() (bool, string) {
		now := trial.pool("uni", "main").Status.Cost
		return now.GeneratedTokens == 1500 && now.DeviceSeconds >= status.Cost.DeviceSeconds && now.Since.Equal(&status.Cost.Since), fmt.Sprintf("%+v", now)
	})
}
