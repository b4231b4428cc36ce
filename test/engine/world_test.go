package engine

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/test/harness"
)

// TestWorlds: however the model is divided among processes, the greedy answer, its logprobs' order and a seeded answer within
// a grammar are those of one process.
func TestWorlds(t *testing.T) {
	var want []string
	for _, flags := range [][]string{
		nil, {"--tp-size", "2"}, {"--pp-size", "2"}, {"--tp-size", "2", "--pp-size", "2", "--disable-overlap-schedule"},
		{"--tp-size", "2", "--dp-size", "2", "--enable-metrics-for-all-schedulers"},
	} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			r := start(t, append(flags, "--enable-metrics")...)
			var got []string
			for _, body := range []string{
				`{"prompt":"the old mill","max_tokens":24,"temperature":0,"ignore_eos":true}`,
				`{"prompt":"the river and the old mill and the river and the bread of the miller","max_tokens":40,"seed":3,"regex":"(rye|wheat): [1-9][0-9]{0,2} sacks"}`,
			} {
				status, text := r.post("/v1/completions", body)
				if status != http.StatusOK {
					t.Fatalf("status %d: %s", status, text)
				}
				got = append(got, decode[completion](t, text).Choices[0].Text)
			}
			if want == nil {
				want = got
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-one process +%v)\n%s", flags, diff)
			}
			r.idle()
			_, metrics := r.ask(http.MethodGet, "/metrics", "", "")
			for _, label := range []string{`tp_rank="1"`, `pp_rank="1"`} {
				size := map[string]string{`tp_rank="1"`: "--enable-metrics-for-all-schedulers", `pp_rank="1"`: "--pp-size"}[label]
				if got := strings.Contains(metrics, label); got != slices.Contains(flags, size) {
					t.Errorf("series with %s: %t", label, got)
				}
			}
			r.Signal(syscall.SIGTERM)
			if code := r.exit(); code != 0 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// TestServerInfoNamesEveryRank: the processes that /server_info names are the engine's children.
func TestServerInfoNamesEveryRank(t *testing.T) {
	r := start(t, "--tp-size", "2", "--dp-size", "2")
	var named []int
	for _, pids := range r.rankPIDs() {
		named = append(named, pids...)
	}
	children := harness.Children(r.PID())
	slices.Sort(named)
	slices.Sort(children)
	if diff := cmp.Diff(children, named); diff != "" || len(named) != 4 {
		t.Errorf("(-children +named)\n%s", diff)
	}
}

// TestWorldDeath: whichever rank is killed, busy or idle, the engine ends with an error that names it; no client hangs, and
// no process or folder stays.
func TestWorldDeath(t *testing.T) {
	for victim := range 2 {
		for _, busy := range []bool{true, false} {
			t.Run(fmt.Sprintf("rank %d, busy %t", victim, busy), func(t *testing.T) {
				r := start(t, "--tp-size", "2", "--disable-overlap-schedule")
				pids := harness.Children(r.PID())
				if len(pids) != 2 {
					t.Fatalf("%d ranks", len(pids))
				}
				pid := r.rankPIDs()[0][victim]
				var rest io.Reader
				if busy {
					stream, closeBody := r.stream(t.Context(), longAnswer)
					defer closeBody()
					rest = stream
				}
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				want := fmt.Sprintf("rank %d (tp %d, pp 0, pid %d) ended: signal: killed", victim, victim, pid)
				if busy {
					body, err := io.ReadAll(rest)
					list := events(string(body))
					if last := list[len(list)-1]; err != nil || !strings.Contains(last, fmt.Sprintf("rank %d ", victim)) || !strings.Contains(last, `"retryable":true`) {
						t.Errorf("the stream ends with %s: %v", last, err)
					}
				}
				if code := r.exit(); code == 0 || !strings.Contains(r.Log(), "sluice-engine: "+want) {
					t.Errorf("exit code %d, and the log lacks %q", code, want)
				}
				for _, pid := range pids {
					harness.Eventually(t, "the ranks have ended", func() bool { return !alive(pid) })
				}
				if left, _ := filepath.Glob(filepath.Join(filepath.Dir(binary), "sluice-*-*")); len(left) > 0 {
					for _, path := range left {
						if filepath.Base(path) != "sluice-engine" {
							t.Errorf("%s is left behind", path)
						}
					}
				}
			})
		}
	}
}
