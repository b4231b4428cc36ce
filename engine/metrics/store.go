package metrics

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// storeSuffix ends the file name of a store.
const storeSuffix = ".metrics"

// Store is the metrics of one process, in a file that other processes read while it is written. An update is a few
// atomic operations on mapped memory: no allocation, no system call, no lock. All memory is backed by blocks that the file
// has, so a disk that becomes full ends no update; a series that finds no room waits for it, see unplaced.
type Store struct {
	path string
	log  *slog.Logger

	// What a test replaces.
	reserve func(file *os.File, offset, n int) error // makes the file longer
	later   func(func()) (cancel func() bool)        // calls once, in retryEvery

	mu       sync.Mutex // guards the fields below; updates of series don't take it
	file     *os.File
	header   []byte
	tail     []byte // the mapped segment that records are added to
	base     int    // offset of tail in the file
	used     int    // offset in the file behind the last record
	series   map[string]slot
	unplaced []*unplaced // in the order in which they came; word offWaiting of the header is how many
	retry    func() bool // cancels the next try to place them; nil: none is due
	closed   bool

	// growing: the file becomes longer, while mu is free. Records are added meanwhile as far as the tail has room.
	growing bool
	grown   sync.Cond // of mu: that is over
}

// slot is where a series' values are: in mapped memory, or with a series that waits.
//
// Invariant: exactly one of the two is there.
type slot struct {
	mapped unsafe.Pointer
	waits  *unplaced
}

var _ Backend = (*Store)(nil)

// retryEvery is the time between two tries to find room for series that wait.
const retryEvery = time.Second

// OpenStore creates the file of this process in dir, which must exist. process names it for people: "api", "rank-0".
// A process may open several stores. log is told when series find no room, and when they have found it.
func OpenStore(dir, process string, log *slog.Logger) (*Store, error) {
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
	s := &Store{
		file: file, series: map[string]slot{}, log: log, reserve: reserve,
		later: func(f func()) (cancel func() bool) { return time.AfterFunc(retryEvery, f).Stop },
	}
	s.grown.L = &s.mu
	if err := s.init(process); err != nil {
		return nil, errors.Join(fmt.Errorf("open metrics store %s: %w", file.Name(), err), file.Close(), os.Remove(file.Name()))
	}
	// Readers look for names without a leading dot, so they never see a header that is half written.
	final := filepath.Join(dir, strings.TrimPrefix(filepath.Base(file.Name()), "."))
	if err := os.Rename(file.Name(), final); err != nil {
		return nil, errors.Join(fmt.Errorf("open metrics store: %w", err), file.Close(), os.Remove(file.Name()))
	}
	// Nobody may write to it but through the descriptor that is open: whoever cuts a file that is mapped ends its process.
	if err := file.Chmod(0o400); err != nil {
		return nil, errors.Join(fmt.Errorf("open metrics store: %w", err), file.Close(), os.Remove(final))
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
	if err := s.reserve(s.file, 0, headerBytes+segmentBytes); err != nil {
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
		{offUsed, uint64(s.used)},
		{offFile, fileHash(strings.TrimPrefix(filepath.Base(s.file.Name()), "."))}, {offMagic, magic},
	} {
		word(s.header, w.at).Store(w.v)
	}
	copy(s.header[offName:], appendString(nil, process, maxName))
	return nil
}

func (s *Store) mapFile(offset, n int) ([]byte, error) {
	return unix.Mmap(int(s.file.Fd()), int64(offset), n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// word is the 8 bytes at an aligned offset of mapped memory.
func word(b []byte, at int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&b[at : at+8][0]))
}

// Close closes the file, after a last try to place what waits. It stays readable for others, and the memory stays mapped:
// series may still be written. New ones find no room any more.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if s.growing {
			s.grown.Wait()
		} else if !s.place() && !s.growing {
			break
		}
	}
	if s.closed {
		return nil
	}
	if s.retry != nil {
		s.retry()
		s.retry = nil
	}
	s.closed = true
	return s.file.Close()
}

// Counter gives the series of a counter.
func (s *Store) Counter(f *Family, labels []Label) CounterSeries {
	at := s.slot(f, Counter, labels, nil)
	if at.waits != nil {
		return waitingCounter{at.waits}
	}
	return (*storedCounter)(at.mapped)
}

// Gauge gives the series of a gauge. It is exposed once it was written.
func (s *Store) Gauge(f *Family, labels []Label) GaugeSeries {
	at := s.slot(f, Gauge, labels, nil)
	if at.waits != nil {
		return waitingGauge{at.waits}
	}
	return (*storedGauge)(at.mapped)
}

// Histogram gives the series of a histogram.
func (s *Store) Histogram(f *Family, labels []Label, bounds []float64) HistogramSeries {
	if bounds == nil {
		bounds = f.Buckets
	}
	at := s.slot(f, Histogram, labels, bounds)
	if at.waits != nil {
		return waitingHistogram{at.waits}
	}
	h := histogramAt(at.mapped, bounds)
	return &h
}

// slot gives the place of a series' values.
func (s *Store) slot(f *Family, kind Kind, labels []Label, bounds []float64) slot {
	if f.Kind != kind {
		panic(fmt.Sprintf("metrics: %s is a %s, not a %s", f.Name, f.Kind, kind))
	}
	meta := encodeMeta(f.Name, labels)
	size := recordSize(kind, meta, bounds)
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok := s.series[string(meta)]; ok {
		return at
	}
	for {
		again := s.place() // those that wait come first
		var err error
		if !again {
			again, err = s.room(size)
		}
		at, ok := s.series[string(meta)] // another may have made it while the file became longer, or did not
		if ok {
			return at
		}
		if again {
			continue
		}
		if err == nil {
			at.mapped = s.add(kind, meta, bounds, nil)
		} else {
			at.waits = s.wait(kind, meta, bounds, err)
		}
		s.series[string(meta)] = at
		return at
	}
}

// errTooLarge is the end of a series that no segment holds: it waits for ever.
var errTooLarge = errors.New("the series is larger than a segment")

// recordSize is how many bytes a record takes.
func recordSize(kind Kind, meta []byte, bounds []float64) int {
	return recordBytes + align8(len(meta)) + valueBytes(kind, len(bounds))
}

// room makes room for a record of so many bytes. The caller holds s.mu, which is given up while the file becomes longer: then
// again says that others may have done anything meanwhile, and that there may be room or not.
func (s *Store) room(size int) (again bool, err error) {
	switch {
	case s.closed:
		return false, os.ErrClosed
	case size > segmentBytes:
		return false, errTooLarge
	case s.base+segmentBytes-s.used >= size:
		return false, nil
	case s.growing:
		s.grown.Wait()
		return true, nil
	}
	if err := s.grow(); err != nil {
		return false, err
	}
	return true, nil
}

// add writes a record with its values, zero or words, and publishes it. There is room for it.
func (s *Store) add(kind Kind, meta []byte, bounds []float64, words []uint64) unsafe.Pointer {
	size := recordSize(kind, meta, bounds)
	rec := s.tail[s.used-s.base:][:size]
	binary.NativeEndian.PutUint32(rec[0:], uint32(size))
	binary.NativeEndian.PutUint32(rec[4:], uint32(kind))
	binary.NativeEndian.PutUint32(rec[8:], uint32(len(meta)))
	binary.NativeEndian.PutUint32(rec[12:], uint32(len(bounds)))
	copy(rec[recordBytes:], meta)
	values := rec[recordBytes+align8(len(meta)):]
	for i, w := range words {
		binary.NativeEndian.PutUint64(values[8*i:], w)
	}
	for i, b := range bounds {
		binary.NativeEndian.PutUint64(values[8+8*i:], math.Float64bits(b))
	}
	s.used += size
	word(s.header, offUsed).Store(uint64(s.used))
	return unsafe.Pointer(&values[0])
}

// grow adds a segment. The segments before stay mapped where they are. After an error all is as it was, but for the length
// of the file. A file system that has to write zeros takes its time, so s.mu is given up meanwhile: series that are there are
// found, scrapes read, and who needs room waits in room.
func (s *Store) grow() error {
	next := s.base + segmentBytes
	if next+segmentBytes > maxStoreBytes {
		return fmt.Errorf("the store has the %d bytes that are read of one", s.base+segmentBytes)
	}
	s.growing = true
	s.mu.Unlock()
	var tail []byte
	err := s.reserve(s.file, next, segmentBytes)
	if err == nil {
		tail, err = s.mapFile(next, segmentBytes)
	}
	s.mu.Lock()
	s.growing = false
	s.grown.Broadcast()
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

// reserve makes a file at least offset + n bytes long, never shorter, and takes the blocks of [offset, offset+n) at once: on
// a full disk a write to mapped memory without a block ends the process.
func reserve(file *os.File, offset, n int) error {
	for {
		err := unix.Fallocate(int(file.Fd()), 0, int64(offset), int64(n))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
			return writeZeros(file, offset, n)
		}
		return err
	}
}

// writeZeros reserves where the file system can't: it writes zeros, and waits until they have their blocks.
func writeZeros(file *os.File, offset, n int) error {
	if _, err := file.WriteAt(make([]byte, n), int64(offset)); err != nil {
		return err
	}
	return file.Sync()
}
