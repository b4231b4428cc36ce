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
	summary := &v1alpha1.ServiceSummary{
		Replicas: strings.Join(replicas, " "), Running: "-", Queued: "-", Utilization: "-", Throughput: "-",
		TokenUsage: largest(pools, func(l *v1alpha1.PoolLoad) *v1alpha1.Spread { return l.TokenUsage }),
		HitRate:    largest(pools, func(l *v1alpha1.PoolLoad) *v1alpha1.Spread { return l.CacheHitRate }),
		Cost:       costByRole(pools),
	}
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

// largest gives the mean of the pool that has the largest; "-" when no pool has the number.
func largest(pools []v1alpha1.PoolStatus, of func(*v1alpha1.PoolLoad) *v1alpha1.Spread) string {
	largest := "-"
	most := -1.0
	for _, pool := range pools {
		if pool.Load == nil {
			continue
		}
		spread := of(pool.Load)
		if spread == nil {
			continue
		}
		if mean, err := strconv.ParseFloat(spread.Mean, 64); err == nil && mean > most {
			largest, most = spread.Mean, mean
		}
	}
	return largest
}

// CostTokens is what the tokens of a role's cost are: what a prefill pool computes are prompts, what a decode pool computes
// are answers.
func CostTokens(role v1alpha1.Role, prompt, generated int64) int64 {
	switch role {
	case v1alpha1.RolePrefill:
		return prompt
	case v1alpha1.RoleDecode:
		return generated
	default:
		return prompt + generated
	}
}

// costByRole gives the device-seconds per thousand tokens of each role, over its pools: "prefill=0.12 decode=3.40". Pools
// that hold another kind of device than the first of their role are left out, since their seconds are others.
func costByRole(pools []v1alpha1.PoolStatus) string {
	var costs []string
	for _, role := range []v1alpha1.Role{v1alpha1.RolePrefill, v1alpha1.RoleDecode, v1alpha1.RoleUnified} {
		var seconds, tokens int64
		device := ""
		for _, pool := range pools {
			cost := pool.Cost
			if pool.Role != role || cost == nil || device != "" && device != cost.Device {
				continue
			}
			device = cost.Device
			seconds += cost.DeviceSeconds
			tokens += CostTokens(role, cost.PromptTokens, cost.GeneratedTokens)
		}
		if tokens > 0 {
			costs = append(costs, role.EngineType()+"="+PerThousand(seconds*1000, tokens))
		}
	}
	if len(costs) == 0 {
		return "-"
	}
	return strings.Join(costs, " ")
}

// PerThousand gives device-seconds per thousand tokens with two digits, from device-milliseconds; nothing when there are no
// tokens.
func PerThousand(millis, tokens int64) string {
	if tokens == 0 {
		return ""
	}
	return strconv.FormatFloat(float64(millis)/float64(tokens), 'f', 2, 64) // milliseconds per token are seconds per thousand
}
