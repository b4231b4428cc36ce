// Package conformance is what every gpu.Device must pass: each kernel against gpu/host/reference on random shapes, and
// the promise that a row's result doesn't depend on the rest of the step. It knows no particular device; a device's own
// tests call Run.
package conformance
