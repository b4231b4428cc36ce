package scheduler

import (
	"context"

	"github.com/sluice-dev/sluice/engine/request"
)

// Row is one sequence's share of a step. The scheduler owns every slice; the executor reads them during Execute only.
type Row struct {
	Tokens []int32           // [n] tokens to compute now, n >= 1
	Start  int               // tokens of this sequence that are in KV already; Tokens[0] has position Start
	Pages  []int32           // page table of the sequence, covers [0, Start+n) tokens
	Sample bool              // sample the token after the last one
	Params *request.Sampling // how to sample; never nil
	Seed   uint64            // resolved seed: a sampled token is a function of (logits, Seed, Index) alone, whatever else is in the batch
	Index  int               // number of tokens generated before this one
}

// Sampled is the token that came out of a row.
type Sampled struct {
	Token   int32
	Logprob float32 // natural logarithm of the token's probability
}

// Executor runs steps on one device. Not safe for concurrent use.
type Executor interface {
	// Execute computes rows together (prefill chunks and decodes may mix) and returns one Sampled per row, zero where
	// Sample is false. layerDone, when not nil, is called after each layer's KV of all rows is written, in order of the
	// layers, from the goroutine that called Execute. An error leaves the device unusable: the rank ends.
	Execute(ctx context.Context, rows []Row, layerDone func(layer int)) ([]Sampled, error)
}
