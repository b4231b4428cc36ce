package trace

import (
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
)

// What the spans are of, by SGLang's names, so that its dashboards and queries find them.
const (
	serviceName = "sglang"
	scopeName   = "sglang server"
)

// Bits of a span's and a link's flags: those of traceparent, whether bit 9 says anything, and whether the parent, or what is
// linked, was made by another process.
const (
	flagSampled  = 0x001
	flagKnown    = 0x100
	flagIsRemote = 0x200
)

// message gives spans the form in which they travel, and its size is bounded by that of the batch.
func message(spans []span) []*tracepb.ResourceSpans {
	list := make([]*tracepb.Span, len(spans))
	for i := range spans {
		list[i] = spans[i].wire()
	}
	return []*tracepb.ResourceSpans{{
		Resource: &resourcepb.Resource{Attributes: wireAttributes([]attribute{
			text("service.name", serviceName),
			text("telemetry.sdk.language", "go"),
			text("telemetry.sdk.name", "opentelemetry"),
			text("telemetry.sdk.version", otlptrace.Version()),
		})},
		ScopeSpans: []*tracepb.ScopeSpans{{Scope: &commonpb.InstrumentationScope{Name: scopeName}, Spans: list}},
	}}
}

func (s *span) wire() *tracepb.Span {
	w := &tracepb.Span{
		TraceId: s.trace[:], SpanId: s.id[:], TraceState: s.state, Flags: flags(s.parentRemote),
		Name: s.name, Kind: tracepb.Span_SPAN_KIND_INTERNAL, StartTimeUnixNano: uint64(s.start), EndTimeUnixNano: uint64(s.end),
		Attributes: wireAttributes(s.attributes[0], s.attributes[1]),
		Status:     &tracepb.Status{},
	}
	if s.parent != [8]byte{} {
		w.ParentSpanId = s.parent[:]
	}
	if s.link != [8]byte{} {
		w.Links = []*tracepb.Span_Link{{TraceId: s.trace[:], SpanId: s.link[:], TraceState: s.state, Flags: flags(s.linkRemote)}}
	}
	for _, e := range s.events {
		w.Events = append(w.Events, &tracepb.Span_Event{TimeUnixNano: uint64(e.at), Name: e.name, Attributes: wireAttributes(e.attributes())})
	}
	if s.failure != "" {
		w.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: s.failure}
	}
	return w
}

func flags(remote bool) uint32 {
	if remote {
		return flagSampled | flagKnown | flagIsRemote
	}
	return flagSampled | flagKnown
}

func wireAttributes(lists ...[]attribute) []*commonpb.KeyValue {
	var all []*commonpb.KeyValue
	for _, list := range lists {
		for _, a := range list {
			all = append(all, &commonpb.KeyValue{Key: a.key, Value: a.wire()})
		}
	}
	return all
}

func (a attribute) wire() *commonpb.AnyValue {
	switch a.kind {
	case kindInteger:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: a.integer}}
	case kindNumber:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_DoubleValue{DoubleValue: a.number}}
	default:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: a.text}}
	}
}
