package metrics

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// unplaced is a series that found no room in the file of its store: the disk is full, or may not hold more of this user's.
// Its values are in memory of its own until there is room, and then they are carried over, so that nothing that was counted
// is lost. Until then the process that has the store exposes it by itself, if it exposes anything (see Gatherer.Guard). An
// update takes a lock, which one of a placed series doesn't.
type unplaced struct {
	kind   Kind
	meta   []byte
	bounds []float64

	mu     sync.RWMutex   // held to read while values are updated, to write while they move
	values unsafe.Pointer // where they are: words, or in the file
	words  []uint64
}

// wait makes a series that has no room because of err. The caller holds s.mu.
func (s *Store) wait(kind Kind, meta []byte, bounds []float64, err error) *unplaced {
	u := &unplaced{kind: kind, meta: meta, bounds: bounds, words: make([]uint64, valueBytes(kind, len(bounds))/8)}
	u.values = unsafe.Pointer(&u.words[0])
	if len(s.unplaced) == 0 && !s.closed {
		s.log.Error("series find no room in the metrics store: they are kept in memory, and tried again every second",
			"store", s.path, "error", err, "remedy", "free space where PROMETHEUS_MULTIPROC_DIR or TMPDIR points to")
	}
	s.unplaced = append(s.unplaced, u)
	if s.closed {
		return u
	}
	word(s.header, offNoRoom).Add(1)
	word(s.header, offWaiting).Store(uint64(len(s.unplaced)))
	s.arm()
	return u
}

// arm sees to it that what waits is tried again.
func (s *Store) arm() {
	if s.retry == nil && len(s.unplaced) > 0 {
		s.retry = s.later(s.tryAgain)
	}
}

// tryAgain places what waits, after a while.
func (s *Store) tryAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retry = nil
	for s.place() { // the file has become longer
	}
	if !s.closed {
		s.arm()
	}
}

// place carries the series that wait over to the file, in their order, until there is no room. The caller holds s.mu. When that
// was given up because the file has become longer, place comes back at once and says so: there is more to do.
func (s *Store) place() (again bool) {
	if s.closed {
		return false
	}
	for i := 0; i < len(s.unplaced); {
		u := s.unplaced[i]
		again, err := s.room(recordSize(u.kind, u.meta, u.bounds))
		switch {
		case again:
			return true
		case errors.Is(err, errTooLarge):
			i++
			continue
		case err != nil:
			return false
		}
		s.carry(u)
		s.unplaced = slices.Delete(s.unplaced, i, i+1)
		word(s.header, offWaiting).Store(uint64(len(s.unplaced)))
		if len(s.unplaced) == 0 {
			s.log.Info("the series that found no room in the metrics store are there now, with all that they counted", "store", s.path)
		}
	}
	return false
}

// carry moves one series, for which there is room. No update is under way meanwhile, so none is lost.
func (s *Store) carry(u *unplaced) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.values = s.add(u.kind, u.meta, u.bounds, u.words)
	s.series[string(u.meta)] = slot{mapped: u.values}
}

// read gives a copy of the values, for a scrape.
func (u *unplaced) read() []byte {
	u.mu.Lock() // no update is under way: they fit together
	defer u.mu.Unlock()
	b := make([]byte, 8*len(u.words))
	for i := range u.words {
		word(b, 8*i).Store((*atomic.Uint64)(unsafe.Add(u.values, 8*i)).Load())
	}
	return b
}

type waitingCounter struct{ *unplaced }

func (c waitingCounter) Add(v float64) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	(*storedCounter)(c.values).Add(v)
}

type waitingGauge struct{ *unplaced }

func (g waitingGauge) Set(v float64, wallNanos int64) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	(*storedGauge)(g.values).Set(v, wallNanos)
}

func (g waitingGauge) Add(v float64, wallNanos int64) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	(*storedGauge)(g.values).Add(v, wallNanos)
}

type waitingHistogram struct{ *unplaced }

func (h waitingHistogram) Observe(v float64) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	at := histogramAt(h.values, h.bounds)
	at.Observe(v)
}

func (h waitingHistogram) ObserveWeighted(total float64, weight uint64) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	at := histogramAt(h.values, h.bounds)
	at.ObserveWeighted(total, weight)
}
