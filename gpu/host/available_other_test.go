//go:build !amd64

package host

// available gives every set of kernels that this CPU can run.
func available() []kernels { return []kernels{portable()} }
