// Package metrics exports the router's series.
//
// It owns the table of families and the Prometheus registry, and is the only package of the router that imports the
// Prometheus client. It must not decide anything: it listens to router/proxy and router/fleet. cmd/router makes it.
package metrics
