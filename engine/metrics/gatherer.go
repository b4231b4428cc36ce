package metrics

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// maxStores is how many files of a directory are read.
const maxStores = 4096

// Gatherer merges the stores of a directory at every scrape. It is safe for concurrent use.
type Gatherer struct {
	dir string

	mu      sync.Mutex
	cuts    map[string]sync.Locker // by file name: held while the values of the store are read
	readers map[string]*reader     // by file name; nil for a file that can't be read, which was counted
	merged  map[string]*mergedSeries
	sorted  []*mergedSeries // of merged and the own ones, by family name and labels; nil when one was added

	// The store's own series, which always have a value.
	faults       map[fault]*mergedSeries
	alive, ended *mergedSeries
	series       *mergedSeries
}

var _ prometheus.Gatherer = (*Gatherer)(nil)

// NewGatherer gives a gatherer of the stores in dir. It also counts what it could not read: no file makes a scrape fail.
func NewGatherer(dir string) *Gatherer {
	g := &Gatherer{
		dir: dir, cuts: map[string]sync.Locker{}, readers: map[string]*reader{}, merged: map[string]*mergedSeries{}, faults: map[fault]*mergedSeries{},
	}
	for _, f := range faults {
		g.faults[f] = newMerged(storeFaults, []Label{{"reason", string(f)}}, nil)
	}
	g.alive = newMerged(storeProcesses, []Label{{"state", "alive"}}, nil)
	g.ended = newMerged(storeProcesses, []Label{{"state", "ended"}}, nil)
	g.series = newMerged(metricsSeries, nil, nil)
	return g
}

// Guard has cut held while the values of a store of this process are read, so that what a writer changes under it is read
// whole.
func (g *Gatherer) Guard(s *Store, cut sync.Locker) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cuts[filepath.Base(s.Path())] = cut
}

// Close unmaps the files. The gatherer can be used again.
func (g *Gatherer) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for name, r := range g.readers {
		if r != nil {
			errs = append(errs, r.close())
		}
		delete(g.readers, name)
	}
	return errors.Join(errs...)
}

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

// Gather gives the families that have series, sorted by name.
func (g *Gatherer) Gather() ([]*dto.MetricFamily, error) { return g.gather(0) }

// gather is Gather for an exposition that has more lines than those of the stores.
func (g *Gatherer) gather(moreLines int) ([]*dto.MetricFamily, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []*dto.MetricFamily
	for _, m := range g.collect(moreLines) {
		if !m.seen {
			continue
		}
		f := m.family
		if len(out) == 0 || out[len(out)-1].Name != &f.Name {
			out = append(out, &dto.MetricFamily{Name: &f.Name, Help: &f.Help, Type: dtoType(f.Kind).Enum()})
		}
		last := out[len(out)-1]
		last.Metric = append(last.Metric, m.metric())
	}
	return out, nil
}

// appendText writes what gather gives as text.
func (g *Gatherer) appendText(b []byte, s syntax, moreLines int) []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	var family *Family
	for _, m := range g.collect(moreLines) {
		if !m.seen {
			continue
		}
		if m.family != family {
			family = m.family
			b = appendHead(b, family, s)
		}
		b = m.appendSeries(b, s)
	}
	return b
}

// collect merges the stores as they are now, and gives all series in the order of an exposition: by name, then by the
// number and the values of the labels. Only those that were seen have a value.
func (g *Gatherer) collect(moreLines int) []*mergedSeries {
	names := g.list()
	for _, m := range g.merged {
		m.seen, m.value, m.wall = false, 0, 0
		clear(m.counts)
	}
	alive := 0
	for _, name := range names {
		r := g.reader(name)
		if r == nil {
			continue
		}
		lives := r.process.alive()
		if lives {
			alive++
		}
		if err := guarded(func() error { g.mergeUnder(g.cuts[name], r, lives); return nil }); err != nil {
			g.drop(name, err)
		}
	}
	g.alive.value, g.ended.value = float64(alive), float64(len(names)-alive)
	if g.sorted == nil {
		own := slices.AppendSeq([]*mergedSeries{g.alive, g.ended, g.series}, maps.Values(g.faults))
		for _, m := range own {
			m.seen = true
		}
		g.sorted = slices.SortedFunc(maps.Values(g.merged), compareSeries)
		g.sorted = append(g.sorted, own...)
		slices.SortFunc(g.sorted, compareSeries)
	}
	lines := moreLines
	for _, m := range g.sorted {
		if m.seen {
			lines += m.lines()
		}
	}
	g.series.value = float64(lines)
	return g.sorted
}

// compareSeries is the order that client_golang gives to an exposition.
func compareSeries(a, b *mergedSeries) int {
	return cmp.Or(
		cmp.Compare(a.family.Name, b.family.Name),
		cmp.Compare(len(a.labels), len(b.labels)),
		slices.CompareFunc(a.labels, b.labels, func(x, y Label) int { return cmp.Compare(x.Value, y.Value) }),
		slices.CompareFunc(a.labels, b.labels, func(x, y Label) int { return cmp.Compare(x.Name, y.Name) }),
	)
}

// list gives the names of the stores in order, and forgets the readers of those that have gone.
func (g *Gatherer) list() []string {
	entries, err := os.ReadDir(g.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		g.faults[faultOpen].value++
	}
	var names []string
	for _, e := range entries {
		if isStore(e) {
			names = append(names, e.Name())
		}
	}
	if len(names) > maxStores {
		g.faults[faultTooMany].value++
		names = names[:maxStores]
	}
	for name, r := range g.readers {
		if _, there := slices.BinarySearch(names, name); there {
			continue
		}
		if r != nil && r.close() != nil {
			g.faults[faultOpen].value++
		}
		delete(g.readers, name)
	}
	return names
}

// reader gives the reader of a store with all its records read, or nil when it can't be read.
func (g *Gatherer) reader(name string) *reader {
	r, known := g.readers[name]
	if !known {
		var err error
		r, err = openReader(filepath.Join(g.dir, name), func(f fault) { g.faults[f].value++ })
		if err != nil {
			g.drop(name, err)
			return nil
		}
		g.readers[name] = r
	}
	if r == nil || r.stopped {
		return r
	}
	if err := r.update(); err != nil {
		g.count(err)
		r.stopped = true // what was read before stays good
	}
	return r
}

func (g *Gatherer) count(err error) {
	var fe *faultError
	if errors.As(err, &fe) {
		g.faults[fe.fault].value++
		return
	}
	g.faults[faultOpen].value++
}

// drop leaves a file alone from now on.
func (g *Gatherer) drop(name string, err error) {
	g.count(err)
	if r := g.readers[name]; r != nil && r.close() != nil {
		g.faults[faultOpen].value++
	}
	g.readers[name] = nil
}

// mergeUnder merges a store while cut, which may be nil, is held.
func (g *Gatherer) mergeUnder(cut sync.Locker, r *reader, lives bool) {
	if cut != nil {
		cut.Lock()
		defer cut.Unlock()
	}
	g.merge(r, lives)
}

// merge adds the values of one store.
func (g *Gatherer) merge(r *reader, lives bool) {
	for _, s := range r.series {
		if s.bad {
			continue
		}
		m := s.merged
		if m == nil {
			m = g.mergedOf(s)
			s.merged = m
		}
		f := fault("")
		switch s.family.Kind {
		case Counter:
			f = m.addCounter(r, s)
		case Gauge:
			m.addGauge(r, s, lives)
		case Histogram:
			f = m.addHistogram(r, s)
		}
		if f != "" {
			s.bad = true
			g.faults[f].value++
		}
	}
}

// mergedOf finds the series that a stored one is a part of.
func (g *Gatherer) mergedOf(s *storedSeries) *mergedSeries {
	m := g.merged[s.key]
	if m == nil {
		m = newMerged(s.family, s.labels, s.bounds)
		g.merged[s.key] = m
		g.sorted = nil
	}
	return m
}

func (m *mergedSeries) addCounter(r *reader, s *storedSeries) fault {
	v := math.Float64frombits(word(r.mapped, s.at).Load())
	if !(v >= 0) || math.IsInf(v, 1) {
		return faultValue
	}
	m.seen = true
	m.value += v
	return ""
}

func (m *mergedSeries) addGauge(r *reader, s *storedSeries, lives bool) {
	// The writer writes the time last and the reader reads it first, so the value is of this write or of a later one.
	wall := word(r.mapped, s.at+8).Load()
	value := math.Float64frombits(word(r.mapped, s.at).Load())
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
func (m *mergedSeries) addHistogram(r *reader, s *storedSeries) fault {
	if !slices.Equal(m.bounds, s.bounds) {
		return faultFamily
	}
	sum := math.Float64frombits(word(r.mapped, s.at).Load())
	if math.IsNaN(sum) || math.IsInf(sum, 0) {
		return faultValue
	}
	first := s.at + 8 + 8*len(s.bounds)
	read := s.counts
	for i := range read {
		if read[i] = word(r.mapped, first+8*i).Load(); read[i] > maxCount {
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
