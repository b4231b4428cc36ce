package semantics

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/engine/loads"
	"github.com/sluice-dev/sluice/engine/metrics"
)

// TestFamilies compares every row with the engine's table: each family has one row, in the same order, and each says the
// same of kind, unit, owners, labels and of what may be summed.
func TestFamilies(t *testing.T) {
	var rows []Number
	for _, n := range Numbers() {
		if n.Source == FromMetrics {
			rows = append(rows, n)
		}
	}
	var names, want []string
	for _, n := range rows {
		names = append(names, n.Name)
	}
	for _, f := range metrics.Families() {
		want = append(want, f.Name)
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Fatalf("families (-table +registry):\n%s", diff)
	}
	for i, f := range metrics.Families() {
		for _, fault := range disagree(rows[i], f) {
			t.Errorf("%s: %s", f.Name, fault)
		}
	}
}

// disagree says in what a row and a family differ.
func disagree(n Number, f *metrics.Family) (faults []string) {
	differ := func(what string, row, table any) {
		if !reflect.DeepEqual(row, table) {
			faults = append(faults, fmt.Sprintf("%s is %v, the table says %v", what, row, table))
		}
	}
	differ("kind", string(n.Kind), f.Kind.String())
	differ("unit", n.Unit, f.Unit)
	differ("labels", strings.Join(n.Labels, " "), strings.Join(f.Labels, " "))

	var owners []v1alpha1.Role
	for _, role := range all() {
		if f.Engines.Has(role.EngineType()) && (role != v1alpha1.RolePrefill || n.Sentinel != MinusOneOnPrefill) {
			owners = append(owners, role)
		}
	}
	differ("owners", n.Owners, owners)

	ranked := f.Source == metrics.FromScheduler || f.Source == metrics.FromCache
	differ("has ranks", n.Copies != NoRanks, ranked)
	if ranked {
		differ("sums over DP ranks", n.Ranks == Sum, slices.Contains(f.SumOver, "dp_rank"))
		differ("sums over all ranks", n.Copies == Own, slices.Contains(f.SumOver, "tp_rank"))
	}
	differ("parts by priority", n.Priorities == Parts, f.Source == metrics.FromFront)
	if f.Kind == metrics.Gauge && f.Source == metrics.FromScheduler {
		differ("is constant", n.WhenIdle == Constant, f.Reports == metrics.OnStart)
		// A gauge that the idle report does not write keeps what the last one with work said. An engine that decodes
		// nothing has no decode report, so what those write alone is kept too.
		differ("is kept when idle", n.WhenIdle == Kept, f.Reports != metrics.OnStart && f.Reports&metrics.OnIdleReport == 0)
	}
	return faults
}

// TestLoads checks that every number of /v1/loads has a row, in the order of the wire type, and no other.
func TestLoads(t *testing.T) {
	var want []string
	var walk func(prefix string, of reflect.Type)
	walk = func(prefix string, of reflect.Type) {
		for i := range of.NumField() {
			f := of.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case f.Type.Kind() == reflect.Pointer:
				walk(name+".", f.Type.Elem())
			case f.Type.Kind() == reflect.String, name == "timestamp", name == "dp_rank":
			default:
				want = append(want, prefix+name)
			}
		}
	}
	walk("", reflect.TypeFor[loads.Load]())
	var got []string
	for _, n := range Numbers() {
		if n.Source == FromLoads {
			got = append(got, n.Name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields (-wire +registry):\n%s", diff)
	}
}

// TestRowsAreWhole checks what every row must have and what cannot go together.
func TestRowsAreWhole(t *testing.T) {
	seen := map[string]bool{}
	for _, n := range Numbers() {
		key := string(n.Source) + " " + n.Name
		if seen[key] {
			t.Errorf("%s is there twice", key)
		}
		seen[key] = true
		if n.Unit == "" || len(n.Owners) == 0 || n.Ranks == "" || n.Copies == "" || n.Replicas == "" {
			t.Errorf("%s is not whole: %+v", key, n)
		}
		if n.Kind != Gauge && (n.Replicas != Sum || n.WhenIdle != Truthful) {
			t.Errorf("%s: increases add up over replicas and are true at any time: %+v", key, n)
		}
		if n.Unit == "ratio" && (n.Ranks == Sum || n.Replicas == Sum) {
			t.Errorf("%s: ratios do not add up", key)
		}
	}
}
