package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// site is where engines are started: the binary and the model, in a folder of its own.
type site struct {
	options
	dir, engine, model string
}

func prepare(ctx context.Context, o options) (_ *site, err error) {
	dir, err := os.MkdirTemp("", "sluice-overhead-")
	if err != nil {
		return nil, err
	}
	s := &site{options: o, dir: dir, engine: filepath.Join(dir, "engine"), model: filepath.Join(dir, "model")}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.remove())
		}
	}()
	fmt.Println("building the engine")
	if err := run(ctx, "go", "build", "-o", s.engine, "./cmd/engine"); err != nil {
		return nil, err
	}
	return s, run(ctx, s.engine, "init-model", "--out", s.model, "--seed", "7", "--hidden-size", strconv.Itoa(o.hidden), "--layers", strconv.Itoa(o.layers))
}

func (s *site) remove() error { return os.RemoveAll(s.dir) }

// running is one engine.
type running struct {
	cmd     *exec.Cmd
	url     string
	pids    []int         // its own and those of its ranks
	scraped time.Duration // time in rounds since the last scrape
}

// start runs an engine until ctx ends.
func (s *site) start(ctx context.Context, e engine) (*running, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	args := []string{
		"serve", "--model-path", s.model, "--served-model-name", "m", "--port", strconv.Itoa(port), "--threads", "1", "--max-total-tokens", "16384",
		"--log-level", "warn", "--enable-priority-scheduling",
	}
	timer := "false"
	if e == on {
		args = append(args, "--enable-metrics", "--enable-metrics-for-all-schedulers", "--enable-mfu-metrics", "--enable-trace")
		timer = "true"
	}
	cmd := exec.CommandContext(ctx, s.engine, args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+s.dir, "SGLANG_TRACE_LEVEL=0", "SGLANG_ENABLE_METRICS_DEVICE_TIMER="+timer)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r := &running{cmd: cmd, url: fmt.Sprintf("http://127.0.0.1:%d", port)}
	if err := healthy(ctx, r.url); err != nil {
		return r, err
	}
	r.pids = append(children(cmd.Process.Pid), cmd.Process.Pid)
	if len(r.pids) < 2 {
		return r, fmt.Errorf("the engine on port %d has no rank process", port)
	}
	return r, nil
}

// generation starts three engines and gives their cycles.
func (s *site) generation(ctx context.Context, rng *rand.Rand) (g generation, err error) {
	ctx, stop := context.WithCancel(ctx)
	var three [engines]*running
	defer func() {
		stop()
		for _, r := range three {
			if r != nil {
				_ = r.cmd.Wait() // killed
			}
		}
	}()
	for e := range engine(engines) {
		if three[e], err = s.start(ctx, e); err != nil {
			return nil, err
		}
	}
	orders := [][engines]engine{{off, again, on}, {on, again, off}, {again, on, off}, {off, on, again}, {on, off, again}, {again, off, on}}
	for i := range s.cycles + 1 {
		var prompts [][]int32
		for range s.clients {
			prompts = append(prompts, prompt(rng, s.input))
		}
		var c cycle
		for _, e := range orders[(i+rng.IntN(2))%len(orders)] {
			if c[e], err = s.round(ctx, three[e], e == on, prompts); err != nil {
				return nil, err
			}
		}
		if i > 0 { // the first warms up
			g = append(g, c)
		}
	}
	return g, nil
}

func prompt(rng *rand.Rand, n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(10 + rng.IntN(900))
	}
	return ids
}

// round lets an engine answer the prompts, all at once, and scrapes it meanwhile when it is time to.
func (s *site) round(ctx context.Context, r *running, scraped bool, prompts [][]int32) (took round, err error) {
	before, err := r.processorNanos()
	if err != nil {
		return took, err
	}
	begin := time.Now()
	errs := make([]error, len(prompts)+1)
	var asking sync.WaitGroup
	for i, ids := range prompts {
		asking.Go(func() { errs[i] = s.ask(ctx, r.url, ids) })
	}
	if scraped && r.scraped >= s.scrape {
		r.scraped = 0
		asking.Go(func() { errs[len(prompts)] = read(ctx, r.url+"/metrics") })
	}
	asking.Wait()
	wall := time.Since(begin)
	r.scraped += wall
	if err := errors.Join(errs...); err != nil {
		return took, err
	}
	after, err := r.processorNanos()
	if err != nil {
		return took, err
	}
	return round{throughput: wall.Seconds(), processorTime: float64(after-before) / 1e9}, nil
}

// ask reads a streamed answer.
func (s *site) ask(ctx context.Context, url string, ids []int32) error {
	body, err := json.Marshal(map[string]any{
		"input_ids": ids, "stream": true, "sampling_params": map[string]any{"temperature": 0, "max_new_tokens": s.output, "ignore_eos": true},
	})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/generate", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	return whole(http.DefaultClient.Do(req))
}

func read(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	return whole(http.DefaultClient.Do(req))
}

// whole reads an answer to its end.
func whole(answer *http.Response, err error) error {
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && (answer.StatusCode != http.StatusOK || bytes.Contains(text, []byte(`data: {"error"`))) {
		err = fmt.Errorf("status %d: %.1000s", answer.StatusCode, text)
	}
	return err
}

// processorNanos is the processor time that an engine's processes have used, to the nanosecond.
func (r *running) processorNanos() (sum int64, err error) {
	for _, pid := range r.pids {
		var t unix.Timespec
		if err := unix.ClockGettime(processClock(pid), &t); err != nil {
			return 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
		}
		sum += t.Nano()
	}
	return sum, nil
}

// processClock is Linux's id of the clock that counts the processor time of a process and its threads.
func processClock(pid int) int32 {
	const scheduled = 2
	return ^int32(pid)<<3 | scheduled
}

// children are the processes that another one started.
func children(parent int) (pids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// pid (name) state ppid …: the name may hold anything.
		fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
		if len(fields) > 1 && string(fields[1]) == strconv.Itoa(parent) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, pid)
		}
	}
	return pids
}

func healthy(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := read(ctx, url+"/health")
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not healthy: %w", url, err)
		case <-tick.C:
		}
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

func run(ctx context.Context, program string, args ...string) error {
	if out, err := exec.CommandContext(ctx, program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(program), err, out)
	}
	return nil
}
