package monitoring

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

var (
	block   = regexp.MustCompile("(?s)```promql\n(.*?)```")
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	code    = regexp.MustCompile("`([^`]*)`")
	link    = regexp.MustCompile(`\]\(#([^)]*)\)`)
)

func diagnosis(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/diagnosis.md")
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

// TestDiagnosisLinks: every link within the page leads to a heading.
func TestDiagnosisLinks(t *testing.T) {
	text := diagnosis(t)
	anchors := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(block.ReplaceAllString(text, ""), -1) {
		anchors[anchor(h[1])] = true
	}
	for _, l := range link.FindAllStringSubmatch(text, -1) {
		if !anchors[l[1]] {
			t.Errorf("docs/diagnosis.md links to #%s, which is no heading", l[1])
		}
	}
}

// anchor is what renderers of Markdown make of a heading.
func anchor(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		}
	}
	return b.String()
}
