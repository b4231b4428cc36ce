package plan

import (
	"fmt"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// Rank is the place of one scheduler process in its replica. All numbers count from 0.
type Rank struct {
	Rank     int32 // PP * tensor + TP
	NodeRank int32 // Rank / ranksPerPod: which pod hosts it; pod 0 is the leader
	TP       int32 // within the pipeline stage
	PP       int32 // the pipeline stage
	DP       int32 // the attention group within the stage: TP / (tensor / data)
	MoEEP    int32 // the expert group within the stage: TP / (tensor / expert)
}

// Layout is the rank set of one replica. It is the only place where parallelism becomes ranks: pod labels, engine
// arguments, monitors and the proof that all metrics arrive are made from it.
type Layout struct {
	// Ranks in ascending order; Ranks[i].Rank == i.
	Ranks []Rank
	// Nodes is the number of pods: ceil(len(Ranks) / RanksPerPod).
	Nodes int32
	// RanksPerPod is how many ranks each pod hosts; the last one may host fewer.
	RanksPerPod int32
	// Data is the number of DP ranks that a replica reports in /v1/loads.
	Data int32
}

// NewLayout computes the rank set of a replica: world = tensor * pipeline. An unset number is 1, and ranksPerPod is by
// default the world. It fails when data or expert does not divide tensor.
func NewLayout(shape v1alpha1.EngineShape) (Layout, error) {
	tensor := max(1, shape.Parallelism.Tensor)
	pipeline := max(1, shape.Parallelism.Pipeline)
	data := max(1, shape.Parallelism.Data)
	expert := max(1, shape.Parallelism.Expert)
	if tensor%data != 0 {
		return Layout{}, fmt.Errorf("parallelism.data %d does not divide parallelism.tensor %d; choose a divisor", data, tensor)
	}
	if tensor%expert != 0 {
		return Layout{}, fmt.Errorf("parallelism.expert %d does not divide parallelism.tensor %d; choose a divisor", expert, tensor)
	}
	world := tensor * pipeline
	perPod := world
	if shape.RanksPerPod != nil {
		perPod = min(max(1, *shape.RanksPerPod), world)
	}
	layout := Layout{
		Ranks:       make([]Rank, 0, world),
		Nodes:       (world + perPod - 1) / perPod,
		RanksPerPod: perPod,
		Data:        data,
	}
	for rank := range world {
		tp := rank % tensor
		layout.Ranks = append(layout.Ranks, Rank{
			Rank:     rank,
			NodeRank: rank / perPod,
			TP:       tp,
			PP:       rank / tensor,
			DP:       tp / (tensor / data),
			MoEEP:    tp / (tensor / expert),
		})
	}
	return layout, nil
}

// Node returns the ranks that pod nodeRank hosts, in ascending order; nil when there is no such pod.
func (l Layout) Node(nodeRank int32) []Rank {
	if nodeRank < 0 || nodeRank >= l.Nodes {
		return nil
	}
	from := nodeRank * l.RanksPerPod
	to := min(from+l.RanksPerPod, int32(len(l.Ranks)))
	return l.Ranks[from:to]
}
