package soak

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/test/harness"
)

// defaultDuration is how long each engine runs in `make test`, two at a time; `make soak` sets SLUICE_SOAK to more.
const defaultDuration = 30 * time.Second

var (
	programs *harness.Programs
	tiny     string // a model's folder
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(p *harness.Programs) error { programs = p; return nil }, harness.Model{Dir: &tiny, Name: "tiny"}))
}

func duration(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("SLUICE_SOAK")
	if text == "" {
		return defaultDuration
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		t.Fatalf("SLUICE_SOAK is %q: write a duration like 10m", text)
	}
	return d
}

// clients are how many send requests at once: more than the engine runs, so that it queues, refuses and retracts.
const clients = 14

func TestSoak(t *testing.T) {
	harness.NoteSources(t, "../..")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	length := duration(t)
	for _, tt := range []struct {
		name string
		args []string
	}{
		{"one rank", []string{"--enable-streaming-session", "--max-running-requests", "8", "--max-queued-requests", "6"}},
		{"two DP ranks, small pages", []string{"--dp-size", "2", "--page-size", "4", "--max-running-requests", "4", "--max-queued-requests", "2"}},
		{"two TP ranks", []string{"--tp-size", "2", "--max-running-requests", "8", "--max-queued-requests", "4"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := programs.StartEngine(t, "", []string{"SLUICE_TEST_REQUEST_TIME_STATS=1"}, append([]string{
				"--model-path", tiny, "--max-total-tokens", "1536",
				"--chunked-prefill-size", "64", "--enable-priority-scheduling", "--log-level", "warn",
			}, tt.args...)...)
			w := newWorld(t, e, seed, length)
			w.sessions = tt.name == "one rank"
			w.warmUp()
			before := w.footprint()
			w.storm()
			w.settle()
			w.compare(before)
			w.audit()
			w.judge()
		})
	}
}

// kinds of answers that the storm must have seen, or it tested less than it says.
var wanted = []string{
	"finished", "streamed", "cancelled", "aborted", "refused", "paused abort", "paused retract", "paused in_place", "flushed", "flush refused", "retracted",
}

// audit wants that no law of docs/ledger.md was broken in any process.
func (w *world) audit() {
	w.t.Helper()
	for _, n := range w.metric("sluice_ledger_violations_total") {
		if n != 0 {
			w.t.Errorf("conservation laws were broken: the log of the engine says which:\n%s", w.engine.Log())
			return
		}
	}
}

// judge wants every kind of thing to have happened and nothing unexpected.
func (w *world) judge() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.t.Logf("%v", w.counts)
	for _, kind := range wanted {
		if w.counts[kind] == 0 {
			w.t.Errorf("never happened: %s", kind)
		}
	}
	if w.sessions && w.counts["session turn"] == 0 {
		w.t.Error("no session had a turn")
	}
}

// status gives the status of an error of harness.Post; 200 for none, 0 for one without an answer.
func status(err error) int {
	var e *harness.StatusError
	switch {
	case err == nil:
		return http.StatusOK
	case errors.As(err, &e):
		return e.Status
	default:
		return 0
	}
}
