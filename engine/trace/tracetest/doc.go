// Package tracetest holds a collector for tests: it takes spans over OTLP, by gRPC and by HTTP, and keeps them as plain data.
// It is called by tests alone.
package tracetest
