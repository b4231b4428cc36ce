// Package reference is the oracle of gpu/conformance: every kernel written in the plainest way, one element at a time,
// summed in float64. It owns no thread and no trick. Tests call it; it is far too slow to serve.
package reference
