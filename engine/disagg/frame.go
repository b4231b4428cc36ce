package disagg

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/internal/peer"
)

// A frame is a header of headerBytes and a payload:
//
//	0     type
//	1     0
//	2:4   layer    page frames only, else 0: of the model
//	4:8   ordinal  page frames only, else 0: which page of the sequence, from 0
//	8:12  payload length in bytes
//	12:16 CRC32C over header[0:12] and the payload
//
// All integers are big-endian. Every type has a largest payload, checked before a byte of the payload is read.
const headerBytes = 16

// frameType is the first byte of a frame.
type frameType uint8

const (
	frameHello     frameType = 1 + iota // decode → prefill: hello, JSON
	frameChallenge                      // prefill → decode: challenge, JSON
	frameJoin                           // decode → prefill: proof [32], then join, JSON
	frameProof                          // prefill → decode: proof [32]
	frameAccept                         // prefill → decode: the room is open
	frameAllocated                      // decode → prefill: the pages are there
	framePage                           // prefill → decode: one layer of one page
	frameFirst                          // prefill → decode: first token; nothing follows
	frameAck                            // decode → prefill: everything arrived, page bytes [8]; nothing follows
	frameError                          // both: reason, the request's outcome, text; nothing follows
	framePing                           // both: a sign of life
	frameTypeEnd
)

var frameNames = [...]string{"frame 0", "hello", "challenge", "join", "proof", "accept", "allocated", "page", "first", "ack", "error", "ping"}

func (t frameType) String() string {
	if int(t) < len(frameNames) {
		return frameNames[t]
	}
	return fmt.Sprintf("frame %d", uint8(t))
}

const (
	proofBytes      = peer.ProofBytes
	firstBytes      = 32       // of a first frame without logprobs
	ackBytes        = 8        // page bytes received on this connection
	maxFirstBytes   = 64 << 20 // with them: those of a long prompt
	maxHelloBytes   = 512
	maxJoinBytes    = proofBytes + 8192
	maxErrorBytes   = 1024
	maxControlBytes = maxJoinBytes // of any frame but a page and the first token
)

// limits are the largest payloads of the frames that carry data; zero: none may come.
type limits struct{ page, first int }

// maxPayload is the largest payload of a type.
func (t frameType) maxPayload(m limits) int {
	switch t {
	case frameHello, frameChallenge:
		return maxHelloBytes
	case frameJoin:
		return maxJoinBytes
	case frameProof:
		return proofBytes
	case framePage:
		return m.page
	case frameFirst:
		return m.first
	case frameAck:
		return ackBytes
	case frameError:
		return maxErrorBytes
	default:
		return 0
	}
}

// header is a parsed frame header.
type header struct {
	typ     frameType
	layer   int
	ordinal int
	length  int // payload bytes
	crc     uint32
	sum     uint32 // CRC32C of the header's first 12 bytes, to go on with over the payload
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// parseHeader reads a header from b[:headerBytes] and checks type and length.
func parseHeader(b []byte, m limits) (header, error) {
	h := header{
		typ:     frameType(b[0]),
		layer:   int(binary.BigEndian.Uint16(b[2:4])),
		ordinal: int(binary.BigEndian.Uint32(b[4:8])),
		length:  int(binary.BigEndian.Uint32(b[8:12])),
		crc:     binary.BigEndian.Uint32(b[12:16]),
		sum:     crc32.Update(0, castagnoli, b[:12]),
	}
	if h.typ == 0 || h.typ >= frameTypeEnd {
		return header{}, faultf(ReasonProtocol, "unknown frame type %d: the peer does not speak this protocol", b[0])
	}
	if b[1] != 0 {
		return header{}, faultf(ReasonProtocol, "%v frame has flags %#x, want 0", h.typ, b[1])
	}
	if limit := h.typ.maxPayload(m); h.length > limit {
		return header{}, faultf(ReasonProtocol, "%v frame of %d bytes, at most %d are allowed", h.typ, h.length, limit)
	}
	if h.typ != framePage && (h.layer != 0 || h.ordinal != 0) {
		return header{}, faultf(ReasonProtocol, "%v frame names layer %d and ordinal %d", h.typ, h.layer, h.ordinal)
	}
	return h, nil
}

// check compares the checksum with the payload.
func (h header) check(payload []byte) error {
	if got := crc32.Update(h.sum, castagnoli, payload); got != h.crc {
		if h.typ == framePage {
			return faultf(ReasonDamaged, "page %d of layer %d: checksum is %08x, its %d bytes give %08x", h.ordinal, h.layer, h.crc, h.length, got)
		}
		return faultf(ReasonDamaged, "%v frame: checksum is %08x, its %d bytes give %08x", h.typ, h.crc, h.length, got)
	}
	return nil
}

// putHeader writes the header of a frame whose payload is given to b[:headerBytes].
func putHeader(b []byte, typ frameType, layer, ordinal int, payload []byte) {
	b[0], b[1] = byte(typ), 0
	binary.BigEndian.PutUint16(b[2:4], uint16(layer))
	binary.BigEndian.PutUint32(b[4:8], uint32(ordinal))
	binary.BigEndian.PutUint32(b[8:12], uint32(len(payload)))
	crc := crc32.Update(crc32.Update(0, castagnoli, b[:12]), castagnoli, payload)
	binary.BigEndian.PutUint32(b[12:16], crc)
}

// control makes a whole frame that is not a page.
func control(typ frameType, payload []byte) []byte {
	b := make([]byte, headerBytes+len(payload))
	copy(b[headerBytes:], payload)
	putHeader(b, typ, 0, 0, b[headerBytes:])
	return b
}

// encodeError makes the payload of an error frame: reason, 0, then outcome and 0 when there is one, then the text.
func encodeError(r Reason, outcome request.Outcome, text string) []byte {
	b := append([]byte(r), 0)
	if outcome != "" {
		b = append(append(b, outcome...), 0)
	}
	b = append(b, strings.ReplaceAll(text, "\x00", "?")...)
	if len(b) > maxErrorBytes {
		b = b[:maxErrorBytes]
	}
	return b
}

// knownReasons are the reasons that a peer may send; another one counts as ReasonProtocol.
var knownReasons = map[Reason]bool{
	ReasonTimeout: true, ReasonPeerDied: true, ReasonAuth: true, ReasonMismatch: true, ReasonStale: true, ReasonDamaged: true,
	ReasonProtocol: true, ReasonAborted: true, ReasonOverload: true, ReasonLocal: true,
}

// decodeError turns an error frame into the fault it reports. The text is made printable: it may end in a log.
func decodeError(b []byte) *fault {
	r, outcome := ReasonProtocol, request.Outcome("")
	reason, text, found := strings.Cut(string(b), "\x00")
	if !found {
		text = reason
	} else if knownReasons[Reason(reason)] {
		r = Reason(reason)
	}
	if o, rest, found := strings.Cut(text, "\x00"); found && request.Outcome(o).Common() {
		outcome, text = request.Outcome(o), rest
	}
	if r == ReasonAborted {
		r = ReasonPeerAborted
	}
	clean := []rune(text)
	for i, c := range clean {
		if c < ' ' || c == 0x7f || c == 0xfffd {
			clean[i] = '?'
		}
	}
	return &fault{reason: r, outcome: outcome, fromPeer: true, err: fmt.Errorf("%s", string(clean))}
}
