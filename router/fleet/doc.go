// Package fleet knows the engines of a router: which may get a request now, what each has outstanding, and which have
// just failed.
//
// It owns the counts, the quarantine and the wait for a usable engine. It must not know HTTP or Kubernetes:
// router/discovery says which engines there are (Update), router/proxy takes them (Acquire) and says how it went (Done).
//
// An engine that failed is quarantined for a moment that doubles with every failure in a row. After it one request at
// a time may try the engine; a success lifts the quarantine. A pod that becomes Ready anew starts without a past.
package fleet
