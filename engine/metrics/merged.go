package metrics

import (
	"math"
	"slices"

	dto "github.com/prometheus/client_model/go"
)

// mergedSeries is one series over all processes.
type mergedSeries struct {
	family *Family
	labels []Label // sorted by name
	bounds []float64

	pairs     []*dto.LabelPair // of labels
	templates [syntaxes]*template

	// The values of the scrape in progress.
	seen   bool
	value  float64 // counter, gauge; histogram: the sum
	wall   uint64  // newest write
	counts []uint64
}

func newMerged(f *Family, labels []Label, bounds []float64) *mergedSeries {
	m := &mergedSeries{family: f, labels: labels, bounds: bounds}
	for i := range labels {
		m.pairs = append(m.pairs, &dto.LabelPair{Name: &labels[i].Name, Value: &labels[i].Value})
	}
	if f.Kind == Histogram {
		m.counts = make([]uint64, len(bounds)+1)
	}
	return m
}

// add adds what a series holds in memory, of a process that lives or not.
func (m *mergedSeries) add(memory []byte, s *storedSeries, lives bool) fault {
	switch s.family.Kind {
	case Counter:
		return m.addCounter(memory, s)
	case Gauge:
		m.addGauge(memory, s, lives)
		return ""
	default:
		return m.addHistogram(memory, s)
	}
}

func (m *mergedSeries) addCounter(memory []byte, s *storedSeries) fault {
	v := math.Float64frombits(word(memory, s.at).Load())
	if !(v >= 0) || math.IsInf(v, 1) {
		return faultValue
	}
	m.seen = true
	m.value += v
	return ""
}

func (m *mergedSeries) addGauge(memory []byte, s *storedSeries, lives bool) {
	// The writer writes the time last and the reader reads it first, so the value is of this write or of a later one.
	wall := word(memory, s.at+8).Load()
	value := math.Float64frombits(word(memory, s.at).Load())
	switch {
	case wall == 0: // never written
	case m.family.Merge == LiveSum && lives:
		m.seen = true
		m.value += value
	case m.family.Merge == MostRecent && (!m.seen || wall > m.wall):
		m.seen = true
		m.value, m.wall = value, wall
	}
}

// maxCount keeps counts exact as floats and their sums from wrapping.
const maxCount = 1 << 53

// addHistogram adds what the store holds at this moment. An observation writes its bucket and then the sum; here the sum is
// read first. So every observation that is in the sum is in a bucket too: the count may be ahead of the sum by those that
// are under way, never behind it. Count and buckets are of one reading: the count is the last bucket, by construction.
func (m *mergedSeries) addHistogram(memory []byte, s *storedSeries) fault {
	if !slices.Equal(m.bounds, s.bounds) {
		return faultFamily
	}
	sum := math.Float64frombits(word(memory, s.at).Load())
	if math.IsNaN(sum) || math.IsInf(sum, 0) {
		return faultValue
	}
	first := s.at + 8 + 8*len(s.bounds)
	read := s.counts
	for i := range read {
		if read[i] = word(memory, first+8*i).Load(); read[i] > maxCount {
			return faultValue
		}
	}
	for i, n := range read {
		m.counts[i] += n
	}
	m.seen = true
	m.value += sum
	return ""
}

func dtoType(k Kind) dto.MetricType {
	switch k {
	case Counter:
		return dto.MetricType_COUNTER
	case Gauge:
		return dto.MetricType_GAUGE
	default:
		return dto.MetricType_HISTOGRAM
	}
}

func (m *mergedSeries) metric() *dto.Metric {
	out := &dto.Metric{Label: m.pairs}
	value := m.value
	switch m.family.Kind {
	case Counter:
		out.Counter = &dto.Counter{Value: &value}
	case Gauge:
		out.Gauge = &dto.Gauge{Value: &value}
	case Histogram:
		buckets := make([]dto.Bucket, len(m.bounds))
		cumulative := make([]uint64, len(m.counts))
		pointers := make([]*dto.Bucket, len(m.bounds))
		total := uint64(0)
		for i, n := range m.counts {
			total += n
			cumulative[i] = total
			if i < len(m.bounds) {
				buckets[i].UpperBound, buckets[i].CumulativeCount = &m.bounds[i], &cumulative[i]
				pointers[i] = &buckets[i]
			}
		}
		out.Histogram = &dto.Histogram{SampleCount: &total, SampleSum: &value, Bucket: pointers}
	}
	return out
}
