package pd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/engine/loads"
)

const (
	patience = 2 * time.Minute // for something that must happen on a slow machine
	secret   = "6f1d0f0d5bb94ad1a3d7d3c0b2c7f0e9"
)

// programs are the binaries under test and the models, made once.
var programs struct{ engine, router, tiny, slow string }

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "sluice-pd-")
	if err == nil {
		err = prepare(dir)
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare:", err)
	} else {
		code = m.Run()
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

func prepare(dir string) error {
	programs.engine, programs.router = filepath.Join(dir, "sluice-engine"), filepath.Join(dir, "sluice-router")
	programs.tiny, programs.slow = filepath.Join(dir, "tiny"), filepath.Join(dir, "slow")
	for _, args := range [][]string{
		{"go", "build", "-o", programs.engine, "github.com/sluice-dev/sluice/cmd/engine"},
		{"go", "build", "-o", programs.router, "github.com/sluice-dev/sluice/cmd/router"},
		{programs.engine, "init-model", "--out", programs.tiny, "--seed", "7", "--hidden-size", "64", "--layers", "3", "--vocab-size", "512", "--context-length", "1024"},
		// Large enough that a long prompt takes seconds: time to be killed in.
		{programs.engine, "init-model", "--out", programs.slow, "--seed", "8", "--hidden-size", "256", "--layers", "8", "--vocab-size", "512", "--context-length", "4096"},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// process is a running program; its end is noticed.
type process struct {
	name  string
	cmd   *exec.Cmd
	log   *lockedBuffer
	ended chan struct{}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.b.Bytes()
	return string(b[max(0, len(b)-8000):])
}

func start(t *testing.T, name, program string, args ...string) *process {
	t.Helper()
	p := &process{name: name, cmd: exec.Command(program, args...), log: &lockedBuffer{}, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	// A killed engine can't remove its files; they go with the programs.
	p.cmd.Env = append(os.Environ(), "SLUICE_PD_SECRET="+secret, "TMPDIR="+filepath.Dir(program))
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = 5 * time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.cmd.Wait() // killed most of the time
		close(p.ended)
	}()
	t.Cleanup(func() {
		if t.Failed() || testing.Verbose() {
			t.Logf("--- %s\n%s", name, p.log.tail())
		}
		p.kill()
	})
	return p
}

// kill ends the process at once, as the kernel does when memory is short.
func (p *process) kill() {
	p.cmd.Process.Signal(syscall.SIGKILL) // it may have ended
	<-p.ended
}

// children lists the pids of a process's children.
func children(t *testing.T, pid int) []int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	var pids []int
	if err == nil {
		for _, field := range strings.Fields(string(text)) {
			n, _ := strconv.Atoi(field)
			pids = append(pids, n)
		}
	}
	if len(pids) > 0 {
		return pids
	}
	// A child belongs to the thread that made it, and some kernels have no list.
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest)
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			n, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, n)
		}
	}
	return pids
}

// freePorts gives ports that nobody listens on now.
func freePorts(t *testing.T, n int) []int {
	t.Helper()
	var ports []int
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		ports = append(ports, ln.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

// engineOptions are the flags that a test varies.
type engineOptions struct {
	model    string
	pageSize int
	chunk    int
	more     []string
}

// engine is a replica under test.
type engine struct {
	*process
	url       string
	port      int
	bootstrap int
}

func startEngine(t *testing.T, mode string, o engineOptions) *engine {
	t.Helper()
	ports := freePorts(t, 2)
	e := &engine{port: ports[0], bootstrap: ports[1], url: fmt.Sprintf("http://127.0.0.1:%d", ports[0])}
	e.run(t, mode, o)
	return e
}

// run starts the replica at its ports, also again after it was killed.
func (e *engine) run(t *testing.T, mode string, o engineOptions) {
	t.Helper()
	args := []string{
		"serve", "--model-path", o.model, "--served-model-name", "m", "--port", strconv.Itoa(e.port), "--threads", "1",
		"--page-size", strconv.Itoa(o.pageSize), "--chunked-prefill-size", strconv.Itoa(o.chunk), "--max-total-tokens", "8192", "--enable-metrics",
	}
	switch mode {
	case "prefill":
		args = append(args, "--disaggregation-mode", mode, "--disaggregation-bootstrap-port", strconv.Itoa(e.bootstrap))
	case "decode":
		args = append(args, "--disaggregation-mode", mode)
	}
	e.process = start(t, mode, programs.engine, append(args, o.more...)...)
	waitHealthy(t, e.process, e.url)
}

func waitHealthy(t *testing.T, p *process, url string) {
	t.Helper()
	eventually(t, p.name+" is healthy", func() bool {
		select {
		case <-p.ended:
			t.Fatalf("%s ended while starting:\n%s", p.name, p.log.tail())
		default:
		}
		resp, err := http.Get(url + "/health")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	limit := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// startRouter starts a router over engines.
func startRouter(t *testing.T, prefills, decodes []*engine, more ...string) (url string) {
	t.Helper()
	port := freePorts(t, 1)[0]
	args := []string{"--port", strconv.Itoa(port), "--health-interval", "200ms"}
	for _, p := range prefills {
		args = append(args, "--prefill", fmt.Sprintf("%s,%d", p.url, p.bootstrap))
	}
	for _, d := range decodes {
		args = append(args, "--decode", d.url)
	}
	url = fmt.Sprintf("http://127.0.0.1:%d", port)
	waitHealthy(t, start(t, "router", programs.router, append(args, more...)...), url)
	return url
}

// answer is what /generate says.
type answer struct {
	Text      string  `json:"text"`
	OutputIDs []int32 `json:"output_ids"`
	MetaInfo  struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		FinishReason     struct {
			Type string `json:"type"`
		} `json:"finish_reason"`
	} `json:"meta_info"`
}

// statusError is an answer other than 200.
type statusError struct {
	status int
	body   string
}

func (e *statusError) Error() string { return fmt.Sprintf("HTTP %d: %s", e.status, e.body) }

// generate asks for tokens, greedily.
func generate(ctx context.Context, url string, prompt []int32, tokens int) (answer, error) {
	body, err := json.Marshal(map[string]any{
		"input_ids":       prompt,
		"sampling_params": map[string]any{"temperature": 0, "max_new_tokens": tokens, "ignore_eos": true},
	})
	if err != nil {
		return answer{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/generate", bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	if resp.StatusCode != http.StatusOK {
		return answer{}, &statusError{resp.StatusCode, string(text)}
	}
	var a answer
	return a, json.Unmarshal(text, &a)
}

// load reads /v1/loads.
func (e *engine) load() (loads.Load, error) {
	resp, err := http.Get(e.url + "/v1/loads?include=all")
	if err != nil {
		return loads.Load{}, err
	}
	defer resp.Body.Close()
	var r loads.Response
	if err := json.NewDecoder(resp.Body).Decode(&r); err != nil {
		return loads.Load{}, err
	}
	if len(r.Loads) != 1 || r.Loads[0].Disaggregation == nil {
		return loads.Load{}, errors.New("want one load with a disaggregation section")
	}
	return r.Loads[0], nil
}

// idle waits until nothing runs, waits or holds KV.
func (e *engine) idle(t *testing.T) {
	t.Helper()
	var last loads.Load
	limit := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		l, err := e.load()
		d := l.Disaggregation
		if err == nil && l.NumRunningReqs == 0 && l.NumWaitingReqs == 0 && l.NumUsedTokens == 0 && l.NumTotalTokens == 0 &&
			d.PrefillBootstrapQueueReqs == 0 && d.PrefillInflightQueueReqs == 0 && d.DecodePreallocQueueReqs == 0 && d.DecodeTransferQueueReqs == 0 {
			return
		}
		last = l
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%s is not idle: %+v %+v (%v)", e.name, last, last.Disaggregation, err)
		}
	}
}
