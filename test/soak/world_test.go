package soak

import (
	"bufio"
	"context"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/test/harness"
)

// world is one engine and all that happens to it.
type world struct {
	t        *testing.T
	engine   *harness.Engine
	seed     uint64
	length   time.Duration
	sessions bool // the engine has them
	rids     atomic.Int64

	mu     sync.Mutex
	counts map[string]int // what happened, by kind
}

func newWorld(t *testing.T, e *harness.Engine, seed uint64, length time.Duration) *world {
	return &world{t: t, engine: e, seed: seed, length: length, counts: map[string]int{}}
}

func (w *world) count(kind string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[kind]++
}

// storm lets clients and an operator loose on the engine.
func (w *world) storm() {
	ctx, cancel := context.WithTimeout(w.t.Context(), w.length)
	defer cancel()
	var all sync.WaitGroup
	for i := range clients {
		c := &client{world: w, rng: rand.New(rand.NewPCG(w.seed, uint64(i)))}
		all.Go(func() {
			for ctx.Err() == nil {
				c.act()
			}
		})
	}
	o := &operator{world: w, rng: rand.New(rand.NewPCG(w.seed, 1<<32))}
	all.Go(func() {
		for ctx.Err() == nil {
			o.act(ctx)
		}
	})
	all.Wait()
}

// warmUp makes the connections, buffers and threads that stay.
func (w *world) warmUp() {
	var all sync.WaitGroup
	for i := range clients {
		c := &client{world: w, rng: rand.New(rand.NewPCG(w.seed, uint64(1000+i)))}
		all.Go(func() { c.whole() })
	}
	all.Wait()
	w.settle()
}

// settle waits until nothing of the storm is left at work, and empties the cache.
func (w *world) settle() {
	w.t.Helper()
	http.DefaultClient.CloseIdleConnections()
	if err := harness.Post(w.t.Context(), w.engine.URL+"/continue_generation", map[string]any{}, nil); err != nil {
		w.t.Errorf("continue: %v", err)
	}
	w.engine.Idle(w.t)
	if err := harness.Post(w.t.Context(), w.engine.URL+"/flush_cache?timeout=10", map[string]any{}, nil); err != nil {
		w.t.Errorf("flush: %v", err)
		return
	}
	w.count("flushed")
	harness.Eventually(w.t, "the flush is in the metrics", func() bool { return slices.Max(w.metric("sglang:kv_evictable_tokens")) == 0 })
}

// footprint is what an engine takes besides memory.
type footprint struct {
	files      map[string]int // descriptors, by process
	processes  int
	goroutines int // of the API process
}

func (w *world) footprint() footprint {
	w.t.Helper()
	pid := w.engine.PID()
	f := footprint{files: map[string]int{"serve": harness.OpenFiles(w.t, pid)}}
	for i, child := range harness.Children(pid) {
		f.files["rank "+strconv.Itoa(i)] = harness.OpenFiles(w.t, child)
		f.processes++
	}
	f.goroutines = int(w.metric("go_goroutines")[0])
	return f
}

const (
	spareFiles      = 6  // the scrape's own connection, and what the runtime opens late
	spareGoroutines = 12 // of connections that are closing
)

// compare wants the footprint of before, but for what connections that close take.
func (w *world) compare(before footprint) {
	w.t.Helper()
	harness.Eventually(w.t, "descriptors, goroutines and processes are back to what they were", func() bool {
		http.DefaultClient.CloseIdleConnections()
		now := w.footprint()
		grown := now.processes != before.processes || now.goroutines > before.goroutines+spareGoroutines
		for process, n := range now.files {
			grown = grown || n > before.files[process]+spareFiles
		}
		if grown {
			w.last(before, now)
		}
		return !grown
	})
	if diff := cmp.Diff(w.metric("sglang:max_total_num_tokens"), w.metric("sglang:kv_available_tokens")); diff != "" {
		w.t.Errorf("not all tokens are available after the flush (-capacity +available):\n%s", diff)
	}
	for _, name := range []string{"sglang:kv_used_tokens", "sglang:kv_evictable_tokens", "sglang:num_used_tokens", "sglang:num_running_reqs", "sglang:num_queue_reqs"} {
		if v := slices.Max(w.metric(name)); v != 0 {
			w.t.Errorf("%s is %g after the end, want 0", name, v)
		}
	}
}

func (w *world) last(before, now footprint) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts["footprint looked at"]++
	if w.counts["footprint looked at"]%500 == 0 {
		w.t.Logf("still grown: %+v, was %+v", now, before)
	}
}

// metric reads all samples of a family, at least one.
func (w *world) metric(name string) (values []float64) {
	w.t.Helper()
	answer, err := http.Get(w.engine.URL + "/metrics")
	if err != nil {
		w.t.Fatal(err)
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			w.t.Fatalf("%s: %v", line, err)
		}
		values = append(values, v)
	}
	if err := lines.Err(); err != nil || len(values) == 0 {
		w.t.Fatalf("/metrics has %d samples of %s: %v", len(values), name, err)
	}
	return values
}
