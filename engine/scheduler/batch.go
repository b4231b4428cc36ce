package scheduler

// batchKind says what a step computes.
type batchKind uint8

const (
	noBatch      batchKind = iota // nothing to compute
	prefillBatch                  // chunks of sequences in prefilling
	decodeBatch                   // the next token of running sequences
)

func (k batchKind) String() string {
	switch k {
	case prefillBatch:
		return "prefill"
	case decodeBatch:
		return "decode"
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

// tokensOfItems is the number of tokens that items compute.
func tokensOfItems(items []item) int {
	n := 0
	for _, i := range items {
		n += i.n
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
}
