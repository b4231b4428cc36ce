package autoscaling

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/router/demand"
)

// ZeroPool is what the decision between no replica and some depends on, of one pool.
type ZeroPool struct {
	Name   string
	Role   v1alpha1.Role
	Demand int32
	// MayBeZero says that minReplicas is 0. Other pools are there for what they have already.
	MayBeZero bool
	IdleAfter time.Duration
	// Outstanding requests in the pool's engines, running and queued. Known is false when an engine that serves has no
	// fresh sample: then it may hold some.
	Outstanding int64
	Known       bool
}

// RouterDemand is what one router said.
type RouterDemand struct {
	// Router identifies the process: another one counts from 0.
	Router string
	// Answered is false when it did not: it may hold requests.
	Answered bool
	demand.Report
}

// ZeroState is a service at one moment.
type ZeroState struct {
	Now     time.Time
	Pools   []ZeroPool
	Routers []RouterDemand
}

// ZeroMemory is what the decision remembers of a service from one moment to the next. The zero value knows nothing.
type ZeroMemory struct {
	// begun is the newest count of requests of each router.
	begun map[string]uint64
	// busy is when each pool was last not known to be idle.
	busy map[string]time.Time
}

// ZeroDecision is a change of one pool's demand between no replica and some.
type ZeroDecision struct {
	Pool     string
	From, To int32
	By       v1alpha1.ScalingActor
	Reason   string
}

// DecideZero says which pools wake and which fall asleep. Its rules:
//   - a pool without demand wakes when requests wait for its role in any router, unless another pool of the role has demand:
//     then one replica is on its way already. Of several such pools the first by name wakes;
//   - a pool sleeps when for its whole idle time every router answered, none had an open, waiting or new request, and no
//     engine of the pool had one. What is not known counts as a request.
//
// A pool that falls asleep drains first, so a request that arrives in between is served by it; what arrives later waits in
// the router and wakes the pool, whose draining replica then comes back.
func DecideZero(state ZeroState, memory ZeroMemory) ([]ZeroDecision, ZeroMemory) {
	next := ZeroMemory{begun: map[string]uint64{}, busy: map[string]time.Time{}}
	requests := len(state.Routers) == 0 // nobody to ask: requests may come by another way
	waiting := map[string]int{}
	for _, router := range state.Routers {
		before, known := memory.begun[router.Router]
		if !router.Answered {
			requests = true
			if known {
				next.begun[router.Router] = before
			}
			continue
		}
		next.begun[router.Router] = router.Begun
		if router.Open > 0 || router.Begun != before {
			requests = true
		}
		for role, n := range router.Waiting {
			waiting[role] += n
			requests = requests || n > 0
		}
	}

	pools := slices.Clone(state.Pools)
	slices.SortFunc(pools, func(a, b ZeroPool) int { return cmp.Compare(a.Name, b.Name) })
	served := map[v1alpha1.Role]bool{} // by a pool that has demand, or wakes
	for _, pool := range pools {
		if pool.Demand > 0 {
			served[pool.Role] = true
		}
	}
	var decisions []ZeroDecision
	for _, pool := range pools {
		if !pool.MayBeZero {
			continue
		}
		since, known := memory.busy[pool.Name]
		if !known || requests || !pool.Known || pool.Outstanding > 0 || pool.Demand == 0 {
			since = state.Now
		}
		next.busy[pool.Name] = since
		role := pool.Role.EngineType()
		switch idle := state.Now.Sub(since); {
		case pool.Demand == 0 && waiting[role] > 0 && !served[pool.Role]:
			served[pool.Role] = true
			decisions = append(decisions, ZeroDecision{Pool: pool.Name, From: 0, To: 1, By: v1alpha1.ActorWakeUp,
				Reason: fmt.Sprintf("%s in a router for a %s engine: demand 0 becomes 1", wait(waiting[role]), role)})
		case pool.Demand > 0 && idle >= pool.IdleAfter:
			decisions = append(decisions, ZeroDecision{Pool: pool.Name, From: pool.Demand, To: 0, By: v1alpha1.ActorIdle,
				Reason: fmt.Sprintf("no request at any router or engine for %s, scaleToZeroAfterSeconds is %d: demand %d becomes 0",
					idle.Round(time.Second), int(pool.IdleAfter.Seconds()), pool.Demand)})
		}
	}
	return decisions, next
}

// wait gives "1 request waits" or "2 requests wait".
func wait(n int) string {
	if n == 1 {
		return "1 request waits"
	}
	return fmt.Sprintf("%d requests wait", n)
}
