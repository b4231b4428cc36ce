//go:build invariants

package kvcache

// Invariants says that pools are checked after every step.
const Invariants = true
