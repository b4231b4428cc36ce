package trace

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"

	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/trace/tracetest"
	"github.com/sluice-dev/sluice/internal/traceparent"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// log keeps what is logged.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// logger writes lines without their times.
func (l *log) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

func put(p *Process, names ...string) {
	for _, name := range names {
		p.out.queue.put(span{name: name, trace: traceparent.NewTraceID(), id: traceparent.NewSpanID(), start: 1, end: 2})
	}
}

// TestExport sends every kind of span over both protocols and reads it back.
func TestExport(t *testing.T) {
	for _, protocol := range []Protocol{GRPC, HTTPProtobuf} {
		t.Run(string(protocol), func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=a")
			collector := tracetest.New(t)
			cfg := DefaultConfig()
			cfg.Enabled, cfg.Protocol, cfg.Endpoint = true, protocol, collector.GRPC
			if protocol == HTTPProtobuf {
				cfg.Endpoint = collector.HTTP
			}
			p, err := Open(cfg, ledgertest.New(), slog.New(slog.NewTextHandler(io.Discard, nil)), nil)
			if err != nil {
				t.Fatal(err)
			}
			id := func(b byte) traceparent.SpanID { return traceparent.SpanID{b} }
			trace := traceparent.TraceID{1}
			p.out.queue.put(span{
				name: "all", trace: trace, id: id(2), state: "a=1", parent: id(3), parentRemote: true, start: 10, end: 20, link: id(4), linkRemote: true,
				attributes: [2][]attribute{{text("text", "t"), integer("integer", -5)}, {number("number", 0.5)}},
				events:     []event{{name: "e", at: 15, batch: 1<<32 + 10, size: 2, mode: "prefill"}, {name: "f", at: 16}},
				failure:    "why",
			})
			p.out.queue.put(span{name: "little", trace: trace, id: id(5), start: 30, end: 30, link: id(6)})
			if err := p.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			hex := func(b string, n int) string { return b + strings.Repeat("0", n-len(b)) }
			want := []tracetest.Span{
				{
					Trace: hex("01", 32), ID: hex("02", 16), Parent: hex("03", 16), ParentRemote: true, State: "a=1", Name: "all", Start: 10, End: 20,
					Attributes: map[string]any{"text": "t", "integer": int64(-5), "number": 0.5}, Links: []tracetest.Link{{Trace: hex("01", 32), ID: hex("04", 16), Remote: true}},
					Events: []tracetest.Event{{Name: "e", At: 15, Attributes: map[string]any{"bid": "0000000a", "batch_size": int64(2), "forward_mode": "prefill"}}, {Name: "f", At: 16}},
					Failed: true, Failure: "why", Service: "sglang", Scope: "sglang server",
				},
				{
					Trace: hex("01", 32), ID: hex("05", 16), Name: "little", Start: 30, End: 30, Links: []tracetest.Link{{Trace: hex("01", 32), ID: hex("06", 16)}},
					Service: "sglang", Scope: "sglang server",
				},
			}
			if diff := cmp.Diff(want, collector.Spans()); diff != "" {
				t.Errorf("spans (-want +got)\n%s", diff)
			}
			if h := collector.Headers(); protocol == HTTPProtobuf && (len(h) != 1 || h[0].Get("X-Team") != "a") {
				t.Errorf("the headers of the messages are %v", h)
			}
			if lost := p.Lost(); lost != 0 {
				t.Errorf("%d spans are lost", lost)
			}
		})
	}
}

// scripted is a client that does as it is told.
type scripted struct {
	upload  func(ctx context.Context, spans int) error
	mu      sync.Mutex
	sizes   []int
	stopped bool
	lost    atomic.Int64 // as the one who asked was told
}

func (c *scripted) Start(context.Context) error { return nil }

func (c *scripted) Stop(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	return nil
}

func (c *scripted) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	n := len(spans[0].ScopeSpans[0].Spans)
	c.mu.Lock()
	c.sizes = append(c.sizes, n)
	c.mu.Unlock()
	return c.upload(ctx, n)
}

var _ otlptrace.Client = (*scripted)(nil)

func (c *scripted) sent() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.sizes)
}

func newScripted(t *testing.T, size, batch int, delay time.Duration, upload func(ctx context.Context, spans int) error) (*Process, *scripted, *log) {
	t.Helper()
	c, l := &scripted{upload: upload}, &log{}
	cfg := DefaultConfig()
	cfg.Enabled, cfg.BatchSize, cfg.Delay = true, batch, delay
	clock := ledgertest.New()
	return &Process{cfg: cfg, clock: clock, out: newExporter(c, size, cfg, clock, l.logger(), func(spans int64) { c.lost.Add(spans) })}, c, l
}

func within(t *testing.T, what string, holds func() bool) {
	t.Helper()
	limit := time.After(20 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%s: it did not come to that", what)
		}
	}
}

// TestBatches: a full batch goes at once, what is less waits for the delay or the end.
func TestBatches(t *testing.T) {
	p, c, _ := newScripted(t, 100, 3, time.Hour, func(context.Context, int) error { return nil })
	put(p, "a", "b", "c", "d")
	within(t, "the full batch is sent", func() bool { return cmp.Equal(c.sent(), []int{3}) })
	put(p, "e")
	if err := p.Close(t.Context()); err != nil || !cmp.Equal(c.sent(), []int{3, 2}) || !c.stopped {
		t.Errorf("at the end %v was sent, stopped %t: %v", c.sent(), c.stopped, err)
	}
	p, c, _ = newScripted(t, 100, 3, time.Millisecond, func(context.Context, int) error { return nil })
	put(p, "a")
	within(t, "the delay is over", func() bool { return cmp.Equal(c.sent(), []int{1}) })
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestSlowCollector: while one message is under way the queue fills, and then spans are dropped and counted; nobody waits.
func TestSlowCollector(t *testing.T) {
	began, release := make(chan struct{}, 100), make(chan struct{})
	p, c, l := newScripted(t, 8, 2, time.Hour, func(ctx context.Context, _ int) error {
		began <- struct{}{}
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	put(p, "a", "b")
	<-began
	put(p, slices.Repeat([]string{"x"}, 13)...) // 8 fit
	close(release)
	within(t, "the dropped spans are counted", func() bool { return p.Lost() == 5 })
	if err := p.Close(t.Context()); err != nil || p.Lost() != 5 || c.lost.Load() != 5 {
		t.Errorf("%d spans are lost, %d were told: %v", p.Lost(), c.lost.Load(), err)
	}
	if text := l.String(); !strings.Contains(text, "level=WARN") || !strings.Contains(text, "spans=5 queue_full=5") {
		t.Errorf("the log says %s", text)
	}
}

// TestFailingCollector: what is refused is lost and said, once; and that it works again.
func TestFailingCollector(t *testing.T) {
	var mu sync.Mutex
	fails := errors.New("no room on the disk")
	p, c, l := newScripted(t, 100, 2, time.Hour, func(context.Context, int) error {
		mu.Lock()
		defer mu.Unlock()
		return fails
	})
	put(p, "a", "b")
	within(t, "the first are lost", func() bool { return p.Lost() == 2 })
	put(p, "c", "d", "e", "f")
	within(t, "more are lost", func() bool { return p.Lost() == 6 })
	mu.Lock()
	fails = nil
	mu.Unlock()
	put(p, "g", "h")
	within(t, "it works again", func() bool { return len(c.sent()) == 4 })
	if err := p.Close(t.Context()); err != nil || p.Lost() != 6 || c.lost.Load() != 6 {
		t.Errorf("%d spans are lost, %d were told: %v", p.Lost(), c.lost.Load(), err)
	}
	text := l.String()
	if strings.Count(text, "no room on the disk") != 1 || !strings.Contains(text, "spans=2") || !strings.Contains(text, "reach the collector again") || !strings.Contains(text, "lost_since=4") {
		t.Errorf("the log says %s", text)
	}
}

// TestComplaints: lost spans are said at once and then at most once a minute of the clock that the process was given, with
// all that were lost in between.
func TestComplaints(t *testing.T) {
	clock, l := ledgertest.New(), &log{}
	tr := trouble{clock: clock}
	gone := errors.New("gone")
	for _, step := range []struct {
		after time.Duration
		lost  int64 // dropped
		sent  int
		err   error
		want  string
	}{
		{0, 0, 1, nil, ""},
		{0, 2, 0, nil, `level=WARN msg="spans are lost; requests are not affected" spans=2 queue_full=2` + "\n"},
		{sayAgain, 3, 4, gone, ""}, // a minute later, not after it
		{1, 1, 0, nil, `level=WARN msg="spans are lost; requests are not affected" spans=8 queue_full=1` + "\n"},
		{time.Second, 0, 5, gone, ""},
		{time.Second, 0, 1, nil, `level=INFO msg="spans reach the collector again" lost_since=5` + "\n"},
		{time.Second, 0, 1, gone, `level=WARN msg="spans are lost; requests are not affected" spans=1 error=gone` + "\n"},
	} {
		clock.Advance(step.after)
		before := l.String()
		tr.note(l.logger(), step.lost, step.sent, step.err)
		if diff := cmp.Diff(step.want, strings.TrimPrefix(l.String(), before)); diff != "" {
			t.Errorf("after %v (-want +got)\n%s", step.after, diff)
		}
	}
}

// TestCloseIsBounded: a collector that never answers holds nobody up.
func TestCloseIsBounded(t *testing.T) {
	p, c, _ := newScripted(t, 100, 2, time.Hour, func(ctx context.Context, _ int) error {
		<-ctx.Done()
		return ctx.Err()
	})
	put(p, "a", "b", "c", "d", "e")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Close(ctx); err != nil || p.Lost() != 5 || !c.stopped {
		t.Errorf("%d spans are lost, stopped %t: %v", p.Lost(), c.stopped, err)
	}
	put(p, "f") // after the end: it is dropped, and does no harm
}

// TestNoCollector: with nobody at the endpoint everything works but the export.
func TestNoCollector(t *testing.T) {
	for _, protocol := range []Protocol{GRPC, HTTPProtobuf} {
		t.Run(string(protocol), func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Enabled, cfg.Protocol, cfg.Endpoint, cfg.BatchSize = true, protocol, "127.0.0.1:1", 2
			l := &log{}
			p, err := Open(cfg, ledgertest.New(), l.logger(), nil)
			if err != nil {
				t.Fatal(err)
			}
			put(p, "a", "b", "c")
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := p.Close(ctx); err != nil || p.Lost() != 3 {
				t.Errorf("%d spans are lost: %v", p.Lost(), err)
			}
			if !strings.Contains(l.String(), "spans are lost") {
				t.Errorf("the log says %s", l)
			}
		})
	}
}
