package metrics

import (
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// moves are the counters of KV bytes of hand-overs by outcome, of the directions that the engine type has.
type moves struct{ sent, received map[bool]CounterSeries } // by whether done

func newMoves(b Backend, engineType string) moves {
	of := func(family *Family) map[bool]CounterSeries {
		if !family.Engines.Has(engineType) {
			return nil
		}
		return map[bool]CounterSeries{
			true:  b.Counter(family, []Label{{"outcome", "done"}}),
			false: b.Counter(family, []Label{{"outcome", "failed"}}),
		}
	}
	return moves{of(kvSent), of(kvReceived)}
}

// KVMoved counts the bytes of a hand-over that has ended.
func (m moves) KVMoved(moved report.KVMoved) {
	direction := m.sent
	if moved.Received {
		direction = m.received
	}
	if series := direction[moved.Done]; series != nil {
		series.Add(float64(moved.Bytes))
	}
}

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

// breaches is a Reporter that hears of breaches and of bytes that a rank moved.
type breaches struct {
	report.Reporter
	laws  laws
	moves moves
}

func (b breaches) Violated(law ledger.Law)      { b.laws.Violated(law) }
func (b breaches) KVMoved(moved report.KVMoved) { b.moves.KVMoved(moved) }

// NewBreaches gives the Reporter of a rank whose metrics are those of another rank: what every rank has to tell itself is its
// own part of the KV that was handed over, and that
// its own sums don't hold.
func NewBreaches(backend Backend, engineType string) report.Reporter {
	return breaches{Reporter: report.Silent(), laws: newLaws(backend), moves: newMoves(backend, engineType)}
}
