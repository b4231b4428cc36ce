// Package pd tests the hand-over between prefill and decode with the real programs: engines and a router as processes of
// this machine, without a cluster.
package pd
