package trace

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/internal/traceparent"
)

// TestRoot follows one request over three threads: each takes what the one before carries over.
func TestRoot(t *testing.T) {
	clock := ledgertest.New()
	p := newKept(clock, 3)
	var timeline ledger.Timeline
	timeline.Start(clock, ledger.APIServer)
	zero := clock.Wall(timeline.Started())
	step := func(to ledger.Stage) ledger.Slice {
		clock.Advance(time.Millisecond)
		return timeline.Move(to)
	}
	client := traceparent.Context{TraceID: traceparent.NewTraceID(), SpanID: traceparent.SpanID{1}, Sampled: true, State: "a=1"}
	root := p.Tracer(Place{Label: Tokenizer, Role: "decode"}).Begin(Beginning{RID: "worker_abcdefghij_0", Module: ModuleRequest, Parent: client, Room: 255, Started: timeline.Started()})
	root.Slice(step(ledger.StageAPIServerDispatch), ledger.StageAPIServerDispatch)
	carried := root.Carry(ledger.StageAPIServerDispatch)
	if again := root.Carry(ledger.StageAPIServerDispatch); *again != *carried {
		t.Errorf("it carries %+v, and asked again %+v", carried, again)
	}

	controller := p.Tracer(Place{Label: DPController}).Follow(&request.Request{Trace: carried}, clock.Now())
	began := clock.Now()
	onward := controller.Carry(ledger.StageDPCDispatch)
	clock.Advance(time.Millisecond)
	controller.Slice(ledger.Slice{Stage: ledger.StageDPCDispatch, Start: began, End: clock.Now()}, ledger.StageDone)
	controller.Close(clock.Now(), request.Finish{})

	var work ledger.Timeline
	work.Start(clock, ledger.Decode)
	scheduler := p.Tracer(Place{Label: Scheduler}).Follow(&request.Request{Trace: onward}, work.Started())
	clock.Advance(time.Millisecond)
	scheduler.Slice(work.Move(ledger.StageDecodeBootstrap), ledger.StageDecodeBootstrap)

	root.Dispatched(step(ledger.StageAwaitOutput))
	step(ledger.StageStreamOutput)
	scheduler.Slice(work.Move(ledger.StageDone), ledger.StageDone)
	scheduler.Close(clock.Now(), request.Finish{Type: request.FinishStop})
	step(ledger.StageDone)
	answer := Answer{
		Model: "m", Prompt: 10, Cached: 4, Completion: 3, Choices: 2, Sampling: request.Sampling{MaxNewTokens: 5, TopP: 0.9, TopK: 40, Temperature: 0.7},
		Finish: request.Finish{Type: request.FinishStop},
	}
	root.End(&timeline, clock.Now(), answer)
	root.End(&timeline, clock.Now(), answer) // it has ended

	spans := kept(p)
	want := `
decode Req abcdefgh 0-6
  DecodeTokenizer(host:01234567 | pid:7) 0-4
    tokenize 0-1
    api_server_dispatch 1-4 <- tokenize
  DP Controller(host:01234567 | pid:7) 1-2
    dpc_dispatch 1-2 <- api_server_dispatch (remote)
  Scheduler(host:01234567 | pid:7) 2-5
    decode_prepare 2-3 <- dpc_dispatch (remote)
    decode_bootstrap 3-5 <- decode_prepare
`
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), draw(spans, zero)); diff != "" {
		t.Errorf("the tree (-want +got)\n%s", diff)
	}
	for _, s := range spans {
		if s.trace != client.TraceID || s.state != "a=1" {
			t.Errorf("%s is in the trace %s with the state %q", s.name, s.trace, s.state)
		}
	}
	top := spans[len(spans)-1]
	if top.parent != client.SpanID || !top.parentRemote {
		t.Errorf("the root's parent is %s, remote %t", top.parent, top.parentRemote)
	}
	attributes := []attribute{
		text("rid", "worker_abcdefghij_0"), text("module", "sglang::request"), text("bootstrap_room", "0xff"),
		number("gen_ai.latency.time_to_first_token", 0.005), number("gen_ai.latency.e2e", 0.006), number("gen_ai.latency.time_in_model_decode", 0.001),
		number("gen_ai.latency.time_in_model_inference", 0.002), number("gen_ai.latency.time_in_model_prefill", 0.001),
		integer("gen_ai.usage.completion_tokens", 3), integer("gen_ai.usage.prompt_tokens", 10), integer("gen_ai.usage.cached_tokens", 4),
		text("gen_ai.request.id", "worker_abcdefghij_0"), integer("gen_ai.request.max_tokens", 5), number("gen_ai.request.top_p", 0.9), integer("gen_ai.request.top_k", 40),
		number("gen_ai.request.temperature", 0.7), integer("gen_ai.request.n", 2), text("gen_ai.response.model", "m"), text("gen_ai.response.finish_reasons", `["stop"]`),
	}
	if diff := cmp.Diff(attributes, top.attributes[0], cmp.AllowUnexported(attribute{})); diff != "" {
		t.Errorf("attributes of the root (-want +got)\n%s", diff)
	}
}

// TestCutShort: a sequence that was lost on its way has whole spans too, and what never happened is absent.
func TestCutShort(t *testing.T) {
	clock := ledgertest.New()
	p := newKept(clock, 1)
	var timeline ledger.Timeline
	timeline.Start(clock, ledger.APIServer)
	root := p.Tracer(Place{Label: Tokenizer}).Begin(Beginning{RID: "r", Module: ModuleRequest, Started: timeline.Started()})
	clock.Advance(time.Millisecond)
	root.Slice(timeline.Move(ledger.StageAPIServerDispatch), ledger.StageAPIServerDispatch)
	if carried := root.Carry(ledger.StageAPIServerDispatch); carried.Previous == "" || carried.Level != 1 {
		t.Errorf("at level 1 it carries %+v, want tokenize for the slice before", carried)
	}
	clock.Advance(time.Millisecond)
	root.End(&timeline, clock.Now(), Answer{Finish: request.Finish{Type: request.FinishAbort, Outcome: request.OutcomeInternal, Message: "lost"}})
	root.Dispatched(ledger.Slice{Stage: ledger.StageAPIServerDispatch, End: clock.Now()}) // too late
	spans := kept(p)
	want := ` Req r 0-2 abort_info.outcome="internal_error" abort_info.message="lost" FAILED "internal_error: lost"
  Tokenizer(host:01234567 | pid:7) 0-2 abort_info.outcome="internal_error" abort_info.message="lost" FAILED "internal_error: lost"
    tokenize 0-1
`
	if diff := cmp.Diff(want, draw(spans, clock.Wall(0))); diff != "" {
		t.Errorf("the tree (-want +got)\n%s", diff)
	}
	for _, s := range spans {
		if i := slices.IndexFunc(s.attributes[0], func(a attribute) bool { return strings.HasPrefix(a.key, "gen_ai.latency.") }); i >= 0 {
			t.Errorf("%s has the latency %s", s.name, shown(s.attributes[0][i]))
		}
	}
}

func TestBegin(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		level        int
		modules      []string
		parent       traceparent.Context
		want         bool
	}{
		{"level 1", "the least that traces", 1, []string{"request"}, traceparent.Context{}, true},
		{"level 0", "off", 0, []string{"request"}, traceparent.Context{}, false},
		{"other module", "it is not among those wanted", 3, []string{"mooncake"}, traceparent.Context{}, false},
		{"no modules", "none is wanted", 3, nil, traceparent.Context{}, false},
		{"sampled parent", "the client records", 3, []string{"request"}, traceparent.New(), true},
		{"parent that is not sampled", "the client does not record, and asks nobody to", 3, []string{"request"},
			traceparent.Context{TraceID: traceparent.NewTraceID(), SpanID: traceparent.NewSpanID()}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			clock := ledgertest.New()
			p := newKept(clock, tc.level)
			p.cfg.Modules = tc.modules
			if got := p.Tracer(Place{Label: Tokenizer}).Begin(Beginning{Module: ModuleRequest, Parent: tc.parent}); (got != nil) != tc.want {
				t.Errorf("%s: traced is %t", tc.reason, got != nil)
			}
		})
	}
}

// TestLevelIsFixedAtTheBegin: a level that changes is for requests that begin later.
func TestLevelIsFixedAtTheBegin(t *testing.T) {
	clock := ledgertest.New()
	p := newKept(clock, 3)
	tracer := p.Tracer(Place{Label: Tokenizer})
	old := tracer.Begin(Beginning{Module: ModuleRequest})
	if !p.SetLevel(0) || tracer.Enabled() || tracer.Begin(Beginning{Module: ModuleRequest}) != nil {
		t.Error("a request begins although the level is 0")
	}
	if c := old.Carry(ledger.StageAPIServerDispatch); c.Level != 3 {
		t.Errorf("a request that began at level 3 carries %+v", c)
	}
	var off *Process
	if off.SetLevel(1) || off.Level() != 0 {
		t.Error("a process without tracing takes a level")
	}
}

func TestRootNames(t *testing.T) {
	for _, tc := range []struct{ role, rid, want, reason string }{
		{"", "0123456789", " Req 01234567", "the role of a unified engine is empty"},
		{"prefill", "0123456789", "prefill Req 01234567", "the role goes first"},
		{"", "abc", " Req abc", "short ids stay whole"},
		{"", "17_0123456789", " Req 01234567", "a worker's prefix is dropped"},
		{"", "0123456789_12", " Req 01234567", "a sequence's number is no id"},
		{"", "17_0123456789_3", " Req 01234567", "both"},
		{"", "17_12345", " Req 12345", "too long to be a number of a sequence"},
		{"", "_7", " Req 7", "there is nothing before it"},
		{"", "ab_", " Req ", "nothing follows"},
		{"", "", " Req ", "no id at all"},
		{"", "äöüäöü", " Req äöüä", "cut in bytes"},
		{"", "aäöüäöü", " Req aäöü", "half a letter is no text"},
	} {
		if got := rootName(tc.role, tc.rid); got != tc.want {
			t.Errorf("%q of role %q is %q, want %q: %s", tc.rid, tc.role, got, tc.want, tc.reason)
		}
	}
}
