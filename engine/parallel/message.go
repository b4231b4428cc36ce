package parallel

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// kind is the operation that a message belongs to.
type kind uint8

const (
	kindShare kind = iota + 1
	kindExchange
	kindReduce
	kindScatter // the first half of a long all-reduce
	kindGather
	kindBroadcast
	kindActivations
	kindEnd
)

func (k kind) String() string {
	if k == 0 || k >= kindEnd {
		return fmt.Sprintf("message kind %d", uint8(k))
	}
	return [...]string{"", "share", "exchange", "all-reduce", "reduce-scatter", "gather", "broadcast", "activations"}[k]
}

// A message is a header of headerBytes and a payload. All integers are big-endian.
//
//	0     kind
//	1     magic
//	2:4   0
//	4:8   sequence number among the messages of the channel from this rank to that one, from 0, modulo 2^32
//	8:12  payload bytes
//	12:16 CRC32C of header[0:12]
const (
	headerBytes = 16
	magic       = 0xb7
)

// maxMessageBytes bounds what a peer can make this rank allocate.
const maxMessageBytes = 1 << 30

type header struct {
	kind     kind
	sequence uint32
	length   int // payload bytes
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (h header) put(b *[headerBytes]byte) {
	b[0], b[1], b[2], b[3] = byte(h.kind), magic, 0, 0
	binary.BigEndian.PutUint32(b[4:8], h.sequence)
	binary.BigEndian.PutUint32(b[8:12], uint32(h.length))
	binary.BigEndian.PutUint32(b[12:16], crc32.Checksum(b[:12], castagnoli))
}

func parseHeader(b *[headerBytes]byte) (header, error) {
	h := header{kind: kind(b[0]), sequence: binary.BigEndian.Uint32(b[4:8]), length: int(binary.BigEndian.Uint32(b[8:12]))}
	if got, want := crc32.Checksum(b[:12], castagnoli), binary.BigEndian.Uint32(b[12:16]); got != want {
		return header{}, fmt.Errorf("sent a damaged header: checksum is %08x, its bytes give %08x", want, got)
	}
	if h.kind == 0 || h.kind >= kindEnd || b[1] != magic || b[2] != 0 || b[3] != 0 {
		return header{}, fmt.Errorf("sent a header of another protocol: % x; run the same release on all nodes", b[:4])
	}
	if h.length > maxMessageBytes {
		return header{}, fmt.Errorf("sent a %v of %d bytes: at most %d are allowed", h.kind, h.length, maxMessageBytes)
	}
	return h, nil
}

// due checks that the header is the one that this rank waits for; length -1 accepts any.
func (h header) due(k kind, sequence uint32, length int) error {
	if h.kind == k && h.sequence == sequence && (length < 0 || h.length == length) {
		return nil
	}
	want := fmt.Sprintf("%v %d of %d bytes", k, sequence, length)
	if length < 0 {
		want = fmt.Sprintf("%v %d", k, sequence)
	}
	return fmt.Errorf("sent %v %d of %d bytes where %s is due: the ranks are out of step", h.kind, h.sequence, h.length, want)
}
