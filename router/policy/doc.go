// Package policy picks an engine from a list: pure functions of plain numbers, without a clock, randomness or memory.
//
// It must not know what an engine is. router/fleet calls it with what it counts.
package policy
