package metrics

import (
	"slices"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// Shape is what the number of series of an exposition depends on.
type Shape struct {
	EngineType string
	// Ranks is how many ranks of the process's node write metrics of their scheduler.
	Ranks int
	// Priorities: the label priority is there. CustomLabels: requests may bring labels of their own.
	Priorities, CustomLabels bool
	// MaxValues is --metrics-max-label-values; 0: DefaultLabelValues.
	MaxValues int
	// Bounds is how many bounds a histogram has at least; 0: those of the table. It is for engines whose buckets are set.
	Bounds int
}

// mostOther is how many values a label is taken to have that is not known here.
const mostOther = 16

// MostSeries is an upper bound of the series of a family in the exposition of one API process, over all values that its
// labels may have. A histogram has a series for each bound and +Inf, a sum and a count.
func (f *Family) MostSeries(s Shape) int {
	if !f.Engines.Has(s.EngineType) {
		return 0
	}
	if s.MaxValues <= 0 {
		s.MaxValues = DefaultLabelValues
	}
	combinations := f.mostCombinations(s)
	if f.Kind != Histogram {
		return combinations
	}
	return combinations * (max(len(f.Buckets), s.Bounds) + 3)
}

// mostCombinations is how many sets of labels a family has at most.
func (f *Family) mostCombinations(s Shape) int {
	n := 1
	for _, label := range f.Labels {
		n *= f.mostValues(label, s)
	}
	switch f.Source {
	case FromScheduler:
		n *= s.Ranks
		if s.Priorities && slices.Contains(priorityFamilies(), f) {
			n *= s.MaxValues + 2 // the total, and what is beyond the budget
		}
	case FromCache:
		n *= s.Ranks
	case FromFront:
		if (s.Priorities || s.CustomLabels) && slices.Contains(requestFamilies(), f) {
			n *= s.MaxValues + 2
		}
	case FromHTTP, FromProcess, FromStore:
	}
	return n
}

// priorityFamilies have a series for each priority.
func priorityFamilies() []*Family {
	of := []*Family{queueTime}
	for _, q := range queueCounts {
		of = append(of, q.family)
	}
	return of
}

// requestFamilies have series for each set of custom labels and priority.
func requestFamilies() []*Family {
	return []*Family{
		promptTokens, generationTokens, cachedTokens, promptHistogram, uncachedHistogram, generationHistogram,
		timeToFirstToken, interTokenLatency, timePerOutputToken, e2eRequestLatency, numRequests, numSORequests,
	}
}

// mostValues is how many values a label of the family has at most. The budget of endpoints is one of pairs with a method,
// so that a method has one value.
func (f *Family) mostValues(label string, s Shape) int {
	switch label {
	case streamingLabel:
		return len(streamingValues)
	case "stage":
		return len(ledger.Stages())
	case "law":
		return len(ledger.Laws())
	case "endpoint":
		return s.MaxValues + 1
	case "method":
		return 1
	case "status_code":
		return statusesEach
	case "gt":
		return len(report.RoutingKeyBounds()) + 1
	case "le", "cache_source":
		return 1
	case "forward_overlap":
		return int(report.NumForwardOverlaps)
	case "name":
		return maxFuncs + 1
	case "state":
		return 2
	case "family":
		return len(priorityFamilies())*s.Ranks + 8
	case outcomeLabel:
		return max(len(report.ReleaseOutcomes()), len(request.Outcomes()))
	case "reason":
		return max(len(report.Rejections()), len(StoreFaults()))
	case "category":
		return max(int(report.NumLoopStages), len(report.ForwardModes()))
	default:
		return mostOther
	}
}
