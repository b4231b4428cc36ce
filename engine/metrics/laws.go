package metrics

import (
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

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

// breaches is a Reporter that hears of breaches alone.
type breaches struct {
	report.Reporter
	laws laws
}

func (b breaches) Violated(law ledger.Law) { b.laws.Violated(law) }

// NewBreaches gives the Reporter of a rank whose metrics are those of another rank: what every rank has to tell itself is that
// its own sums don't hold.
func NewBreaches(backend Backend) report.Reporter {
	return breaches{Reporter: report.Silent(), laws: newLaws(backend)}
}
