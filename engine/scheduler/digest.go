package scheduler

import (
	"encoding/json"
	"fmt"
)

// digest is a hash of every decision since the start, in order: batches, pages, tokens, retractions, ends. Two ranks that
// decided differently once have different digests from then on.
type digest uint64

// note adds numbers.
func (d *digest) note(values ...uint64) {
	h := uint64(*d)
	for _, v := range values {
		h = (h ^ v) * 0x9e3779b97f4a7c15
		h ^= h >> 29
	}
	*d = digest(h)
}

func (d *digest) text(s string) {
	d.note(uint64(len(s)))
	for len(s) > 0 {
		var v uint64
		n := min(len(s), 8)
		for i := range n {
			v = v<<8 | uint64(s[i])
		}
		d.note(v)
		s = s[n:]
	}
}

func (d *digest) ids(ids []int32) {
	d.note(uint64(len(ids)))
	for _, id := range ids {
		d.note(uint64(uint32(id)))
	}
}

func (d digest) String() string { return fmt.Sprintf("%016x", uint64(d)) }

// What kinds of decision begin with, so that one can't be taken for another.
const (
	notedConfig uint64 = iota
	notedLaunch
	notedToken
	notedPages
	notedRelease
	notedRetraction
	notedReceipt
	notedEnd
)

// newDigest begins with the configuration, as far as it decides.
func newDigest(c Config) (digest, error) {
	c.WeightBytes, c.KVBytes, c.AvailableBytes, c.Windowed = 0, 0, 0, nil // a stage's own
	raw, err := json.Marshal(c)
	if err != nil {
		return 0, fmt.Errorf("scheduler config: encode it for the digest: %w", err)
	}
	var d digest
	d.note(notedConfig)
	d.text(string(raw))
	return d, nil
}
