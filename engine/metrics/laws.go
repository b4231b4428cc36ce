package metrics

import "github.com/sluice-dev/sluice/engine/ledger"

// laws are the counters of breaches, by law; the one at 0 is not used.
type laws []CounterSeries

// newLaws makes the series of all laws, so that they read 0 from the start.
func newLaws(b Backend) laws {
	l := laws{nil}
	for _, law := range ledger.Laws() {
		l = append(l, b.Counter(ledgerViolations, []Label{{"law", law.Name}}))
	}
	return l
}

// Violated counts a breach.
func (l laws) Violated(law ledger.Law) { l[law].Add(1) }
