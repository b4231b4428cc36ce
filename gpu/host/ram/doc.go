// Package ram is device memory that is the host's own: buffers, copies and the memory that this process may use. It owns
// no kernel and knows no shape beyond a view. gpu/host and gpu/host/reference are built on it.
package ram
