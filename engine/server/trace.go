package server

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/trace"
	"github.com/sluice-dev/sluice/internal/traceparent"
)

// flushGrace is how long the API process may take to export its last spans.
const flushGrace = time.Second

// closeTracing exports the last spans.
func closeTracing(p *trace.Process) error {
	ctx, cancel := context.WithTimeout(context.Background(), flushGrace)
	defer cancel()
	return p.Close(ctx)
}

// openTracing begins the export of the API process's spans; nil when --enable-trace is off. lost, if any, is told of those
// that get lost.
func openTracing(cfg Config, clock ledger.Clock, log *slog.Logger, lost func(spans int64)) (*trace.Process, error) {
	p, err := trace.Open(cfg.Rank.Trace, clock, log, lost)
	if err == nil && p != nil {
		log.Info("requests are traced", "endpoint", cfg.Rank.Trace.Endpoint, "protocol", cfg.Rank.Trace.Protocol, "level", p.Level())
	}
	return p, err
}

// readTraceParent gives the span that a request's client has it for: that of the body's external_trace_header, else that of
// the headers. One that is none is left out, as the specification wants it.
func (s *Server) readTraceParent(header http.Header, o *object) traceparent.Context {
	if inner := o.object("external_trace_header"); inner != nil {
		parent, state := inner.string("traceparent", ""), inner.string("tracestate", "")
		if c, ok := traceparent.Parse(parent, state); ok {
			return c
		}
	}
	c, _ := traceparent.FromHeader(header)
	return c
}

// traceRoot begins the trace of a sequence; nil when it is not traced. Health checks never are.
func (s *Server) traceRoot(spec *sequenceSpec) *trace.Root {
	if !s.tracer.Enabled() || strings.HasPrefix(spec.rid, healthPrefix) {
		return nil
	}
	b := trace.Beginning{RID: spec.rid, Module: trace.ModuleRequest, Parent: spec.parent, Started: spec.timeline.Started()}
	if spec.bootstrap != nil {
		b.Room = spec.bootstrap.Room
	}
	return s.tracer.Begin(b)
}

// traceEnd ends the trace of a sequence in its outcome, once; message says more about one that is no answer.
func (q *sequence) traceEnd(outcome request.Outcome, message string) {
	if q.trace == nil {
		return
	}
	f := request.Finish{Type: request.FinishAbort, Outcome: outcome, Message: message}
	switch outcome {
	case request.OutcomeStop, request.OutcomeLength:
		f = request.Finish{Type: request.FinishType(outcome), Outcome: outcome}
	default:
	}
	q.trace.End(&q.timeline, q.server.clock.Now(), trace.Answer{
		Model: q.server.cfg.ServedModelName, Prompt: q.promptTokens, Cached: q.cachedTokens, Completion: q.completionTokens,
		Choices: q.sampling.choices, Sampling: q.sampling.Sampling, Finish: f,
	})
}

// setTraceLevel changes what requests that begin from now on are traced at. The engine has one API process, and each request
// brings its level to the ranks.
func (s *Server) setTraceLevel(w http.ResponseWriter, r *http.Request) {
	text := r.URL.Query().Get("level")
	level, err := strconv.ParseUint(text, 10, 31)
	switch {
	case text == "":
		writeError(w, badField("level", "is missing: send ?level= with 0 for none, %d for stages, %d for all parts, %d for every step, or %d for the CPU too",
			trace.LevelStages, trace.LevelParts, trace.LevelSteps, trace.LevelCPU))
	case err != nil:
		writeError(w, badField("level", "must be a whole number, at least 0, not %q", clip(text)))
	case !s.tracing.SetLevel(int(level)):
		s.log.Warn("the trace level has no effect: tracing is off; start the engine with --enable-trace", "level", level)
		writeText(w, "success")
	default:
		s.log.Info("the trace level has changed", "level", level)
		writeText(w, "success")
	}
}
