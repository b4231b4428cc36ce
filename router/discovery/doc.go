// Package discovery tells which engines a router may know and whether they want requests.
//
// It owns the meaning of pod labels, ports, readiness and the draining annotation, and the health checks of engines that
// are given by flags. It must not know requests, loads or policies. A Source reports the whole list of engines each time
// that it changes; cmd/router gives it router/fleet's Update.
//
// A pod is an engine of a service when it carries the service's name, component engine, node rank 0 and an engine type
// that this router serves. It is usable while it is Ready, not being deleted and not annotated as draining.
package discovery
