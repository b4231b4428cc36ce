package server

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/trace/tracetest"
)

// traced serves a unified engine whose spans go to the collector.
func traced(t *testing.T, c *tracetest.Collector, change func(*Config)) *run {
	t.Helper()
	return serve(t, func(cfg *Config) {
		cfg.Rank.Trace.Enabled, cfg.Rank.Trace.Endpoint, cfg.Rank.Trace.Delay = true, c.GRPC, 5*time.Millisecond
		if change != nil {
			change(cfg)
		}
	})
}

// stages gives the names of spans without what differs from machine to machine.
func stages(spans []tracetest.Span) []string {
	names := make([]string, len(spans))
	for i, s := range spans {
		names[i], _, _ = strings.Cut(s.Name, "(host:")
	}
	return names
}

func TestTraceOfAUnifiedRequest(t *testing.T) {
	collector := tracetest.New(t)
	r := traced(t, collector, nil)
	status, body := r.ask(t, http.MethodPost, "/generate", `{"rid":"0123456789","input_ids":[1,2,3],"sampling_params":{"max_new_tokens":4,"ignore_eos":true}}`)
	if status != http.StatusOK {
		t.Fatalf("the answer is %d %s", status, body)
	}
	spans := collector.AwaitRoots(t, 1, 2)
	root := spans[slices.IndexFunc(spans, tracetest.IsRoot)]
	if root.Name != " Req 01234567" || root.Parent != "" || root.Failed || root.Attributes["rid"] != "0123456789" || root.Service != "sglang" || root.Scope != "sglang server" {
		t.Errorf("the root is %+v", root)
	}
	threads := tracetest.Children(spans, root)
	if diff := cmp.Diff([]string{"Tokenizer", "Scheduler [TP 0]  [PP 0] "}, stages(threads)); diff != "" {
		t.Fatalf("threads (-want +got)\n%s", diff)
	}
	front, back := tracetest.Children(spans, threads[0]), tracetest.Children(spans, threads[1])
	if diff := cmp.Diff([]string{"tokenize", "api_server_dispatch"}, stages(front)); diff != "" {
		t.Errorf("slices of the tokenizer (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"request_process", "prefill_waiting", "prefill_forward", "decode_waiting", "decode_forward"}, stages(back)); diff != "" {
		t.Fatalf("slices of the scheduler (-want +got)\n%s", diff)
	}
	loops := tracetest.Children(spans, back[4])
	if diff := cmp.Diff([]string{"decode_loop", "decode_loop", "decode_loop"}, stages(loops)); diff != "" {
		t.Errorf("laps of decode_forward (-want +got)\n%s", diff)
	}
}
