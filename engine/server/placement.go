package server

import (
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/sluice-dev/sluice/engine/rank"
)

const (
	// dataRankHeader names the data-parallel rank that a request is for; it wins over the body.
	dataRankHeader = "X-Data-Parallel-Rank"
	// routingKeyHeader holds the key by which a router keeps requests together.
	routingKeyHeader = "X-Smg-Routing-Key"

	maxKeyBytes = 1024 // of a routing key, cache salt or extra key
)

// placement says which sequences share KV and where they run.
type placement struct {
	dpRank     *int     // nil: the DP controller chooses
	routingKey string   // "": none
	cacheKeys  []string // [prompts]
}

// readPlacement reads headers and fields that all routes share.
func (s *Server) readPlacement(header http.Header, o *object, prompts int) placement {
	p := placement{dpRank: readDataRank(header, o, s.dataRanks(), s.prefillRanks()), cacheKeys: make([]string, prompts)}
	p.routingKey = header.Get(routingKeyHeader)
	if len(p.routingKey) > maxKeyBytes {
		o.failField(routingKeyHeader, "must have at most %d bytes, not %d", maxKeyBytes, len(p.routingKey))
	}
	if p.routingKey == "" {
		p.routingKey = readKey(o, "routing_key")
	}
	salts := perPrompt(o, "cache_salt", prompts, "", readKey)
	extras := perPrompt(o, "extra_key", prompts, "", readKey)
	for i := range p.cacheKeys {
		p.cacheKeys[i] = extras[i]
		if salts[i] != "" {
			p.cacheKeys[i] = salts[i] + "\x00" + extras[i]
		}
	}
	return p
}

func readKey(o *object, name string) string {
	key := o.string(name, "")
	switch {
	case len(key) > maxKeyBytes:
		o.failField(name, "must have at most %d bytes, not %d", maxKeyBytes, len(key))
	case strings.ContainsRune(key, 0):
		o.failField(name, "must not contain a zero byte")
	}
	return key
}

// dataRanks is the number of data-parallel ranks of the engine.
func (s *Server) dataRanks() int { return s.cfg.DPSize }

// prefillRanks is the number of data-parallel ranks that the prefill half of a request may have: on a decode engine that is
// another engine, which says itself where the room is.
func (s *Server) prefillRanks() int {
	if s.cfg.Rank.Disagg.Mode == rank.ModeDecode {
		return maxDPSize
	}
	return s.dataRanks()
}

// readDataRank reads the data-parallel rank that a request is for; nil when it names none. ranks is how many there are,
// prefillRanks how many the prefill half may have.
func readDataRank(header http.Header, o *object, ranks, prefillRanks int) *int {
	check := func(field string, number int64) *int {
		switch {
		case number >= 0 && number < int64(ranks):
			r := int(number)
			return &r
		case ranks == 1:
			o.failField(field, "is %d: this engine has one data-parallel rank, send 0 or leave it out", number)
		default:
			o.failField(field, "is %d: this engine has %d data-parallel ranks, send 0 to %d or leave it out", number, ranks, ranks-1)
		}
		return nil
	}
	for _, number := range o.integers("disagg_prefill_dp_rank") {
		if number < 0 || number >= int64(prefillRanks) {
			check("disagg_prefill_dp_rank", number)
		}
	}
	if text := header.Get(dataRankHeader); text != "" {
		number, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		if err != nil {
			o.failField(dataRankHeader, "must be an integer, not %q: send the rank's number or leave it out", clip(text))
			return nil
		}
		return check(dataRankHeader, number)
	}
	for _, field := range []string{"routed_dp_rank", "data_parallel_rank"} { // the newer name wins
		if o.has(field) {
			return check(field, o.integer(field, 0))
		}
	}
	return nil
}

// priority reads the field of that name.
func priority(o *object) *int {
	value := optionalInteger(o, "priority")
	if value == nil {
		return nil
	}
	if *value < math.MinInt32 || *value > math.MaxInt32 {
		o.failField("priority", "must fit 32 bits, not be %d", *value)
		return nil
	}
	p := int(*value)
	return &p
}
