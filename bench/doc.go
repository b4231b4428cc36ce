// Package bench sends load to servers that speak OpenAI's HTTP API, or SGLang's /generate, and measures the answers as a
// client sees them.
//
// It owns the plan of requests (a plain value, made by a pure function of the Load and its seed), the clients that send
// them, and the statistics. It must not know the engine, the operator or a cluster: a server is a URL. cmd/bench calls it.
//
// Reading order: load.go (what is asked for), plan.go (the requests that follow from it), text.go (their prompts),
// target.go and client.go (one request on the wire), run.go (all of them), summary.go and ratio.go (numbers), report.go.
//
// # What is measured
//
// In an open loop (a rate is given) a request's latencies start at the instant the plan scheduled it, not at the instant
// it was written to a connection: a server that stalls makes the requests behind it late, and their users wait from the
// moment they wanted to ask. In a closed loop they start when the request is sent.
//
//	TTFT  start .. first chunk that carries output
//	ITL   each gap between two such chunks, divided by the tokens of the later one where the server tells them
//	TPOT  (E2E - TTFT) / (output tokens - 1), of requests with two tokens or more
//	E2E   start .. last chunk
package bench
