// Package demand holds the wire type of a router's GET /demand, which the operator reads to wake pools that have no replica
// and to let idle ones sleep. It knows neither side.
package demand

// Path is where a router serves its Report.
const Path = "/demand"

// Report is what a router has to do.
type Report struct {
	// Waiting is how many requests wait now for an engine of each role, prefill, decode and unified, of which none is ready.
	// The same request counts for each role that it lacks: 0 <= Waiting[r].
	Waiting map[string]int `json:"waiting_requests"`
	// Begun is how many inference requests have come since the router started, refused ones included. It only grows.
	Begun uint64 `json:"requests_begun"`
	// Open is how many of them have not ended.
	Open int64 `json:"requests_open"`
}
