package metrics

// ByRole gives a backend that makes the series of some roles elsewhere: those of families whose source other names, for
// example FromScheduler or FromCache. All else, and roles whose backend is nil, stays with rest. What is made elsewhere is
// not in the stores, so /metrics does not show it.
func ByRole(rest Backend, other map[Source]Backend) Backend {
	if len(other) == 0 {
		return rest
	}
	return byRole{rest, other}
}

type byRole struct {
	rest  Backend
	other map[Source]Backend
}

var _ Backend = byRole{}

func (b byRole) of(f *Family) Backend {
	if other := b.other[f.Source]; other != nil {
		return other
	}
	return b.rest
}

func (b byRole) Counter(f *Family, labels []Label) CounterSeries { return b.of(f).Counter(f, labels) }

func (b byRole) Gauge(f *Family, labels []Label) GaugeSeries { return b.of(f).Gauge(f, labels) }

func (b byRole) Histogram(f *Family, labels []Label, bounds []float64) HistogramSeries {
	return b.of(f).Histogram(f, labels, bounds)
}

// Observer takes samples one by one, as the histograms of most libraries do.
type Observer interface{ Observe(v float64) }

// Weighted makes a histogram series of an observer: a sample of weight n is n samples of an equal share. That takes n
// calls, where a Store takes one; the sums of both differ by rounding alone.
func Weighted(o Observer) HistogramSeries { return weighted{o} }

type weighted struct{ Observer }

func (w weighted) ObserveWeighted(total float64, weight uint64) {
	share := total / float64(weight)
	for range weight {
		w.Observe(share)
	}
}
