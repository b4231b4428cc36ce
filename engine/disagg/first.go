package disagg

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/sluice-dev/sluice/engine/request"
)

// The payload of a first frame, all integers big-endian:
//
//	0:4    token
//	4:8    its logprob, IEEE 754
//	8:16   cached tokens
//	16:24  seed
//	24:32  page bytes sent on this connection
//	32:    nothing, or a count of positions (4 bytes) and so many positions: the sampled token's, then the prompt's
//
// A position is token, logprob, then two counts (2 bytes each) of further tokens and these, each a token and a logprob.

// maxAlternatives bounds the further tokens of one kind at a position.
const maxAlternatives = math.MaxUint16

// MaxFirstBytes is the largest payload of a first frame.
const MaxFirstBytes = maxFirstBytes

// FirstLogprobsBytes is how many of MaxFirstBytes the logprobs of so many positions take, the sampled token's included,
// with so many further tokens each.
func FirstLogprobsBytes(positions, further int) int {
	return firstBytes + 4 + positions*(positionBytes+8*further)
}

// positionBytes are those of a position without further tokens.
const positionBytes = 8 + 4

// encodeFirst gives the payload, with no bytes sent; it fails when that would be larger than a peer takes.
func encodeFirst(f First) ([]byte, error) {
	size := firstBytes
	var positions []request.TokenLogprobs
	if f.Logprobs != nil {
		positions = append(positions, *f.Logprobs)
		positions = append(positions, f.Prompt...)
		size += 4
	} else if len(f.Prompt) > 0 {
		return nil, fmt.Errorf("logprobs of the prompt without those of the first token")
	}
	for i := range positions {
		p := &positions[i]
		if len(p.Top) > maxAlternatives || len(p.Asked) > maxAlternatives {
			return nil, fmt.Errorf("%d and %d logprobs at a position: at most %d of a kind can be handed over", len(p.Top), len(p.Asked), maxAlternatives)
		}
		size += positionBytes + 8*(len(p.Top)+len(p.Asked))
	}
	if size > maxFirstBytes {
		return nil, fmt.Errorf("logprobs of %d positions take %d bytes, at most %d can be handed over: ask for fewer", len(positions), size, maxFirstBytes)
	}
	b := make([]byte, 0, size)
	b = binary.BigEndian.AppendUint32(b, uint32(f.Token))
	b = binary.BigEndian.AppendUint32(b, math.Float32bits(f.Logprob))
	b = binary.BigEndian.AppendUint64(b, uint64(f.CachedTokens))
	b = binary.BigEndian.AppendUint64(b, f.Seed)
	b = binary.BigEndian.AppendUint64(b, 0)
	if positions == nil {
		return b, nil
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(positions)))
	for i := range positions {
		p := &positions[i]
		b = appendLogprob(b, p.TokenLogprob)
		b = binary.BigEndian.AppendUint16(b, uint16(len(p.Top)))
		b = binary.BigEndian.AppendUint16(b, uint16(len(p.Asked)))
		for _, one := range p.Top {
			b = appendLogprob(b, one)
		}
		for _, one := range p.Asked {
			b = appendLogprob(b, one)
		}
	}
	return b, nil
}

func appendLogprob(b []byte, l request.TokenLogprob) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(l.Token))
	return binary.BigEndian.AppendUint32(b, math.Float32bits(l.Logprob))
}

// firstFrame makes the frame of a payload, which it leaves alone, for a connection on which so many bytes of pages were sent.
func firstFrame(payload []byte, sent int64) []byte {
	b := make([]byte, headerBytes+len(payload))
	copy(b[headerBytes:], payload)
	binary.BigEndian.PutUint64(b[headerBytes+firstBytes-8:], uint64(sent))
	putHeader(b, frameFirst, 0, 0, b[headerBytes:])
	return b
}

// decodeFirst reads the payload of a prompt of so many tokens. It allocates no more than some times the payload.
func decodeFirst(b []byte, promptTokens int) (f First, sent int64, err error) {
	if len(b) < firstBytes {
		return First{}, 0, faultf(ReasonProtocol, "first frame has %d bytes, want at least %d", len(b), firstBytes)
	}
	f = First{
		Token:   int32(binary.BigEndian.Uint32(b[0:4])),
		Logprob: math.Float32frombits(binary.BigEndian.Uint32(b[4:8])),
		Seed:    binary.BigEndian.Uint64(b[16:24]),
	}
	cached := binary.BigEndian.Uint64(b[8:16])
	sent = int64(binary.BigEndian.Uint64(b[24:32]))
	if f.Token < 0 {
		return First{}, 0, faultf(ReasonProtocol, "first frame holds token %d", f.Token)
	}
	if cached > uint64(promptTokens) {
		return First{}, 0, faultf(ReasonProtocol, "first frame claims %d cached tokens of a prompt of %d", cached, promptTokens)
	}
	f.CachedTokens = int(cached)
	if len(b) == firstBytes {
		return f, sent, nil
	}
	positions, err := decodePositions(b[firstBytes:], promptTokens)
	if err != nil {
		return First{}, 0, err
	}
	f.Logprobs = &positions[0]
	if len(positions) > 1 {
		f.Prompt = positions[1:]
	}
	return f, sent, nil
}

// decodePositions reads the positions, at least one and at most one for each token of the prompt.
func decodePositions(b []byte, promptTokens int) ([]request.TokenLogprobs, error) {
	r := logprobReader{b: b}
	count := int(r.uint(4))
	if r.short || count < 1 || count > promptTokens {
		return nil, faultf(ReasonProtocol, "first frame holds the logprobs of %d positions of a prompt of %d tokens", count, promptTokens)
	}
	var positions []request.TokenLogprobs
	for range count {
		p := request.TokenLogprobs{TokenLogprob: r.logprob()}
		top, asked := int(r.uint(2)), int(r.uint(2))
		p.Top, p.Asked = r.logprobs(top), r.logprobs(asked)
		if r.short {
			return nil, faultf(ReasonProtocol, "first frame ends within the logprobs of position %d of %d", len(positions), count)
		}
		positions = append(positions, p)
	}
	if len(r.b) > 0 {
		return nil, faultf(ReasonProtocol, "first frame has %d bytes too many", len(r.b))
	}
	return positions, nil
}

// logprobReader reads from b; short says that it ended too early, and then zeros follow.
type logprobReader struct {
	b     []byte
	short bool
}

// uint reads an integer of so many bytes.
func (r *logprobReader) uint(bytes int) uint32 {
	if len(r.b) < bytes {
		r.b, r.short = nil, true
		return 0
	}
	v := uint32(0)
	for _, c := range r.b[:bytes] {
		v = v<<8 | uint32(c)
	}
	r.b = r.b[bytes:]
	return v
}

func (r *logprobReader) logprob() request.TokenLogprob {
	return request.TokenLogprob{Token: int32(r.uint(4)), Logprob: math.Float32frombits(r.uint(4))}
}

func (r *logprobReader) logprobs(count int) []request.TokenLogprob {
	if count == 0 || len(r.b) < 8*count {
		r.short = r.short || count > 0
		return nil
	}
	list := make([]request.TokenLogprob, count)
	for i := range list {
		list[i] = r.logprob()
	}
	return list
}
