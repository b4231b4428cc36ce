package contract

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// Prefix begins every name that the contract governs.
const Prefix = "sglang:"

// Options narrows a check.
type Options struct {
	// Groups are those whose families must all be there; nil: all groups.
	Groups []string
	// Extra are labels that the operator added.
	Extra []string
	// Absent are families that may be missing, with the reason. One that is there is a fault of the list.
	Absent map[string]string
}

// Coverage is one group of a report.
type Coverage struct {
	Group         string
	Present, Of   int      // families; 0 <= Present <= Of
	Missing       []string // that must be there
	AbsentByOwner []string // that need not be, by Options.Absent
}

// Report is what a check found.
type Report struct {
	Groups []Coverage
	Faults []string // sorted; empty when all is as it should be
}

// OK reports whether nothing is missing and nothing wrong.
func (r Report) OK() bool {
	return len(r.Faults) == 0 && !slices.ContainsFunc(r.Groups, func(c Coverage) bool { return len(c.Missing) > 0 })
}

// Write prints the report for people.
func (r Report) Write(w io.Writer) error {
	var b strings.Builder
	present, of := 0, 0
	for _, g := range r.Groups {
		present, of = present+g.Present, of+g.Of
		fmt.Fprintf(&b, "%-18s %3d of %-3d", g.Group, g.Present, g.Of)
		if len(g.Missing) > 0 {
			fmt.Fprintf(&b, "  missing: %s", short(g.Missing))
		}
		if len(g.AbsentByOwner) > 0 {
			fmt.Fprintf(&b, "  no mechanism: %s", short(g.AbsentByOwner))
		}
		b.WriteByte('\n')
	}
	for _, f := range r.Faults {
		fmt.Fprintf(&b, "fault: %s\n", f)
	}
	fmt.Fprintf(&b, "%d of %d families, %d faults\n", present, of, len(r.Faults))
	_, err := io.WriteString(w, b.String())
	return err
}

func short(names []string) string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = strings.TrimPrefix(n, Prefix)
	}
	return strings.Join(out, ", ")
}

// Check compares an exposition with the contract. Faults are found in all groups, missing families in those of o.Groups.
func (c *Contract) Check(e *Exposition, o Options) Report {
	faults := slices.Clone(e.faults)
	for name, families := range e.families {
		f, known := c.Lookup(name)
		if !known {
			if strings.HasPrefix(name, Prefix) {
				faults = append(faults, name+": not in the contract")
			}
			continue
		}
		if reason, absent := o.Absent[name]; absent {
			faults = append(faults, fmt.Sprintf("%s: is there, but is on the list of absent families (%s)", name, reason))
		}
		for _, got := range families {
			faults = append(faults, f.faults(got, o.Extra)...)
		}
	}
	var r Report
	for _, group := range c.Groups() {
		if o.Groups == nil || slices.Contains(o.Groups, group) {
			r.Groups = append(r.Groups, c.cover(e, group, o.Absent))
		}
	}
	slices.Sort(faults)
	r.Faults = slices.Compact(faults)
	return r
}

func (c *Contract) cover(e *Exposition, group string, absent map[string]string) Coverage {
	g := Coverage{Group: group}
	for _, f := range c.families {
		if f.Group != group {
			continue
		}
		g.Of++
		_, none := absent[f.Name]
		switch {
		case e.Has(f.Name):
			g.Present++
		case none:
			g.AbsentByOwner = append(g.AbsentByOwner, f.Name)
		default:
			g.Missing = append(g.Missing, f.Name)
		}
	}
	return g
}

// faults compares one family with its row.
func (f Family) faults(got *dto.MetricFamily, extra []string) (faults []string) {
	fault := func(format string, args ...any) {
		faults = append(faults, f.Name+": "+fmt.Sprintf(format, args...))
	}
	if kind := strings.ToLower(got.GetType().String()); kind != f.Type {
		fault("is a %s, in the contract a %s", kind, f.Type)
		return faults
	}
	may := slices.Concat(f.Labels, f.May)
	if f.Extra {
		may = append(may, extra...)
	}
	intervals := map[string]map[string]string{} // of a gauge with bounds: le by gt, by the other labels
	for _, m := range got.GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
			if !f.Custom && !slices.Contains(may, l.GetName()) {
				fault("has the label %s, which the contract does not know", l.GetName())
			}
		}
		for _, name := range f.Labels {
			if _, ok := labels[name]; !ok {
				fault("lacks the label %s", name)
			}
		}
		if f.Buckets != nil {
			if bounds := upperBounds(m.GetHistogram()); !slices.Equal(bounds, f.Buckets) {
				fault("has the bounds %v, in the contract %v", bounds, f.Buckets)
			}
		}
		if f.Bounds != nil {
			gt, le := labels["gt"], labels["le"]
			delete(labels, "gt")
			delete(labels, "le")
			key := fmt.Sprint(labels)
			if intervals[key] == nil {
				intervals[key] = map[string]string{}
			}
			intervals[key][gt] = le
		}
	}
	for _, key := range slices.Sorted(maps.Keys(intervals)) {
		if !coversLine(intervals[key], f.Bounds) {
			fault("has the intervals %v, in the contract those between 0, %v and +Inf", intervals[key], f.Bounds)
		}
	}
	return faults
}

func upperBounds(h *dto.Histogram) (bounds []float64) {
	for _, b := range h.GetBucket() {
		if !math.IsInf(b.GetUpperBound(), 1) {
			bounds = append(bounds, b.GetUpperBound())
		}
	}
	return bounds
}

// coversLine reports whether intervals (gt, le] are exactly those that the bounds make of (0, +Inf].
func coversLine(intervals map[string]string, bounds []float64) bool {
	from := "0"
	for _, b := range bounds {
		to := strconv.FormatFloat(b, 'g', -1, 64)
		if intervals[from] != to {
			return false
		}
		from = to
	}
	return intervals[from] == "+Inf" && len(intervals) == len(bounds)+1
}
