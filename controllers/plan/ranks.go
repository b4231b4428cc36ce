package plan

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

const (
	// maxWorld is the most ranks that the engine lets share a copy of the model.
	maxWorld = 256
	// maxNodes is the most pods of a replica; names of pods have room for two digits.
	maxNodes = 100
)

// Rank is the place of one scheduler process in its replica. All numbers count from 0.
type Rank struct {
	DP       int32 // which copy of the model behind the replica's API
	Rank     int32 // within its copy, as the engine counts: PP * tensor + TP
	NodeRank int32 // which pod hosts it: Rank / (tensor * pipeline / nodes); pod 0 is the leader
	TP       int32 // within the pipeline stage
	PP       int32 // the pipeline stage
	MoEEP    int32 // the expert group; the engine has one
}

// Layout is the rank set of one replica. It is the only place where parallelism becomes ranks: pod labels, engine
// arguments, monitors and the proof that all metrics arrive are made from it. It is the engine's own layout; a test starts
// engines with these arguments and compares.
//
// 1 <= Nodes; Tensor * Pipeline is a multiple of Nodes; Nodes * RanksPerPod == Tensor * Pipeline * Data == len(Ranks).
type Layout struct {
	// Tensor and Pipeline are the ranks of a stage and the stages of a copy of the model. Data is how many copies there are,
	// and so the number of DP ranks that a replica reports in /v1/loads.
	Tensor, Pipeline, Data int32
	// Nodes is the number of pods, RanksPerPod how many ranks each hosts: the same ones of every copy.
	Nodes, RanksPerPod int32
	// Ranks in ascending order: Ranks[i] has DP i / (Tensor*Pipeline) and Rank i % (Tensor*Pipeline).
	Ranks []Rank
}

// NewLayout computes the rank set of a replica. An unset number is 1, and ranksPerPod is by default all of the replica. It
// fails where the engine has no such layout.
func NewLayout(shape v1alpha1.EngineShape) (Layout, error) {
	tensor := max(1, shape.Parallelism.Tensor)
	pipeline := max(1, shape.Parallelism.Pipeline)
	data := max(1, shape.Parallelism.Data)
	if expert := shape.Parallelism.Expert; expert > 1 {
		return Layout{}, fmt.Errorf("parallelism.expert is %d: the engine has no expert parallelism; leave it out", expert)
	}
	if tensor*pipeline > maxWorld {
		return Layout{}, fmt.Errorf("parallelism.tensor %d times parallelism.pipeline %d is %d: a copy of the model has at most %d ranks", tensor, pipeline, tensor*pipeline, maxWorld)
	}
	all := tensor * pipeline * data
	perPod := all
	if shape.RanksPerPod != nil {
		perPod = *shape.RanksPerPod
	}
	if perPod < 1 || all%perPod != 0 || perPod%data != 0 {
		return Layout{}, fmt.Errorf("ranksPerPod is %d: it must divide the %d ranks of a replica (tensor %d × pipeline %d × data %d) and be a multiple of data, since each pod hosts the same ranks of every copy",
			perPod, all, tensor, pipeline, data)
	}
	if all/perPod > maxNodes {
		return Layout{}, fmt.Errorf("ranksPerPod is %d, so a replica of %d ranks would have %d pods: at most %d are possible", perPod, all, all/perPod, maxNodes)
	}
	return newLayout(tensor, pipeline, data, all/perPod), nil
}

func newLayout(tensor, pipeline, data, nodes int32) Layout {
	world := tensor * pipeline
	layout := Layout{
		Tensor: tensor, Pipeline: pipeline, Data: data,
		Nodes: nodes, RanksPerPod: world * data / nodes,
		Ranks: make([]Rank, 0, world*data),
	}
	for copyOf := range data {
		for rank := range world {
			layout.Ranks = append(layout.Ranks, Rank{DP: copyOf, Rank: rank, NodeRank: rank / (world / nodes), TP: rank % tensor, PP: rank / tensor})
		}
	}
	return layout
}

// Node returns the ranks that pod nodeRank hosts, in ascending order; nil when there is no such pod.
func (l Layout) Node(nodeRank int32) []Rank {
	return l.where(func(rank Rank) bool { return rank.NodeRank == nodeRank })
}

// Exporting returns the ranks whose series the /metrics of pod nodeRank has: the first of each stage of each copy, since the
// others of a stage do as it does, or all when allRanks.
func (l Layout) Exporting(nodeRank int32, allRanks bool) []Rank {
	return l.where(func(rank Rank) bool { return rank.NodeRank == nodeRank && (rank.TP == 0 || allRanks) })
}

func (l Layout) where(is func(Rank) bool) []Rank {
	var ranks []Rank
	for _, rank := range l.Ranks {
		if is(rank) {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// AllRanksExport says whether a pool's engines export the series of every rank: whether its arguments have
// --enable-metrics-for-all-schedulers. Of a flag that is there twice, the engine takes the last.
func AllRanksExport(spec v1alpha1.EnginePoolSpec) bool {
	const flag = "--enable-metrics-for-all-schedulers"
	all := false
	for _, args := range [][]string{spec.Engine.Args, spec.Args} {
		for _, arg := range args {
			if arg == flag {
				all = true
			} else if text, ok := strings.CutPrefix(arg, flag+"="); ok {
				all, _ = strconv.ParseBool(text) // the engine refuses what is no boolean
			}
		}
	}
	return all
}

// text writes the layout for AnnotationLayout.
func (l Layout) text() string {
	return fmt.Sprintf("tensor=%d,pipeline=%d,data=%d,nodes=%d", l.Tensor, l.Pipeline, l.Data, l.Nodes)
}

// LayoutOf reads the layout of the replica that a pod belongs to, which may be of an older revision than its pool. A pod
// without a layout, or with one that is none, has one rank.
func LayoutOf(pod *corev1.Pod) Layout {
	return parseLayout(pod.Annotations[v1alpha1.AnnotationLayout])
}

func parseLayout(text string) Layout {
	var tensor, pipeline, data, nodes int32
	for _, to := range []struct {
		name  string
		value *int32
		most  int64
	}{{"tensor=", &tensor, maxWorld}, {"pipeline=", &pipeline, maxWorld}, {"data=", &data, maxWorld}, {"nodes=", &nodes, maxNodes}} {
		field, rest, _ := strings.Cut(text, ",")
		number, err := strconv.ParseInt(strings.TrimPrefix(field, to.name), 10, 32)
		if err != nil || number < 1 || number > to.most || !strings.HasPrefix(field, to.name) {
			return newLayout(1, 1, 1, 1)
		}
		*to.value, text = int32(number), rest
	}
	if text != "" || tensor*pipeline > maxWorld || (tensor*pipeline)%nodes != 0 {
		return newLayout(1, 1, 1, 1)
	}
	return newLayout(tensor, pipeline, data, nodes)
}
