package plan

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAllocate(t *testing.T) {
	tests := []struct {
		name    string
		reason  string
		demands []PoolDemand
		devices *int32
		want    []Allocation
	}{
		{
			name: "no bound", reason: "the demand is met", demands: []PoolDemand{{Replicas: 3}, {Replicas: 0}},
			want: []Allocation{{3, "none"}, {0, "none"}},
		},
		{
			name: "too many", reason: "names have room for four digits", demands: []PoolDemand{{Replicas: 5000}},
			want: []Allocation{{1024, "at most 1024 replicas a pool"}},
		},
		{
			name: "scarce", reason: "each pool gets the same part of its demand", demands: []PoolDemand{{Replicas: 2}, {Replicas: 6}}, devices: new(int32(4)),
			want: []Allocation{{1, "4 devices for all pools, 1 a replica"}, {3, "4 devices for all pools, 1 a replica"}},
		},
		{
			name: "dear", reason: "a replica that does not fit is passed over", demands: []PoolDemand{{Replicas: 2, DevicesPerReplica: 4}, {Replicas: 3}}, devices: new(int32(6)),
			want: []Allocation{{1, "6 devices for all pools, 4 a replica"}, {2, "6 devices for all pools, 1 a replica"}},
		},
		{
			name: "held by the other", reason: "a pool grows when the other has given up, not before",
			demands: []PoolDemand{{Replicas: 1, Held: 4}, {Replicas: 3, Held: 0}}, devices: new(int32(4)),
			want: []Allocation{{1, "none"}, {0, "4 devices for all pools, 1 a replica, 3 more when others have given theirs up"}},
		},
		{
			name: "given up", reason: "then it grows",
			demands: []PoolDemand{{Replicas: 1, Held: 1}, {Replicas: 3, Held: 0}}, devices: new(int32(4)),
			want: []Allocation{{1, "none"}, {3, "none"}},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := Allocate(test.demands, Bounds{Devices: test.devices})
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.reason, diff)
			}
		})
	}
}

// TestAllocateHolds lets pools follow their allocations at random speeds and checks the budget at each step.
func TestAllocateHolds(t *testing.T) {
	for range 200 {
		seed := rand.Uint64()
		random := rand.New(rand.NewPCG(seed, 0))
		devices := int32(random.IntN(20))
		demands := make([]PoolDemand, 1+random.IntN(4))
		for i := range demands {
			demands[i].DevicesPerReplica = int32(1 + random.IntN(3))
		}
		for step := range 200 {
			if step < 150 {
				demands[random.IntN(len(demands))].Replicas = int32(random.IntN(10))
			}
			got := Allocate(demands, Bounds{Devices: &devices})
			inUse := int32(0)
			for i, allocation := range got {
				demand := &demands[i]
				if allocation.Replicas > demand.Replicas {
					t.Fatalf("seed %d: pool %d gets %d of %d", seed, i, allocation.Replicas, demand.Replicas)
				}
				switch {
				case allocation.Replicas > demand.Held:
					demand.Held = allocation.Replicas
				case allocation.Replicas < demand.Held && (step >= 150 || random.IntN(3) == 0):
					demand.Held--
				}
				inUse += demand.Held * demand.DevicesPerReplica
			}
			if inUse > devices {
				t.Fatalf("seed %d, step %d: %d devices in use of %d: %+v", seed, step, inUse, devices, demands)
			}
		}
		// At the fixed point no demand is unmet that would fit.
		got := Allocate(demands, Bounds{Devices: &devices})
		free := devices
		for i := range demands {
			free -= demands[i].Held * demands[i].DevicesPerReplica
			if got[i].Replicas != demands[i].Held {
				t.Fatalf("seed %d: pool %d holds %d of %d allocated", seed, i, demands[i].Held, got[i].Replicas)
			}
		}
		for i, demand := range demands {
			if demand.Held < demand.Replicas && demand.DevicesPerReplica <= free {
				t.Fatalf("seed %d: pool %d holds %d of %d with %d devices free", seed, i, demand.Held, demand.Replicas, free)
			}
		}
	}
}
