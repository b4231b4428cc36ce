// Package soak runs engines under everything that clients and operators do to them, half a minute each, or for as long as
// SLUICE_SOAK says, and then looks for what is left behind: KV that is neither free nor cached, requests that hang,
// descriptors, goroutines, processes.
package soak
