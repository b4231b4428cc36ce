package parallel

import (
	"path/filepath"
	"unsafe"
)

// segmentName is the file of shared memory in the folder of a host's ranks. It is gone once all have mapped it.
const segmentName = "world"

// segment is the memory that the ranks of a host share: a ring for each channel and ordered pair of ranks.
type segment struct {
	rings map[ringKey]*ring
	unmap func() error
}

type ringKey struct {
	channel  channel
	from, to int // ranks
}

// layout gives the offset of every ring among the ranks [from, to) of a host, and the size of all.
func layout(p Place, from, to int) (offsets map[ringKey]int, bytes int) {
	offsets = map[ringKey]int{}
	for c := control; c < channels; c++ {
		for a := from; a < to; a++ {
			for b := from; b < to; b++ {
				if a != b && c.carries(p.other(a), p.other(b)) {
					offsets[ringKey{c, a, b}] = bytes
					bytes += marksBytes + c.ringBytes()
				}
			}
		}
	}
	return offsets, bytes
}

func openSegment(dir string, p Place, from, to int) (*segment, error) {
	offsets, bytes := layout(p, from, to)
	memory, unmap, err := mapShared(filepath.Join(dir, segmentName), bytes)
	if err != nil {
		return nil, err
	}
	s := &segment{rings: map[ringKey]*ring{}, unmap: unmap}
	for key, at := range offsets {
		s.rings[key] = &ring{
			marks: (*marks)(unsafe.Pointer(&memory[at])),
			data:  memory[at+marksBytes : at+marksBytes+key.channel.ringBytes()],
			park:  sharedParker(),
		}
	}
	return s, nil
}
