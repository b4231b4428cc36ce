package metrics

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestMain makes the test binary a writer process when it is started as one.
func TestMain(m *testing.M) {
	if dir := os.Getenv("SLUICE_TEST_STORE_WRITER"); dir != "" {
		if err := writeForever(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// writerSeries is how many series a writer adds at most: enough for a few segments.
const writerSeries = 1500

// writeForever reads numbers of updates from its input and answers each with a line. It adds series as it goes, so that
// its store grows.
func writeForever(dir string) error {
	s, err := OpenStore(dir, "writer", slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	pid := strconv.Itoa(os.Getpid())
	shared := s.Counter(promptTokens, nil)
	lives := s.Gauge(httpActive, nil)
	recent := s.Gauge(tokenUsage, nil)
	times := s.Histogram(queueTime, nil, nil)
	in := bufio.NewScanner(os.Stdin)
	updates := 0
	for in.Scan() {
		n, err := strconv.Atoi(in.Text())
		if err != nil {
			return err
		}
		for range n {
			shared.Add(1)
			times.Observe(0.5)
			recent.Set(float64(os.Getpid()), time.Now().UnixNano())
			if updates++; updates%1000 == 0 && updates <= 1000*writerSeries {
				s.Counter(realTokens, []Label{{"mode", pid + "-" + strconv.Itoa(updates)}}).Add(1)
			}
		}
		lives.Set(1, time.Now().UnixNano())
		fmt.Println("done")
	}
	return in.Err()
}

// writer is a child process that writes to a store.
type writer struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startWriter(t *testing.T, dir string) *writer {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := &writer{t: t, cmd: exec.Command(self)}
	w.cmd.Env = append(os.Environ(), "SLUICE_TEST_STORE_WRITER="+dir)
	w.cmd.Stderr = os.Stderr
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.out = bufio.NewScanner(out)
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.kill)
	return w
}

// write lets the writer update everything n times, and waits for it.
func (w *writer) write(n int) {
	w.t.Helper()
	w.begin(n)
	if !w.out.Scan() {
		w.t.Fatal("the writer ended")
	}
}

func (w *writer) begin(n int) {
	if _, err := fmt.Fprintln(w.in, n); err != nil {
		w.t.Fatal(err)
	}
}

// kill ends the writer at once; a second call does nothing.
func (w *writer) kill() {
	if w.cmd.ProcessState == nil {
		_ = w.cmd.Process.Kill() // it may have ended by itself
		_ = w.cmd.Wait()         // "signal: killed" is what is wanted
	}
}

// values reads the samples of an exposition without labels, or with those given, written as in the text.
func values(text string, series ...string) map[string]string {
	got := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		for _, s := range series {
			if ok && name == s {
				got[s] = value
			}
		}
	}
	return got
}

func TestProcesses(t *testing.T) {
	dir := t.TempDir()
	g := newGatherer(t, dir)
	a, b, c := startWriter(t, dir), startWriter(t, dir), startWriter(t, dir)
	a.write(3)
	b.write(5)
	c.write(7)
	series := []string{
		"sglang:prompt_tokens_total", "sglang:queue_time_seconds_count", "sglang:queue_time_seconds_sum", "sglang:http_requests_active",
		"sglang:token_usage", `sluice_metrics_store_processes{state="alive"}`, `sluice_metrics_store_processes{state="ended"}`,
	}
	check := func(reason string, want ...string) {
		t.Helper()
		w := map[string]string{}
		for i, s := range series {
			if want[i] != "" {
				w[s] = want[i]
			}
		}
		if diff := cmp.Diff(w, values(scrape(t, g), series...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", reason, diff)
		}
	}
	pid := func(w *writer) string { return strconv.Itoa(w.cmd.Process.Pid) }
	check("all live: sums, and the newest gauge", "15", "15", "7.5", "3", pid(c), "3", "0")
	b.write(1)
	check("the newest write wins, not the newest process", "16", "16", "8", "3", pid(b), "3", "0")
	b.kill()
	check("a killed process keeps its counters and newest gauge, and leaves the live sum", "16", "16", "8", "2", pid(b), "2", "1")
	if err := a.in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	check("one that ended by itself too", "16", "16", "8", "1", pid(b), "1", "2")
	c.kill()
	check("without live processes the live sum has no value", "16", "16", "8", "", pid(b), "0", "3")
	d := startWriter(t, dir)
	d.write(1)
	check("a new process adds to what the dead ones counted", "17", "17", "8.5", "1", pid(d), "1", "3")
}

// checkHalves looks at the histogram of the writers, whose samples are all 0.5: the count is never behind the sum, every
// bucket from 0.5 on holds all samples, and the count is the last bucket.
func checkHalves(t *testing.T, text string) {
	t.Helper()
	const name = "sglang:queue_time_seconds"
	v := map[string]float64{}
	for series, value := range values(text, name+"_count", name+"_sum", name+`_bucket{le="0.2"}`, name+`_bucket{le="0.5"}`, name+`_bucket{le="+Inf"}`) {
		f, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatal(err)
		}
		v[strings.TrimPrefix(series, name)] = f
	}
	count := v["_count"]
	if v["_sum"] > 0.5*count || v[`_bucket{le="0.2"}`] != 0 || v[`_bucket{le="0.5"}`] != count || v[`_bucket{le="+Inf"}`] != count {
		t.Fatalf("a scrape that no moment had: %v", v)
	}
}

// A writer that is killed at any instant, also while it adds segments, leaves a file that reads without a fault.
func TestKilledWriters(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	dir := t.TempDir()
	g := newGatherer(t, dir)
	last := 0.0
	for range 16 {
		w := startWriter(t, dir)
		w.write(1)
		w.begin(1 << 30)
		for range rng.IntN(40) {
			text := scrape(t, g)
			got, err := strconv.ParseFloat(values(text, "sglang:prompt_tokens_total")["sglang:prompt_tokens_total"], 64)
			if err != nil || got < last {
				t.Fatalf("the counter went from %v to %v: %v", last, got, err)
			}
			last = got
			checkHalves(t, text)
		}
		w.kill()
	}
	text := scrape(t, g)
	if strings.Contains(text, "store_faults_total{") {
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, storeFaults.Name+"{") && !strings.HasSuffix(line, " 0\n") {
				t.Errorf("fault: %s", line)
			}
		}
	}
}

// Of an update that its writer was killed in the middle of, the count has the sample and the sum has not.
func TestCountIsNeverBehindTheSum(t *testing.T) {
	dir := t.TempDir()
	s, g := openStore(t, dir, "api"), newGatherer(t, dir)
	h := s.Histogram(queueTime, nil, nil)
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for range 3 {
		writers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					h.Observe(0.5)
				}
			}
		})
	}
	h.Observe(0.5)
	for range 100 {
		checkHalves(t, scrape(t, g))
	}
	close(stop)
	writers.Wait()
	text := scrape(t, g)
	checkHalves(t, text)
	v := values(text, "sglang:queue_time_seconds_count", "sglang:queue_time_seconds_sum")
	count, err := strconv.ParseFloat(v["sglang:queue_time_seconds_count"], 64)
	if err != nil {
		t.Fatal(err)
	}
	if sum, err := strconv.ParseFloat(v["sglang:queue_time_seconds_sum"], 64); err != nil || sum != 0.5*count {
		t.Errorf("when all writers rest: count %v, sum %v, %v", count, sum, err)
	}
}

// A process id that another process has got since is no sign of life.
func TestProcessIDsAreReused(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, "api")
	s.Counter(promptTokens, nil).Add(3)
	s.Gauge(httpActive, nil).Set(2, 1)
	s.Gauge(tokenUsage, nil).Set(4, 1)
	series := []string{"sglang:prompt_tokens_total", "sglang:http_requests_active", "sglang:token_usage", `sluice_metrics_store_processes{state="alive"}`, `sluice_metrics_store_processes{state="ended"}`}
	want := map[string]string{series[0]: "3", series[1]: "2", series[2]: "4", series[3]: "1", series[4]: "0"}
	if diff := cmp.Diff(want, values(scrape(t, newGatherer(t, dir)), series...)); diff != "" {
		t.Errorf("while it lives (-want +got):\n%s", diff)
	}
	word(s.header, offStart).Add(1) // as if the process of this id had begun at another time
	want = map[string]string{series[0]: "3", series[2]: "4", series[3]: "0", series[4]: "1"}
	if diff := cmp.Diff(want, values(scrape(t, newGatherer(t, dir)), series...)); diff != "" {
		t.Errorf("when another has its id (-want +got):\n%s", diff)
	}
}

func TestStoreGrows(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, "api")
	g := newGatherer(t, dir)
	first := s.Counter(promptTokens, nil)
	const n = 3000 // far more than a segment holds
	for i := range n {
		s.Histogram(e2eRequestLatency, []Label{{"i", strconv.Itoa(i)}}, nil).Observe(float64(i))
		if i%500 == 0 {
			scrape(t, g) // a reader in between maps what is new
		}
	}
	first.Add(3)
	text := scrape(t, g)
	if got := strings.Count(text, e2eRequestLatency.Name+"_count{"); got != n {
		t.Errorf("%d series, not %d", got, n)
	}
	if got := values(text, "sglang:prompt_tokens_total")["sglang:prompt_tokens_total"]; got != "3" {
		t.Errorf("the series of the first segment reads %q", got)
	}
	if s.Counter(promptTokens, nil) != first {
		t.Error("the same series has two slots")
	}
}

func TestHistogramBuckets(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, "api")
	h := s.Histogram(e2eRequestLatency, nil, []float64{0, 1, 2.5})
	for _, v := range []float64{-1, 0, 0.5, 1, 1.5, 2.5, 2.6, math.NaN()} {
		h.Observe(v)
	}
	h.ObserveWeighted(6, 4) // 4 samples of 1.5
	h.ObserveWeighted(6, 0) // none
	want := strings.Join([]string{
		"# HELP sglang:e2e_request_latency_seconds " + e2eRequestLatency.Help,
		"# TYPE sglang:e2e_request_latency_seconds histogram",
		`sglang:e2e_request_latency_seconds_bucket{le="0"} 2`,
		`sglang:e2e_request_latency_seconds_bucket{le="1"} 4`,
		`sglang:e2e_request_latency_seconds_bucket{le="2.5"} 10`,
		`sglang:e2e_request_latency_seconds_bucket{le="+Inf"} 11`,
		"sglang:e2e_request_latency_seconds_sum 13.1",
		"sglang:e2e_request_latency_seconds_count 11",
		"",
	}, "\n")
	got, _, _ := strings.Cut(scrape(t, newGatherer(t, dir)), "# HELP sluice_")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestUpdatesFromManyGoroutines(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, "api")
	g := newGatherer(t, dir)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 1000 {
				s.Counter(promptTokens, []Label{{"i", strconv.Itoa(i % 3)}}).Add(1)
				s.Gauge(httpActive, nil).Add(1, 1)
				s.Histogram(queueTime, nil, nil).Observe(1)
				s.Gauge(httpActive, nil).Add(-1, 1)
			}
			scrape(t, g)
		})
	}
	wg.Wait()
	want := map[string]string{
		`sglang:prompt_tokens_total{i="0"}`: "3000", `sglang:prompt_tokens_total{i="1"}`: "3000", `sglang:prompt_tokens_total{i="2"}`: "2000",
		"sglang:http_requests_active": "0", "sglang:queue_time_seconds_sum": "8000", "sglang:queue_time_seconds_count": "8000",
	}
	keys := make([]string, 0, len(want))
	for k := range want {
		keys = append(keys, k)
	}
	if diff := cmp.Diff(want, values(scrape(t, g), keys...)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestUpdatesDoNotAllocate(t *testing.T) {
	s := openStore(t, t.TempDir(), "api")
	c, g, h := s.Counter(promptTokens, nil), s.Gauge(tokenUsage, nil), s.Histogram(interTokenLatency, nil, nil)
	if n := testing.AllocsPerRun(100, func() {
		c.Add(1)
		g.Set(2, 3)
		h.Observe(0.5)
		h.ObserveWeighted(0.5, 3)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestPrivateDir(t *testing.T) {
	base := filepath.Join(t.TempDir(), "made")
	a, err := PrivateDir(base)
	if err != nil {
		t.Fatal(err)
	}
	b, err := PrivateDir(base)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(a.Path)
	if err != nil {
		t.Fatal(err)
	}
	if a.Path == b.Path || filepath.Dir(a.Path) != base || info.Mode().Perm() != 0o700 {
		t.Errorf("directories %s and %s with mode %v", a.Path, b.Path, info.Mode())
	}
	store := openStore(t, a.Path, "rank/0 of \"x\"")
	info, err = os.Stat(store.Path())
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o400 {
		t.Errorf("store has mode %v: who opens it to write may cut it, and that ends its process", info.Mode())
	}
}

// What a killed engine left goes when the next one starts; what may still be used stays.
func TestRemoveLeftOver(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	base := t.TempDir()
	abandoned := func(place string) string { // as a killed owner leaves it
		dir, err := os.MkdirTemp(place, dirPrefix)
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	left, based, half, empty, foreign := abandoned(""), abandoned(base), abandoned(""), abandoned(""), abandoned("")
	owned, err := PrivateDir("")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{left, based, half, foreign} {
		killed := startWriter(t, dir)
		killed.write(1)
		killed.kill()
	}
	startWriter(t, half).write(1)
	files, err := filepath.Glob(filepath.Join(foreign, "*"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	data[offSpace]++ // another container's process: the folder has no owner, so it is dead
	if err := errors.Join(os.Remove(files[0]), os.WriteFile(files[0], data, 0o600)); err != nil {
		t.Fatal(err)
	}

	RemoveLeftOver(base)
	for path, want := range map[string]bool{left: false, based: false, half: true, empty: false, foreign: false, owned.Path: true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %v", path, err, want)
		}
	}
	if err := owned.Remove(); err != nil {
		t.Error(err)
	}
}
