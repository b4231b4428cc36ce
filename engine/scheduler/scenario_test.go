package scheduler

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/disagg"
	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

var update = flag.Bool("update", false, "write the scenarios' output as it is now into testdata")

// TestScenarios runs testdata/*.txt: commands, each followed by ---- and what the scheduler did. `go test -update` writes
// the output anew; its diff is to be read like code.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runScenario(t, string(raw))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(raw), got); diff != "" {
				t.Errorf("(-file +now):\n%s", diff)
			}
		})
	}
}

// runScenario gives the text with every command's output replaced.
func runScenario(t *testing.T, text string) string {
	var out strings.Builder
	h := &harness{t: t}
	inOutput := false
	var commands []string
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSuffix(line, "\n")
		switch {
		case inOutput:
			inOutput = trimmed != ""
			if !inOutput {
				out.WriteString("\n")
			}
		case trimmed == "----":
			out.WriteString("----\n")
			for _, c := range commands {
				out.WriteString(h.command(c))
			}
			commands, inOutput = nil, true
		default:
			out.WriteString(line)
			if trimmed != "" && !strings.HasPrefix(trimmed, "#") {
				commands = append(commands, trimmed)
			}
		}
	}
	return out.String()
}

// harness steps one scheduler by hand.
type harness struct {
	t     *testing.T
	s     *Scheduler
	tape  *tape
	wire  *wire
	clock *ledgertest.Clock
	said  *recorder
	sinks map[string]*inboxSink
	asked []asked
	lines []string

	launched int64 // number of the last step that launches printed
}

// asked is a command that the scheduler answers when it takes it.
type asked struct {
	line  string
	reply <-chan error
}

func (h *harness) control(m controlMsg, line string) {
	reply := make(chan error, 1)
	m.reply = reply
	h.s.inbox.put(m)
	h.asked = append(h.asked, asked{line, reply})
}

// answers prints what was answered since the last time.
func (h *harness) answers() {
	h.asked = slices.DeleteFunc(h.asked, func(a asked) bool {
		select {
		case err := <-a.reply:
			if err == nil {
				h.printf("%s: ok", a.line)
			} else {
				h.printf("%s: %v", a.line, err)
			}
			return true
		default:
			return false
		}
	})
}

// counts prints the queues by priority.
func (h *harness) counts() {
	snap := h.s.snapshot(report.Idle)
	for _, q := range []struct {
		name  string
		count report.QueueCount
	}{
		{"running", snap.NumRunningReqs}, {"waiting", snap.NumQueueReqs}, {"bootstrap", snap.NumPrefillBootstrapQueueReqs},
		{"inflight", snap.NumPrefillInflightQueueReqs}, {"prealloc", snap.NumDecodePreallocQueueReqs}, {"transfer", snap.NumDecodeTransferQueueReqs},
	} {
		if q.count.Total == 0 {
			continue
		}
		line := fmt.Sprintf("%s %d", q.name, q.count.Total)
		for _, p := range q.count.ByPriority {
			line += fmt.Sprintf(", of priority %s %d", p.Priority, p.Count)
		}
		h.printf("%s", line)
	}
	if snap.NumPausedReqs > 0 {
		h.printf("paused %d", snap.NumPausedReqs)
	}
}

func (h *harness) printf(format string, args ...any) {
	h.lines = append(h.lines, fmt.Sprintf(format, args...))
}

// args are the words of a command: bare ones in order, key=value ones by key.
type args struct {
	h     *harness
	bare  []string
	named map[string]string
}

func (a args) number(key string, def int) int {
	v, ok := a.named[key]
	if !ok {
		return def
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		a.h.t.Fatalf("%s=%s is no number", key, v)
	}
	return n
}

func (h *harness) command(line string) string {
	h.lines = nil
	a := args{h: h, named: map[string]string{}}
	words := strings.Fields(line)
	for _, w := range words[1:] {
		if key, value, ok := strings.Cut(w, "="); ok {
			a.named[key] = value
			continue
		}
		a.bare = append(a.bare, w)
	}
	switch words[0] {
	case "engine":
		h.engine(a)
	case "submit":
		h.submit(a)
	case "abort":
		h.s.Abort(a.bare[0], request.OutcomeAbortedClient)
	case "abort-all":
		h.s.AbortAll(strings.Join(a.bare, ""))
	case "pause":
		h.control(controlMsg{kind: controlPause, mode: request.PauseMode(a.bare[0])}, line)
	case "continue":
		h.control(controlMsg{kind: controlContinue}, line)
	case "flush":
		reply := make(chan error, 1)
		h.s.inbox.put(flushMsg{reply: reply})
		h.asked = append(h.asked, asked{line, reply})
	case "counts":
		h.counts()
	case "room":
		h.room(a)
	case "advance":
		d, err := time.ParseDuration(a.bare[0])
		if err != nil {
			h.t.Fatal(err)
		}
		h.clock.Advance(d)
	case "step":
		n := 1
		if len(a.bare) > 0 {
			var err error
			if n, err = strconv.Atoi(a.bare[0]); err != nil {
				h.t.Fatal(err)
			}
		}
		for range n {
			h.step()
		}
		h.state()
	case "reserve": // millionths of what may still be generated
		if len(a.bare) == 0 {
			h.printf("%d", h.s.reserve.ratio)
			break
		}
		h.s.reserve.ratio = int64(args{h: h, named: map[string]string{"n": a.bare[0]}}.number("n", 0))
	case "snapshot": // fields of the last report
		h.snapshot(a.bare)
	case "events": // their sums
		h.events()
	case "load":
		raw, err := json.Marshal(h.s.Load())
		if err != nil {
			h.t.Fatal(err)
		}
		h.printf("%s", raw)
	default:
		h.t.Fatalf("no command %q", words[0])
	}
	if len(h.lines) == 0 {
		return ""
	}
	return strings.Join(h.lines, "\n") + "\n"
}

// snapshot prints fields of the last report.
func (h *harness) snapshot(fields []string) {
	last := h.said.snapshots[len(h.said.snapshots)-1]
	var said []string
	for _, name := range fields {
		v := reflect.ValueOf(last).FieldByName(name)
		if !v.IsValid() {
			h.t.Fatalf("a report has no field %q", name)
		}
		said = append(said, fmt.Sprintf("%s %v", name, v.Interface()))
	}
	h.printf("%s: %s", last.Kind, strings.Join(said, ", "))
}

// events prints the sums of what is counted, as far as there is something.
func (h *harness) events() {
	r := h.said
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range []struct {
		name string
		sums any
		zero bool
	}{
		{"retracted requests, prompt and answer tokens", r.retracted, r.retracted == [3]int{}},
		{"tokens computed, found, decoded", r.realtime, r.realtime == [3]int{}},
		{"tokens computed and found for the first time", r.effective, r.effective == [2]int{}},
		{"evictions, tokens", r.evicted, r.evicted == [2]int{}},
		{"first waits", r.queue, r.queue == 0},
		{"first waits by priority", r.queueOf, len(r.queueOf) < 2},
		{"rejected", r.rejected, len(r.rejected) == 0},
		{"prefill retries", r.retries, r.retries == 0},
		{"released", r.released, len(r.released) == 0},
		{"failed bootstraps, transfers", r.failed, r.failed == [2]int{}},
		{"busy", r.forward, len(r.forward) == 0},
	} {
		if !e.zero {
			h.printf("%s: %v", e.name, e.sums)
		}
	}
}

func (h *harness) engine(a args) {
	role := map[string]Role{"": Unified, "unified": Unified, "prefill": Prefill, "decode": Decode}[a.named["role"]]
	page := a.number("page", 4)
	cfg := testConfig(role, page, a.number("capacity", 64))
	cfg.MaxRunning = a.number("running", cfg.MaxRunning)
	cfg.MaxRunningUnderSLO = a.number("slo", cfg.MaxRunning)
	cfg.ChunkTokens = a.number("chunk", 0)
	cfg.MaxPrefillTokens = a.number("prefill-tokens", cfg.MaxPrefillTokens)
	cfg.MaxQueued = a.number("queue", 0)
	cfg.ContextLength = a.number("context", cfg.ContextLength)
	cfg.DecodeInterval = a.number("interval", cfg.DecodeInterval)
	cfg.TestRetractSteps = a.number("retract", 0)
	cfg.Overlap = a.named["overlap"] == "on"
	cfg.NoCache = a.named["cache"] != "on"
	cfg.MixedChunk = a.named["mixed"] == "on"
	cfg.Conservativeness = float64(a.number("conservativeness", 100)) / 100 // in percent
	cfg.Timeouts = Timeouts{WaitingNanos: h.duration(a, "waiting-timeout"), RunningNanos: h.duration(a, "running-timeout")}
	h.policies(a, &cfg)
	h.tape, h.wire, h.clock, h.said, h.sinks = newTapeOf(cfg), newWire(page), ledgertest.New(), newRecorder(), map[string]*inboxSink{}
	h.wire.auto = false
	if cfg.depth() == 1 {
		h.tape.onBatch = h.batch
	}
	deps := Deps{
		Executor: h.tape, Clock: h.clock, Reporter: h.said, Decoder: letters{}, Log: quiet(),
		Sender: wireSender{h.wire}, Receiver: wireReceiver{h.wire},
	}
	if each := h.duration(a, "busy"); each > 0 { // of each step
		busy := int64(0)
		deps.Busy = func() int64 {
			busy += each
			return busy
		}
	}
	s, err := New(cfg, deps)
	if err != nil {
		h.t.Fatal(err)
	}
	h.s, h.launched = s, 0
	begin(h.t, s)
}

// policies reads policy=lpm, retraction=priority, priorities=high|low|refuse, default-priority=, threshold= and preemption=off.
func (h *harness) policies(a args, cfg *Config) {
	var err error
	if name, ok := a.named["policy"]; ok {
		if cfg.Policy, err = ParsePolicy(name); err != nil {
			h.t.Fatal(err)
		}
	}
	if name, ok := a.named["retraction"]; ok {
		if cfg.Retraction, err = ParseRetractionPolicy(name); err != nil {
			h.t.Fatal(err)
		}
	}
	p := Priorities{Threshold: a.number("threshold", 10), NoPreemption: a.named["preemption"] == "off"}
	switch a.named["priorities"] {
	case "":
	case "high":
		p.Enabled = true
	case "low":
		p.Enabled, p.LowFirst = true, true
	case "refuse":
		p.RefuseWhenDisabled = true
	default:
		h.t.Fatalf("priorities=%s: use high, low or refuse", a.named["priorities"])
	}
	if _, ok := a.named["default-priority"]; ok {
		p.Default = new(a.number("default-priority", 0))
	}
	cfg.Priorities = p
}

// duration is a named duration in nanoseconds, 0 when it is not there.
func (h *harness) duration(a args, key string) int64 {
	text, ok := a.named[key]
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		h.t.Fatal(err)
	}
	return int64(d)
}

func (h *harness) submit(a args) {
	rid := a.bare[0]
	r := &request.Request{
		RID: rid, LogMetrics: true, PromptIDs: h.prompt(a, rid), CacheKey: a.named["key"], RoutingKey: a.named["routing"],
		Sampling: request.Sampling{
			MaxNewTokens: a.number("max", 4), MinNewTokens: a.number("min", 0), Seed: new(int64(a.number("seed", 0))),
			IgnoreEOS: a.named["eos"] == "ignore",
		},
	}
	if _, ok := a.named["priority"]; ok {
		r.Priority = new(a.number("priority", 0))
	}
	if stop, ok := a.named["stop"]; ok {
		r.Sampling.Stop = strings.Split(stop, ",")
	}
	if room, ok := a.named["room"]; ok {
		r.Bootstrap = &request.Bootstrap{Host: request.FakeBootstrapHost}
		if room != "fake" {
			r.Bootstrap = &request.Bootstrap{Host: "10.0.0.1", Port: 8998, Room: int64(a.number("room", 0))}
		}
	}
	sink := newSink()
	sink.onPiece = func(o request.Output) {
		line := fmt.Sprintf("%s:", rid)
		for _, id := range o.TokenIDs {
			line += fmt.Sprint(" ", id)
		}
		if f := o.Finish; f != nil {
			line += " ∎ " + f.String()
			if o.CachedTokens > 0 {
				line += fmt.Sprintf(", %d cached", o.CachedTokens)
			}
			if o.Retractions > 0 {
				line += fmt.Sprintf(", retracted %d×", o.Retractions)
			}
			if f.MatchedToken != nil {
				line += fmt.Sprintf(" at token %d", *f.MatchedToken)
			}
			if f.MatchedStop != "" {
				line += fmt.Sprintf(" at %q", f.MatchedStop)
			}
		}
		h.printf("%s", line)
	}
	if err := h.s.Submit(r, sink); err != nil {
		h.t.Fatal(err)
	}
	h.sinks[rid] = sink
}

// prompt reads prompt=, and with like=rid:n the first n tokens of an earlier request.
func (h *harness) prompt(a args, rid string) []int32 {
	ids := testPrompt(a.number("prompt", 4), len(rid)*7+int(rid[0]))
	if other, count, ok := strings.Cut(a.named["like"], ":"); ok {
		n := args{h: h, named: map[string]string{"n": count}}.number("n", 0)
		copy(ids, testPrompt(n, len(other)*7+int(other[0])))
	}
	return ids
}

func testPrompt(n, salt int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32((i*31+salt*17)%(testVocab-1) + 1)
	}
	return ids
}

// room plays the peer: `room 7 ready`, `room 7 pages`, `room 7 done token=5`, `room 7 fail`, `room 7 fail outcome=timeout`, `room 7 linger`, `room 7 settle`.
func (h *harness) room(a args) {
	id, err := strconv.ParseInt(a.bare[0], 10, 64)
	if err != nil {
		h.t.Fatal(err)
	}
	h.wire.mu.Lock()
	defer h.wire.mu.Unlock()
	r := h.wire.rooms[id]
	switch a.bare[1] {
	case "ready":
		r.state[0] = disagg.Ready
	case "pages":
		r.state[1] = disagg.WaitingPages
	case "done":
		if h.s.cfg.Role == Decode {
			r.first = &disagg.First{Token: int32(a.number("token", 1))}
			for _, q := range h.s.in[stateTransferring] {
				if e, ok := q.receiving.(end); ok && e.room == r {
					for i, token := range q.req.PromptIDs {
						h.tape.page(r.dst[i/h.tape.pageSize])[i%h.tape.pageSize] = token
					}
				}
			}
		} else {
			h.printf("room %d got %d pages of %d layers", id, len(r.sent)/testLayers, testLayers)
		}
		r.state = [2]disagg.State{disagg.Done, disagg.Done}
	case "fail":
		step := r.state[0]
		if h.s.cfg.Role == Decode {
			step = r.state[1]
		}
		failed := &disagg.Error{Step: step, Reason: disagg.ReasonPeerDied, Room: id, Err: fmt.Errorf("connection reset")}
		if outcome := a.named["outcome"]; outcome != "" {
			failed.Reason, failed.FromPeer, failed.Outcome = disagg.ReasonPeerAborted, true, request.Outcome(outcome)
			failed.Err = fmt.Errorf("abort (%s)", outcome)
		}
		r.failLocked(failed)
	case "linger":
		r.lingering = true
	case "settle":
		r.lingering = false
		r.failLocked(r.err)
	default:
		h.t.Fatalf("room: no action %q", a.bare[1])
	}
}

func (h *harness) step() {
	before := len(h.said.lines)
	h.clock.Advance(100 * time.Millisecond)
	if _, err := h.s.turn(); err != nil {
		h.t.Fatal(err)
	}
	for _, st := range h.s.flight.steps {
		for len(st.done) == 0 { // so that the clock stands still while steps are computed
			runtime.Gosched()
		}
	}
	h.launches()
	h.answers()
	if err := h.s.check(); err != nil {
		h.t.Fatal(err)
	}
	h.lines = append(h.lines, h.said.lines[before:]...)
}

// batch prints what is computed: rid[from,to), with a star where a token is sampled. It runs on the executor's goroutine,
// for which the loop waits when one step at most is in flight; with more, see launches.
func (h *harness) batch(rows []Row) {
	line := "compute"
	for _, r := range rows {
		for _, q := range h.s.all() {
			if &q.req.Sampling == r.Params {
				line += share(q.req.RID, r)
			}
		}
	}
	h.printf("%s", line)
}

// launches prints the steps that were launched and are in flight still: rid[from,to), with a star where a token is sampled
// and a tilde where the token to compute is a future one.
func (h *harness) launches() {
	if h.s.cfg.depth() == 1 {
		return
	}
	for _, st := range h.s.flight.steps {
		if st.number <= h.launched {
			continue
		}
		h.launched = st.number
		line := "launch"
		for i, r := range st.rows {
			line += share(st.items[i].seq.req.RID, r)
		}
		h.printf("%s", line)
	}
}

// share is what a row computes of a request.
func share(rid string, r Row) string {
	line := fmt.Sprintf(" %s[%d,%d)", rid, r.Start, r.Start+max(len(r.Tokens), 1))
	if r.Future {
		line += "~"
	}
	if r.Sample {
		line += "*"
	}
	return line
}

func (h *harness) state() {
	var parts []string
	for st := range numStates {
		if l := h.s.in[st]; len(l) > 0 {
			line := st.String()
			for _, q := range l {
				line += " " + q.req.RID
				if len(q.pages) > 0 {
					line += strings.ReplaceAll(fmt.Sprint(q.pages), " ", ",")
				}
			}
			parts = append(parts, line)
		}
	}
	st := h.s.pool.Stats()
	pool := fmt.Sprintf("pool: %d available, %d used, %d reserved", st.Available, st.Used, st.Reserved)
	if h.s.tree != nil {
		pool += fmt.Sprintf(", %d evictable, %d in the cache", st.Evictable, h.s.tree.Size())
	}
	parts = append(parts, pool)
	h.printf("%s", strings.Join(slices.Concat(parts), " · "))
}
