package scheduler

// batchKind says what a step computes.
type batchKind uint8

const (
	noBatch      batchKind = iota // nothing to compute
	prefillBatch                  // chunks of sequences in prefilling
	decodeBatch                   // the next token of running sequences
	mixedBatch                    // chunks, and the next token of running sequences
)

func (k batchKind) String() string {
	switch k {
	case prefillBatch:
		return "prefill"
	case decodeBatch:
		return "decode"
	case mixedBatch:
		return "mixed"
	default:
		return "no"
	}
}

// batch is the decision of a step: what is computed, in this order. Its items are valid until the next pick.
type batch struct {
	kind  batchKind
	items []item
}

// item is the share of one sequence: tokens [launched, launched+n), the last of which may be one that an earlier step
// samples.
type item struct {
	seq    *sequence
	n      int
	decode bool // a running sequence's next token, not a part of its prompt
	sample bool // set at the launch: the item ends with the sequence's last token, so the next one is sampled
}

// last reports whether the item ends with the sequence's last token. Before the launch only.
func (i item) last() bool { return i.seq.launched+i.n == len(i.seq.tokens)+i.seq.future }

// prefills and decodes report whether a batch of the kind has chunks, and whether it has next tokens.
func (k batchKind) prefills() bool { return k == prefillBatch || k == mixedBatch }
func (k batchKind) decodes() bool  { return k == decodeBatch || k == mixedBatch }

// promptTokens is the number of tokens that the chunks among items compute.
func promptTokens(items []item) int {
	n := 0
	for _, i := range items {
		if !i.decode {
			n += i.n
		}
	}
	return n
}

// countedPrompt is the prompt tokens of items whose requests are counted.
func countedPrompt(items []item) int {
	n := 0
	for _, i := range items {
		if !i.decode && i.seq.req.LogMetrics {
			n += i.n
		}
	}
	return n
}

// scratch holds slices that are reused from step to step.
type scratch struct {
	all     []*sequence
	queue   []*sequence
	waiters []ranked
	items   []item
	hands   []*handoff
	report  []byte
	mixed   []item
	keys    map[string]keyCount
}
