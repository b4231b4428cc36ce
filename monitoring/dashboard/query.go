package dashboard

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-dev/sluice/engine/metrics"
)

// interval is the window of rates: Grafana makes it four scrapes long, or as long as a point of the graph is wide.
const interval = "$__rate_interval"

// priority is the label that is empty on totals.
const priority = "priority"

// queries writes PromQL over families of the table. Names that are not in it are kept for the end of the build.
type queries struct {
	options Options
	missing []string
}

func (q *queries) family(name string) *metrics.Family {
	f, ok := metrics.Lookup(name)
	if !ok {
		f, ok = routerFamily(name)
	}
	if !ok {
		q.missing = append(q.missing, name)
		return &metrics.Family{Name: name}
	}
	return f
}

// matchers are those that the reader's choices and the options ask of series of a source.
func (q *queries) matchers(source metrics.Source) []string {
	labels := slices.Clone(q.options.Filters)
	switch source {
	case fromRouter: // a router is no replica of an engine
		labels = slices.DeleteFunc(labels, func(label string) bool {
			return slices.Contains(q.options.Replica, label) && !slices.Contains(q.options.Router, label)
		})
	case metrics.FromScheduler:
		labels = slices.Concat(labels, modelLabels, rankLabels)
	case metrics.FromCache:
		labels = slices.Concat(labels, rankLabels)
	case metrics.FromFront:
		labels = slices.Concat(labels, modelLabels)
	}
	var list []string
	for _, m := range q.options.Fixed {
		list = append(list, m.Label+"="+strconv.Quote(m.Value))
	}
	for _, label := range labels {
		if !q.options.fixed(label) {
			list = append(list, fmt.Sprintf(`%s=~"$%s"`, label, label))
		}
	}
	return list
}

// selector gives the selector of a family's series with a suffix such as _bucket, under both spellings of its name.
func (q *queries) selector(f *metrics.Family, suffix string, where []string) string {
	name, matchers := f.Name+suffix, q.matchers(f.Source)
	if f.Source == metrics.FromScheduler && !slices.ContainsFunc(where, func(m string) bool { return strings.HasPrefix(m, priority) }) {
		matchers = append(matchers, priority+`=""`)
	}
	matchers = append(matchers, where...)
	if prefix, rest, ok := strings.Cut(name, ":"); ok {
		return "{" + strings.Join(append([]string{fmt.Sprintf(`__name__=~"%s[:_]%s"`, prefix, rest)}, matchers...), ", ") + "}"
	}
	return name + "{" + strings.Join(matchers, ", ") + "}"
}

// once takes series that several ranks of a replica tell alike only once, and keeps apart what the family's row of the table
// says may be added.
func (q *queries) once(f *metrics.Family, expr string, more ...string) string {
	switch f.Source {
	case metrics.FromScheduler:
		return aggregate("max", slices.Concat(q.options.Replica, modelLabels, f.SumOver, more), expr)
	case metrics.FromCache:
		return aggregate("max", slices.Concat(q.options.Replica, f.SumOver, more), expr)
	default:
		return expr
	}
}

// total adds a gauge over everything but by.
func (q *queries) total(name string, by []string, where ...string) string {
	f := q.family(name)
	var more []string
	for _, label := range by {
		if label == priority {
			more = []string{priority}
		}
	}
	return aggregate("sum", by, q.once(f, q.selector(f, "", where), more...))
}

// highest gives the largest value of a gauge that must not be added, such as a share.
func (q *queries) highest(name string, by []string, where ...string) string {
	f := q.family(name)
	return aggregate("max", by, q.selector(f, "", where))
}

// each gives a gauge as every rank tells it.
func (q *queries) each(name string, where ...string) string {
	f := q.family(name)
	return aggregate("max", slices.Concat(q.options.Replica, rankLabels), q.selector(f, "", where))
}

// eachRate gives the growth of a counter per second as every rank tells it.
func (q *queries) eachRate(name string, where ...string) string {
	f := q.family(name)
	return aggregate("sum", slices.Concat(q.options.Replica, rankLabels), fmt.Sprintf("rate(%s[%s])", q.selector(f, "", where), interval))
}

// rate gives the growth of a counter per second, added over everything but by.
func (q *queries) rate(name string, by []string, where ...string) string {
	return q.grown("rate", name, "", by, where)
}

// increase gives the growth of a counter in the window, added over everything but by.
func (q *queries) increase(name string, by []string, where ...string) string {
	return q.grown("increase", name, "", by, where)
}

// growth gives what a counter has more than a window ago, added over everything but by: for quotients of two families of which one
// has its series from the start and the other from its first event on, which rates of it don't see. What was not there a window
// ago was 0, and a restart within the window is not seen.
func (q *queries) growth(name string, by []string, where ...string) string {
	f := q.family(name)
	now := q.selector(f, "", where)
	return aggregate("sum", by, q.once(f, fmt.Sprintf("%s - (%s offset %s or 0 * %s)", now, now, interval, now)))
}

// grown applies a function of a window to series that only grow.
func (q *queries) grown(function, name, suffix string, by []string, where []string) string {
	f := q.family(name)
	var more []string
	if suffix == "_bucket" {
		more = []string{"le"}
	}
	return aggregate("sum", by, q.once(f, fmt.Sprintf("%s(%s[%s])", function, q.selector(f, suffix, where), interval), more...))
}

// quantile gives a quantile of a histogram's samples of the window.
func (q *queries) quantile(p float64, name string, by []string, where ...string) string {
	return fmt.Sprintf("histogram_quantile(%s, %s)", strconv.FormatFloat(p, 'g', -1, 64), q.grown("rate", name, "_bucket", append([]string{"le"}, by...), where))
}

// mean gives the mean of a histogram's samples of the window: their sum over their count.
func (q *queries) mean(name string, by []string, where ...string) string {
	return share(q.grown("rate", name, "_sum", by, where), q.grown("rate", name, "_count", by, where))
}

// samples gives the number of a histogram's samples per second.
func (q *queries) samples(name string, by []string, where ...string) string {
	return q.grown("rate", name, "_count", by, where)
}

// heat gives a histogram's samples of the window by bucket.
func (q *queries) heat(name string) string {
	return q.grown("increase", name, "_bucket", []string{"le"}, nil)
}

// within gives the part of a histogram's samples of the window that are at most a bound, which must be one of its buckets.
func (q *queries) within(bound float64, name string, by []string) string {
	le := strconv.FormatFloat(bound, 'g', -1, 64)
	if !strings.ContainsAny(le, ".e") {
		le += `(\\.0)?` // Prometheus 3 writes whole bounds so
	} else {
		le = strings.ReplaceAll(le, ".", `\\.`)
	}
	return share(q.grown("rate", name, "_bucket", by, []string{`le=~"` + le + `"`}), q.grown("rate", name, "_count", by, nil))
}

// share gives a quotient, which is absent where the denominator is 0.
func share(part, whole string) string { return fmt.Sprintf("%s\n/\n(%s > 0)", part, whole) }

// shareOfAll is share for a denominator without labels.
func shareOfAll(part, whole string) string {
	return fmt.Sprintf("%s\n/ on () group_left ()\n(%s > 0)", part, whole)
}

// orZero gives 0 where an expression without labels is absent.
func orZero(expr string) string { return "(" + expr + " or vector(0))" }

func aggregate(operator string, by []string, expr string) string {
	if len(by) == 0 {
		return fmt.Sprintf("%s(%s)", operator, expr)
	}
	return fmt.Sprintf("%s by (%s) (%s)", operator, strings.Join(by, ", "), expr)
}

// err names the families that are not in the table.
func (q *queries) err() error {
	if len(q.missing) == 0 {
		return nil
	}
	return fmt.Errorf("not in the table of engine/metrics: %s", strings.Join(q.missing, ", "))
}
