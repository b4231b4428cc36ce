package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/engine/loads"

	// What the binary is built from, so that cached results are not those of another engine.
	_ "github.com/sluice-dev/sluice/engine/model"
	_ "github.com/sluice-dev/sluice/engine/rank"
	_ "github.com/sluice-dev/sluice/engine/server"
)

// patience bounds every wait; it says nothing about speed.
const patience = 60 * time.Second

// binary and model are made once for all tests.
var binary, model string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "sluice-engine-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary, model = filepath.Join(dir, "sluice-engine"), filepath.Join(dir, "tiny")
	for _, command := range [][]string{
		{"go", "build", "-o", binary, "github.com/sluice-dev/sluice/cmd/engine"},
		{binary, "init-model", "--out", model, "--layers", "2", "--hidden-size", "64", "--heads", "4", "--context-length", "2048", "--seed", "7"},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n%s", strings.Join(command, " "), err, out)
			return 1
		}
	}
	return m.Run()
}

// noteSources reads the files of a directory, inside a test: the test cache depends on what a test reads, and a main package
// can't be imported.
func noteSources(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return err
	}
	for _, file := range files {
		if _, err := os.ReadFile(file); err != nil {
			return err
		}
	}
	return nil
}

// replica is a running sluice-engine.
type replica struct {
	t         testing.TB
	url       string
	bootstrap string // port of the bootstrap server, on a prefill engine
	command   *exec.Cmd
	log       *logBuffer
	exited    chan struct{} // closed when the process was reaped; err is set before
	err       error
}

// logBuffer keeps what the process writes.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
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
	if err := noteSources("../../cmd/engine"); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"serve", "--model-path", model, "--served-model-name", "tiny", "--port", "0", "--threads", "1", "--max-total-tokens", "4096"}, flags...)
	r := &replica{t: t, command: exec.Command(binary, args...), log: &logBuffer{}, exited: make(chan struct{})}
	r.command.Stderr = r.log
	r.command.Env = append(os.Environ(), "TMPDIR="+temp)
	if err := r.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		r.err = r.command.Wait()
		close(r.exited)
	}()
	t.Cleanup(func() {
		_ = r.command.Process.Kill()
		<-r.exited
		if t.Failed() {
			t.Logf("log of the engine:\n%s", r.log)
		}
	})
	return r
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
		found := listening.FindStringSubmatch(r.log.String())
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
	eventually(r.t, what, func() bool {
		select {
		case <-r.exited:
			r.t.Fatalf("the engine ended before %s: %v\n%s", what, r.err, r.log)
		default:
		}
		return holds()
	})
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// exit waits for the end of the process and gives its exit code.
func (r *replica) exit() int {
	r.t.Helper()
	select {
	case <-r.exited:
	case <-time.After(patience):
		r.t.Fatalf("the engine did not end within %v\n%s", patience, r.log)
	}
	var failed *exec.ExitError
	if errors.As(r.err, &failed) {
		return failed.ExitCode()
	}
	return 0
}

func (r *replica) signal(s syscall.Signal) {
	r.t.Helper()
	if err := r.command.Process.Signal(s); err != nil {
		r.t.Fatal(err)
	}
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
