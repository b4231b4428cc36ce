package plan

import "fmt"

// MaxReplicas is the most replicas that a pool may have; names of pods have room for four digits.
const MaxReplicas = 1024

// PoolDemand is what one pool asks for and what it holds.
type PoolDemand struct {
	// Replicas that are asked for.
	Replicas int32
	// Held replicas exist, those that drain or end included: their devices are taken.
	Held int32
	// DevicesPerReplica is the price of a replica; 0 counts as 1.
	DevicesPerReplica int32
}

// Bounds limit what the pools get together.
type Bounds struct {
	// Devices that exist for these pools; nil is no bound.
	Devices *int32
}

// Allocation is what one pool gets, and why it isn't more.
type Allocation struct {
	Replicas int32
	// Bound that held, with its numbers: "none" when the demand is met.
	Bound string
}

// Allocate grants the pools' demands, in the order of demands. Replicas are granted in turn to the pool with the
// smallest granted part of its demand, so that scarce devices are shared in proportion; ties go to the earlier pool.
//
// It holds the bound at every intermediate step: a pool grows beyond what it holds only into devices that nobody holds,
// so what a shrinking pool gives up is granted when its replicas are gone, not before.
func Allocate(demands []PoolDemand, bounds Bounds) []Allocation {
	allocations := make([]Allocation, len(demands))
	for i, demand := range demands {
		allocations[i] = Allocation{Replicas: max(0, demand.Replicas), Bound: "none"}
		if demand.Replicas > MaxReplicas {
			allocations[i] = Allocation{Replicas: MaxReplicas, Bound: fmt.Sprintf("at most %d replicas a pool", MaxReplicas)}
		}
	}
	if bounds.Devices == nil {
		return allocations
	}
	devices := max(0, *bounds.Devices)
	shares := share(demands, allocations, devices)

	free := devices
	for i, demand := range demands {
		free -= min(free, max(0, demand.Held)*price(demands[i]))
	}
	for i, demand := range demands {
		grown := min(shares[i]-demand.Held, free/price(demand))
		granted := shares[i]
		if shares[i] > demand.Held {
			granted = demand.Held + max(0, grown)
			free -= max(0, grown) * price(demand)
		}
		if granted < allocations[i].Replicas {
			bound := fmt.Sprintf("%d devices for all pools, %d a replica", devices, price(demand))
			if granted < shares[i] {
				bound += fmt.Sprintf(", %d more when others have given theirs up", shares[i]-granted)
			}
			allocations[i] = Allocation{Replicas: granted, Bound: bound}
		}
	}
	return allocations
}

// share divides devices among the wanted replicas as if nothing was held.
func share(demands []PoolDemand, wanted []Allocation, devices int32) []int32 {
	shares := make([]int32, len(demands))
	left := devices
	for {
		next := -1
		for i := range demands {
			if shares[i] >= wanted[i].Replicas || price(demands[i]) > left {
				continue
			}
			// shares[i]/wanted[i] < shares[next]/wanted[next], without division.
			if next < 0 || int64(shares[i])*int64(wanted[next].Replicas) < int64(shares[next])*int64(wanted[i].Replicas) {
				next = i
			}
		}
		if next < 0 {
			return shares
		}
		shares[next]++
		left -= price(demands[next])
	}
}

func price(demand PoolDemand) int32 { return max(1, demand.DevicesPerReplica) }
