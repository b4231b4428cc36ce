package observe

import (
	"slices"
	"time"

	"github.com/sluice-dev/sluice/controllers/semantics"
	"github.com/sluice-dev/sluice/engine/loads"
)

const (
	// prefillWindow is the time over which the rate of prefill is measured.
	prefillWindow = time.Minute
	// prefillStep is the least time between two marks; prefillWindow / prefillStep + 1 of them are kept.
	prefillStep = 15 * time.Second
)

// prefillHistory turns the totals of prefill work, which only grow, into the work of a window. marks ascend in time and are
// at least prefillStep apart; the second is younger than prefillWindow, so that the first is the window's begin.
type prefillHistory struct {
	marks []prefillMark
	last  []rankWork // the newest window with work
}

// prefillMark is the totals of the DP ranks at a time.
type prefillMark struct {
	at     time.Time
	totals []rankWork
}

// rankWork is the work of a DP rank.
type rankWork struct {
	rank int
	semantics.Work
}

func workOf(list []rankWork, rank int) (semantics.Work, bool) {
	i := slices.IndexFunc(list, func(w rankWork) bool { return w.rank == rank })
	if i < 0 {
		return semantics.Work{}, false
	}
	return list[i].Work, true
}

// add takes a sample and gives the work of each of its ranks. A total that fell belongs to another process, so that what was
// known is forgotten. The first sample of a process counts with all that it did before.
func (h *prefillHistory) add(at time.Time, ranks []loads.Load) []semantics.Work {
	now := prefillMark{at: at, totals: make([]rankWork, 0, len(ranks))}
	for _, r := range ranks {
		total := semantics.Work{Tokens: r.TotalPrefillUncached, Micros: r.TotalPrefillBusyMicro}
		if total.Tokens >= 0 && total.Micros >= 0 {
			now.totals = append(now.totals, rankWork{r.DPRank, total})
		}
	}
	if h.fell(now.totals) {
		*h = prefillHistory{}
	}
	for len(h.marks) > 1 && at.Sub(h.marks[1].at) >= prefillWindow {
		h.marks = h.marks[1:]
	}
	work := make([]semantics.Work, len(ranks))
	last := make([]rankWork, 0, len(ranks))
	for i, r := range ranks {
		total, ok := workOf(now.totals, r.DPRank)
		if !ok {
			continue
		}
		if done := h.since(r.DPRank, total); done.Known() {
			work[i] = done
		} else {
			work[i], _ = workOf(h.last, r.DPRank)
		}
		if work[i].Known() {
			last = append(last, rankWork{r.DPRank, work[i]})
		}
	}
	h.last = last
	if n := len(h.marks); n == 0 || at.Sub(h.marks[n-1].at) >= prefillStep {
		h.marks = append(slices.Clone(h.marks), now)
	}
	return work
}

// fell says whether a total is below what it was.
func (h *prefillHistory) fell(totals []rankWork) bool {
	if len(h.marks) == 0 {
		return false
	}
	newest := h.marks[len(h.marks)-1].totals
	return slices.ContainsFunc(totals, func(w rankWork) bool {
		before, ok := workOf(newest, w.rank)
		return ok && (w.Tokens < before.Tokens || w.Micros < before.Micros)
	})
}

// since gives what a rank did since the first mark that has it.
func (h *prefillHistory) since(rank int, total semantics.Work) semantics.Work {
	for _, mark := range h.marks {
		if before, ok := workOf(mark.totals, rank); ok {
			return semantics.Work{Tokens: total.Tokens - before.Tokens, Micros: total.Micros - before.Micros}
		}
	}
	return total
}
