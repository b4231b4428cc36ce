// Command collector takes spans over OTLP with the receiver of the OpenTelemetry collector, by gRPC and by HTTP, and writes
// each as a line of JSON to its standard output. It is a module of its own, so that what the receiver needs does not decide
// what the product is built from. The tests of test/traces build and run it.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
)

func main() {
	byGRPC := flag.String("grpc", "127.0.0.1:4317", "address for gRPC")
	byHTTP := flag.String("http", "127.0.0.1:4318", "address for HTTP")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, *byGRPC, *byHTTP); err != nil {
		fmt.Fprintln(os.Stderr, "collector:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, byGRPC, byHTTP string) error {
	factory := otlpreceiver.NewFactory()
	cfg := factory.CreateDefaultConfig().(*otlpreceiver.Config)
	cfg.Protocols.GRPC.GetOrInsertDefault().NetAddr.Endpoint = byGRPC
	cfg.Protocols.HTTP.GetOrInsertDefault().ServerConfig.NetAddr.Endpoint = byHTTP
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("configure the receiver: %w", err)
	}
	var mu sync.Mutex
	lines := json.NewEncoder(os.Stdout)
	next, err := consumer.NewTraces(func(_ context.Context, traces ptrace.Traces) error {
		mu.Lock()
		defer mu.Unlock()
		for _, s := range read(traces) {
			if err := lines.Encode(s); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	r, err := factory.CreateTraces(ctx, receivertest.NewNopSettings(factory.Type()), cfg, next)
	if err != nil {
		return fmt.Errorf("make the receiver: %w", err)
	}
	if err := r.Start(ctx, componenttest.NewNopHost()); err != nil {
		return fmt.Errorf("start the receiver: %w", err)
	}
	fmt.Fprintln(os.Stderr, "collector: receiving")
	<-ctx.Done()
	return r.Shutdown(context.WithoutCancel(ctx))
}

// span is a line.
type span struct {
	Trace, ID, Parent string
	ParentRemote      bool
	State             string
	Name              string
	Start, End        int64 // Unix nanoseconds
	Attributes        map[string]any
	Links             []link
	Events            []event
	Failed            bool
	Failure           string
	Service, Scope    string
}

type link struct {
	Trace, ID string
	Remote    bool
}

type event struct {
	Name       string
	At         int64
	Attributes map[string]any
}

// Bits of a span's and a link's flags.
const remote = 0x300

func read(traces ptrace.Traces) (list []span) {
	for _, resource := range traces.ResourceSpans().All() {
		service := ""
		if v, ok := resource.Resource().Attributes().Get("service.name"); ok {
			service = v.AsString()
		}
		for _, scope := range resource.ScopeSpans().All() {
			for _, w := range scope.Spans().All() {
				s := span{
					Trace: w.TraceID().String(), ID: w.SpanID().String(), Parent: w.ParentSpanID().String(), ParentRemote: w.Flags()&remote == remote,
					State: w.TraceState().AsRaw(), Name: w.Name(), Start: int64(w.StartTimestamp()), End: int64(w.EndTimestamp()),
					Attributes: w.Attributes().AsRaw(), Failed: w.Status().Code() == ptrace.StatusCodeError, Failure: w.Status().Message(),
					Service: service, Scope: scope.Scope().Name(),
				}
				for _, l := range w.Links().All() {
					s.Links = append(s.Links, link{l.TraceID().String(), l.SpanID().String(), l.Flags()&remote == remote})
				}
				for _, e := range w.Events().All() {
					s.Events = append(s.Events, event{e.Name(), int64(e.Timestamp()), e.Attributes().AsRaw()})
				}
				list = append(list, s)
			}
		}
	}
	return list
}
