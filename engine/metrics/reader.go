package metrics

import (
	"encoding/binary"
	"errors"
	"fmt"
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

// A fault is why a store, or a series of it, can't be read; the value of the label reason.
type fault string

const (
	faultOpen    fault = "open"   // the file can't be opened or mapped, or became shorter
	faultHeader  fault = "header" // magic, version or sizes are wrong
	faultRecord  fault = "record" // a record is malformed; what follows is not read
	faultFamily  fault = "family" // a series of no family, or of another kind or with other bounds than its family
	faultLabels  fault = "labels" // names or values that can't be exposed
	faultValue   fault = "value"  // a counter or histogram below 0 or not finite
	faultTooMany fault = "limit"  // more files than are read
)

var faults = []fault{faultOpen, faultHeader, faultRecord, faultFamily, faultLabels, faultValue, faultTooMany}

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
	at     int  // offset of the values in the file
	bad    bool // its values can't be exposed; that was counted

	merged *mergedSeries // what it is a part of; nil until the first scrape
	counts []uint64      // of a histogram: where a scrape reads them to
}

// reader reads the store of one process. Its memory is what somebody else may write or cut at any moment: every offset is
// checked, and a page that has gone is an error.
type reader struct {
	path    string
	process process
	mapped  []byte
	parsed  int // offset behind the last record that was read
	series  []*storedSeries
	stopped bool // a fault ended the reading of records
	fault   func(fault)
}

// openReader maps a store and checks its header.
func openReader(path string, onFault func(fault)) (r *reader, err error) {
	r = &reader{path: path, parsed: headerBytes, fault: onFault}
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
		r.process = process{pid: int(word(h, offPID).Load()), start: word(h, offStart).Load(), space: word(h, offSpace).Load()}
		return nil
	})
	if err != nil {
		return nil, errors.Join(asFault(faultHeader, err), r.close())
	}
	return r, nil
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
	// O_NONBLOCK: a FIFO of that name must not stop the scrape. O_NOFOLLOW: neither must a link out of the directory.
	fd, err := unix.Open(r.path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return &faultError{faultOpen, err}
	}
	defer func() { _ = unix.Close(fd) }() // opened to read: nothing can be lost
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
	if err := r.close(); err != nil {
		return &faultError{faultOpen, err}
	}
	r.mapped = mapped
	return nil
}

func (r *reader) close() error {
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
	s := &storedSeries{key: string(meta), labels: labels, at: r.parsed + recordBytes + align8(metaBytes)}
	for i := range bounds {
		s.bounds = append(s.bounds, math.Float64frombits(binary.NativeEndian.Uint64(b[recordBytes+align8(metaBytes)+8+8*i:])))
	}
	f, ok := Lookup(name)
	switch {
	case !ok || f.Kind != Kind(kind) || f.Source == FromStore || f.Kind == Histogram && !validBounds(s.bounds):
		r.fault(faultFamily)
		return size, nil
	case !validLabels(f.Kind, labels):
		r.fault(faultLabels)
		return size, nil
	}
	s.family = f
	if f.Kind == Histogram {
		s.counts = make([]uint64, len(s.bounds)+1)
	}
	r.series = append(r.series, s)
	return size, nil
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
