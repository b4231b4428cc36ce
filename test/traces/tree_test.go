package traces

import (
	"fmt"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/trace/tracetest"
	"github.com/sluice-dev/sluice/test/harness"
)

// tree is one root with everything below it.
type tree struct {
	root    tracetest.Span
	threads []tracetest.Span
	below   map[string][]tracetest.Span // by id
}

// trees gives the roots of spans, by their rids, with what is below them. Every span but the roots must have its parent.
func trees(t *testing.T, spans []tracetest.Span) map[string]tree {
	t.Helper()
	ids, below, all := map[string]bool{}, map[string][]tracetest.Span{}, map[string]tree{}
	for _, s := range spans {
		if ids[s.ID] || len(s.ID) != 16 || len(s.Trace) != 32 || strings.Trim(s.Trace[:16], "0") == "" {
			t.Errorf("span %q has the ids %s and %s", s.Name, s.Trace, s.ID)
		}
		if s.Service != "sglang" || s.Scope != "sglang server" {
			t.Errorf("span %q is of the service %q and the scope %q", s.Name, s.Service, s.Scope)
		}
		ids[s.ID] = true
		below[s.Parent] = append(below[s.Parent], s)
	}
	for _, s := range spans {
		switch {
		case tracetest.IsRoot(s):
			r := tree{root: s, threads: below[s.ID], below: below}
			slices.SortFunc(r.threads, func(a, b tracetest.Span) int { return strings.Compare(threadOrder(a), threadOrder(b)) })
			all[fmt.Sprint(s.Attributes["rid"])] = r
		case !ids[s.Parent]:
			t.Errorf("span %q has the parent %s, which has not come", s.Name, s.Parent)
		}
	}
	return all
}

// threadOrder sorts threads by the way of a request.
func threadOrder(s tracetest.Span) string {
	for i, label := range []string{"Tokenizer", "DP Controller", "Scheduler"} {
		if strings.Contains(s.Name, label) {
			return strconv.Itoa(i) + s.Name
		}
	}
	return s.Name
}

var machine = regexp.MustCompile(`\(host:[^)]*\)`)

// String draws the tree, without what differs between machines; slices of the same name behind each other are counted.
func (r tree) String() string {
	var b strings.Builder
	var draw func(s tracetest.Span, indent string)
	draw = func(s tracetest.Span, indent string) {
		list := r.below[s.ID]
		if indent == "" {
			list = r.threads
		}
		for i := 0; i < len(list); {
			n := 1
			for i+n < len(list) && list[i+n].Name == list[i].Name && len(r.below[list[i+n].ID]) == 0 {
				n++
			}
			line := indent + "  " + strings.TrimSpace(machine.ReplaceAllString(list[i].Name, ""))
			if n > 1 {
				line += fmt.Sprintf(" x%d", n)
			}
			b.WriteString(line + "\n")
			draw(list[i], indent+"  ")
			i += n
		}
	}
	b.WriteString(r.root.Name + "\n")
	draw(r.root, "")
	return b.String()
}

// check verifies what holds for every tree: children lie within their parents, slices of a thread follow each other without
// overlaps and, where whole, without gaps, and each is linked to the one before it, from one thread to the next. Nested ones
// have no links.
func (r tree) check(t *testing.T, whole bool) {
	t.Helper()
	var first string // the newest slice before the schedulers'
	for _, thread := range r.threads {
		if !thread.ParentRemote && !strings.Contains(thread.Name, "Tokenizer") || strings.Contains(thread.Name, "Tokenizer") && thread.ParentRemote {
			t.Errorf("thread %q: that another process made its parent is %t", thread.Name, thread.ParentRemote)
		}
		end := thread.Start
		before, remote := first, true
		for i, s := range r.below[thread.ID] {
			if s.Start < end || s.End > thread.End {
				t.Errorf("slice %q [%d, %d) is not in its thread's [%d, %d) behind %d", s.Name, s.Start, s.End, thread.Start, thread.End, end)
			}
			if whole && s.Start != end {
				t.Errorf("slice %q begins %d ns after what is before it", s.Name, s.Start-end)
			}
			end = s.End
			var want []tracetest.Link
			if before != "" {
				want = []tracetest.Link{{Trace: s.Trace, ID: before, Remote: remote && i == 0}}
			}
			if diff := cmp.Diff(want, s.Links); diff != "" {
				t.Errorf("links of slice %q (-want +got)\n%s", s.Name, diff)
			}
			before, remote = s.ID, false
			r.checkNested(t, s)
		}
		if whole && end != thread.End {
			t.Errorf("thread %q ends %d ns after its last slice", thread.Name, thread.End-end)
		}
		if !strings.Contains(thread.Name, "Scheduler") {
			first = before
		}
	}
}

func (r tree) checkNested(t *testing.T, parent tracetest.Span) {
	t.Helper()
	for _, s := range r.below[parent.ID] {
		if s.Start < parent.Start || s.End > parent.End || s.Start > s.End {
			t.Errorf("%q [%d, %d) is not in %q [%d, %d)", s.Name, s.Start, s.End, parent.Name, parent.Start, parent.End)
		}
		if len(s.Links) > 0 {
			t.Errorf("nested slice %q has links: %+v", s.Name, s.Links)
		}
		r.checkNested(t, s)
	}
}

// thread gives the thread whose name has all the parts.
func (r tree) thread(t *testing.T, parts ...string) tracetest.Span {
	t.Helper()
	for _, s := range r.threads {
		if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(s.Name, part) }) {
			return s
		}
	}
	t.Fatalf("there is no thread %v in\n%s", parts, r)
	return tracetest.Span{}
}

// within sums the lengths of the spans of each name below one, in nanoseconds.
func (r tree) within(s tracetest.Span) map[string]int64 {
	sums := map[string]int64{}
	for _, c := range r.below[s.ID] {
		sums[c.Name] += c.Nanos()
		for name, nanos := range r.within(c) {
			sums[name] += nanos
		}
	}
	return sums
}

// series are the samples of an exposition by name and labels, as written.
type series map[string]float64

func scrape(t *testing.T, e *harness.Engine) series {
	t.Helper()
	_, text := ask(t, t.Context(), http.MethodGet, e.URL+"/metrics", "", nil)
	all := series{}
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "} ")
		if strings.HasPrefix(line, "#") || !ok {
			continue
		}
		number, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		all[name+"}"] = number
	}
	return all
}

// nanos sums a histogram's sums over all series with the labels, in whole nanoseconds.
func (s series) nanos(family string, labels ...string) int64 {
	sum := 0.0
	for name, value := range s {
		if strings.HasPrefix(name, family+"_sum{") && !slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(name, l) }) {
			sum += value
		}
	}
	return int64(math.Round(sum * 1e9))
}
