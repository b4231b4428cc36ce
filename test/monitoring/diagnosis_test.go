package monitoring

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	enginemetrics "github.com/sluice-dev/sluice/engine/metrics"
	routermetrics "github.com/sluice-dev/sluice/router/metrics"
)

var (
	block   = regexp.MustCompile("(?s)```promql\n(.*?)```")
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	code    = regexp.MustCompile("`([^`]*)`")
	link    = regexp.MustCompile(`\]\(([^):]*)\)`)
)

func diagnosis(t *testing.T) string {
	t.Helper()
	return read(t, "../../docs/diagnosis.md")
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestDiagnosisQueries asks every query of docs/diagnosis.md as it stands there.
func TestDiagnosisQueries(t *testing.T) {
	scrapes := observed(t)
	queries := block.FindAllStringSubmatch(diagnosis(t), -1)
	if len(queries) < 20 {
		t.Fatalf("docs/diagnosis.md has %d queries", len(queries))
	}
	for name, s := range map[string]*store{
		"as written":  newStore(t, scrapes, asWritten, byAddress),
		"underscores": newStore(t, scrapes, underscores, inCluster),
	} {
		for _, q := range queries {
			found, err := s.ask(t.Context(), q[1])
			if err != nil {
				t.Errorf("%s: %v in\n%s", name, err, q[1])
				continue
			}
			if found == 0 {
				t.Errorf("%s: no answer to\n%s", name, q[1])
			}
		}
	}
}

// TestDiagnosisShares: the first hits count, though their series of realtime_tokens_total begins with them.
func TestDiagnosisShares(t *testing.T) {
	const (
		effective = "sglang:prefill_effective_tokens_total"
		realtime  = "sglang:realtime_tokens_total"
	)
	begin := time.Unix(1_800_000_000, 0)
	page := func(minute int, lines ...string) scrape {
		return scrape{at: begin.Add(time.Duration(minute) * time.Minute), pages: map[string]string{"a": strings.Join(lines, "\n") + "\n"}}
	}
	var scrapes []scrape
	for minute := range 10 {
		if minute < 8 {
			scrapes = append(scrapes, page(minute, effective+`{mode="input"} 0`, effective+`{mode="device_hit"} 0`))
			continue
		}
		scrapes = append(scrapes, page(minute, effective+`{mode="input"} 2000`, effective+`{mode="device_hit"} 6000`,
			realtime+`{mode="prefill_compute"} 2500`, realtime+`{mode="prefill_cache"} 7500`))
	}
	s := newStore(t, scrapes, asWritten, byAddress)
	got := map[string]map[string]string{}
	for _, q := range block.FindAllStringSubmatch(diagnosis(t), -1) {
		if !strings.Contains(q[1], "prefill_effective_tokens_total") {
			continue
		}
		name := "found"
		if strings.Contains(q[1], "realtime_tokens_total") {
			name = "repeated"
		}
		answer, err := s.last(t.Context(), q[1])
		if err != nil {
			t.Fatal(err)
		}
		got[name] = answer
	}
	want := map[string]map[string]string{"found": {`{instance="a"}`: "0.75"}, "repeated": {`{instance="a"}`: "0.2"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("shares (-want +got):\n%s", diff)
	}
}

// TestDiagnosisRecords: the fields that the page reads are there.
func TestDiagnosisRecords(t *testing.T) {
	observed(t)
	_, table, _ := strings.Cut(diagnosis(t), "| its fields |")
	table, _, _ = strings.Cut(table, "\n\n")
	fields := code.FindAllStringSubmatch(table, -1)
	if len(fields) < 10 {
		t.Fatalf("the table has %d fields", len(fields))
	}
	for _, f := range fields {
		if !strings.Contains(records, fmt.Sprintf("%q", f[1])) {
			t.Errorf("docs/diagnosis.md reads %s, which no record has:\n%.2000s", f[1], records)
		}
	}
}

// TestDiagnosisCommands: who asks what the page says gets the records, a waterfall of the slowest one, and from a record of the
// router the record of the engine that had the request.
func TestDiagnosisCommands(t *testing.T) {
	observed(t)
	want := []struct{ address, begins, holds string }{
		{"localhost:30000/debug/requests?slowest=10", `{"in_flight"`, `"requests":[{`},
		{"localhost:30000/debug/requests/RID?format=text", "", "  api_server: "},
		{"localhost:8000/debug/requests?slowest=1", `{`, `"attempts":[{`},
		{"localhost:30000/debug/requests?room=5083410826151466127&format=text", "", "  decode: "},
	}
	if len(walked) != len(want) {
		t.Fatalf("the page has %d commands, want %d: %v", len(walked), len(want), walked)
	}
	for i, w := range want {
		got := walked[i]
		if got.address != w.address || !strings.HasPrefix(got.answer, w.begins) || !strings.Contains(got.answer, w.holds) {
			t.Errorf("command %d is %s, want %s, and answers %.500s, want %q at the begin and %q in it", i, got.address, w.address, got.answer, w.begins, w.holds)
		}
	}
}

// TestDiagnosisTotals: every query that takes a family of the schedulers says whether it wants totals or priorities.
func TestDiagnosisTotals(t *testing.T) {
	scheduler := func(m *labels.Matcher) bool {
		return slices.ContainsFunc(enginemetrics.Families(), func(f *enginemetrics.Family) bool {
			return f.Source == enginemetrics.FromScheduler && slices.ContainsFunc([]string{"", "_bucket", "_sum", "_count"}, func(suffix string) bool {
				return m.Matches(f.Name + suffix)
			})
		})
	}
	for _, q := range block.FindAllStringSubmatch(diagnosis(t), -1) {
		parsed, err := parser.ParseExpr(q[1])
		if err != nil {
			t.Errorf("%v in\n%s", err, q[1])
			continue
		}
		for _, matchers := range parser.ExtractSelectors(parsed) {
			named := func(label string, is func(*labels.Matcher) bool) bool {
				return slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return m.Name == label && is(m) })
			}
			if named(labels.MetricName, scheduler) && !named("priority", func(*labels.Matcher) bool { return true }) {
				t.Errorf("%v takes totals and priorities together, in\n%s", matchers, q[1])
			}
		}
	}
}

// TestDiagnosisNames: every name that a query of the page selects is a family of the engine or of the router.
func TestDiagnosisNames(t *testing.T) {
	var names []string
	for _, f := range enginemetrics.Families() {
		names = append(names, f.Name)
	}
	for _, f := range routermetrics.Families() {
		names = append(names, f.Name)
	}
	known := func(m *labels.Matcher) bool {
		return slices.ContainsFunc(names, func(name string) bool {
			return slices.ContainsFunc([]string{"", "_bucket", "_sum", "_count"}, func(suffix string) bool {
				return m.Matches(name+suffix) && m.Matches(strings.ReplaceAll(name+suffix, ":", "_"))
			})
		})
	}
	for _, q := range block.FindAllStringSubmatch(diagnosis(t), -1) {
		parsed, err := parser.ParseExpr(q[1])
		if err != nil {
			t.Errorf("%v in\n%s", err, q[1])
			continue
		}
		for _, matchers := range parser.ExtractSelectors(parsed) {
			for _, m := range matchers {
				if m.Name == labels.MetricName && !known(m) {
					t.Errorf("%s is no family under both spellings, in\n%s", m, q[1])
				}
			}
		}
	}
}

// TestLinks: the links of all pages lead to files, and to headings of them.
func TestLinks(t *testing.T) {
	pages := []string{"../../README.md", "../../monitoring/README.md"}
	for _, pattern := range []string{"../../docs/*.md", "../../docs/*/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s has no pages: %v", pattern, err)
		}
		pages = append(pages, found...)
	}
	for _, page := range pages {
		text := read(t, page)
		for _, l := range link.FindAllStringSubmatch(block.ReplaceAllString(text, ""), -1) {
			file, fragment, _ := strings.Cut(l[1], "#")
			to := page
			if file != "" {
				to = filepath.Join(filepath.Dir(page), file)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s: %v", page, l[1], err)
				continue
			}
			if fragment != "" && !anchors(read(t, to))[fragment] {
				t.Errorf("%s links to %s, which is no heading", page, l[1])
			}
		}
	}
}

func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(block.ReplaceAllString(text, ""), -1) {
		all[anchor(h[1])] = true
	}
	return all
}

// anchor is what renderers of Markdown make of a heading.
func anchor(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		}
	}
	return b.String()
}
