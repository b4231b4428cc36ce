package runner

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler"
)

// What the sampling rank tells: the number of rows, then each row. Integers are unsigned varints, a token is one plus 1, a
// logprob is its 4 bytes, little-endian. A row is
//
//	token, logprob
//	0, or 1 when there are logprobs; then
//	  0, or 1 and the sampled token's logprobs
//	  the number of prompt logprobs and each of them
//
// and logprobs of a position are token, logprob, the number of top tokens and each (token, logprob), the same of those
// that were asked for.

func appendSampled(b []byte, sampled []scheduler.Sampled) []byte {
	b = binary.AppendUvarint(b, uint64(len(sampled)))
	for _, s := range sampled {
		b = appendLogprob(b, request.TokenLogprob{Token: s.Token, Logprob: s.Logprob})
		b = appendBool(b, s.Logprobs != nil)
		if s.Logprobs == nil {
			continue
		}
		b = appendBool(b, s.Logprobs.Sampled != nil)
		if s.Logprobs.Sampled != nil {
			b = appendPosition(b, *s.Logprobs.Sampled)
		}
		b = binary.AppendUvarint(b, uint64(len(s.Logprobs.Prompt)))
		for _, p := range s.Logprobs.Prompt {
			b = appendPosition(b, p)
		}
	}
	return b
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendLogprob(b []byte, l request.TokenLogprob) []byte {
	b = binary.AppendUvarint(b, uint64(uint32(l.Token+1)))
	return binary.LittleEndian.AppendUint32(b, math.Float32bits(l.Logprob))
}

func appendPosition(b []byte, p request.TokenLogprobs) []byte {
	b = appendLogprob(b, p.TokenLogprob)
	for _, list := range [][]request.TokenLogprob{p.Top, p.Asked} {
		b = binary.AppendUvarint(b, uint64(len(list)))
		for _, l := range list {
			b = appendLogprob(b, l)
		}
	}
	return b
}

var errSampled = errors.New("what the sampling rank told is damaged")

// parseSampled reads what appendSampled wrote. A list of none comes back as nil.
func parseSampled(b []byte) ([]scheduler.Sampled, error) {
	r := sampledReader{b: b}
	sampled := make([]scheduler.Sampled, r.count(6))
	for i := range sampled {
		first := r.logprob()
		sampled[i] = scheduler.Sampled{Token: first.Token, Logprob: first.Logprob}
		if !r.bool() {
			continue
		}
		l := &scheduler.Logprobs{}
		if r.bool() {
			p := r.position()
			l.Sampled = &p
		}
		if n := r.count(7); n > 0 {
			l.Prompt = make([]request.TokenLogprobs, n)
			for j := range l.Prompt {
				l.Prompt[j] = r.position()
			}
		}
		sampled[i].Logprobs = l
	}
	if r.bad {
		return nil, errSampled
	}
	if len(r.b) > 0 {
		return nil, fmt.Errorf("%w: %d bytes follow the last row", errSampled, len(r.b))
	}
	return sampled, nil
}

// sampledReader gives zeros once something was bad.
type sampledReader struct {
	b   []byte
	bad bool
}

func (r *sampledReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || r.bad {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

// count reads the number of things that take at least so many bytes each.
func (r *sampledReader) count(bytesEach int) int {
	n := r.uvarint()
	if n > uint64(len(r.b)/bytesEach) {
		r.bad = true
		return 0
	}
	return int(n)
}

func (r *sampledReader) bool() bool {
	v := r.uvarint()
	if v > 1 {
		r.bad = true
	}
	return v == 1 && !r.bad
}

func (r *sampledReader) logprob() request.TokenLogprob {
	token := r.uvarint()
	if token > math.MaxUint32 || len(r.b) < 4 || r.bad {
		r.bad = true
		return request.TokenLogprob{}
	}
	l := request.TokenLogprob{Token: int32(uint32(token)) - 1, Logprob: math.Float32frombits(binary.LittleEndian.Uint32(r.b))}
	r.b = r.b[4:]
	return l
}

func (r *sampledReader) position() request.TokenLogprobs {
	p := request.TokenLogprobs{TokenLogprob: r.logprob()}
	for _, list := range []*[]request.TokenLogprob{&p.Top, &p.Asked} {
		if n := r.count(5); n > 0 {
			*list = make([]request.TokenLogprob, n)
			for i := range *list {
				(*list)[i] = r.logprob()
			}
		}
	}
	return p
}
