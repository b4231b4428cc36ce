// Package sampling picks the next token from logits. It owns temperature, top-k, top-p, the seeded generator and the
// log-probability of what was picked. It knows no device, sequence or batch: a token is a function of the logits, the
// parameters, the seed and the token's index alone.
//
// engine/runner calls it once per sampled row.
package sampling
