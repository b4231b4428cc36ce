package metrics

import (
	"cmp"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Gatherer merges the stores of a directory at every scrape. It is safe for concurrent use.
//
// What could be read once is exposed from then on, whatever becomes of the file's name: no counter goes backwards because
// a scrape found less. What can't be read is counted, and the rest is exposed; see Gather for the one error there is.
type Gatherer struct {
	mu     sync.Mutex
	stores stores
	merged map[string]*mergedSeries
	sorted []*mergedSeries // of merged and the own ones, by family name and labels; nil when one was added

	// The store's own series, which always have a value.
	faults          map[fault]*mergedSeries
	alive, ended    *mergedSeries
	series, waiting *mergedSeries
}

var _ prometheus.Gatherer = (*Gatherer)(nil)

// NewGatherer gives a gatherer of the stores in dir, which must exist.
func NewGatherer(dir string) *Gatherer {
	g := &Gatherer{merged: map[string]*mergedSeries{}, faults: map[fault]*mergedSeries{}}
	for _, f := range StoreFaults() {
		g.faults[fault(f.Reason)] = newMerged(storeFaults, []Label{{"reason", f.Reason}}, nil)
	}
	g.stores = newStores(dir, func(f fault, n int) { g.faults[f].value += float64(n) })
	g.alive = newMerged(storeProcesses, []Label{{"state", "alive"}}, nil)
	g.ended = newMerged(storeProcesses, []Label{{"state", "ended"}}, nil)
	g.series = newMerged(metricsSeries, nil, nil)
	g.waiting = newMerged(storeWaiting, nil, nil)
	return g
}

// Guard makes a store of this process one that is read first and through the process's own descriptor, with its series that
// found no room. cut, which may be nil, is held meanwhile, so that what a writer changes under it is read whole. The order
// of locks is cut, then the store's own.
func (g *Gatherer) Guard(s *Store, cut sync.Locker) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stores.own[filepath.Base(s.Path())] = &ownStore{store: s, cut: cut}
}

// Close unmaps the files. The gatherer can be used again.
func (g *Gatherer) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stores.close()
}

// Gather gives the families that have series, sorted by name. The error says that the directory could not be listed, and
// never could: nobody knows what there is.
func (g *Gatherer) Gather() ([]*dto.MetricFamily, error) { return g.gather(0) }

// gather is Gather for an exposition that has more lines than those of the stores.
func (g *Gatherer) gather(moreLines int) ([]*dto.MetricFamily, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	all, err := g.collect(moreLines)
	if err != nil {
		return nil, err
	}
	var out []*dto.MetricFamily
	for _, m := range all {
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
func (g *Gatherer) appendText(b []byte, s syntax, moreLines int) ([]byte, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	all, err := g.collect(moreLines)
	if err != nil {
		return b, err
	}
	var family *Family
	for _, m := range all {
		if !m.seen {
			continue
		}
		if m.family != family {
			family = m.family
			b = appendHead(b, family, s)
		}
		b = m.appendSeries(b, s)
	}
	return b, nil
}

// collect merges the stores as they are now, and gives all series in the order of an exposition: by name, then by the
// number and the values of the labels. Only those that were seen have a value.
func (g *Gatherer) collect(moreLines int) ([]*mergedSeries, error) {
	if err := g.stores.find(); err != nil {
		return nil, err
	}
	for _, m := range g.merged {
		m.seen, m.value, m.wall = false, 0, 0
		clear(m.counts)
	}
	g.alive.value, g.ended.value, g.waiting.value, g.faults[faultSpace].value = 0, 0, 0, 0
	for _, name := range slices.Sorted(maps.Keys(g.stores.own)) {
		g.mergeOwn(g.stores.own[name])
	}
	for _, name := range slices.Sorted(maps.Keys(g.stores.readers)) {
		r := g.stores.readers[name]
		g.stores.update(r)
		if err := guarded(func() error { g.merge(r); return nil }); err != nil {
			g.stores.refuse(name, err)
		}
	}
	if g.sorted == nil {
		own := slices.AppendSeq([]*mergedSeries{g.alive, g.ended, g.series, g.waiting}, maps.Values(g.faults))
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
	return g.sorted, nil
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

// mergeOwn merges a store of this process, and the series of it that have no room.
func (g *Gatherer) mergeOwn(o *ownStore) {
	if o.cut != nil {
		o.cut.Lock()
		defer o.cut.Unlock()
	}
	o.store.mu.Lock() // no series moves to the file meanwhile
	defer o.store.mu.Unlock()
	if r := g.stores.ownReader(o); r != nil {
		g.stores.update(r)
		if err := guarded(func() error { g.merge(r); return nil }); err != nil {
			g.stores.count(err)
		}
	}
	for _, u := range o.store.unplaced {
		name, labels, err := decodeMeta(u.meta)
		if err != nil {
			continue // it was encoded by this process
		}
		if s, f := newStoredSeries(string(u.meta), name, u.kind, labels, u.bounds); f == "" { // else it is counted once it is placed
			g.mergedOf(s).add(u.read(), s, true)
		}
	}
}

// merge adds the values of one store.
func (g *Gatherer) merge(r *reader) {
	lives := !r.life.ended
	if lives {
		g.alive.value++
	} else {
		g.ended.value++
	}
	if noRoom, waiting := word(r.mapped, offNoRoom).Load(), word(r.mapped, offWaiting).Load(); noRoom <= maxCount && waiting <= noRoom {
		g.faults[faultSpace].value += float64(noRoom)
		g.waiting.value += float64(waiting)
	}
	for _, s := range r.series {
		if s.bad {
			continue
		}
		if s.merged == nil {
			s.merged = g.mergedOf(s)
		}
		if f := s.merged.add(r.mapped, s, lives); f != "" {
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
