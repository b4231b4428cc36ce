package plan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
			want: Layout{Ranks: []Rank{{}}, Nodes: 1, RanksPerPod: 1, Data: 1},
		},
		{
			name: "tensor 4 on two pods", reason: "ranks are dealt out in order",
			shape: v1alpha1.EngineShape{Parallelism: v1alpha1.Parallelism{Tensor: 4}, RanksPerPod: new(int32(2))},
			want: Layout{Nodes: 2, RanksPerPod: 2, Data: 1, Ranks: []Rank{
				{Rank: 0, NodeRank: 0, TP: 0},
				{Rank: 1, NodeRank: 0, TP: 1},
				{Rank: 2, NodeRank: 1, TP: 2},
				{Rank: 3, NodeRank: 1, TP: 3},
			}},
		},
		{
			name: "three ranks, two a pod", reason: "the last pod hosts the rest",
			shape: v1alpha1.EngineShape{Parallelism: v1alpha1.Parallelism{Tensor: 3}, RanksPerPod: new(int32(2))},
			want: Layout{Nodes: 2, RanksPerPod: 2, Data: 1, Ranks: []Rank{
				{Rank: 0, NodeRank: 0, TP: 0},
				{Rank: 1, NodeRank: 0, TP: 1},
				{Rank: 2, NodeRank: 1, TP: 2},
			}},
		},
		{
			name: "tensor 2, pipeline 2", reason: "a stage's ranks are neighbours",
			shape: v1alpha1.EngineShape{Parallelism: v1alpha1.Parallelism{Tensor: 2, Pipeline: 2}, RanksPerPod: new(int32(1))},
			want: Layout{Nodes: 4, RanksPerPod: 1, Data: 1, Ranks: []Rank{
				{Rank: 0, NodeRank: 0, TP: 0, PP: 0},
				{Rank: 1, NodeRank: 1, TP: 1, PP: 0},
				{Rank: 2, NodeRank: 2, TP: 0, PP: 1},
				{Rank: 3, NodeRank: 3, TP: 1, PP: 1},
			}},
		},
		{
			name: "data and expert groups", reason: "both divide the tensor ranks",
			shape: v1alpha1.EngineShape{Parallelism: v1alpha1.Parallelism{Tensor: 4, Data: 2, Expert: 4}},
			want: Layout{Nodes: 1, RanksPerPod: 4, Data: 2, Ranks: []Rank{
				{Rank: 0, TP: 0, DP: 0, MoEEP: 0},
				{Rank: 1, TP: 1, DP: 0, MoEEP: 1},
				{Rank: 2, TP: 2, DP: 1, MoEEP: 2},
				{Rank: 3, TP: 3, DP: 1, MoEEP: 3},
			}},
		},
		{
			name: "more ranks a pod than there are", reason: "a pod cannot host what does not exist",
			shape: v1alpha1.EngineShape{Parallelism: v1alpha1.Parallelism{Tensor: 2}, RanksPerPod: new(int32(8))},
			want:  Layout{Nodes: 1, RanksPerPod: 2, Data: 1, Ranks: []Rank{{Rank: 0}, {Rank: 1, TP: 1}}},
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
			var dealt []Rank
			for node := range got.Nodes {
				dealt = append(dealt, got.Node(node)...)
			}
			if diff := cmp.Diff(got.Ranks, dealt); diff != "" {
				t.Errorf("the pods do not host each rank once (-ranks +pods):\n%s", diff)
			}
		})
	}
}

func TestNewLayoutRefuses(t *testing.T) {
	tests := []struct {
		name  string
		shape v1alpha1.Parallelism
		want  string
	}{
		{"data", v1alpha1.Parallelism{Tensor: 4, Data: 3}, "parallelism.data 3 does not divide parallelism.tensor 4; choose a divisor"},
		{"expert", v1alpha1.Parallelism{Tensor: 4, Expert: 8}, "parallelism.expert 8 does not divide parallelism.tensor 4; choose a divisor"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := NewLayout(v1alpha1.EngineShape{Parallelism: test.shape})
			if err == nil || err.Error() != test.want {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
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
