// Package traceparent reads, writes and makes the headers traceparent and tracestate of W3C Trace Context. It owns their
// syntax and the making of ids. It must not know spans, levels or who exports them: engine/trace does. Callers: engine/trace
// and engine/server, for what clients send and what crosses a process; router/proxy, so that the two halves of a request
// share a trace.
package traceparent
