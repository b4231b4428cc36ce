// Package gpu is the contract between the engine and a device: memory, kernels and their shapes. It owns Device, Ops,
// Tensor and the shape checks. It knows no model, request, page owner or metric.
//
// engine/model and engine/runner call it; gpu/host and its sisters implement it; gpu/conformance holds what every
// implementation must pass. Hosts are little-endian.
//
// Every kernel computes an output row from that row's own inputs, in an order that depends neither on the other rows
// nor on how many there are, nor on the page size, nor on the number of threads. So a sequence gets bit-identical
// results whatever it is batched with and however its prompt is cut.
package gpu
