package metrics

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// storeBytes gives the content of a store with a few series.
func storeBytes(t testing.TB) []byte {
	t.Helper()
	dir := t.TempDir()
	s := openStore(t, dir, "api")
	s.Counter(promptTokens, []Label{{"model_name", "tiny"}}).Add(1)
	s.Gauge(tokenUsage, nil).Set(2, 3)
	s.Histogram(getLoadsDuration, nil, nil).Observe(0.01)
	data, err := os.ReadFile(s.Path())
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// faultsOf lists the faults of a scrape by reason.
func faultsOf(text string) map[string]string {
	got := map[string]string{}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, storeFaults.Name+`{reason="`); ok {
			reason, value, _ := strings.Cut(strings.TrimSpace(rest), `"} `)
			if value != "0" {
				got[reason] = value
			}
		}
	}
	return got
}

func TestHostileFiles(t *testing.T) {
	put32 := func(at int, v uint32) func([]byte) []byte {
		return func(b []byte) []byte { binary.NativeEndian.PutUint32(b[at:], v); return b }
	}
	put64 := func(at int, v uint64) func([]byte) []byte {
		return func(b []byte) []byte { binary.NativeEndian.PutUint64(b[at:], v); return b }
	}
	const rec = headerBytes // the first record: the counter
	valueAt := func() int {
		return rec + recordBytes + align8(len(encodeMeta(promptTokens.Name, []Label{{"model_name", "tiny"}})))
	}()
	// histogramAt is the offset of a word of the histogram's values: its sum, its bounds, its counts.
	histogramAt := func(word int) int {
		meta := encodeMeta(getLoadsDuration.Name, nil)
		return strings.Index(string(storeBytes(t)), string(meta)) + align8(len(meta)) + 8*word
	}
	cases := []struct {
		name, reason string
		change       func([]byte) []byte
		want         map[string]string
		counter      string // what the counter of the store reads, "" when it is not there
	}{
		{"good", "nothing was changed", func(b []byte) []byte { return b }, map[string]string{}, "1"},
		{"empty", "no header", func([]byte) []byte { return nil }, map[string]string{"header": "1"}, ""},
		{"short", "half a header", func(b []byte) []byte { return b[:100] }, map[string]string{"header": "1"}, ""},
		{"text", "another kind of file", func([]byte) []byte { return []byte(strings.Repeat("hello world\n", 9000)) }, map[string]string{"header": "1"}, ""},
		{"version", "written by a later build", put64(offVersion, 2), map[string]string{"header": "1"}, ""},
		{"segment", "other segments", put64(offSegment, 1), map[string]string{"header": "1"}, ""},
		{"pid", "no process has this id", put64(offPID, math.MaxUint64), map[string]string{"header": "1"}, ""},
		{"used behind the end", "more in use than there is", put64(offUsed, headerBytes+10*segmentBytes), map[string]string{"header": "1"}, ""},
		{"used huge", "", put64(offUsed, math.MaxUint64-7), map[string]string{"header": "1"}, ""},
		{"used odd", "", put64(offUsed, headerBytes+1), map[string]string{"header": "1"}, ""},
		{"used before the records", "", put64(offUsed, 8), map[string]string{"header": "1"}, ""},
		{"used into a record", "a record is cut", put64(offUsed, headerBytes+16), map[string]string{"record": "1"}, ""},
		{"record of size 0", "would loop for ever", put32(rec, 0), map[string]string{"record": "1"}, ""},
		{"record too large", "", put32(rec, segmentBytes+8), map[string]string{"record": "1"}, ""},
		{"record of odd size", "", put32(rec, 17), map[string]string{"record": "1"}, ""},
		{"unknown kind", "", put32(rec+4, 9), map[string]string{"record": "1"}, ""},
		{"meta too long", "", put32(rec+8, 1<<31), map[string]string{"record": "1"}, ""},
		{"bounds of a counter", "", put32(rec+12, 3), map[string]string{"record": "1"}, ""},
		{"name too long", "a string that goes on behind the meta", func(b []byte) []byte { b[rec+recordBytes+1] = 0xff; return b }, map[string]string{"record": "1"}, ""},
		{"unknown family", "a name of no family", func(b []byte) []byte { b[rec+recordBytes+4] = 'X'; return b }, map[string]string{"family": "1"}, ""},
		{"label name", "not a label name", func(b []byte) []byte { b[strings.Index(string(b), "model_name")] = '{'; return b }, map[string]string{"labels": "1"}, ""},
		{"label value", "not UTF-8", func(b []byte) []byte { b[strings.Index(string(b), "tiny")] = 0xff; return b }, map[string]string{"labels": "1"}, ""},
		{"NaN", "a counter is a number", put64(valueAt, math.Float64bits(math.NaN())), map[string]string{"value": "1"}, ""},
		{"negative", "a counter is not negative", put64(valueAt, math.Float64bits(-1)), map[string]string{"value": "1"}, ""},
		{"sum of no number", "a histogram's sum is a number", put64(histogramAt(0), math.Float64bits(math.NaN())), map[string]string{"value": "1"}, "1"},
		{"bounds fall", "bounds rise", put64(histogramAt(2), math.Float64bits(0.00001)), map[string]string{"family": "1"}, "1"},
		{"bound of no number", "bounds are finite", put64(histogramAt(1), math.Float64bits(math.Inf(1))), map[string]string{"family": "1"}, "1"},
		{"huge count", "counts that are no exact floats, or whose sum would wrap", put64(histogramAt(1+len(getLoadsDuration.Buckets)), math.MaxUint64), map[string]string{"value": "1"}, "1"},
		{"count just too large", "", put64(histogramAt(2+len(getLoadsDuration.Buckets)), 1<<53+1), map[string]string{"value": "1"}, "1"},
		{"infinite", "a counter is finite", put64(valueAt, math.Float64bits(math.Inf(1))), map[string]string{"value": "1"}, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "bad-1.metrics"), c.change(storeBytes(t)), 0o600); err != nil {
				t.Fatal(err)
			}
			// A good store beside it must not suffer.
			openStore(t, dir, "good").Counter(generationTokens, nil).Add(4)
			g := newGatherer(t, dir)
			for range 2 { // the second scrape counts nothing again
				text := scrape(t, g)
				if diff := cmp.Diff(c.want, faultsOf(text)); diff != "" {
					t.Errorf("%s: faults (-want +got):\n%s", c.reason, diff)
				}
				got := values(text, `sglang:prompt_tokens_total{model_name="tiny"}`, "sglang:generation_tokens_total")
				want := map[string]string{"sglang:generation_tokens_total": "4"}
				if c.counter != "" {
					want[`sglang:prompt_tokens_total{model_name="tiny"}`] = c.counter
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s: values (-want +got):\n%s", c.reason, diff)
				}
			}
		})
	}
}

func TestOddDirectoryEntries(t *testing.T) {
	dir := t.TempDir()
	for _, err := range []error{
		os.Mkdir(filepath.Join(dir, "folder.metrics"), 0o700),
		os.Symlink("/etc/passwd", filepath.Join(dir, "link.metrics")),
		unix.Mkfifo(filepath.Join(dir, "fifo.metrics"), 0o600),
		os.WriteFile(filepath.Join(dir, ".new-1.metrics"), nil, 0o600),
		os.WriteFile(filepath.Join(dir, "README"), nil, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(map[string]string{"open": "3"}, faultsOf(scrape(t, newGatherer(t, dir)))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A file that is cut while it is mapped makes reads fail with a fault of the machine, which must end in a counter.
func TestFileCutWhileMapped(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "cut.metrics")
	if err := os.WriteFile(path, storeBytes(t), 0o600); err != nil {
		t.Fatal(err)
	}
	g := newGatherer(t, dir)
	if diff := cmp.Diff(map[string]string{}, faultsOf(scrape(t, g))); diff != "" {
		t.Fatalf("before (-want +got):\n%s", diff)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	text := scrape(t, g)
	if got := faultsOf(text)["open"]; got == "" {
		t.Errorf("faults after the cut: %v", faultsOf(text))
	}
	if strings.Contains(text, "sglang:prompt_tokens_total{") {
		t.Error("a value was read from a page that is gone")
	}
}

// Different bounds of one series can't be added: the first file's are taken.
func TestBoundsDiffer(t *testing.T) {
	dir := t.TempDir()
	openStore(t, dir, "a").Histogram(e2eRequestLatency, nil, []float64{1, 2}).Observe(1)
	openStore(t, dir, "b").Histogram(e2eRequestLatency, nil, []float64{1, 3}).Observe(1)
	text := scrape(t, newGatherer(t, dir))
	if diff := cmp.Diff(map[string]string{"family": "1"}, faultsOf(text)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := values(text, "sglang:e2e_request_latency_seconds_count"); got["sglang:e2e_request_latency_seconds_count"] != "1" {
		t.Errorf("count %v", got)
	}
}

func FuzzStore(f *testing.F) {
	good := storeBytes(f)
	used := int(binary.NativeEndian.Uint64(good[offUsed:]))
	f.Add(good[:used], 0, uint64(0), uint32(0))
	f.Add(good[:used], offUsed, uint64(headerBytes), uint32(headerBytes))
	f.Add(good[:used], used-8, uint64(math.MaxUint64), uint32(headerBytes+100))
	f.Add(good[:used], headerBytes, uint64(0), uint32(1))
	f.Add([]byte("x"), 0, uint64(1), uint32(math.MaxUint32))
	f.Fuzz(func(t *testing.T, data []byte, at int, v uint64, cut uint32) {
		file := make([]byte, headerBytes+segmentBytes)
		copy(file, data)
		if at >= 0 && at < len(file)-8 {
			binary.NativeEndian.PutUint64(file[at:], v)
		}
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "fuzz.metrics"), file, 0o600); err != nil {
			t.Fatal(err)
		}
		g := newGatherer(t, dir)
		scrape(t, g)
		scrape(t, g)
		// The file becomes shorter while it is mapped.
		if err := os.Truncate(filepath.Join(dir, "fuzz.metrics"), int64(min(cut, uint32(len(file))))); err != nil {
			t.Fatal(err)
		}
		if _, err := (&exposition{stores: g, own: prometheus.NewRegistry()}).Gather(); err != nil {
			t.Fatal(err)
		}
		scrape(t, g)
	})
}
