package engine

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/engine/loads"
	"github.com/sluice-dev/sluice/test/harness"
)

// binary and model are made once for all tests.
var binary, model string

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(p *harness.Programs) error { binary = p.Engine; return nil },
		harness.Model{Dir: &model, Name: "tiny", Flags: []string{"--vocab-size", "1024", "--context-length", "2048"}}))
}

// replica is a running sluice-engine.
type replica struct {
	*harness.Process
	t         testing.TB
	url       string
	bootstrap string // port of the bootstrap server, on a prefill engine
}

var listening = regexp.MustCompile(`msg=listening address=(\S+)(?: bootstrap=\S+:(\d+))?`)

// launch starts an engine on a free port, without waiting until it serves.
func launch(t testing.TB, flags ...string) *replica {
	t.Helper()
	return launchIn(t, filepath.Dir(binary), flags...) // a killed engine can't remove its files; they go with the binary
}

// launchIn is launch with a temporary directory of the engine's own.
func launchIn(t testing.TB, temp string, flags ...string) *replica {
	t.Helper()
	harness.NoteSources(t, "../..")
	args := append([]string{"serve", "--model-path", model, "--served-model-name", "tiny", "--port", "0", "--threads", "1", "--max-total-tokens", "4096"}, flags...)
	return &replica{Process: harness.Start(t, "engine", binary, []string{"TMPDIR=" + temp}, args...), t: t}
}

// start launches an engine and waits until it is healthy.
func start(t testing.TB, flags ...string) *replica {
	t.Helper()
	return startIn(t, filepath.Dir(binary), flags...)
}

// startIn is start with a temporary directory of the engine's own.
func startIn(t testing.TB, temp string, flags ...string) *replica {
	t.Helper()
	r := launchIn(t, temp, flags...)
	r.wait("it listens", func() bool {
		found := listening.FindStringSubmatch(r.Log())
		if found == nil {
			return false
		}
		r.url, r.bootstrap = "http://"+found[1], found[2]
		return true
	})
	r.wait("it is healthy", func() bool { return r.status("/health") == http.StatusOK })
	return r
}

// wait polls a condition while the engine lives.
func (r *replica) wait(what string, holds func() bool) {
	r.t.Helper()
	harness.Eventually(r.t, what, func() bool {
		select {
		case <-r.Ended():
			r.t.Fatalf("the engine ended before %s with exit code %d:\n%s", what, r.ExitCode(), r.Log())
		default:
		}
		return holds()
	})
}

// exit waits for the end of the process and gives its exit code, which is -1 when a signal ended it.
func (r *replica) exit() int {
	r.t.Helper()
	select {
	case <-r.Ended():
	case <-time.After(harness.Patience):
		r.t.Fatalf("the engine did not end within %v\n%s", harness.Patience, r.Log())
	}
	return r.ExitCode()
}

func (r *replica) status(path string) int {
	answer, err := http.Get(r.url + path)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode
}

// post sends a body and gives the status and the whole answer.
func (r *replica) post(path, body string) (status int, answer string) {
	r.t.Helper()
	response, err := http.Post(r.url+path, "application/json", strings.NewReader(body))
	if err != nil {
		r.t.Errorf("POST %s: %v", path, err)
		return 0, ""
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		r.t.Errorf("POST %s: read the answer: %v", path, err)
	}
	return response.StatusCode, string(data)
}

// get reads a JSON answer.
func (r *replica) get(path string, to any) {
	r.t.Helper()
	response, err := http.Get(r.url + path)
	if err != nil {
		r.t.Fatalf("GET %s: %v", path, err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(to); err != nil {
		r.t.Fatalf("GET %s: status %d: %v", path, response.StatusCode, err)
	}
}

// load gives the load of the only rank.
func (r *replica) load() loads.Load {
	r.t.Helper()
	var answer loads.Response
	r.get("/v1/loads?include=all", &answer)
	if len(answer.Loads) != 1 {
		r.t.Fatalf("%d loads, want 1", len(answer.Loads))
	}
	return answer.Loads[0]
}

// idle waits until the rank holds nothing.
func (r *replica) idle() {
	r.t.Helper()
	r.wait("nothing runs and no KV is held", func() bool {
		var answer loads.Response
		r.get("/v1/loads?include=all", &answer)
		return !slices.ContainsFunc(answer.Loads, func(l loads.Load) bool {
			return l.NumRunningReqs > 0 || l.NumWaitingReqs > 0 || l.NumUsedTokens > 0
		})
	})
}

// rankPIDs gives the processes of all ranks, by DP rank and rank.
func (r *replica) rankPIDs() [][]int {
	r.t.Helper()
	var info struct {
		InternalStates []struct {
			PID   int `json:"pid"`
			Ranks []struct {
				Rank int `json:"rank"`
				PID  int `json:"pid"`
			} `json:"ranks"`
		} `json:"internal_states"`
	}
	r.get("/server_info", &info)
	var all [][]int
	for i, state := range info.InternalStates {
		var pids []int
		for rank, p := range state.Ranks {
			if p.Rank != rank || p.PID == 0 {
				r.t.Fatalf("rank %d of DP rank %d is %+v", rank, i, p)
			}
			pids = append(pids, p.PID)
		}
		if len(pids) == 0 || state.PID != pids[0] {
			r.t.Fatalf("DP rank %d is %+v", i, state)
		}
		all = append(all, pids)
	}
	return all
}

// rankPID gives the process of the rank, of the first where there are several.
func (r *replica) rankPID() int { return r.rankPIDs()[0][0] }

// command runs the binary to its end.
func command(args ...string) (output string, err error) {
	text, err := exec.Command(binary, args...).CombinedOutput()
	return string(text), err
}

// alive reports whether a process exists.
func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// completion is the part of an answer that tests look at.
type completion struct {
	Choices []struct {
		Index        int    `json:"index"`
		Text         string `json:"text"`
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
	Usage struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
	} `json:"usage"`
	Error *struct {
		Message string `json:"message"`
		Param   string `json:"param"`
		Code    string `json:"code"`
	} `json:"error"`
}

func decode[T any](t testing.TB, text string) T {
	t.Helper()
	var value T
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return value
}

// events splits a stream into the data of its events.
func events(body string) []string {
	var list []string
	for event := range strings.SplitSeq(strings.TrimSpace(body), "\n\n") {
		list = append(list, strings.TrimPrefix(event, "data: "))
	}
	return list
}
