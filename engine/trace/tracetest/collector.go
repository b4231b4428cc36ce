package tracetest

import (
	"context"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
)

// Span is a span as it came. Ids are hexadecimal; an empty one is none.
type Span struct {
	Trace, ID, Parent string
	ParentRemote      bool
	State             string // tracestate
	Name              string
	Start, End        int64 // Unix nanoseconds
	Attributes        map[string]any
	Links             []Link
	Events            []Event
	Failed            bool
	Failure           string // description of the status

	Service, Scope string
}

// Nanos is the length of the span.
func (s Span) Nanos() int64 { return s.End - s.Start }

// Link is a link to a span.
type Link struct {
	Trace, ID string
	Remote    bool // another process made that one
}

// Event is something that happened within a span.
type Event struct {
	Name       string
	At         int64 // Unix nanoseconds
	Attributes map[string]any
}

// Collector takes spans. Safe for concurrent use.
type Collector struct {
	collectorpb.UnimplementedTraceServiceServer

	GRPC string // host:port
	HTTP string // host:port

	mu      sync.Mutex
	spans   []Span
	batches []int // sizes of the messages
	failing bool
	headers []http.Header // of HTTP messages
	hold    chan struct{} // not nil: messages wait for its close
}

// New starts a collector that ends with the test.
func New(t testing.TB) *Collector {
	t.Helper()
	c := &Collector{}
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	forGRPC, forHTTP := listen(), listen()
	c.GRPC, c.HTTP = forGRPC.Addr().String(), forHTTP.Addr().String()
	byGRPC := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(byGRPC, c)
	byHTTP := &http.Server{Handler: http.HandlerFunc(c.serveHTTP), ReadHeaderTimeout: 10 * time.Second}
	var serving sync.WaitGroup
	serving.Go(func() { _ = byGRPC.Serve(forGRPC) })
	serving.Go(func() { _ = byHTTP.Serve(forHTTP) })
	t.Cleanup(func() {
		c.Release()
		byGRPC.Stop()
		_ = byHTTP.Close()
		serving.Wait()
	})
	return c
}

// Export implements the service.
func (c *Collector) Export(ctx context.Context, r *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	if err := c.take(ctx, r, nil); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

func (c *Collector) serveHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var message collectorpb.ExportTraceServiceRequest
	if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" ||
		proto.Unmarshal(body, &message) != nil {
		http.Error(w, "no OTLP message", http.StatusBadRequest)
		return
	}
	if err := c.take(r.Context(), &message, r.Header); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	w.WriteHeader(http.StatusOK)
}

type refusal struct{}

func (refusal) Error() string { return "the collector was told to refuse" }

func (c *Collector) take(ctx context.Context, r *collectorpb.ExportTraceServiceRequest, header http.Header) error {
	c.mu.Lock()
	hold := c.hold
	c.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failing {
		return refusal{}
	}
	size := 0
	for _, resource := range r.GetResourceSpans() {
		service, _ := attributes(resource.GetResource().GetAttributes())["service.name"].(string)
		for _, scope := range resource.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				size++
				c.spans = append(c.spans, read(s, service, scope.GetScope().GetName()))
			}
		}
	}
	c.batches = append(c.batches, size)
	if header != nil {
		c.headers = append(c.headers, header)
	}
	return nil
}

// Refuse makes the collector refuse every message from now on, or no longer.
func (c *Collector) Refuse(failing bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failing = failing
}

// Hold makes messages wait until Release.
func (c *Collector) Hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hold == nil {
		c.hold = make(chan struct{})
	}
}

// Release lets messages pass that Hold has stopped.
func (c *Collector) Release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hold != nil {
		close(c.hold)
		c.hold = nil
	}
}

// Spans gives what has come so far, by start.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return sorted(c.spans)
}

// Batches gives the sizes of the messages that have come.
func (c *Collector) Batches() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.batches)
}

// Headers gives those of the HTTP messages that have come.
func (c *Collector) Headers() []http.Header {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.headers)
}

// Await waits until enough says that all is there, and gives it.
func (c *Collector) Await(t testing.TB, what string, enough func([]Span) bool) []Span {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		spans := c.Spans()
		if enough(spans) {
			return spans
		}
		if time.Now().After(deadline) {
			t.Fatalf("the collector still waits for %s; it has %d spans: %s", what, len(spans), Names(spans))
		}
		<-time.After(2 * time.Millisecond)
	}
}

// AwaitRoots waits until so many traces of requests have ended, and everything of them is there: what a root's processes make
// comes with or before it, but for ranks, whose thread spans come on their own; threads is how many there are below each root.
func (c *Collector) AwaitRoots(t testing.TB, roots, threads int) []Span {
	t.Helper()
	return c.Await(t, "the roots and their threads", func(spans []Span) bool {
		found, below := 0, 0
		for _, s := range spans {
			if IsRoot(s) {
				found++
			}
			if IsThread(s) {
				below++
			}
		}
		return found >= roots && below >= roots*threads
	})
}

// IsRoot reports whether a span is that of a whole request.
func IsRoot(s Span) bool { return s.Attributes["module"] != nil }

// IsThread reports whether a span is that of a thread.
func IsThread(s Span) bool { return s.Attributes["thread_label"] != nil }

// Names gives the names of spans in a line.
func Names(spans []Span) string {
	names := make([]string, len(spans))
	for i, s := range spans {
		names[i] = s.Name
	}
	return strings.Join(names, ", ")
}

// Children gives the spans below one, by start.
func Children(spans []Span, of Span) []Span {
	var list []Span
	for _, s := range spans {
		if s.Trace == of.Trace && s.Parent == of.ID {
			list = append(list, s)
		}
	}
	return sorted(list)
}

func sorted(spans []Span) []Span {
	list := slices.Clone(spans)
	slices.SortStableFunc(list, func(a, b Span) int {
		switch {
		case a.Start != b.Start:
			return int(min(1, max(-1, a.Start-b.Start)))
		default:
			return int(min(1, max(-1, a.End-b.End)))
		}
	})
	return list
}

func read(w *tracepb.Span, service, scope string) Span {
	const remote = uint32(tracepb.SpanFlags_SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK | tracepb.SpanFlags_SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)
	s := Span{
		Trace: hex.EncodeToString(w.GetTraceId()), ID: hex.EncodeToString(w.GetSpanId()), Parent: hex.EncodeToString(w.GetParentSpanId()),
		ParentRemote: w.GetFlags()&remote == remote, State: w.GetTraceState(), Name: w.GetName(),
		Start: int64(w.GetStartTimeUnixNano()), End: int64(w.GetEndTimeUnixNano()), Attributes: attributes(w.GetAttributes()),
		Failed: w.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR, Failure: w.GetStatus().GetMessage(),
		Service: service, Scope: scope,
	}
	for _, l := range w.GetLinks() {
		s.Links = append(s.Links, Link{hex.EncodeToString(l.GetTraceId()), hex.EncodeToString(l.GetSpanId()), l.GetFlags()&remote == remote})
	}
	for _, e := range w.GetEvents() {
		s.Events = append(s.Events, Event{e.GetName(), int64(e.GetTimeUnixNano()), attributes(e.GetAttributes())})
	}
	return s
}

func attributes(list []*commonpb.KeyValue) map[string]any {
	if len(list) == 0 {
		return nil
	}
	m := map[string]any{}
	for _, kv := range list {
		switch v := kv.GetValue().GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			m[kv.GetKey()] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			m[kv.GetKey()] = v.IntValue
		case *commonpb.AnyValue_DoubleValue:
			m[kv.GetKey()] = v.DoubleValue
		default:
			m[kv.GetKey()] = kv.GetValue().String()
		}
	}
	return m
}
