// Package sampling picks the next token from logits. It owns penalties, biases, the mask, temperature, top-k, top-p, min-p,
// the seeded generator and the logprobs of a position. It knows no device or batch: a token is a function of the logits and
// of Input alone.
//
// engine/runner calls it once per sampled row, and once per token of a prompt whose logprobs are wanted.
package sampling
