package monitoring

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql"
)

// board is what the test reads of a dashboard's JSON.
type board struct {
	Panels     []boardPanel `json:"panels"`
	Templating struct {
		List []variable `json:"list"`
	} `json:"templating"`
}

type boardPanel struct {
	Type    string       `json:"type"`
	Title   string       `json:"title"`
	Panels  []boardPanel `json:"panels"`
	Targets []struct {
		Expr string `json:"expr"`
	} `json:"targets"`
}

type variable struct {
	Type     string `json:"type"`
	Name     string `json:"name"`
	Query    string `json:"query"`
	AllValue string `json:"allValue"`
}

// question is one query of a panel.
type question struct{ panel, expr string }

func readBoard(t *testing.T) (questions []question, variables []variable) {
	t.Helper()
	text, err := os.ReadFile("../../monitoring/grafana/dashboards/sglang-dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var b board
	if err := json.Unmarshal(text, &b); err != nil {
		t.Fatal(err)
	}
	var walk func(panels []boardPanel)
	walk = func(panels []boardPanel) {
		for _, p := range panels {
			for _, target := range p.Targets {
				questions = append(questions, question{p.Title, target.Expr})
			}
			walk(p.Panels)
		}
	}
	walk(b.Panels)
	for _, v := range b.Templating.List {
		if v.Type == "query" {
			variables = append(variables, v)
		}
	}
	if len(questions) < 15 || len(variables) < 5 {
		t.Fatalf("the dashboard has %d queries and %d variables", len(questions), len(variables))
	}
	return questions, variables
}

// choose puts a reader's choices into a query, as Grafana does: several values become alternatives.
func choose(expr string, choices map[string]string) string {
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(choices))) { // the longer of two names first
		expr = strings.ReplaceAll(expr, "$"+name, choices[name])
	}
	return expr
}

var labelValues = regexp.MustCompile(`^label_values\((.*), ([a-z_]+)\)$`)

// offered gives the values that a variable offers when the others are at "All".
func offered(t *testing.T, s *store, v variable, all map[string]string) []string {
	t.Helper()
	m := labelValues.FindStringSubmatch(v.Query)
	if m == nil {
		t.Fatalf("variable %s: query %s", v.Name, v.Query)
	}
	return s.values(t, choose(m[1], all), m[2])
}

// TestPanelsHaveData asks every query of the dashboard with every variable at "All"; then, variable by variable, with each of
// its values and with all of them.
func TestPanelsHaveData(t *testing.T) {
	scrapes := observed(t)
	questions, variables := readBoard(t)
	all := map[string]string{"__rate_interval": "20s"}
	for _, v := range variables {
		all[v.Name] = v.AllValue
	}
	for _, tc := range []struct {
		name    string
		store   *store
		choices bool
	}{
		{"as written, scraped by address", newStore(t, scrapes, asWritten, byAddress), true},
		{"underscores, scraped in a cluster", newStore(t, scrapes, underscores, inCluster), true},
		{"as written, beside a gateway with underscores", both(t, scrapes), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			empty := map[question]bool{}
			for _, q := range questions {
				expr := choose(q.expr, all)
				found, err := tc.store.ask(t.Context(), expr)
				if err != nil {
					t.Fatalf("%s: %v in\n%s", q.panel, err, expr)
				}
				if found == 0 {
					empty[q] = true
					t.Errorf("panel %s is empty:\n%s", q.panel, expr)
				}
			}
			for _, v := range variables {
				values := offered(t, tc.store, v, all)
				if len(values) == 0 && v.Name != "namespace" {
					t.Errorf("variable %s offers nothing", v.Name)
				}
				if len(values) == 0 || !tc.choices {
					continue
				}
				one := maps.Clone(all)
				for _, q := range questions {
					found := 0
					for _, value := range append(slices.Clone(values), "("+strings.Join(values, "|")+")") {
						one[v.Name] = value
						n, err := tc.store.ask(t.Context(), choose(q.expr, one))
						if err != nil {
							t.Fatalf("%s, %s=%s: %v", q.panel, v.Name, value, err)
						}
						found += n
					}
					if found == 0 && !empty[q] {
						t.Errorf("panel %s is empty for every value of %s (%q)", q.panel, v.Name, values)
					}
				}
			}
		})
	}
}

// TestLedgerIsEven: whatever the load was, no law was broken, and at every scrape each request is under way or has ended.
func TestLedgerIsEven(t *testing.T) {
	s := newStore(t, observed(t), asWritten, byAddress)
	questions, variables := readBoard(t)
	all := map[string]string{"__rate_interval": "20s"}
	for _, v := range variables {
		all[v.Name] = v.AllValue
	}
	seen := 0
	for _, q := range questions {
		if !strings.HasPrefix(q.panel, "Violations") && !strings.HasPrefix(q.panel, "Requests: Submitted less") {
			continue
		}
		seen++
		if err := s.run(t.Context(), choose(q.expr, all), s.from, func(series string, points []promql.FPoint) {
			for _, p := range points {
				if p.F != 0 {
					t.Errorf("%s: %s reads %v, want 0", q.panel, series, p.F)
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if seen != 3 {
		t.Errorf("%d panels of the ledger, want 3", seen)
	}
}

// byAddress are the labels that a scraper adds that knows addresses only: none but the instance.
func byAddress(string) map[string]string { return map[string]string{} }

// inCluster are the labels that the operator's monitors add.
func inCluster(instance string) map[string]string {
	return map[string]string{"namespace": "team-a", "inference_service": "chat", "pool": "pool" + instance[len(instance)-1:], "replica": "0"}
}

// both scrapes the engines as they are and through a gateway.
func both(t *testing.T, scrapes []scrape) *store {
	t.Helper()
	var twice []scrape
	for _, s := range scrapes {
		pages := maps.Clone(s.pages)
		for instance, text := range s.pages {
			pages["gateway-"+instance] = underscores(text)
		}
		twice = append(twice, scrape{s.at, pages})
	}
	return newStore(t, twice, asWritten, byAddress)
}

// observed runs the engines once for all tests of the package.
func observed(t *testing.T) []scrape {
	t.Helper()
	if kept == nil {
		kept = observe(t, start(t))
		if dir := os.Getenv("SLUICE_KEEP_SCRAPES"); dir != "" {
			for i, s := range kept {
				for instance, text := range s.pages {
					if err := os.WriteFile(fmt.Sprintf("%s/%d-%s.prom", dir, i, instance), []byte(text), 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
	return kept
}

var (
	kept    []scrape
	records string // what the decode engine remembers of its slowest requests
	walked  []walkStep
)
