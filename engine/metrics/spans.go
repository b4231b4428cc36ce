package metrics

// NewSpansLost gives the counter of a process's lost spans as the function that adds to it. The series reads 0 from then on.
func NewSpansLost(backend Backend) func(spans int64) {
	series := backend.Counter(traceSpansLost, nil)
	return func(spans int64) { series.Add(float64(spans)) }
}
