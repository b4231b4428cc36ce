// Package traces looks at the spans of running engines and routers as a collector gets them: the built programs send them to
// the OpenTelemetry collector's own receiver, which runs as a process (collector/, a module of its own). Whole trees are
// compared, with parents, links, and lengths against the metrics of the same requests. It knows flags, routes and names of
// spans, and no code of the engine but the plain form of a span.
package traces
