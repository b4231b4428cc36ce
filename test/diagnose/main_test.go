package diagnose

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/plugin/diagnosis"
	"github.com/sluice-dev/sluice/plugin/sample"
	"github.com/sluice-dev/sluice/test/harness"
)

var (
	programs    *harness.Programs
	tiny, lanky string // model folders: small, and small with a long context
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if programs, err = harness.Build(); err == nil {
		var errs [2]error
		tiny, errs[0] = programs.Model("tiny", "--seed", "7", "--hidden-size", "128", "--layers", "4", "--vocab-size", "512", "--context-length", "4096")
		lanky, errs[1] = programs.Model("lanky", "--seed", "8", "--hidden-size", "16", "--layers", "1", "--vocab-size", "512", "--context-length", "262144")
		err = errors.Join(errs[:]...)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare:", err)
		return 1
	}
	code := m.Run()
	if err := programs.Remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// crowd is clients that ask one after the other until the test is done with them.
type crowd struct {
	cancel context.CancelFunc
	group  sync.WaitGroup
}

// ask starts clients; body gives the request of one client's nth turn.
func ask(t *testing.T, url string, clients int, body func(client, turn int) map[string]any) *crowd {
	ctx, cancel := context.WithCancel(t.Context())
	c := &crowd{cancel: cancel}
	for client := range clients {
		c.group.Go(func() {
			for turn := 0; ctx.Err() == nil; turn++ {
				if err := harness.Post(ctx, url+"/generate", body(client, turn), nil); err != nil && ctx.Err() == nil {
					t.Errorf("client %d: %v", client, err)
					return
				}
			}
		})
	}
	t.Cleanup(c.stop)
	return c
}

func (c *crowd) stop() {
	c.cancel()
	c.group.Wait()
}

// generate is a request for tokens with a prompt of its own.
func generate(client, turn, prompt, tokens int) map[string]any {
	ids := make([]int, prompt)
	for i := range ids {
		ids[i] = 10 + (client*7919+turn*104729+i*31)%480
	}
	return map[string]any{"input_ids": ids, "sampling_params": map[string]any{"temperature": 0, "max_new_tokens": tokens, "ignore_eos": true}}
}

// diagnose observes engines as the command does, and concludes.
func diagnose(t *testing.T, engines ...*harness.Engine) diagnosis.Report {
	t.Helper()
	schedule := sample.Schedule{Interval: 6 * time.Second, Polls: 12, Now: time.Now, After: time.After}
	observations := make([]diagnosis.Observation, len(engines))
	failures := make([]error, len(engines))
	var group sync.WaitGroup
	for i, e := range engines {
		group.Go(func() {
			get := func(ctx context.Context, path string) ([]byte, error) { return get(ctx, e.URL+path) }
			observations[i], failures[i] = sample.Engine(t.Context(), get, schedule, "main", "Unified", fmt.Sprintf("chat-main-%d-0", i))
		})
	}
	group.Wait()
	if err := errors.Join(failures...); err != nil {
		t.Fatal(err)
	}
	report := diagnosis.Conclude(diagnosis.Measure(observations, nil, nil))
	t.Logf("\n%s", report.Text(true))
	return report
}

func get(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: status %d", url, answer.StatusCode)
	}
	return io.ReadAll(answer.Body)
}

// busy waits until the engine has requests.
func busy(t *testing.T, e *harness.Engine, requests int) {
	t.Helper()
	harness.Eventually(t, "requests are there", func() bool {
		list, err := e.Loads()
		n := 0
		for _, l := range list {
			n += l.NumRunningReqs + l.NumWaitingReqs
		}
		return err == nil && n >= requests
	})
}

// throttle lets a process run for a part of each period only, until the test ends.
func throttle(t *testing.T, pid int, runs, stops time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for next, signal := time.NewTimer(0), syscall.SIGCONT; ; {
			select {
			case <-ctx.Done():
				_ = syscall.Kill(pid, syscall.SIGCONT) // it may have ended
				return
			case <-next.C:
				if signal == syscall.SIGCONT {
					signal = syscall.SIGSTOP
					next.Reset(stops)
				} else {
					signal = syscall.SIGCONT
					next.Reset(runs)
				}
				_ = syscall.Kill(pid, signal) // it may have ended
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}
