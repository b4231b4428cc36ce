// Package peer holds what processes that share a secret say to each other first: nonces, proofs that they know the secret,
// and framed JSON messages; and which hosts may do without. It knows no protocol: who says what in which order, and what
// becomes of it, is its callers', the handshakes of engine/disagg, engine/node and engine/parallel. engine/server asks about
// hosts alone.
package peer
