// Package host is the CPU as a device: packed weights, blocked kernels, and a pool of goroutines that share each
// kernel's work. It owns the choice of kernels by CPU feature. It knows no model and no page owner; the numbers it must
// give are those of gpu/host/reference, up to the tolerance that gpu/conformance states.
//
// engine/runner calls it.
package host
