package metrics

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"math"
	nethttp "net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// maxStores is how many files of a directory are read.
const maxStores = 4096

// Gatherer merges the stores of a directory at every scrape. It is safe for concurrent use.
type Gatherer struct {
	dir string

	mu      sync.Mutex
	readers map[string]*reader // by file name; nil for a file that can't be read, which was counted
	merged  map[string]*mergedSeries
	sorted  []*mergedSeries // of merged, by family name and labels; nil when one was added
	faults  map[fault]float64
}

var _ prometheus.Gatherer = (*Gatherer)(nil)

// NewGatherer gives a gatherer of the stores in dir. It also counts what it could not read: no file makes a scrape fail.
func NewGatherer(dir string) *Gatherer {
	g := &Gatherer{dir: dir, readers: map[string]*reader{}, merged: map[string]*mergedSeries{}, faults: map[fault]float64{}}
	for _, f := range faults {
		g.faults[f] = 0
	}
	return g
}

// Handler serves the exposition, as text or OpenMetrics: the stores, and go_* and process_* of this process.
func Handler(g *Gatherer) nethttp.Handler {
	own := prometheus.NewRegistry()
	own.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(prometheus.Gatherers{g, own}, promhttp.HandlerOpts{EnableOpenMetrics: true})
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
	pairs  []*dto.LabelPair
	bounds []float64

	// The values of the scrape in progress.
	seen   bool
	value  float64 // counter, gauge; histogram: the sum
	wall   uint64  // newest write
	counts []uint64
}

// Gather gives the families that have series, sorted by name.
func (g *Gatherer) Gather() ([]*dto.MetricFamily, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
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
		if err := guarded(func() error { g.merge(r, lives); return nil }); err != nil {
			g.drop(name, err)
		}
	}
	return g.families(alive, len(names)), nil
}

// list gives the names of the stores in order, and forgets the readers of those that have gone.
func (g *Gatherer) list() []string {
	entries, err := os.ReadDir(g.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		g.faults[faultOpen]++
	}
	var names []string
	for _, e := range entries {
		if isStore(e) {
			names = append(names, e.Name())
		}
	}
	if len(names) > maxStores {
		g.faults[faultTooMany]++
		names = names[:maxStores]
	}
	for name, r := range g.readers {
		if _, there := slices.BinarySearch(names, name); there {
			continue
		}
		if r != nil && r.close() != nil {
			g.faults[faultOpen]++
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
		r, err = openReader(filepath.Join(g.dir, name), func(f fault) { g.faults[f]++ })
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
		g.faults[fe.fault]++
		return
	}
	g.faults[faultOpen]++
}

// drop leaves a file alone from now on.
func (g *Gatherer) drop(name string, err error) {
	g.count(err)
	if r := g.readers[name]; r != nil && r.close() != nil {
		g.faults[faultOpen]++
	}
	g.readers[name] = nil
}

// merge adds the values of one store.
func (g *Gatherer) merge(r *reader, lives bool) {
	for _, s := range r.series {
		if s.bad {
			continue
		}
		m := g.merged[s.key]
		if m == nil {
			m = newMerged(s)
			g.merged[s.key] = m
			g.sorted = nil
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
			g.faults[f]++
		}
	}
}

func newMerged(s *storedSeries) *mergedSeries {
	m := &mergedSeries{family: s.family, bounds: s.bounds}
	for _, l := range s.labels {
		m.pairs = append(m.pairs, &dto.LabelPair{Name: &l.Name, Value: &l.Value})
	}
	if s.family.Kind == Histogram {
		m.counts = make([]uint64, len(s.bounds)+1)
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
	value, wall := math.Float64frombits(word(r.mapped, s.at).Load()), word(r.mapped, s.at+8).Load()
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

func (m *mergedSeries) addHistogram(r *reader, s *storedSeries) fault {
	if !slices.Equal(m.bounds, s.bounds) {
		return faultFamily
	}
	sum := math.Float64frombits(word(r.mapped, s.at).Load())
	if math.IsNaN(sum) || math.IsInf(sum, 0) {
		return faultValue
	}
	first := s.at + 8 + 8*len(s.bounds)
	for i := range m.counts {
		if word(r.mapped, first+8*i).Load() > maxCount {
			return faultValue
		}
	}
	for i := range m.counts {
		m.counts[i] += word(r.mapped, first+8*i).Load()
	}
	m.seen = true
	m.value += sum
	return ""
}

// families turns the merged series into the exposition's types, sorted by name and labels.
func (g *Gatherer) families(alive, stores int) []*dto.MetricFamily {
	if g.sorted == nil {
		g.sorted = slices.SortedFunc(maps.Values(g.merged), func(a, b *mergedSeries) int {
			return cmp.Or(cmp.Compare(a.family.Name, b.family.Name), comparePairs(a.pairs, b.pairs))
		})
	}
	var out []*dto.MetricFamily
	add := func(f *Family, m *dto.Metric) {
		if len(out) == 0 || out[len(out)-1].Name != &f.Name {
			out = append(out, &dto.MetricFamily{Name: &f.Name, Help: &f.Help, Type: dtoType(f.Kind).Enum()})
		}
		last := out[len(out)-1]
		last.Metric = append(last.Metric, m)
	}
	for _, m := range g.sorted {
		if m.seen {
			add(m.family, m.metric())
		}
	}
	// The names of the store's own families come after those of the others.
	pair := func(f *Family, value string) []*dto.LabelPair {
		return []*dto.LabelPair{{Name: &f.Labels[0], Value: &value}}
	}
	for _, f := range slices.Sorted(slices.Values(faults)) {
		n := g.faults[f]
		add(storeFaults, &dto.Metric{Label: pair(storeFaults, string(f)), Counter: &dto.Counter{Value: &n}})
	}
	living, ended := float64(alive), float64(stores-alive)
	add(storeProcesses, &dto.Metric{Label: pair(storeProcesses, "alive"), Gauge: &dto.Gauge{Value: &living}})
	add(storeProcesses, &dto.Metric{Label: pair(storeProcesses, "ended"), Gauge: &dto.Gauge{Value: &ended}})
	return out
}

func comparePairs(a, b []*dto.LabelPair) int {
	return slices.CompareFunc(a, b, func(x, y *dto.LabelPair) int {
		return cmp.Or(cmp.Compare(x.GetName(), y.GetName()), cmp.Compare(x.GetValue(), y.GetValue()))
	})
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
