package scheduler

import (
	"context"

	"github.com/sluice-dev/sluice/engine/request"
)

// Row is one sequence's share of a step. The scheduler owns every slice and changes none of their elements while the step
// is under way; the executor reads them during Execute only.
type Row struct {
	Tokens []int32           // [n] tokens to compute now, n >= 1; not read when Future
	Start  int               // tokens of this sequence that are in KV already; Tokens[0] has position Start
	Pages  []int32           // page table of the sequence, covers [0, Start+n) tokens
	Window []int32           // page table in the pool of sliding-window layers, as long as Pages; -1 where a page was freed; nil without such layers
	Sample bool              // sample the token after the last one
	Params *request.Sampling // how to sample; never nil
	Seed   uint64            // resolved seed: a sampled token is a function of (logits, History, Mask, Forbidden, Params, Seed, Index) alone, whatever else is in the batch
	Index  int               // number of tokens generated before the sampled one

	// Future says that the row computes one token, the one that row PreviousRow of the Execute before sampled.
	Future      bool
	PreviousRow int

	// History is the sequence's tokens, the prompt first, up to the sampled one; a Future token is not in it, it follows.
	// For a chunk of the prompt it goes on behind the chunk, to the end of the prompt.
	History      []int32
	PromptTokens int // of History

	// Mask has a bit for each token that may be sampled, bit t%64 of word t/64; nil: all may. [ceil(vocab/64)]
	Mask []uint64
	// Forbidden are tokens that are not sampled unless nothing else may be: those that would end the answer too early.
	Forbidden []int32

	// Logprobs says what to tell about the sampled token and about the prompt's tokens at positions
	// [max(PromptFrom, Start+1), min(Start+n, PromptTokens-1)], whose logits come from the tokens before them. Nil: nothing.
	Logprobs *request.WantLogprobs
}

// Sampled is the token that came out of a row.
type Sampled struct {
	Token    int32
	Logprob  float32   // natural logarithm of the token's probability
	Logprobs *Logprobs // nil unless the row wants them and the step has some
}

// Logprobs is what a row with Logprobs gives.
type Logprobs struct {
	Sampled *request.TokenLogprobs  // nil when the row doesn't sample
	Prompt  []request.TokenLogprobs // by position
}

// Executor runs steps on one device. It is called from one goroutine, in the order of the launches, one call at a time.
type Executor interface {
	// Execute computes rows together (prefill chunks and decodes may mix) and returns one Sampled per row, zero where
	// Sample is false. layerDone, when not nil, is called after each layer's KV of all rows is written, in order of the
	// layers, from the goroutine that called Execute. An error leaves the device unusable: the rank ends.
	Execute(ctx context.Context, rows []Row, layerDone func(layer int)) ([]Sampled, error)
}

// Stage is an Executor that computes one stage of a pipeline: what it computes is over before the step's tokens are known.
type Stage interface {
	Executor
	// Begin is Execute without the end: it returns when this stage has computed its part. tokens gives what Execute would
	// have given, once the last stage has sampled; it is called once for each Begin, in their order, from another goroutine
	// than Begin's, maybe while a later Begin is under way.
	Begin(ctx context.Context, rows []Row, layerDone func(layer int)) (tokens func(context.Context) ([]Sampled, error), err error)
}
