package metrics

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// disk is what a store of a test stands on: it may be full, and time passes when the test says so.
type disk struct {
	t    *testing.T
	s    *Store
	log  bytes.Buffer
	full bool
	due  func() // the next try; nil: none is due
}

func newDisk(t *testing.T, dir string) *disk {
	d := &disk{t: t}
	s, err := OpenStore(dir, "api", slog.New(slog.NewTextHandler(&d.log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	d.s = s
	s.reserve = func(file *os.File, offset, n int) error {
		if d.full {
			return unix.ENOSPC
		}
		return reserve(file, offset, n)
	}
	s.later = func(f func()) func() bool {
		d.due = f
		return func() bool { d.due = nil; return true }
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// pass lets the time of a retry pass.
func (d *disk) pass() {
	d.t.Helper()
	due := d.due
	if due == nil {
		d.t.Fatal("no try is due")
	}
	d.due = nil
	due()
}

// fillUp adds series until the next one needs a new segment.
func (d *disk) fillUp() {
	for i := 0; d.s.base+segmentBytes-d.s.used > 16<<10; i++ { // more than any series has
		d.s.Counter(realTokens, []Label{{"mode", strconv.Itoa(i)}})
	}
	for i := 0; d.s.base+segmentBytes-d.s.used >= 256; i++ {
		d.s.Counter(realTokens, []Label{{"mode", "x" + strconv.Itoa(i)}})
	}
}

// TestSlowReservation: while a file becomes longer, which takes a file system without fallocate its time, series that are there
// are found, those that fit are added and scrapes read. Who needs the room waits for it, a second try is not made meanwhile, and
// the end waits for the one under way.
func TestSlowReservation(t *testing.T) {
	for _, end := range []string{"room", "no room", "closed"} {
		t.Run(end, func(t *testing.T) {
			dir := t.TempDir()
			d := newDisk(t, dir)
			g := newGatherer(t, dir)
			g.Guard(d.s, nil)
			tries, goOn := make(chan struct{}), make(chan error)
			d.s.reserve = func(file *os.File, offset, n int) error {
				tries <- struct{}{}
				if err := <-goOn; err != nil {
					return err
				}
				err := reserve(file, offset, n)
				if err != nil {
					t.Errorf("the file was closed meanwhile: %v", err)
				}
				return err
			}
			labels := func(mode string) []Label { return []Label{{"mode", mode}} }
			there := d.s.Counter(realTokens, labels("there"))
			there.Add(1)
			for i := 0; d.s.base+segmentBytes-d.s.used >= 512; i++ {
				d.s.Counter(realTokens, labels("fill"+strconv.Itoa(i)))
			}
			long := strings.Repeat("x", 400)
			var waiting sync.WaitGroup
			for i := range 3 {
				waiting.Go(func() { d.s.Counter(realTokens, labels(long+strconv.Itoa(i))).Add(2) })
				waiting.Go(func() { d.s.Counter(realTokens, labels(long+strconv.Itoa(i))).Add(3) })
			}
			<-tries
			d.s.Counter(realTokens, labels("there")).Add(1)
			d.s.Counter(realTokens, labels("fits")).Add(7)
			if diff := cmp.Diff(map[string]string{
				`sglang:realtime_tokens_total{mode="there"}`: "2", `sglang:realtime_tokens_total{mode="fits"}`: "7",
			}, of(t, g, `sglang:realtime_tokens_total{mode="there"}`, `sglang:realtime_tokens_total{mode="fits"}`)); diff != "" {
				t.Errorf("meanwhile (-want +got):\n%s", diff)
			}
			closed := make(chan error)
			switch end {
			case "room":
				goOn <- nil
				waiting.Wait()
			case "no room": // the others try for themselves, one after the other, and those that wait again at the end
				goOn <- unix.ENOSPC
				go func() {
					for range tries {
						goOn <- unix.ENOSPC
					}
				}()
				waiting.Wait()
			case "closed":
				go func() { closed <- d.s.Close() }()
				goOn <- nil
				waiting.Wait()
				if err := <-closed; err != nil {
					t.Error(err)
				}
				return
			}
			want, got := map[string]string{}, map[string]string{}
			for i := range 3 {
				series := fmt.Sprintf(`sglang:realtime_tokens_total{mode="%s%d"}`, long, i)
				want[series] = "5"
				for name, v := range of(t, g, series) {
					got[name] = v
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("afterwards (-want +got):\n%s", diff)
			}
			if err := d.s.Close(); err != nil {
				t.Error(err)
			}
			close(tries)
		})
	}
}

// of reads series of a scrape by the names that the test gives.
func of(t *testing.T, g *Gatherer, series ...string) map[string]string {
	t.Helper()
	return values(scrape(t, g), series...)
}

// TestFullDisk: what finds no room counts on in memory, is told and exposed, and is in the file as soon as there is room.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	d := newDisk(t, dir)
	own, other := newGatherer(t, dir), newGatherer(t, dir)
	own.Guard(d.s, nil)
	d.fillUp()
	d.full = true

	label := []Label{{"i", strings.Repeat("long", 100)}}
	const suffix = "{i=\"" // the label is the same everywhere
	counter, gauge, histogram := d.s.Counter(promptTokens, label), d.s.Gauge(tokenUsage, label), d.s.Histogram(e2eRequestLatency, label, nil)
	counter.Add(3)
	gauge.Set(0.25, 7)
	gauge.Add(0.5, 8)
	histogram.Observe(2)
	histogram.ObserveWeighted(6, 2)
	name := func(s string) string { return s + suffix + label[0].Value + "\"}" }
	series := []string{
		name("sglang:prompt_tokens_total"), name("sglang:token_usage"), name("sglang:e2e_request_latency_seconds_count"), name("sglang:e2e_request_latency_seconds_sum"),
		`sluice_metrics_store_faults_total{reason="space"}`, "sluice_metrics_store_waiting_series",
	}
	check := func(g *Gatherer, reason string, want ...string) {
		t.Helper()
		w := map[string]string{}
		for i, v := range want {
			if v != "" {
				w[series[i]] = v
			}
		}
		if diff := cmp.Diff(w, of(t, g, series...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", reason, diff)
		}
	}
	check(own, "the process that has the store exposes them from memory", "3", "0.75", "3", "8", "3", "3")
	check(other, "another process learns how many wait", "", "", "", "", "3", "3")

	if again := d.s.Counter(promptTokens, label); again != counter {
		t.Error("the same series has two places")
	}
	d.pass()
	check(own, "a try without room changes nothing", "3", "0.75", "3", "8", "3", "3")
	if n := strings.Count(d.log.String(), "level=ERROR"); n != 1 || !strings.Contains(d.log.String(), "no space left on device") {
		t.Errorf("the log has %d errors, not 1 that says why:\n%s", n, d.log.String())
	}

	d.full = false
	d.pass()
	counter.Add(4) // by the handle that was given while there was no room
	d.s.Counter(promptTokens, label).Add(5)
	for _, g := range []*Gatherer{own, other} {
		check(g, "with room they are in the file, and nothing is lost or counted twice", "12", "0.75", "3", "8", "3", "0")
	}
	if d.due != nil {
		t.Error("a try is due though nothing waits")
	}
	if !strings.Contains(d.log.String(), "are there now") {
		t.Errorf("the log does not say that the series are there:\n%s", d.log.String())
	}
	d.full = true
	d.fillUp()
	d.s.Histogram(queueTime, label, nil)
	if n := strings.Count(d.log.String(), "level=ERROR"); n != 2 {
		t.Errorf("the disk was full twice, the log says so %d times", n)
	}
}

// TestFullDiskAtTheEnd: a store that is closed gets room for what waits, if there is some.
func TestFullDiskAtTheEnd(t *testing.T) {
	dir := t.TempDir()
	d := newDisk(t, dir)
	d.fillUp()
	d.full = true
	d.s.Histogram(e2eRequestLatency, nil, nil).Observe(2)
	d.full = false
	if err := d.s.Close(); err != nil {
		t.Fatal(err)
	}
	if d.due != nil {
		t.Error("a try is due after the end")
	}
	want := map[string]string{"sglang:e2e_request_latency_seconds_count": "1"}
	if diff := cmp.Diff(want, of(t, newGatherer(t, dir), "sglang:e2e_request_latency_seconds_count")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A store that is closed goes on with the series that it has; new ones are memory.
func TestClosedStore(t *testing.T) {
	dir := t.TempDir()
	d := newDisk(t, dir)
	old := d.s.Counter(promptTokens, nil)
	for range 2 {
		if err := d.s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	old.Add(5)
	d.s.Counter(generationTokens, nil).Add(7)
	d.s.Histogram(e2eRequestLatency, nil, nil).Observe(7)
	want := map[string]string{"sglang:prompt_tokens_total": "5", `sluice_metrics_store_faults_total{reason="space"}`: "0"}
	got := of(t, newGatherer(t, dir), "sglang:prompt_tokens_total", "sglang:generation_tokens_total", `sluice_metrics_store_faults_total{reason="space"}`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if d.log.Len() > 0 || d.due != nil {
		t.Errorf("the end of a store is no fault: try %v, log %s", d.due != nil, d.log.String())
	}
}

// TestFullDiskLosesNothing: updates, scrapes and a disk that is full now and then, all at once. At every scrape the counters
// are what was added, and none goes backwards.
func TestFullDiskLosesNothing(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 4))
	dir := t.TempDir()
	d := newDisk(t, dir)
	var mu sync.Mutex // of d.full
	d.s.reserve = func(file *os.File, offset, n int) error {
		mu.Lock()
		defer mu.Unlock()
		if d.full {
			return unix.EDQUOT
		}
		return reserve(file, offset, n)
	}
	d.s.later = func(func()) func() bool { return func() bool { return true } }
	g := newGatherer(t, dir)
	var cut sync.Mutex
	g.Guard(d.s, &cut)

	const writers, rounds, series = 4, 300, 120
	var wg sync.WaitGroup
	done := make(chan struct{})
	for w := range writers {
		draw := rand.New(rand.NewPCG(seed, uint64(100+w)))
		wg.Go(func() {
			for range rounds {
				n := strconv.Itoa(draw.IntN(series))
				cut.Lock() // both change together
				d.s.Counter(promptTokens, []Label{{"i", n}}).Add(1)
				d.s.Histogram(e2eRequestLatency, []Label{{"i", n}}, nil).Observe(1)
				cut.Unlock()
			}
		})
	}
	go func() {
		wg.Wait()
		close(done)
	}()
	sums := func() (counted, observed float64) {
		for line := range strings.Lines(scrape(t, g)) {
			series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			v, _ := strconv.ParseFloat(value, 64)
			switch {
			case strings.HasPrefix(series, promptTokens.Name+"{"):
				counted += v
			case strings.HasPrefix(series, e2eRequestLatency.Name+"_count{"):
				observed += v
			}
		}
		return counted, observed
	}
	last := 0.0
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		default:
		}
		mu.Lock()
		d.full = !ended && rng.IntN(3) > 0
		mu.Unlock()
		if rng.IntN(2) == 0 || ended {
			d.s.tryAgain()
		}
		counted, observed := sums()
		if counted != observed || counted < last {
			t.Fatalf("%v counted and %v observed, after %v", counted, observed, last)
		}
		last = counted
	}
	if last != writers*rounds {
		t.Errorf("%v of %d updates are there", last, writers*rounds)
	}
	// All of it is in the file: another process sees the same.
	g = newGatherer(t, dir)
	if counted, observed := sums(); counted != writers*rounds || observed != counted || len(d.s.unplaced) != 0 {
		t.Errorf("in the file: %v counted, %v observed, %d series wait", counted, observed, len(d.s.unplaced))
	}
}

// TestRealFullDisk fills a small file system in a namespace of its own, where this machine lets a user have one.
func TestRealFullDisk(t *testing.T) {
	if place := os.Getenv("SLUICE_TEST_SMALL_DISK"); place != "" {
		fullDiskInside(t, place)
		return
	}
	place := t.TempDir()
	out, err := inNamespace(t, "TestRealFullDisk", "SLUICE_TEST_SMALL_DISK="+place)
	if err != nil && strings.Contains(out, "operation not permitted") {
		t.Skipf("no namespace may be made here: %v", err)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func fullDiskInside(t *testing.T, place string) {
	const size = headerBytes + 3*segmentBytes
	if err := unix.Mount("small", place, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Fatalf("mount: %v", err)
	}
	s := openStoreLoosely(t, place)
	g := newGatherer(t, place)
	g.Guard(s, nil)
	const n = 2000 // histograms: far more than the disk holds
	all := make([]HistogramSeries, n)
	for i := range all {
		all[i] = s.Histogram(e2eRequestLatency, []Label{{"i", strconv.Itoa(i)}}, nil)
		all[i].Observe(1)
	}
	if len(s.unplaced) == 0 || s.used <= headerBytes {
		t.Fatalf("%d series wait, %d bytes are used", len(s.unplaced), s.used)
	}
	count := func() int { return strings.Count(scrape(t, g), e2eRequestLatency.Name+`_sum{`) }
	if got := count(); got != n {
		t.Errorf("%d series are exposed, not %d", got, n)
	}
	if err := unix.Mount("", place, "", unix.MS_REMOUNT, "size=64m"); err != nil {
		t.Fatalf("remount: %v", err)
	}
	s.tryAgain()
	if got := count(); got != n || len(s.unplaced) != 0 {
		t.Errorf("with room %d series are exposed and %d wait", got, len(s.unplaced))
	}
}

// openStoreLoosely gives a store that may have faults.
func openStoreLoosely(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := OpenStore(dir, "api", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestReserve: both ways to make a file longer take its blocks, leave what is there, and never make it shorter.
func TestReserve(t *testing.T) {
	for name, reserve := range map[string]func(*os.File, int, int) error{"fallocate": reserve, "zeros": writeZeros} {
		f, err := os.Create(filepath.Join(t.TempDir(), "file"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString("kept"); err != nil {
			t.Fatal(err)
		}
		for _, at := range []int{headerBytes, headerBytes + segmentBytes, headerBytes} { // the last as after a try that failed
			if err := reserve(f, at, segmentBytes); err != nil {
				t.Fatal(err)
			}
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		start := make([]byte, 4)
		if _, err := f.ReadAt(start, 0); err != nil || string(start) != "kept" {
			t.Errorf("%s: the file begins with %q, %v", name, start, err)
		}
		if st.Size != headerBytes+2*segmentBytes || st.Blocks*512 < 2*segmentBytes {
			t.Errorf("%s: %d bytes with %d blocks of 512", name, st.Size, st.Blocks)
		}
	}
}

// TestEverySeriesFits: however many labels there are and however long they are, a series fits a segment beside the largest
// histogram.
func TestEverySeriesFits(t *testing.T) {
	for _, n := range []int{0, 1, 19, 20, 21, 100, 1000} {
		labels := make([]Label, n)
		for i := range labels {
			labels[i] = Label{fmt.Sprintf("label_%04d", i), strings.Repeat("x\xff", 2*maxLabelBytes)}
		}
		meta := encodeMeta(e2eRequestLatency.Name, labels)
		if size := recordBytes + align8(len(meta)) + valueBytes(Histogram, maxBounds); size > segmentBytes {
			t.Errorf("%d labels: %d bytes", n, size)
		}
		if _, got, err := decodeMeta(meta); err != nil || len(got) != n || !validLabels(Histogram, got) {
			t.Errorf("%d labels: %d are read, valid %v, %v", n, len(got), validLabels(Histogram, got), err)
		}
	}
}
