package metrics

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"runtime/debug"
	"slices"
	"unicode/utf8"

	"github.com/prometheus/common/model"
	"golang.org/x/sys/unix"
)

// maxStoreBytes is the size above which a file is not read.
const maxStoreBytes = 1 << 28

// A fault is why a store, or a series of it, can't be read; the value of the label reason. StoreFaults says what they mean.
type fault string

const (
	faultList    fault = "list"
	faultMissing fault = "missing"
	faultTooMany fault = "limit"
	faultOpen    fault = "open"
	faultHeader  fault = "header"
	faultRecord  fault = "record"
	faultFamily  fault = "family"
	faultLabels  fault = "labels"
	faultValue   fault = "value"
	faultSpace   fault = "space"
	faultTwice   fault = "duplicate"
)

// FaultInfo explains a fault of the stores.
type FaultInfo struct {
	Reason  string // the value of the label reason
	Meaning string
}

// StoreFaults lists the values of the label reason of sluice_metrics_store_faults_total.
func StoreFaults() []FaultInfo {
	return []FaultInfo{
		{string(faultList), "A scrape could not list the directory of the stores. Stores that were read before are exposed; new ones are not found."},
		{string(faultMissing), "The file of a store has gone from the directory. What is in it is exposed as before, since its memory is still mapped."},
		{string(faultTooMany), "A scrape left a file unread because the directory has more than are read. The API process's own store is read first, then " +
			"those that were read before, then those of processes that live."},
		{string(faultOpen), "A file could not be opened or mapped, or has become shorter. When the system was short of something (file descriptors, memory), " +
			"the next scrape tries again and counts again; what was read before stays."},
		{string(faultHeader), "A file is no store, or not one of this release. It is left alone."},
		{string(faultTwice), "A file claims to be the store of a process that is read from another file: somebody has copied or renamed it. It is left alone, " +
			"so nothing counts twice."},
		{string(faultRecord), "A record is malformed: the series before it in the file are exposed, those behind it are not."},
		{string(faultFamily), "A series of no family, or of another kind or with other bounds than its family. It is not exposed."},
		{string(faultLabels), "A series whose labels can't be exposed."},
		{string(faultValue), "A counter or histogram below 0 or not finite. It is not exposed any more."},
		{string(faultSpace), "A series found no room in the file of its process: the disk is full. Its values are kept in memory and written as soon as there " +
			"is room. Until then those of the API process are exposed all the same, those of a rank are not; they are lost when the process ends before. " +
			"`sluice_metrics_store_waiting_series` says how many wait."},
	}
}

type faultError struct {
	fault fault
	err   error
}

func (e *faultError) Error() string { return fmt.Sprintf("%s: %v", e.fault, e.err) }
func (e *faultError) Unwrap() error { return e.err }

// process is the header of a store.
type process struct {
	pid   int
	start uint64
	space uint64
	file  uint64 // fileHash of the name that the store was made with: a process may have several
}

// processOf reads what a header says about who wrote the store.
func processOf(header []byte) process {
	return process{
		pid: int(word(header, offPID).Load()), start: word(header, offStart).Load(), space: word(header, offSpace).Load(),
		file: word(header, offFile).Load(),
	}
}

// fileHash tells the names of stores apart.
func fileHash(name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // never fails
	return h.Sum64()
}

// alive reports whether the process that wrote the store lives.
func (p process) alive() bool {
	start, ok := processStart(p.pid)
	return ok && start == p.start
}

// storedSeries is a record of a store: what it is, and where its values are.
type storedSeries struct {
	key    string // the meta, which is the same in all stores
	family *Family
	labels []Label
	bounds []float64
	at     int  // offset of the values in the memory that they are in
	bad    bool // its values can't be exposed; that was counted

	merged *mergedSeries // what it is a part of; nil until the first scrape
	counts []uint64      // of a histogram: where a scrape reads them to
}

// reader reads the store of one process. Its memory is what somebody else may write or cut at any moment: every offset is
// checked, and a page that has gone is an error.
type reader struct {
	path    string
	file    *os.File // of a store of this process, which is open already; nil: path is opened
	process process
	life    life
	mapped  []byte
	parsed  int // offset behind the last record that was read
	series  []*storedSeries
	stopped bool // a fault ended the reading of records
	missing bool // the file has gone from the directory; that was counted
	fault   func(fault)
}

// openReader maps a store and checks its header. file is that of a store of this process, or nil.
func openReader(path string, file *os.File, onFault func(fault)) (r *reader, err error) {
	r = &reader{path: path, file: file, life: life{handle: -1}, parsed: headerBytes, fault: onFault}
	if err := r.remap(headerBytes); err != nil {
		return nil, err
	}
	err = guarded(func() error {
		h := r.mapped
		switch {
		case word(h, offMagic).Load() != magic:
			return errors.New("not a metrics store")
		case word(h, offVersion).Load() != version:
			return fmt.Errorf("version %d, not %d", word(h, offVersion).Load(), version)
		case word(h, offSegment).Load() != segmentBytes:
			return fmt.Errorf("segments of %d bytes, not %d", word(h, offSegment).Load(), segmentBytes)
		case word(h, offPID).Load() > math.MaxInt32:
			return fmt.Errorf("process id %d", word(h, offPID).Load())
		}
		r.process = processOf(h)
		return nil
	})
	if err != nil {
		return nil, errors.Join(asFault(faultHeader, err), r.close())
	}
	return r, nil
}

// passing reports whether an error may be gone at the next scrape: the system was short of something.
func passing(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.EINTR, unix.EIO, unix.ENOBUFS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// asFault keeps a fault that err already is.
func asFault(f fault, err error) error {
	var fe *faultError
	if err == nil || errors.As(err, &fe) {
		return err
	}
	return &faultError{f, err}
}

// remap maps the file as it is now, at least need bytes of it.
func (r *reader) remap(need int) error {
	fd := 0
	if r.file != nil {
		fd = int(r.file.Fd())
	} else {
		var err error
		// O_NONBLOCK: a FIFO of that name must not stop the scrape. O_NOFOLLOW: neither must a link out of the directory.
		if fd, err = unix.Open(r.path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0); err != nil {
			return &faultError{faultOpen, err}
		}
		defer func() { _ = unix.Close(fd) }() // opened to read: nothing can be lost
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &faultError{faultOpen, err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return &faultError{faultOpen, errors.New("not a regular file")}
	case st.Size < int64(need):
		return &faultError{faultHeader, fmt.Errorf("%d bytes are not enough, %d are needed", st.Size, need)}
	case st.Size > maxStoreBytes:
		return &faultError{faultHeader, fmt.Errorf("%d bytes are too many", st.Size)}
	}
	mapped, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return &faultError{faultOpen, err}
	}
	if err := r.unmap(); err != nil {
		return &faultError{faultOpen, err}
	}
	r.mapped = mapped
	return nil
}

func (r *reader) close() error {
	r.life.forget()
	return r.unmap()
}

func (r *reader) unmap() error {
	if r.mapped == nil {
		return nil
	}
	m := r.mapped
	r.mapped = nil
	return unix.Munmap(m)
}

// guarded runs f on mapped memory: a page that isn't there any more is an error of the file.
func guarded(f func() error) (err error) {
	before := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(before)
	defer func() {
		if p := recover(); p != nil {
			if e, ok := p.(error); ok {
				if _, isFault := p.(interface{ Addr() uintptr }); isFault {
					err = &faultError{faultOpen, fmt.Errorf("a part of the file has gone: %w", e)}
					return
				}
			}
			panic(p)
		}
	}()
	return f()
}

// update reads the records that were added since the last call.
func (r *reader) update() error {
	used := 0
	err := guarded(func() error {
		u := word(r.mapped, offUsed).Load()
		if u > maxStoreBytes || u%8 != 0 || int(u) < r.parsed {
			return &faultError{faultHeader, fmt.Errorf("%d bytes in use after %d", u, r.parsed)}
		}
		used = int(u)
		return nil
	})
	if err != nil {
		return err
	}
	if used > len(r.mapped) {
		if err := r.remap(used); err != nil {
			return err
		}
	}
	return guarded(func() error {
		for r.parsed < used {
			n, err := r.record(r.mapped[r.parsed:used])
			if err != nil {
				return &faultError{faultRecord, fmt.Errorf("at offset %d: %w", r.parsed, err)}
			}
			r.parsed += n
		}
		return nil
	})
}

// record reads the record that b begins with and gives its size.
func (r *reader) record(b []byte) (size int, err error) {
	if len(b) < 8 {
		return 0, errRecord
	}
	size = int(binary.NativeEndian.Uint32(b[0:]))
	kind := binary.NativeEndian.Uint32(b[4:])
	if size < 8 || size%8 != 0 || size > len(b) || size > segmentBytes {
		return 0, errRecord
	}
	if kind == kindPadding {
		return size, nil
	}
	if size < recordBytes || kind < uint32(Counter) || kind > uint32(Histogram) {
		return 0, errRecord
	}
	metaBytes, bounds := int(binary.NativeEndian.Uint32(b[8:])), int(binary.NativeEndian.Uint32(b[12:]))
	if metaBytes > segmentBytes || bounds > maxBounds || kind != uint32(Histogram) && bounds != 0 ||
		size != recordBytes+align8(metaBytes)+valueBytes(Kind(kind), bounds) {
		return 0, errRecord
	}
	meta := b[recordBytes : recordBytes+metaBytes]
	name, labels, err := decodeMeta(meta)
	if err != nil {
		return 0, err
	}
	var upper []float64
	for i := range bounds {
		upper = append(upper, math.Float64frombits(binary.NativeEndian.Uint64(b[recordBytes+align8(metaBytes)+8+8*i:])))
	}
	s, f := newStoredSeries(string(meta), name, Kind(kind), labels, upper)
	if f != "" {
		r.fault(f)
		return size, nil
	}
	s.at = r.parsed + recordBytes + align8(metaBytes)
	r.series = append(r.series, s)
	return size, nil
}

// newStoredSeries makes a series that can be exposed, or says why it can't.
func newStoredSeries(key, name string, kind Kind, labels []Label, bounds []float64) (*storedSeries, fault) {
	f, ok := Lookup(name)
	switch {
	case !ok || f.Kind != kind || f.Source == FromStore || kind == Histogram && !validBounds(bounds):
		return nil, faultFamily
	case !validLabels(kind, labels):
		return nil, faultLabels
	}
	s := &storedSeries{key: key, family: f, labels: labels, bounds: bounds}
	if kind == Histogram {
		s.counts = make([]uint64, len(bounds)+1)
	}
	return s, ""
}

func validBounds(bounds []float64) bool {
	sorted, err := CheckBuckets(bounds)
	return err == nil && slices.Equal(sorted, bounds)
}

// validLabels: le is that of buckets in a histogram, and a label like others elsewhere.
func validLabels(kind Kind, labels []Label) bool {
	for i, l := range labels {
		if !model.LegacyValidation.IsValidLabelName(l.Name) || l.Name == "le" && kind == Histogram || l.Name == "__name__" || !utf8.ValidString(l.Value) || i > 0 && labels[i-1].Name >= l.Name {
			return false
		}
	}
	return true
}

// isStore reports whether a directory entry is the store of a process.
func isStore(e os.DirEntry) bool {
	name := e.Name()
	return len(name) > len(storeSuffix) && name[0] != '.' && name[len(name)-len(storeSuffix):] == storeSuffix
}
