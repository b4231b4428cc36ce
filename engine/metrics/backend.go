package metrics

// Label is a name and a value.
type Label struct{ Name, Value string }

// CounterSeries is a series that only grows.
type CounterSeries interface {
	// Add adds v >= 0.
	Add(v float64)
}

// GaugeSeries is a series that holds a value.
type GaugeSeries interface {
	// Set writes v as of a wall time in Unix nanoseconds, which decides between processes.
	Set(v float64, wallNanos int64)
	// Add adds v, which may be negative.
	Add(v float64, wallNanos int64)
}

// HistogramSeries is a series of samples.
type HistogramSeries interface {
	// Observe adds a sample.
	Observe(v float64)
	// ObserveWeighted adds weight > 0 samples of total/weight each: the sum grows by total once, one bucket by weight.
	ObserveWeighted(total float64, weight uint64)
}

// Backend makes series. A Store is one; tests and embedders may give another. Calls with the same family and labels give
// the same series. All of it is safe for concurrent use.
type Backend interface {
	Counter(f *Family, labels []Label) CounterSeries
	Gauge(f *Family, labels []Label) GaugeSeries
	// Histogram has the given bounds, or the family's when nil.
	Histogram(f *Family, labels []Label, bounds []float64) HistogramSeries
}
