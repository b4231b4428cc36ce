package dp

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/loads"
	"github.com/sluice-dev/sluice/engine/profile"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/request"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeRank is one DP rank in memory: it holds what it was asked and answers when the test says so.
type fakeRank struct {
	info    rank.Info
	refusal error // of every call
	death   error // what Err says after die

	mu      sync.Mutex
	calls   []string
	got     []*request.Request
	streams map[string]*rank.Stream
	closed  bool
	ended   bool
	done    chan struct{}
}

func newFakeRank() *fakeRank {
	return &fakeRank{
		info:    rank.Info{PID: 1, ModelID: "m", VocabSize: 10, ContextLength: 64, PageSize: 4, MaxTotalNumTokens: 128, MaxRunningRequests: 8},
		streams: map[string]*rank.Stream{}, done: make(chan struct{}),
	}
}

func (f *fakeRank) called(call string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call)
	return f.refusal
}

func (f *fakeRank) Submit(_ context.Context, r *request.Request) (*rank.Stream, error) {
	if err := f.called("submit " + r.RID); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s := rank.NewStream()
	f.got = append(f.got, r)
	f.streams[r.RID] = s
	return s, nil
}

// say puts n new tokens into the answer of rid, and its end when the test says so.
func (f *fakeRank) say(rid string, completion int, end bool) {
	f.mu.Lock()
	s := f.streams[rid]
	f.mu.Unlock()
	o := request.Output{RID: rid, CompletionTokens: completion}
	if end {
		o.Finish = &request.Finish{Type: request.FinishLength, Outcome: request.OutcomeLength}
	}
	s.Put(o)
}

func (f *fakeRank) Abort(rid string, reason request.Outcome) error {
	return f.called("abort " + rid + " " + string(reason))
}
func (f *fakeRank) AbortAll(prefix string) error { return f.called("abort all " + prefix) }
func (f *fakeRank) Loads(context.Context) ([]loads.Load, error) {
	return []loads.Load{{NumRunningReqs: f.info.PID}}, f.called("loads")
}
func (f *fakeRank) Info() rank.Info             { return f.info }
func (f *fakeRank) Flush(context.Context) error { return f.called("flush") }
func (f *fakeRank) Pause(_ context.Context, mode request.PauseMode) error {
	return f.called("pause " + string(mode))
}
func (f *fakeRank) Continue(context.Context) error { return f.called("continue") }
func (f *fakeRank) OpenSession(_ context.Context, s request.Session) error {
	return f.called("open " + s.ID)
}
func (f *fakeRank) StartProfile(_ context.Context, o profile.Options) error {
	return f.called("profile " + o.Name)
}
func (f *fakeRank) StopProfile(context.Context) ([]string, error) {
	return []string{f.info.ModelID}, f.called("stop profile")
}
func (f *fakeRank) Timelines(_ context.Context, rids []string) (map[string]*ledger.Record, error) {
	found := map[string]*ledger.Record{}
	f.mu.Lock()
	for _, rid := range rids {
		if f.streams[rid] != nil {
			found[rid] = &ledger.Record{StartWallNanos: int64(f.info.PID)}
		}
	}
	f.mu.Unlock()
	return found, f.called("timelines")
}
func (f *fakeRank) AwaitStep(ctx context.Context, n int64) (int64, error) {
	if int64(f.info.PID) < n { // it never gets there
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return int64(f.info.PID), f.called("await step")
}
func (f *fakeRank) Collect(context.Context) error                   { return f.called("collect") }
func (f *fakeRank) CloseSession(_ context.Context, id string) error { return f.called("close " + id) }
func (f *fakeRank) Done() <-chan struct{}                           { return f.done }

func (f *fakeRank) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	return f.death
}

// end is the end of the rank, once or more.
func (f *fakeRank) end(why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return
	}
	f.ended, f.death = true, why
	for _, s := range f.streams {
		s.Fail(errors.Join(why, errGone))
	}
	close(f.done)
}

var errGone = errors.New("the fake rank is gone")

func (f *fakeRank) Close(context.Context) error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.end(nil)
	return nil
}

func (f *fakeRank) asked() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

// newBench makes a controller over n fakes.
func newBench(t *testing.T, n int, m Method) (*Controller, []*fakeRank) {
	t.Helper()
	fakes, clients := make([]*fakeRank, n), make([]rank.Client, n)
	for i := range fakes {
		fakes[i] = newFakeRank()
		fakes[i].info.PID = i + 1
		clients[i] = fakes[i]
	}
	c, err := New(clients, m, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close(context.Background())
		<-c.Done()
		c.mu.Lock()
		defer c.mu.Unlock()
		for i, count := range c.count {
			if count < 0 {
				t.Errorf("DP rank %d has %d live requests at the end", i, count)
			}
		}
	})
	return c, fakes
}
