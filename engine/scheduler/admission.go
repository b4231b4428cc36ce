package scheduler

import "math"

// budget is what one prefill batch may still take. take is the whole policy of admission, a function of numbers alone.
//
// A request is admitted when its prompt and the tokens that it will probably generate fit beside what running requests
// will probably generate. The estimate may be wrong: then a running request is retracted.
type budget struct {
	slots       int  // sequences that may join the batch
	inputTokens int  // prompt tokens that may be admitted; the first request may exceed them
	chunkTokens int  // tokens that the step may compute
	kvTokens    int  // free pool tokens, less what running sequences will probably need
	freeTokens  int  // free pool tokens
	windowPages int  // window pages that may be claimed
	alone       bool // no sequence runs or computes its prompt: the next one is only measured by what is free
	taken       int  // sequences admitted
}

// want is what a sequence asks for.
type want struct {
	tokens     int // to compute
	poolTokens int // pages for them, in tokens
	growth     int // tokens that it will probably generate

	windowPages int // that it claims
}

// take admits a sequence whole, or by a first chunk of n tokens; ok is false when it has to wait, and then so do all
// that come after it.
func (b *budget) take(w want) (n int, ok bool) {
	switch {
	case b.slots < 1 || !b.hasRoom(w):
		return 0, false
	case w.poolTokens > b.freeTokens || w.windowPages > b.windowPages:
		return 0, false
	case w.poolTokens+w.growth > b.kvTokens && !b.alone:
		return 0, false
	}
	n = min(w.tokens, b.chunkTokens)
	b.slots--
	b.inputTokens -= w.tokens
	b.chunkTokens -= n
	b.kvTokens -= w.poolTokens + w.growth
	b.freeTokens -= w.poolTokens
	b.windowPages -= w.windowPages
	b.alone = false
	b.taken++
	return n, true
}

// hasRoom reports whether this step may compute a first chunk of a sequence, whatever places and memory there are.
func (b *budget) hasRoom(w want) bool {
	return b.chunkTokens > 0 && (b.taken == 0 || w.tokens <= b.inputTokens)
}

// proceed takes the next chunk of a sequence that was admitted before.
func (b *budget) proceed(tokens int) (n int) {
	n = min(tokens, b.chunkTokens)
	b.chunkTokens -= n
	b.inputTokens -= n
	return n
}

// reserve estimates, in millionths, which part of the tokens that a request may still generate it will generate. It falls
// with every decode step in which memory sufficed, jumps to what was observed at a retraction, and starts anew when nothing
// lives. Integers, so that all ranks agree. Invariant: floor <= ratio <= million.
type reserve struct {
	ratio int64
	start int64 // also after a pause without any request
	floor int64
}

const (
	million = 1_000_000

	reserveStart = 700_000 // for a conservativeness of 1
	reserveFloor = 14      // percent of the start
	reserveSteps = 600     // decode steps from start to floor

	// growthClip bounds the tokens that one request may still generate for the estimate: who asks for more than this
	// seldom gets there.
	growthClip = 4096

	// retractLookahead is the decode steps that shall pass before memory runs out again.
	retractLookahead = 20
)

// newReserve gives the estimate for Config.Conservativeness.
func newReserve(conservativeness float64) reserve {
	if conservativeness == 0 {
		conservativeness = 1
	}
	start := int64(math.Min(conservativeness*reserveStart, million))
	return reserve{ratio: start, start: start, floor: start * reserveFloor / 100}
}

// decay follows a decode step.
func (r *reserve) decay() { r.ratio = max(r.ratio-(r.start-r.floor)/reserveSteps, r.floor) }

// reset follows the end of the last request.
func (r *reserve) reset() { r.ratio = r.start }

// raise follows a retraction: what those that remain have generated, and will within the next steps, over what they may
// generate.
func (r *reserve) raise(remain []*sequence) {
	generated, allowed := 0, 1
	for _, q := range remain {
		generated += q.generated() + retractLookahead
		allowed += min(q.req.Sampling.MaxNewTokens, math.MaxInt32) // the sum can't overflow
	}
	r.ratio = max(min(int64(generated)*million/int64(allowed), million), r.floor)
}

// of gives the tokens to reserve for one that may generate n more.
func (r reserve) of(n int) int { return int(int64(min(n, growthClip)) * r.ratio / million) }

// growth estimates the tokens that q will still generate on this engine.
func (s *Scheduler) growth(q *sequence) int {
	if s.cfg.Role == Prefill {
		return 0
	}
	return s.reserve.of(max(min(q.req.Sampling.MaxNewTokens-q.generated(), s.limit-len(q.tokens)), 0))
}

// kvTokens is the free pool tokens less what those that hold pages will probably still take.
func (s *Scheduler) kvTokens() int {
	n := s.roomTokens()
	for _, st := range []state{stateRunning, statePrefilling, stateWaiting, stateTransferring} {
		for _, q := range s.in[st] {
			if len(q.pages) > 0 {
				n -= s.growth(q)
			}
		}
	}
	return n
}
