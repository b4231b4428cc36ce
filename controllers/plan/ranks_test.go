package plan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

func TestNewLayout(t *testing.T) {
	tests := []struct {
		name   string
		reason string
		shape  v1alpha1.EngineShape
		want   Layout
	}{
		{
			name: "empty", reason: "an unset number is 1",
			want: Layout{Tensor: 1, Pipeline: 1, Data: 1, Nodes: 1, RanksPerPod: 1, Ranks: []Rank{{}}},
		},
		{
			name: "tensor 4 on two pods", reason: "ranks are dealt out in order",
			shape: v1alpha1.EngineShape{Parallelism: v1alpha1.Parallelism{Tensor: 4}, RanksPerPod: new(int32(2))},
			want: Layout{Tensor: 4, Pipeline: 1, Data: 1, Nodes: 2, RanksPerPod: 2, Ranks: []Rank{
				{Rank: 0, NodeRank: 0, TP: 0},
				{Rank: 1, NodeRank: 0, TP: 1},
				{Rank: 2, NodeRank: 1, TP: 2},
				{Rank: 3, NodeRank: 1, TP: 3},
			}},
		},
		{
			name: "tensor 2, pipeline 2", reason: "a stage's ranks are neighbours",
			shape: v1alpha1.EngineShape{Parallelism: v1alpha1.Parallelism{Tensor: 2, Pipeline: 2}, RanksPerPod: new(int32(1))},
			want: Layout{Tensor: 2, Pipeline: 2, Data: 1, Nodes: 4, RanksPerPod: 1, Ranks: []Rank{
				{Rank: 0, NodeRank: 0, TP: 0, PP: 0},
				{Rank: 1, NodeRank: 1, TP: 1, PP: 0},
				{Rank: 2, NodeRank: 2, TP: 0, PP: 1},
				{Rank: 3, NodeRank: 3, TP: 1, PP: 1},
			}},
		},
		{
			name: "copies", reason: "each copy has ranks of its own, and each pod hosts the same ones of every copy",
			shape: v1alpha1.EngineShape{Parallelism: v1alpha1.Parallelism{Tensor: 2, Data: 2}, RanksPerPod: new(int32(2))},
			want: Layout{Tensor: 2, Pipeline: 1, Data: 2, Nodes: 2, RanksPerPod: 2, Ranks: []Rank{
				{DP: 0, Rank: 0, NodeRank: 0, TP: 0},
				{DP: 0, Rank: 1, NodeRank: 1, TP: 1},
				{DP: 1, Rank: 0, NodeRank: 0, TP: 0},
				{DP: 1, Rank: 1, NodeRank: 1, TP: 1},
			}},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := NewLayout(test.shape)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.reason, diff)
			}
			pod := &corev1.Pod{}
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, v1alpha1.AnnotationLayout, got.text())
			if diff := cmp.Diff(got, LayoutOf(pod)); diff != "" {
				t.Errorf("the layout that a pod carries (-made +read):\n%s", diff)
			}
		})
	}
}

// TestEveryLayout: whatever the numbers, each rank is hosted once, by a pod that exists, and all pods host as many.
func TestEveryLayout(t *testing.T) {
	for tensor := int32(1); tensor <= 4; tensor++ {
		for pipeline := int32(1); pipeline <= 3; pipeline++ {
			for data := int32(1); data <= 3; data++ {
				for perPod := int32(1); perPod <= tensor*pipeline*data; perPod++ {
					l, err := NewLayout(v1alpha1.EngineShape{Parallelism: v1alpha1.Parallelism{Tensor: tensor, Pipeline: pipeline, Data: data}, RanksPerPod: &perPod})
					possible := perPod%data == 0 && (tensor*pipeline)%(perPod/data) == 0
					if possible != (err == nil) {
						t.Fatalf("tensor %d, pipeline %d, data %d, ranksPerPod %d: %v", tensor, pipeline, data, perPod, err)
					}
					if err != nil {
						continue
					}
					hosted := map[[2]int32]int{}
					for node := range l.Nodes {
						ranks := l.Node(node)
						if int32(len(ranks)) != l.RanksPerPod {
							t.Fatalf("%s: pod %d hosts %v, want %d ranks", l.text(), node, ranks, l.RanksPerPod)
						}
						for _, rank := range ranks {
							hosted[[2]int32{rank.DP, rank.Rank}]++
						}
					}
					for i, rank := range l.Ranks {
						if rank.DP*tensor*pipeline+rank.Rank != int32(i) || rank.PP*tensor+rank.TP != rank.Rank || hosted[[2]int32{rank.DP, rank.Rank}] != 1 {
							t.Fatalf("%s: Ranks[%d] is %+v, hosted %d times", l.text(), i, rank, hosted[[2]int32{rank.DP, rank.Rank}])
						}
					}
				}
			}
		}
	}
}

func TestNewLayoutRefuses(t *testing.T) {
	tests := []struct {
		name  string
		shape v1alpha1.EngineShape
		want  string
	}{
		{"expert", v1alpha1.EngineShape{Parallelism: v1alpha1.Parallelism{Tensor: 4, Expert: 2}}, "parallelism.expert is 2: the engine has no expert parallelism; leave it out"},
		{"too large a world", v1alpha1.EngineShape{Parallelism: v1alpha1.Parallelism{Tensor: 64, Pipeline: 8}},
			"parallelism.tensor 64 times parallelism.pipeline 8 is 512: a copy of the model has at most 256 ranks"},
		{"a rest", v1alpha1.EngineShape{Parallelism: v1alpha1.Parallelism{Tensor: 3}, RanksPerPod: new(int32(2))},
			"ranksPerPod is 2: it must divide the 3 ranks of a replica (tensor 3 × pipeline 1 × data 1) and be a multiple of data, since each pod hosts the same ranks of every copy"},
		{"copies apart", v1alpha1.EngineShape{Parallelism: v1alpha1.Parallelism{Data: 2}, RanksPerPod: new(int32(1))},
			"ranksPerPod is 1: it must divide the 2 ranks of a replica (tensor 1 × pipeline 1 × data 2) and be a multiple of data, since each pod hosts the same ranks of every copy"},
		{"more ranks a pod than there are", v1alpha1.EngineShape{RanksPerPod: new(int32(8))},
			"ranksPerPod is 8: it must divide the 1 ranks of a replica (tensor 1 × pipeline 1 × data 1) and be a multiple of data, since each pod hosts the same ranks of every copy"},
		{"too many pods", v1alpha1.EngineShape{Parallelism: v1alpha1.Parallelism{Tensor: 64, Pipeline: 2}, RanksPerPod: new(int32(1))},
			"ranksPerPod is 1, so a replica of 128 ranks would have 128 pods: at most 100 are possible"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := NewLayout(test.shape)
			if err == nil || err.Error() != test.want {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}

func TestExporting(t *testing.T) {
	l, err := NewLayout(v1alpha1.EngineShape{Parallelism: v1alpha1.Parallelism{Tensor: 2, Pipeline: 2, Data: 2}, RanksPerPod: new(int32(4))})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, reason string
		node         int32
		args         []string
		want         []Rank
	}{
		{"first of each stage", "the others do as it does", 1, nil, []Rank{{DP: 0, Rank: 2, NodeRank: 1, PP: 1}, {DP: 1, Rank: 2, NodeRank: 1, PP: 1}}},
		{"all", "the flag says so", 0, []string{"--enable-metrics-for-all-schedulers"},
			[]Rank{{DP: 0}, {DP: 0, Rank: 1, TP: 1}, {DP: 1}, {DP: 1, Rank: 1, TP: 1}}},
		{"all after all not", "the last counts", 0, []string{"--enable-metrics-for-all-schedulers", "--enable-metrics-for-all-schedulers=false"}, []Rank{{DP: 0}, {DP: 1}}},
		{"no such pod", "it exports nothing", 2, nil, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			all := AllRanksExport(v1alpha1.EnginePoolSpec{EngineShape: v1alpha1.EngineShape{Args: test.args}})
			if diff := cmp.Diff(test.want, l.Exporting(test.node, all)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.reason, diff)
			}
		})
	}
}

func TestLayoutOfOthers(t *testing.T) {
	one := newLayout(1, 1, 1, 1)
	for _, text := range []string{"", "tensor=2", "tensor=2,pipeline=1,data=1,nodes=3", "tensor=2,pipeline=1,data=1,nodes=1,more=1", "tensor=0,pipeline=1,data=1,nodes=1",
		"tensor=256,pipeline=256,data=1,nodes=1", "2,1,1,1", "tensor=99999999999,pipeline=1,data=1,nodes=1"} {
		if diff := cmp.Diff(one, parseLayout(text)); diff != "" {
			t.Errorf("%q is one rank (-want +got):\n%s", text, diff)
		}
	}
}

func TestLabelValue(t *testing.T) {
	tests := []struct {
		name, text, want string
	}{
		{"as it is", "llama-3-8b", "llama-3-8b"},
		{"empty", "", ""},
		{"a slash", "meta/llama-3", "meta-llama-3-45afcd45"},
		{"ends in a dot", "x.", "x-c92f00b1"},
		{"too long", strings.Repeat("a", 64), strings.Repeat("a", 54) + "-ffe054fe"},
		{"nothing fits", "/", "8a5edab2"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := LabelValue(test.text); got != test.want {
				t.Errorf("LabelValue(%q) = %q, want %q", test.text, got, test.want)
			}
		})
	}
}
