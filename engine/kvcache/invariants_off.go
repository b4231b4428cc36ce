//go:build !invariants

package kvcache

// Invariants says that pools are checked after every step: in builds with -tags invariants.
const Invariants = false
