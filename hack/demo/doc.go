// Command demo shows the product at work: a real Kubernetes on this machine, the operator, one InferenceService that becomes
// a prefill pool and a decode pool, a streamed completion, its metrics and status, and the decode pool scaling out under
// load and back in while a steady stream of requests goes on.
//
//	go run ./hack/demo [--down] [--local]
//
// It is safe to repeat. Without root it shows the same request through local processes instead.
package main
