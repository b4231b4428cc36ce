package metrics

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-dev/sluice/engine/metrics/contract"
)

// contractGroups are the groups whose mechanisms the engine has.
var contractGroups = []string{
	"basics", "kv-pool", "radix", "retract", "pd", "utilization", "request-latency", "tokenizer", "http", "routing-key",
	"scheduler-stage", "function-timer", "engine-info", "startup", "grammar", "execution",
}

// readContract reads the contract, and what the engine has none of.
func readContract(t testing.TB) (*contract.Contract, map[string]string) {
	t.Helper()
	read := func(name string) *bytes.Reader {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		return bytes.NewReader(data)
	}
	c, err := contract.Parse(read("contract.txt"))
	if err != nil {
		t.Fatal(err)
	}
	absent, err := contract.ParseAbsent(read("absent.txt"))
	if err != nil {
		t.Fatal(err)
	}
	return c, absent
}

// sourceLabels are the labels that a source gives to every series.
func sourceLabels(s Source) []string {
	switch s {
	case FromScheduler:
		return []string{"model_name", "engine_type", "tp_rank", "pp_rank", "moe_ep_rank"}
	case FromCache:
		return []string{"cache_type", "tp_rank", "pp_rank", "dp_rank"}
	case FromFront:
		return []string{"model_name", "engine_type"}
	case FromHTTP, FromProcess, FromStore:
	}
	return nil
}

// row is what the table and the contract must agree on.
type row struct {
	Name, Type, Merge string
	Labels            []string
	Buckets           []float64
}

func TestTableFollowsTheContract(t *testing.T) {
	c, _ := readContract(t)
	for _, f := range Families() {
		if !strings.HasPrefix(f.Name, contract.Prefix) {
			continue
		}
		want, ok := c.Lookup(f.Name)
		if !ok {
			t.Errorf("%s is not in the contract: names of SGLang's are for its families alone", f.Name)
			continue
		}
		merge := f.Merge.String()
		if want.Merge == "all" { // the newest write is that of the one process which has the series
			merge = want.Merge
		}
		got := row{f.Name, f.Kind.String(), merge, slices.Concat(sourceLabels(f.Source), f.Labels), f.Buckets}
		if diff := cmp.Diff(row{want.Name, want.Type, want.Merge, want.Labels, want.Buckets}, got, cmpopts.SortSlices(strings.Compare), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-contract +table):\n%s", f.Name, diff)
		}
	}
}

// Every family of the groups is in the table or on the list of absent ones, which says why; never on both.
func TestContractIsComplete(t *testing.T) {
	c, absent := readContract(t)
	for _, f := range c.Families() {
		_, there := Lookup(f.Name)
		reason, listed := absent[f.Name]
		switch {
		case there && listed:
			t.Errorf("%s is in the table: remove it from testdata/absent.txt, where it is absent for %q", f.Name, reason)
		case !there && !listed && slices.Contains(contractGroups, f.Group):
			t.Errorf("%s (%s) is missing: add it to the table, or to testdata/absent.txt with what the engine does not have", f.Name, f.Group)
		}
	}
	for name := range absent {
		if _, ok := c.Lookup(name); !ok {
			t.Errorf("testdata/absent.txt has %s, which the contract does not", name)
		}
	}
}

// What the golden expositions hold is what the contract allows.
func TestExpositionsFollowTheContract(t *testing.T) {
	c, absent := readContract(t)
	var e contract.Exposition
	for _, engineType := range []string{"unified", "prefill", "decode"} {
		data, err := os.ReadFile(filepath.Join("testdata", engineType+".prom"))
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Read(engineType, bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
	}
	report := c.Check(&e, contract.Options{Groups: contractGroups, Extra: []string{"zone"}, Absent: absent})
	for _, fault := range report.Faults {
		t.Error(fault)
	}
}
