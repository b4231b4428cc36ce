package metrics

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// storeSuffix ends the file name of a store.
const storeSuffix = ".metrics"

// Store is the metrics of one process, in a file that other processes read while it is written. An update is a few
// atomic operations on mapped memory: no allocation, no system call, no lock.
type Store struct {
	path string

	mu     sync.Mutex // guards the fields below; updates of series don't take it
	file   *os.File
	header []byte
	tail   []byte // the mapped segment that records are added to
	base   int    // offset of tail in the file
	used   int    // offset in the file behind the last record
	series map[string]unsafe.Pointer
	closed bool

	failed atomic.Uint64 // series that could not be made; they count nowhere
}

var _ Backend = (*Store)(nil)

// OpenStore creates the file of this process in dir, which must exist. process names it for people: "api", "rank-0".
// A process may open several stores.
func OpenStore(dir, process string) (*Store, error) {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, process)
	file, err := os.CreateTemp(dir, fmt.Sprintf(".%.64s-%d-*%s", name, os.Getpid(), storeSuffix))
	if err != nil {
		return nil, fmt.Errorf("open metrics store: %w", err)
	}
	s := &Store{file: file, series: map[string]unsafe.Pointer{}}
	if err := s.init(process); err != nil {
		return nil, errors.Join(fmt.Errorf("open metrics store %s: %w", file.Name(), err), file.Close(), os.Remove(file.Name()))
	}
	// Readers look for names without a leading dot, so they never see a header that is half written.
	final := filepath.Join(dir, strings.TrimPrefix(filepath.Base(file.Name()), "."))
	if err := os.Rename(file.Name(), final); err != nil {
		return nil, errors.Join(fmt.Errorf("open metrics store: %w", err), file.Close(), os.Remove(file.Name()))
	}
	s.path = final
	return s, nil
}

// Path is the file of the store.
func (s *Store) Path() string { return s.path }

func (s *Store) init(process string) error {
	start, ok := processStart(os.Getpid())
	if !ok {
		return fmt.Errorf("the start of process %d is not known: /proc is needed", os.Getpid())
	}
	space, err := processSpace()
	if err != nil {
		return err
	}
	if err := s.extend(0, headerBytes+segmentBytes); err != nil {
		return err
	}
	if s.header, err = s.mapFile(0, headerBytes); err != nil {
		return err
	}
	if s.tail, err = s.mapFile(headerBytes, segmentBytes); err != nil {
		return err
	}
	s.base, s.used = headerBytes, headerBytes
	for _, w := range []struct {
		at int
		v  uint64
	}{
		{offVersion, version}, {offPID, uint64(os.Getpid())}, {offStart, start}, {offSegment, segmentBytes}, {offSpace, space},
		{offUsed, uint64(s.used)}, {offMagic, magic},
	} {
		word(s.header, w.at).Store(w.v)
	}
	copy(s.header[offName:], appendString(nil, process[:min(len(process), maxName)]))
	return nil
}

func (s *Store) mapFile(offset, n int) ([]byte, error) {
	return unix.Mmap(int(s.file.Fd()), int64(offset), n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// word is the 8 bytes at an aligned offset of mapped memory.
func word(b []byte, at int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&b[at : at+8][0]))
}

// Close closes the file. It stays readable for others, and the memory stays mapped: series may still be written.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return s.file.Close()
}

// Failed counts the series that could not be made because the disk was full or the store closed. Their updates are lost.
func (s *Store) Failed() uint64 { return s.failed.Load() }

// Counter gives the series of a counter.
func (s *Store) Counter(f *Family, labels []Label) CounterSeries {
	return (*storedCounter)(s.slot(f, Counter, labels, nil))
}

// Gauge gives the series of a gauge. It is exposed once it was written.
func (s *Store) Gauge(f *Family, labels []Label) GaugeSeries {
	return (*storedGauge)(s.slot(f, Gauge, labels, nil))
}

// Histogram gives the series of a histogram.
func (s *Store) Histogram(f *Family, labels []Label, bounds []float64) HistogramSeries {
	if bounds == nil {
		bounds = f.Buckets
	}
	words := s.slot(f, Histogram, labels, bounds)
	h := &storedHistogram{bounds: bounds, sum: (*atomic.Uint64)(words)}
	h.counts = unsafe.Slice((*atomic.Uint64)(unsafe.Add(words, 8+8*len(bounds))), len(bounds)+1)
	return h
}

// slot gives the values of a series in mapped memory. When there is no room it gives memory that nobody reads.
func (s *Store) slot(f *Family, kind Kind, labels []Label, bounds []float64) unsafe.Pointer {
	if f.Kind != kind {
		panic(fmt.Sprintf("metrics: %s is a %s, not a %s", f.Name, f.Kind, kind))
	}
	meta := encodeMeta(f.Name, labels)
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.series[string(meta)]; ok {
		return p
	}
	p, err := s.add(kind, meta, bounds)
	if err != nil {
		s.failed.Add(1)
		words := make([]uint64, valueBytes(kind, len(bounds))/8)
		p = unsafe.Pointer(&words[0])
	}
	s.series[string(meta)] = p
	return p
}

var errFull = errors.New("series is larger than a segment")

// add writes a record and publishes it.
func (s *Store) add(kind Kind, meta []byte, bounds []float64) (unsafe.Pointer, error) {
	if s.closed {
		return nil, os.ErrClosed
	}
	size := recordBytes + align8(len(meta)) + valueBytes(kind, len(bounds))
	if size > segmentBytes {
		return nil, errFull
	}
	if s.base+segmentBytes-s.used < size {
		if err := s.grow(); err != nil {
			return nil, err
		}
	}
	rec := s.tail[s.used-s.base:][:size]
	binary.NativeEndian.PutUint32(rec[0:], uint32(size))
	binary.NativeEndian.PutUint32(rec[4:], uint32(kind))
	binary.NativeEndian.PutUint32(rec[8:], uint32(len(meta)))
	binary.NativeEndian.PutUint32(rec[12:], uint32(len(bounds)))
	copy(rec[recordBytes:], meta)
	values := rec[recordBytes+align8(len(meta)):]
	for i, b := range bounds {
		binary.NativeEndian.PutUint64(values[8+8*i:], math.Float64bits(b))
	}
	s.used += size
	word(s.header, offUsed).Store(uint64(s.used))
	return unsafe.Pointer(&values[0]), nil
}

// grow adds a segment. The segments before stay mapped where they are.
func (s *Store) grow() error {
	next := s.base + segmentBytes
	if err := s.extend(next, segmentBytes); err != nil {
		return err
	}
	tail, err := s.mapFile(next, segmentBytes)
	if err != nil {
		return err
	}
	if rest := next - s.used; rest > 0 { // sizes are multiples of 8, so at least 8 bytes
		pad := s.tail[s.used-s.base:]
		binary.NativeEndian.PutUint32(pad[0:], uint32(rest))
		binary.NativeEndian.PutUint32(pad[4:], kindPadding)
	}
	s.tail, s.base, s.used = tail, next, next
	return nil
}

// extend makes the file n bytes longer, from offset. It takes the blocks at once: on a full disk a write to mapped memory
// would end the process.
func (s *Store) extend(offset, n int) error {
	err := unix.Fallocate(int(s.file.Fd()), 0, int64(offset), int64(n))
	if errors.Is(err, unix.EOPNOTSUPP) {
		return s.file.Truncate(int64(offset + n))
	}
	return err
}

// addFloat adds v to the float in w.
func addFloat(w *atomic.Uint64, v float64) {
	for {
		old := w.Load()
		if w.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+v)) {
			return
		}
	}
}

type storedCounter atomic.Uint64

func (c *storedCounter) Add(v float64) {
	if v > 0 {
		addFloat((*atomic.Uint64)(c), v)
	}
}

type storedGauge struct{ value, wall atomic.Uint64 }

func (g *storedGauge) Set(v float64, wallNanos int64) {
	g.value.Store(math.Float64bits(v))
	g.wall.Store(uint64(wallNanos))
}

func (g *storedGauge) Add(v float64, wallNanos int64) {
	addFloat(&g.value, v)
	g.wall.Store(uint64(wallNanos))
}

type storedHistogram struct {
	bounds []float64
	sum    *atomic.Uint64
	counts []atomic.Uint64
}

func (h *storedHistogram) Observe(v float64) { h.observe(v, v, 1) }

func (h *storedHistogram) ObserveWeighted(total float64, weight uint64) {
	if weight > 0 {
		h.observe(total/float64(weight), total, weight)
	}
}

// observe adds the total to the sum and the weight to the bucket of v, which is the first whose bound is not below v.
func (h *storedHistogram) observe(v, total float64, weight uint64) {
	if math.IsNaN(v) {
		return
	}
	lo, hi := 0, len(h.bounds)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if h.bounds[mid] < v {
			lo = mid + 1
			continue
		}
		hi = mid
	}
	h.counts[lo].Add(weight)
	addFloat(h.sum, total)
}
