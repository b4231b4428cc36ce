// Package soak runs an engine under everything that clients and operators do to it, for a minute, or for as long as
// SLUICE_SOAK says, and then looks for what is left behind: KV that is neither free nor cached, requests that hang,
// descriptors, goroutines, processes.
package soak
