// Package ledger keeps the time of a request. It owns the clock, the table of stages and the Timeline, whose Move is the
// only way from one stage to the next and reads the clock once. A request is in exactly one stage at any moment, so the
// durations of its stages are whole nanoseconds of one monotonic clock and sum to its end-to-end time by construction.
//
// Metrics, spans, meta_info and logs are computed from a Timeline and never measured a second time. The package knows no
// metric, span, queue or HTTP. Callers: the API process owns one Timeline of form APIServer per request, the DP controller
// one of form DPController, the scheduler one of form Unified, Prefill or Decode. What crosses a process is plain data in wall nanoseconds.
package ledger
