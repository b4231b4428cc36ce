package plan

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// Summary makes the printer columns of a service from its pools. A value that no pool has a sample for is "-".
func Summary(pools []v1alpha1.PoolStatus) *v1alpha1.ServiceSummary {
	replicas := make([]string, 0, len(pools))
	var running, prefillQueued, otherQueued int64
	var utilization, throughput float64
	var reporting, loads int32
	for _, pool := range pools {
		replicas = append(replicas, fmt.Sprintf("%s=%d/%d", pool.Name, pool.ReadyReplicas, pool.Allocated))
		load := pool.Load
		if load == nil {
			continue
		}
		loads++
		if pool.Role == v1alpha1.RolePrefill {
			prefillQueued += queued(load)
		} else {
			otherQueued += queued(load)
			running += load.RunningRequests
		}
		if tokens, err := strconv.ParseFloat(load.GenThroughput, 64); err == nil {
			throughput += tokens
		}
		if load.Utilization != nil {
			if mean, err := strconv.ParseFloat(load.Utilization.Mean, 64); err == nil {
				utilization += mean * float64(load.Ranks)
				reporting += load.Ranks
			}
		}
	}
	summary := &v1alpha1.ServiceSummary{Replicas: strings.Join(replicas, " "), Running: "-", Queued: "-", Utilization: "-", Throughput: "-"}
	if loads > 0 {
		summary.Running = strconv.FormatInt(running, 10)
		// A request that waits for its hand-over waits on both sides and counts once.
		summary.Queued = strconv.FormatInt(max(prefillQueued, otherQueued), 10)
		summary.Throughput = strconv.FormatFloat(throughput, 'f', 2, 64)
	}
	if reporting > 0 {
		summary.Utilization = strconv.FormatFloat(utilization/float64(reporting), 'f', 2, 64)
	}
	return summary
}

// queued counts the requests of a pool that wait in any queue.
func queued(load *v1alpha1.PoolLoad) int64 {
	total := load.WaitingRequests
	for _, queue := range []*int64{load.PrefillBootstrapQueue, load.PrefillInflightQueue, load.DecodePreallocQueue, load.DecodeTransferQueue, load.DecodeRetractedQueue} {
		if queue != nil {
			total += *queue
		}
	}
	return total
}
