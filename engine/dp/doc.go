// Package dp is the DP controller: it makes several replicas of the model, each a world of ranks with a KV cache of its
// own, look like one rank to the API process. It owns which DP rank serves a request and where each live request is; it
// knows no HTTP, no process and no page. engine/server calls it; below it are clients of engine/rank, one for each DP
// rank's leader.
package dp
