package metrics

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
)

// A store is one file per process: a header, then segments. Every number is 8-aligned and in the machine's byte order; a
// store is read on the machine that writes it.
//
//	header     [headerBytes]  magic, version, pid, process start, segment size, used, pid namespace, name of the process,
//	                          series that found no room since the start, series that wait for room now, hash of the file's name
//	segment    [segmentBytes] records, one after the other, the last one padding
//	record     size uint32 · kind uint32 · meta bytes uint32 · bounds uint32 · meta, padded to 8 · values
//	meta       name and label pairs sorted by label name, each as length uint16 and bytes
//	values     counter: value · gauge: value, wall nanoseconds of the write
//	           histogram: sum, [bounds] bounds, [bounds+1] counts of the single buckets
//
// Invariants: a record lies in one segment; bytes in [headerBytes, used) are whole records whose first 16 bytes and meta
// never change again; used only grows, and is written after the record. So a writer may be killed at any instruction and
// the file is valid before and after it.
const (
	magic        = uint64(0x31535445434c4c53) // "SLLCETS1"
	version      = uint64(1)
	headerBytes  = 4096
	segmentBytes = 64 << 10 // a multiple of the page size
	recordBytes  = 16       // of a record before its meta

	offMagic   = 0
	offVersion = 8
	offPID     = 16
	offStart   = 24 // start of the process in clock ticks since boot
	offSegment = 32 // bytes of a segment
	offUsed    = 40
	offSpace   = 48 // inode of the process-id namespace that the id is of
	offName    = 56 // length uint16 and bytes
	maxName    = 255
	offNoRoom  = 320
	offWaiting = 328
	offFile    = 336 // fileHash of the name that the store was made with

	kindPadding = uint32(255)
)

var errRecord = errors.New("record is malformed")

// encodeMeta writes the name and the labels, which it sorts.
func encodeMeta(name string, labels []Label) []byte {
	sorted := slices.Clone(labels)
	slices.SortFunc(sorted, func(a, b Label) int { return strings.Compare(a.Name, b.Name) })
	most := min(maxLabelBytes, maxMetaBytes/(1+2*len(sorted)))
	meta := appendString(nil, name, maxLabelBytes)
	for _, l := range sorted {
		meta = appendString(appendString(meta, l.Name, most), l.Value, most)
	}
	return meta
}

// appendString writes a string, at most so many bytes of it.
func appendString(b []byte, s string, most int) []byte {
	s = strings.ToValidUTF8(s[:min(len(s), most)], "\uFFFD")
	s = strings.ToValidUTF8(s[:min(len(s), most)], "") // a replacement is longer than what it replaces
	return append(binary.NativeEndian.AppendUint16(b, uint16(len(s))), s...)
}

const (
	// maxLabelBytes is where a label value is cut, or earlier where there are so many labels that they would have more than
	// maxMetaBytes, so that a series fits a segment.
	maxLabelBytes = 1024
	maxMetaBytes  = 40 << 10
)

func decodeMeta(meta []byte) (name string, labels []Label, err error) {
	name, meta, err = cutString(meta)
	for err == nil && len(meta) > 0 {
		var l Label
		if l.Name, meta, err = cutString(meta); err == nil {
			l.Value, meta, err = cutString(meta)
		}
		labels = append(labels, l)
	}
	return name, labels, err
}

func cutString(b []byte) (s string, rest []byte, err error) {
	if len(b) < 2 {
		return "", nil, errRecord
	}
	n := int(binary.NativeEndian.Uint16(b))
	if len(b) < 2+n {
		return "", nil, errRecord
	}
	return string(b[2 : 2+n]), b[2+n:], nil
}

// valueBytes is the size of a series' values.
func valueBytes(kind Kind, bounds int) int {
	switch kind {
	case Counter:
		return 8
	case Gauge:
		return 16
	default:
		return 8 + 8*bounds + 8*(bounds+1)
	}
}

func align8(n int) int { return (n + 7) &^ 7 }
