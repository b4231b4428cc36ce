package rank

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/loads"
	"github.com/sluice-dev/sluice/engine/model"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/tokenizer"
	"go.uber.org/goleak"
)

// TestMain lets the test binary be the rank process, as sluice-engine is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "rank" {
		if err := Child(context.Background(), os.Stdin, ReportFile(), LinkFile()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 2 && os.Args[1] == "parent" {
		playParent(os.Args[2])
	}
	if len(os.Args) > 2 && os.Args[1] == "world" {
		playWaitingParent(os.Args[2])
	}
	goleak.VerifyTestMain(m)
}

// patience bounds what a test waits for; nothing is expected to take it. Some tests take 20 s of a processor with the race detector,
// which on a machine that does other things too is minutes.
const patience = 5 * time.Minute

func waiting(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// loadOf gives the load of a rank that is the only DP rank.
func loadOf(t testing.TB, c Client) loads.Load {
	t.Helper()
	list, err := c.Loads(waiting(t))
	if err != nil || len(list) != 1 {
		t.Fatalf("the rank's loads are %+v, %v: want one", list, err)
	}
	return list[0]
}

// seededModel writes a small model with its tokenizer.
func seededModel(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	seeded, err := tokenizer.WriteSeeded(dir, 512, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := model.WriteSeeded(dir, model.SeededOptions{
		Seed: 1, VocabSize: seeded.VocabSize, EOSTokenIDs: seeded.EOSTokenIDs, BOSTokenID: &seeded.BOSTokenID,
		Hidden: 32, Layers: 2, Heads: 4, ContextLength: 512,
	}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func testConfig(dir string) Config {
	return Config{ModelDir: dir, ServedModelName: "test", MaxTotalTokens: 1024, Threads: 1, LogLevel: "warn"}
}

// startKind is one way to start a rank; every test of behaviour runs over all.
type startKind struct {
	name  string
	start func(ctx context.Context, cfg Config) (Client, error)
}

var startKinds = []startKind{
	{"in process", StartInProcess},
	{"own process", func(ctx context.Context, cfg Config) (Client, error) { return Start(ctx, cfg) }},
}

func startClient(t testing.TB, k startKind, cfg Config) Client {
	t.Helper()
	c, err := k.start(waiting(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(waiting(t)); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

func newRequest(rid string, prompt []int32, maxNew int) *request.Request {
	return &request.Request{
		RID: rid, PromptIDs: prompt, LogMetrics: true,
		Sampling: request.Sampling{MaxNewTokens: maxNew, TopP: 1, IgnoreEOS: true},
	}
}

func submit(t testing.TB, c Client, r *request.Request) *Stream {
	t.Helper()
	s, err := c.Submit(waiting(t), r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// answer reads a stream to its end.
func answer(t testing.TB, s *Stream) ([]int32, request.Finish) {
	t.Helper()
	tokens, f, err := readAll(waiting(t), s)
	if err != nil {
		t.Fatal(err)
	}
	return tokens, f
}

func readAll(ctx context.Context, s *Stream) (tokens []int32, f request.Finish, err error) {
	return readOn(ctx, s, request.Output{})
}

// readOn reads an answer whose first piece was read already.
func readOn(ctx context.Context, s *Stream, first request.Output) (tokens []int32, f request.Finish, err error) {
	tokens = slices.Clone(first.TokenIDs)
	if first.Finish != nil {
		f = *first.Finish
	}
	for {
		o, err := s.Recv(ctx)
		if errors.Is(err, io.EOF) {
			return tokens, f, nil
		}
		if err != nil {
			return tokens, f, err
		}
		tokens = append(tokens, o.TokenIDs...)
		if o.CompletionTokens != len(tokens) {
			return tokens, f, fmt.Errorf("request %s: %d tokens came, completion tokens are %d", o.RID, len(tokens), o.CompletionTokens)
		}
		if o.Finish != nil {
			f = *o.Finish
		}
	}
}

func prompt(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32((i*37 + n) % 400)
	}
	return ids
}

func TestGenerate(t *testing.T) {
	dir := seededModel(t)
	var first []int32
	for _, k := range startKinds {
		t.Run(k.name, func(t *testing.T) {
			c := startClient(t, k, testConfig(dir))
			tokens, f := answer(t, submit(t, c, newRequest("a", prompt(40), 20)))
			if f.Type != request.FinishLength || f.Outcome != request.OutcomeLength || len(tokens) != 20 {
				t.Errorf("finish is %+v after %d tokens, want length after 20", f, len(tokens))
			}
			if f.ForwardEntryWallNanos == 0 || f.PrefillEndWallNanos < f.ForwardEntryWallNanos || f.QueueNanos < 0 {
				t.Errorf("times of the finish are not in order: %+v", f)
			}
			if first == nil {
				first = tokens
			}
			if diff := cmp.Diff(first, tokens); diff != "" {
				t.Errorf("another process gives other tokens (-first +this):\n%s", diff)
			}
			info := c.Info()
			if info.MaxTotalNumTokens != 1024 || info.ContextLength != 512 || info.PageSize != 16 || info.MaxRunningRequests != 256 ||
				info.ModelID == "" || info.WeightBytes == 0 || info.KVBytes == 0 || len(info.EOSTokenIDs) == 0 {
				t.Errorf("info is %+v", info)
			}
			l := loadOf(t, c)
			if l.NumUsedTokens != 0 || l.NumRunningReqs != 0 || l.MaxTotalNumTokens != 1024 || l.Memory == nil || l.Queues == nil || l.Disaggregation == nil {
				t.Errorf("load after the end is %+v", l)
			}
			if err := c.Flush(waiting(t)); err != nil {
				t.Errorf("flush when idle: %v", err)
			}
		})
	}
}

func TestDuplicateAndAbort(t *testing.T) {
	dir := seededModel(t)
	for _, k := range startKinds {
		t.Run(k.name, func(t *testing.T) {
			c := startClient(t, k, testConfig(dir))
			s := submit(t, c, newRequest("a", prompt(8), 400))
			if _, err := c.Submit(waiting(t), newRequest("a", prompt(8), 1)); !errors.Is(err, ErrDuplicate) {
				t.Errorf("second rid a: %v, want ErrDuplicate", err)
			}
			if _, err := s.Recv(waiting(t)); err != nil {
				t.Fatal(err)
			}
			if err := c.Flush(waiting(t)); err == nil {
				t.Error("flush while a request runs is no error")
			}
			if err := c.Abort("nobody", request.OutcomeAbortedClient); err != nil {
				t.Errorf("abort of an unknown rid: %v", err)
			}
			if err := c.Abort("a", request.OutcomeAbortedClient); err != nil {
				t.Fatal(err)
			}
			tokens, f := answerRest(t, s)
			if f.Outcome != request.OutcomeAbortedClient || len(tokens) >= 400 {
				t.Errorf("finish is %v after %d tokens, want aborted_client", f, len(tokens))
			}
			b := submit(t, c, newRequest("group-b", prompt(8), 400))
			d := submit(t, c, newRequest("d", prompt(8), 5))
			if err := c.AbortAll("group-"); err != nil {
				t.Fatal(err)
			}
			if _, f := answerRest(t, b); f.Outcome != request.OutcomeAbortedOperator {
				t.Errorf("finish of group-b is %v, want aborted_operator", f)
			}
			if _, f := answer(t, d); f.Outcome != request.OutcomeLength {
				t.Errorf("finish of d is %v, want length", f)
			}
			l := loadOf(t, c)
			if l.NumUsedTokens != 0 {
				t.Errorf("%d tokens are used after the end", l.NumUsedTokens)
			}
		})
	}
}

// TestTooLarge: a request that the protocol can't carry is refused, and the rank goes on.
func TestTooLarge(t *testing.T) {
	dir := seededModel(t)
	for _, k := range startKinds {
		t.Run(k.name, func(t *testing.T) {
			c := startClient(t, k, testConfig(dir))
			large := newRequest("large", prompt(8), 1)
			large.Grammar = &request.Grammar{Kind: request.GrammarRegex, Source: strings.Repeat("a", maxMessageBytes)}
			if _, err := c.Submit(waiting(t), large); !errors.Is(err, ErrTooLarge) {
				t.Errorf("submit gives %v, want ErrTooLarge", err)
			}
			if _, f := answer(t, submit(t, c, newRequest("large", prompt(8), 1))); f.Outcome != request.OutcomeLength {
				t.Errorf("the next request ends with %v, want length", f)
			}
		})
	}
}

// answerRest reads the rest of a stream, of which pieces were read before.
func answerRest(t testing.TB, s *Stream) ([]int32, request.Finish) {
	t.Helper()
	var tokens []int32
	for {
		o, err := s.Recv(waiting(t))
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, o.TokenIDs...)
		if o.Finish != nil {
			return tokens, *o.Finish
		}
	}
}

func TestCloseFinishesRequests(t *testing.T) {
	dir := seededModel(t)
	for _, k := range startKinds {
		t.Run(k.name, func(t *testing.T) {
			cfg := testConfig(dir)
			cfg.MaxRunningRequests = 1
			c, err := k.start(waiting(t), cfg)
			if err != nil {
				t.Fatal(err)
			}
			s := submit(t, c, newRequest("a", prompt(8), 400))
			var last *Stream
			for i := range 30 { // one after the other: they are not over before the end comes, however late
				last = submit(t, c, newRequest(fmt.Sprint("a", i), prompt(8), 400))
			}
			if _, err := s.Recv(waiting(t)); err != nil {
				t.Fatal(err)
			}
			answerRest(t, submit(t, c, newRequest("refused at once", nil, 1))) // so the rank has those before it
			if err := c.Close(waiting(t)); err != nil {
				t.Fatal(err)
			}
			if _, f := answerRest(t, last); f.Outcome != request.OutcomeAbortedOperator {
				t.Errorf("finish is %v, want aborted_operator", f)
			}
			if err := c.Err(); err != nil {
				t.Errorf("Err after Close is %v", err)
			}
			if _, err := c.Submit(waiting(t), newRequest("b", prompt(8), 1)); !errors.Is(err, ErrClosed) {
				t.Errorf("submit after Close: %v, want ErrClosed", err)
			}
			if err := c.Abort("a", request.OutcomeAbortedClient); err != nil {
				t.Errorf("abort after Close: %v", err)
			}
		})
	}
}

func TestKilledProcess(t *testing.T) {
	p, err := Start(waiting(t), testConfig(seededModel(t)))
	if err != nil {
		t.Fatal(err)
	}
	s := submit(t, p, newRequest("a", prompt(8), 400))
	first, err := s.Recv(waiting(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
	case <-waiting(t).Done():
		t.Fatal("the death was not noticed")
	}
	want := fmt.Sprintf("rank 0 (pid %d) ended: signal: killed", p.PID())
	if err := p.Err(); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("Err is %v, want %s", err, want)
	}
	_, f, err := readOn(waiting(t), s, first)
	if f.Outcome == "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
		t.Errorf("the stream ends with %v and finish %v, want %s", err, f, want)
	}
	if _, err := p.Submit(waiting(t), newRequest("b", prompt(8), 1)); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("submit to a dead rank: %v, want %s", err, want)
	}
	if _, err := p.Loads(waiting(t)); err == nil {
		t.Error("load of a dead rank is no error")
	}
	if err := p.Close(waiting(t)); err != nil {
		t.Errorf("close of a dead rank: %v", err)
	}
}

func TestStartFails(t *testing.T) {
	tests := []struct {
		name, reason string
		change       func(*Config)
		want         []string
	}{
		{name: "no model", reason: "the child's error comes through", change: func(c *Config) { c.ModelDir = "/nonexistent" },
			want: []string{"start rank 0: ", "/nonexistent"}},
		{name: "bad config", reason: "no process is made for it", change: func(c *Config) { c.PageSize = -1 },
			want: []string{"start rank 0: rank config: page size is -1"}},
		{name: "context", reason: "the model can't do more", change: func(c *Config) { c.ContextLength = 4096 },
			want: []string{"context length is 4096, but the model's is 512: lower --context-length"}},
	}
	dir := seededModel(t)
	for _, tt := range tests {
		for _, k := range startKinds {
			t.Run(tt.name+" "+k.name, func(t *testing.T) {
				cfg := testConfig(dir)
				tt.change(&cfg)
				_, err := k.start(waiting(t), cfg)
				if err == nil {
					t.Fatal("no error")
				}
				for _, want := range tt.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%s: error is %q, want it to contain %q", tt.reason, err, want)
					}
				}
			})
		}
	}
}

func TestChildThatNeverServes(t *testing.T) {
	tests := []struct {
		name, script string
		want         []string
	}{
		{name: "dies", script: "echo first >&2; echo second >&2; exit 3", want: []string{"exit status 3; its last words: first | second"}},
		{name: "silent", script: "exit 0", want: []string{"start rank 0: exit status 0"}},
		{name: "says why", script: `echo '{"error":"no memory"}' >&3; exit 1`, want: []string{"start rank 0: exit status 1: no memory"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := start(waiting(t), testConfig("unused"), exec.Command("/bin/sh", "-c", tt.script), io.Discard)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error is %q, want it to contain %q", err, want)
				}
			}
		})
	}
	t.Run("hangs", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cmd := exec.Command("/bin/sh", "-c", "echo here >&2; exec sleep 1000")
		here, w := io.Pipe()
		go func() {
			buf := make([]byte, 4)
			_, _ = here.Read(buf)
			cancel()
			_, _ = io.Copy(io.Discard, here)
		}()
		_, err := start(ctx, testConfig("unused"), cmd, w)
		_ = w.Close()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error is %v, want context.Canceled", err)
		}
	})
}

func TestConcurrentRequests(t *testing.T) {
	dir := seededModel(t)
	for _, k := range startKinds {
		t.Run(k.name, func(t *testing.T) {
			c := startClient(t, k, testConfig(dir))
			alone := map[int][]int32{}
			for n := 1; n <= 5; n++ {
				alone[n], _ = answer(t, submit(t, c, newRequest(fmt.Sprint("alone", n), prompt(n*13), 12)))
			}
			var streams []*Stream
			for i := range 20 {
				streams = append(streams, submit(t, c, newRequest(fmt.Sprint("r", i), prompt((i%5+1)*13), 12)))
			}
			for i, s := range streams {
				if tokens, _ := answer(t, s); !slices.Equal(tokens, alone[i%5+1]) {
					t.Errorf("request %d gives %v together with others, %v alone", i, tokens, alone[i%5+1])
				}
			}
		})
	}
}
