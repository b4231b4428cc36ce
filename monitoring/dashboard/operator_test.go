package dashboard

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/prometheus/prometheus/promql/parser"

	operatormetrics "github.com/sluice-dev/sluice/controllers/metrics"
)

func buildOperator(t *testing.T) Dashboard {
	t.Helper()
	d, err := BuildOperator(OperatorOptions{UID: "sluice-operator", Title: "Sluice Operator", Tags: []string{"sluice"}})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestOperatorBoard: the chart's file is what the code makes, Grafana's types know every field of it, and every panel has help,
// words for no data, and a unit.
func TestOperatorBoard(t *testing.T) {
	d := buildOperator(t)
	want, err := json.MarshalIndent(d, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	const file = "../../charts/sluice/files/operator-dashboard.json"
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want)+"\n", string(got)); diff != "" {
		t.Errorf("%s is not what the code makes; run make generate (-want +got):\n%s", file, diff)
	}
	plugins.RegisterDefaultPlugins()
	var strict Dashboard
	if err := strict.UnmarshalJSONStrict(want); err != nil && err.Error() != "" {
		t.Error(err)
	}
	panels, rows := flat(d)
	if len(panels) < 30 || len(rows) != 5 {
		t.Errorf("%d panels in %d rows", len(panels), len(rows))
	}
	titles := map[string]bool{}
	for _, p := range panels {
		if titles[*p.Title] {
			t.Errorf("two panels are %q", *p.Title)
		}
		titles[*p.Title] = true
		defaults := p.FieldConfig.Defaults
		if p.Description == nil || *p.Description == "" || defaults.Unit == nil || *defaults.Unit == "" || defaults.NoValue == nil || *defaults.NoValue == "" {
			t.Errorf("panel %s has no help, unit or words for no data", *p.Title)
		}
		if len(exprs(t, p)) == 0 {
			t.Errorf("panel %s asks nothing", *p.Title)
		}
	}
}

// TestOperatorFamilies: the families that are asked for are the operator's, with the kinds and labels that queries rely on, and
// all that the operator has are shown.
func TestOperatorFamilies(t *testing.T) {
	table := map[string]operatormetrics.Family{}
	for _, f := range slices.Concat(operatormetrics.Families(), operatormetrics.Borrowed()) {
		table[f.Name] = f
		if operatorFamilies[f.Name] == nil {
			t.Errorf("%s is not shown", f.Name)
		}
	}
	for name, f := range operatorFamilies {
		own, known := table[name]
		if !known || f.Kind.String() != string(own.Kind) {
			t.Errorf("%s: the dashboard takes it for a %s, the operator's table has %q", name, f.Kind, own.Kind)
		}
		for _, label := range f.Labels {
			if !slices.Contains(own.Labels, label) {
				t.Errorf("%s: no label %s in the operator's table", name, label)
			}
		}
	}
	asked := map[string]bool{}
	choice := regexp.MustCompile(`\$\w+`)
	panels, _ := flat(buildOperator(t))
	for _, p := range panels {
		for _, expr := range exprs(t, p) {
			parsed, err := parser.ParseExpr(strings.ReplaceAll(choice.ReplaceAllString(strings.ReplaceAll(expr, interval, "5m"), "x"), "[x]", "[5m]"))
			if err != nil {
				t.Fatalf("panel %s: %v in\n%s", *p.Title, err, expr)
			}
			parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
				s, ok := node.(*parser.VectorSelector)
				if !ok {
					return nil
				}
				name := s.Name
				for _, suffix := range []string{"_bucket", "_sum", "_count"} {
					if f := operatorFamilies[strings.TrimSuffix(name, suffix)]; f != nil && f.Kind.String() == "histogram" {
						name = strings.TrimSuffix(name, suffix)
					}
				}
				f := operatorFamilies[name]
				if f == nil {
					t.Errorf("panel %s asks for %s", *p.Title, s.Name)
					return nil
				}
				asked[name] = true
				ours := false
				for _, m := range s.LabelMatchers {
					ours = ours || m.Name == "job"
					if m.Name != "__name__" && m.Name != "job" && !slices.Contains(f.Labels, m.Name) {
						t.Errorf("panel %s matches %s, which %s does not have", *p.Title, m, name)
					}
				}
				if !ours {
					t.Errorf("panel %s asks for %s of any operator", *p.Title, s)
				}
				return nil
			})
		}
	}
	for name := range operatorFamilies {
		if !asked[name] {
			t.Errorf("no panel asks for %s", name)
		}
	}
}

func TestOperatorOptions(t *testing.T) {
	if _, err := BuildOperator(OperatorOptions{}); err == nil {
		t.Error("a dashboard without a name is built")
	}
	d, err := BuildOperator(OperatorOptions{UID: "x", Title: "X", Datasource: "prom-1"})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(d.Templating.List); n != len(operatorLabels) {
		t.Errorf("%d variables, want those of %v: the data source is given", n, operatorLabels)
	}
}
