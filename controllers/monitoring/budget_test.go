package monitoring

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/engine/metrics"
)

func TestFit(t *testing.T) {
	sizes := func() []size {
		return []size{{"sglang:a", 300}, {"sglang:b", 2000}, {"sglang:token_usage", 5000}, {"sglang:c", 300}, {"sluice_x", 400}}
	}
	for _, tc := range []struct {
		name   string
		reason string
		limit  *int32
		want   Budget
	}{
		{"Default", "room to spare, and nothing is dropped", nil, Budget{Series: 8150, Limit: 9780}},
		{"Enough", "exactly", new(int32(8150)), Budget{Series: 8150, Limit: 8150}},
		{"Largest", "the largest that may go goes first", new(int32(8149)), Budget{Series: 8150, Limit: 8149, Dropped: []string{"sglang:b"}}},
		{"More", "of equal ones the first by name", new(int32(6149)), Budget{Series: 8150, Limit: 6149, Dropped: []string{"sglang:a", "sglang:b"}}},
		{"TooLow", "what scaling rests on stays", new(int32(500)), Budget{Series: 8150, Limit: 500, Dropped: []string{"sglang:a", "sglang:b", "sglang:c"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, fit(sizes(), tc.limit)); diff != "" {
				t.Errorf("(-want +got), %s:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestEngineBudget: a real exposition is within the default limit, and more ranks and labels make it larger.
func TestEngineBudget(t *testing.T) {
	for _, role := range []v1alpha1.Role{v1alpha1.RolePrefill, v1alpha1.RoleDecode, v1alpha1.RoleUnified} {
		text, err := os.ReadFile("../../engine/metrics/testdata/" + role.EngineType() + ".prom")
		must(t, err)
		lines := 0
		for line := range bytes.Lines(text) {
			if line[0] != '#' {
				lines++
			}
		}
		pool := func(change ...func(*v1alpha1.EnginePool)) int {
			return engineBudget(testPool(append(change, func(p *v1alpha1.EnginePool) { p.Spec.Role = role })...)).Series
		}
		one := pool()
		if lines+processSeries > one+one/5 {
			t.Errorf("%s exports %d series, the limit is %d", role, lines+processSeries, one+one/5)
		}
		for _, args := range []string{"--enable-priority-scheduling", "--tokenizer-metrics-allowed-custom-labels team", "--metrics-max-label-values=1000", "--bucket-inter-token-latency 0.1 0.2"} {
			if more := pool(func(p *v1alpha1.EnginePool) { p.Spec.Engine.Args = strings.Fields(args) }); more < one || more == one && role != v1alpha1.RolePrefill {
				t.Errorf("%s with %s: %d series, %d without", role, args, more, one)
			}
		}
	}
}

// TestEssential: the list names families of the table alone.
func TestEssential(t *testing.T) {
	kept := 0
	for _, f := range metrics.Families() {
		if essential(f.Name) {
			kept++
		}
	}
	if kept < 30 || essential("sglang:http_responses_total") {
		t.Errorf("%d families are essential", kept)
	}
}

func TestFlags(t *testing.T) {
	args := []string{"--x=3", "--y", "4", "--y", "5", "--z", "--x=no", "--last"}
	if got := []int{intFlag(args, "--x"), intFlag(args, "--y"), intFlag(args, "--z"), intFlag(args, "--last")}; cmp.Diff([]int{3, 5, 0, 0}, got) != "" {
		t.Errorf("got %v", got)
	}
	if !hasFlag(args, "--x") || !hasFlag(args, "--z") || hasFlag(args, "--w") || hasFlag(args, "--las") {
		t.Errorf("flags of %v", args)
	}
}
