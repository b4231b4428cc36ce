package bench

import (
	"math"
	"math/rand/v2"
	"time"
)

// Request is one request of a plan. It is a small plain value; Writer makes its prompt.
type Request struct {
	Index int           // in the plan
	At    time.Duration // when to send it, since the start of an open loop; 0 in a closed one

	InputTokens  int // wanted; a prompt made of words meets it only about
	PrefixTokens int // of these, shared with the group; 0 <= PrefixTokens <= InputTokens
	Group        int // 0 <= Group < PrefixGroups
	Corpus       int // index of the prompt in the corpus; -1: made
	OutputTokens int // at most, and exactly where the server ignores end tokens

	Priority *int    // nil: none
	Cancel   *Cancel // nil: not cancelled
	Seed     uint64  // of what is the request's own: the rest of its prompt, its sampling
}

// Cancel says when the client drops a request: after so many chunks of output or, when that is 0, after so much time.
type Cancel struct {
	After  time.Duration
	Chunks int
}

// stream numbers keep independent draws apart, so that a flag changes only what it is about.
const (
	streamArrivals = iota
	streamLengths
	streamMix
	streamPrompt
	streamPrefix
	streamBootstrap
	streamShuffle
)

// random gives the generator of one stream of one item. Neighbouring seeds of a PCG begin alike, so they are scattered.
func random(seed uint64, stream, item int) *rand.Rand {
	return rand.New(rand.NewPCG(scatter(seed+scatter(uint64(stream))), scatter(uint64(item)+1)))
}

// scatter is a permutation of 64 bits that leaves nothing of a neighbourhood: the finisher of SplitMix64.
func scatter(v uint64) uint64 {
	v += 0x9E3779B97F4A7C15
	v = (v ^ v>>30) * 0xBF58476D1CE4E5B9
	v = (v ^ v>>27) * 0x94D049BB133111EB
	return v ^ v>>31
}

// Plan gives the requests [from, to) of a load, fewer when its bounds end before. Request i is a function of the load
// alone; so is At, as a sum over the gaps before it.
func Plan(l Load, from, to int) []Request {
	if l.Requests > 0 {
		to = min(to, l.Requests)
	}
	var requests []Request
	gaps, at := random(l.Seed, streamArrivals, 0), time.Duration(0)
	for i := range to {
		if l.Open() && i > 0 {
			at += gap(l, gaps)
		}
		if l.Open() && l.Duration > 0 && at >= l.Duration {
			break
		}
		if i >= from {
			requests = append(requests, request(l, i, at))
		}
	}
	return requests
}

// gap draws the time between two arrivals.
func gap(l Load, rng *rand.Rand) time.Duration {
	mean := 1 / l.Rate // seconds
	switch l.Arrivals {
	case Constant:
	case Gamma:
		mean *= gamma(l.Burstiness, rng) / l.Burstiness
	default:
		mean *= rng.ExpFloat64()
	}
	return time.Duration(math.Round(min(mean, 1e6) * 1e9))
}

// gamma draws from the gamma distribution of scale 1, by the method of Marsaglia and Tsang (2000); shape > 0.
func gamma(shape float64, rng *rand.Rand) float64 {
	boost := 1.0
	if shape < 1 {
		boost = math.Pow(1-rng.Float64(), 1/shape) // 1-u is never 0
		shape++
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := rng.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		if math.Log(1-rng.Float64()) < x*x/2+d-d*v+d*math.Log(v) {
			return boost * d * v
		}
	}
}

// request draws what is particular to request i.
func request(l Load, i int, at time.Duration) Request {
	lengths, mix := random(l.Seed, streamLengths, i), random(l.Seed, streamMix, i)
	r := Request{
		Index: i, At: at, Corpus: -1, Seed: mix.Uint64(),
		InputTokens: l.Input.draw(lengths), OutputTokens: l.Output.draw(lengths),
	}
	if len(l.Corpus) > 0 {
		r.Corpus, r.InputTokens = i%len(l.Corpus), 0
		if p := l.Corpus[r.Corpus]; p.OutputTokens > 0 {
			r.OutputTokens = p.OutputTokens
		}
	}
	// Every request draws the same number of values, whatever the flags are.
	group, priority, cancel, millis := mix.Float64(), mix.Float64(), mix.Float64(), mix
	if l.PrefixRatio > 0 {
		r.PrefixTokens = int(math.Round(l.PrefixRatio * float64(r.InputTokens)))
		r.Group = min(int(group*float64(l.PrefixGroups)), l.PrefixGroups-1)
	}
	if len(l.Priorities) > 0 {
		value := l.Priorities.at(priority)
		r.Priority = &value
	}
	if cancel < l.CancelShare {
		r.Cancel = &Cancel{}
		if l.CancelChunks.Kind != "" {
			r.Cancel.Chunks = max(1, l.CancelChunks.draw(millis))
		} else {
			r.Cancel.After = time.Duration(l.CancelMillis.draw(millis)) * time.Millisecond
		}
	}
	return r
}

// at gives the value at a point of [0, 1) of the cumulated weights.
func (p Priorities) at(point float64) int {
	total := 0.0
	for _, one := range p {
		total += one.Weight
	}
	point *= total
	for _, one := range p {
		if point < one.Weight {
			return one.Value
		}
		point -= one.Weight
	}
	return p[len(p)-1].Value
}
