// Overhead measures what it costs an engine to tell of itself: the throughput of one with all metrics on, scraped every
// five seconds, and tracing at level 0, over that of one without.
//
//	go run ./hack/overhead
//
// Both engines run at once and get the same requests in turns, a round each, in changing order; sluice-bench compares the
// rounds. It also tells the processor time that each used, which a busy machine blurs less. Before that, two engines without metrics are compared the same way: how far their ratio is from 1, and how wide its
// interval is, is the noise of the machine. Run it in the root of the repository, with nothing else running.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := measure(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "overhead:", err)
		os.Exit(1)
	}
}

// bound is what the throughput with everything on has to reach, over that without.
const bound = 0.99

type options struct {
	rounds, round, clients, output int
	hidden, layers                 int
}

func measure(ctx context.Context) (err error) {
	var o options
	flag.IntVar(&o.rounds, "rounds", 40, "how many rounds each engine gets")
	flag.IntVar(&o.round, "round", 16, "requests of a round")
	flag.IntVar(&o.clients, "clients", 8, "requests in flight")
	flag.IntVar(&o.output, "output-len", 64, "tokens of an answer")
	flag.IntVar(&o.hidden, "hidden-size", 256, "width of the model")
	flag.IntVar(&o.layers, "layers", 4, "layers of the model")
	flag.Parse()

	dir, err := os.MkdirTemp("", "sluice-overhead-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	say("building the engine and sluice-bench")
	for _, name := range []string{"engine", "bench"} {
		if err := run(ctx, io.Discard, "go", "build", "-o", filepath.Join(dir, name), "./cmd/"+name); err != nil {
			return err
		}
	}
	engine, model := filepath.Join(dir, "engine"), filepath.Join(dir, "model")
	if err := run(ctx, io.Discard, engine, "init-model", "--out", model, "--seed", "7", "--hidden-size", strconv.Itoa(o.hidden), "--layers", strconv.Itoa(o.layers)); err != nil {
		return err
	}

	off := []string{"serve", "--model-path", model, "--served-model-name", "m", "--threads", "1", "--max-total-tokens", "16384", "--log-level", "warn"}
	on := append(append([]string{}, off...), "--enable-metrics", "--enable-metrics-for-all-schedulers", "--enable-mfu-metrics", "--enable-priority-scheduling", "--enable-trace")
	for _, pair := range []struct {
		what   string
		second []string
	}{
		{"the noise: an engine without metrics ÷ another without", append(append([]string{}, off...), "--enable-priority-scheduling")},
		{"all metrics and tracing at level 0 ÷ neither", on},
	} {
		first := append(append([]string{}, off...), "--enable-priority-scheduling")
		ratio, err := compare(ctx, dir, pair.what, first, pair.second, o)
		if err != nil {
			return err
		}
		fmt.Printf("%s: %s\n\n", pair.what, ratio)
		if ratio.High != nil && *ratio.High < bound {
			return fmt.Errorf("%s: the whole interval is below %v", pair.what, bound)
		}
	}
	return nil
}

// ratio is one line of sluice-bench's comparison, with the processor time that both engines used for the same requests.
type ratio struct {
	Name      string
	Ratio     float64
	Low, High *float64
	Units     int

	processor [2]float64 // seconds of the first and the second
}

func (r ratio) String() string {
	if r.Low == nil || r.High == nil {
		return fmt.Sprintf("throughput %.4f, without an interval", r.Ratio)
	}
	return fmt.Sprintf("throughput %.4f, 95%% confidence %.4f to %.4f, %d rounds; processor time %.2f s and %.2f s, ratio %.4f",
		r.Ratio, *r.Low, *r.High, r.Units, r.processor[0], r.processor[1], r.processor[1]/r.processor[0])
}

// compare runs two engines and gives the throughput of the second over that of the first.
func compare(ctx context.Context, dir, what string, first, second []string, o options) (found ratio, err error) {
	say(what)
	ctx, stop := context.WithCancel(ctx)
	var urls [2]string
	var engines []*exec.Cmd
	defer func() {
		stop()
		for _, e := range engines {
			_ = e.Wait() // killed
		}
	}()
	for i, args := range [][]string{first, second} {
		port, err := freePort()
		if err != nil {
			return found, err
		}
		cmd := exec.CommandContext(ctx, filepath.Join(dir, "engine"), append(args, "--port", strconv.Itoa(port))...)
		cmd.Env = append(os.Environ(), "TMPDIR="+dir, "SGLANG_TRACE_LEVEL=0", "SGLANG_ENABLE_METRICS_DEVICE_TIMER="+strconv.Itoa(i))
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			return found, err
		}
		engines = append(engines, cmd)
		urls[i] = fmt.Sprintf("http://127.0.0.1:%d", port)
		if err := healthy(ctx, urls[i]); err != nil {
			return found, err
		}
	}
	go scrape(ctx, urls[1]+"/metrics") // 404 where metrics are off
	result := filepath.Join(dir, "result.json")
	var before, after [2]float64
	if before, err = processorTimes(engines); err != nil {
		return found, err
	}
	err = run(ctx, io.Discard, filepath.Join(dir, "bench"), "--url", urls[0], "--vs", urls[1], "--alternate", "round", "--round", strconv.Itoa(o.round),
		"--max-concurrency", strconv.Itoa(o.clients), "--num-prompts", strconv.Itoa(o.rounds*o.round), "--input-len", "128", "--output-len", strconv.Itoa(o.output),
		"--warmup", strconv.Itoa(o.clients), "--output", result)
	if err != nil {
		return found, err
	}
	if after, err = processorTimes(engines); err != nil {
		return found, err
	}
	data, err := os.ReadFile(result)
	if err != nil {
		return found, err
	}
	var report struct{ Ratios []ratio }
	if err := json.Unmarshal(data, &report); err != nil {
		return found, fmt.Errorf("read what sluice-bench wrote: %w", err)
	}
	for _, r := range report.Ratios {
		if r.Name == throughput {
			r.processor = [2]float64{after[0] - before[0], after[1] - before[1]}
			return r, nil
		}
	}
	return found, fmt.Errorf("sluice-bench compared no %q: %s", throughput, data)
}

// throughput is how sluice-bench calls it.
const throughput = "output tokens/s"

// scrape reads the exposition every five seconds, three times as often as most monitors do.
func scrape(ctx context.Context, url string) {
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if answer, err := http.Get(url); err == nil {
				_, _ = io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
			}
		}
	}
}

// processorTimes gives the seconds that each engine has used, its ranks included.
func processorTimes(engines []*exec.Cmd) (seconds [2]float64, err error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return seconds, err
	}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// pid (name) state ppid …: the name may hold anything.
		fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
		pid, parent := filepath.Base(filepath.Dir(path)), string(fields[1])
		for i, e := range engines {
			if own := strconv.Itoa(e.Process.Pid); pid != own && parent != own {
				continue
			}
			for _, ticks := range fields[11:13] { // in user mode, in the kernel
				n, err := strconv.Atoi(string(ticks))
				if err != nil {
					return seconds, fmt.Errorf("%s: %w", path, err)
				}
				seconds[i] += float64(n) / ticksPerSecond
			}
		}
	}
	return seconds, nil
}

// ticksPerSecond is what Linux counts in, on every machine that Go runs on.
const ticksPerSecond = 100

func healthy(ctx context.Context, url string) error {
	limit := time.After(time.Minute)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-limit:
			return fmt.Errorf("%s is not healthy after a minute", url)
		case <-tick.C:
			answer, err := http.Get(url + "/health")
			if err != nil {
				continue
			}
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return nil
			}
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

func run(ctx context.Context, out io.Writer, program string, args ...string) error {
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = out, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(program), err, said.Bytes())
	}
	return nil
}

func say(text string) { fmt.Printf("%s\n", text) }
