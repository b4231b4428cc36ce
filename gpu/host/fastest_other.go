//go:build !amd64

package host

// fastest gives the best kernels for this CPU.
func fastest() kernels { return portable() }
