package metrics

import (
	"errors"
	"fmt"
	nethttp "net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// TestDirectoryThatIsNotThere: without a list of the stores there is no exposition, and the scraper is told why; once there
// was one, what is known goes on.
func TestDirectoryThatIsNotThere(t *testing.T) {
	base := t.TempDir()
	dir, away := filepath.Join(base, "dir"), filepath.Join(base, "away")
	g := newGatherer(t, dir)
	get := func() (status int, body string) {
		w := httptest.NewRecorder()
		Handler(g).ServeHTTP(w, httptest.NewRequest(nethttp.MethodGet, "/metrics", nil))
		return w.Code, w.Body.String()
	}
	if status, body := get(); status != nethttp.StatusInternalServerError || !strings.Contains(body, "list the stores of the metrics: open "+dir) {
		t.Errorf("before there was a directory: %d, %s", status, body)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	own, other := openStore(t, dir, "api"), openStore(t, dir, "rank-0")
	g.Guard(own, nil)
	own.Counter(promptTokens, nil).Add(1)
	counter := other.Counter(generationTokens, nil)
	counter.Add(2)
	series := []string{"sglang:prompt_tokens_total", "sglang:generation_tokens_total"}
	check := func(reason, generated string, faults map[string]string) {
		t.Helper()
		status, body := get()
		want := map[string]string{series[0]: "1", series[1]: generated}
		if diff := cmp.Diff(want, values(body, series...)); diff != "" || status != nethttp.StatusOK {
			t.Errorf("%s: status %d, values (-want +got):\n%s", reason, status, diff)
		}
		if diff := cmp.Diff(faults, faultsOf(body)); diff != "" {
			t.Errorf("%s: faults (-want +got):\n%s", reason, diff)
		}
	}
	check("the directory is there", "2", map[string]string{"list": "1"})
	if err := os.Rename(dir, away); err != nil {
		t.Fatal(err)
	}
	counter.Add(3)
	check("it has gone: what is mapped still counts", "5", map[string]string{"list": "2"})
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	check("it is a file", "5", map[string]string{"list": "3"})
	if err := errors.Join(os.Remove(dir), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	check("it is another one: both stores are missing from it", "5", map[string]string{"list": "3", "missing": "2"})
	check("which is counted once", "5", map[string]string{"list": "3", "missing": "2"})
}

// TestRemovedFiles: a file without a name is a file. No counter goes backwards, the process's own store goes on to grow, and
// that somebody removes files is told.
func TestRemovedFiles(t *testing.T) {
	dir := t.TempDir()
	g := newGatherer(t, dir)
	own := openStore(t, dir, "api")
	g.Guard(own, nil)
	own.Counter(promptTokens, nil).Add(1)
	killed := startWriter(t, dir)
	killed.write(4)
	scrape(t, g)
	killed.kill()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 1000 { // needs segments that are mapped after the file has gone
		own.Counter(realTokens, []Label{{"mode", strconv.Itoa(i)}}).Add(1)
	}
	text := scrape(t, g)
	want := map[string]string{"sglang:prompt_tokens_total": "5", `sglang:realtime_tokens_total{mode="999"}`: "1"}
	if diff := cmp.Diff(want, values(text, "sglang:prompt_tokens_total", `sglang:realtime_tokens_total{mode="999"}`)); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"missing": "2"}, faultsOf(text)); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
}

// TestCopiedFiles: a copy of a store in its directory counts nothing a second time, whatever its name and whoever is seen
// first, and neither does one that was renamed.
func TestCopiedFiles(t *testing.T) {
	for _, c := range []struct {
		reason string
		name   string // the copies' names begin so
		early  bool   // the copy is there at the first scrape
	}{
		{"found together, the copy first", "a", true},
		{"found together, the original first", "z", true},
		{"found later, with a name before", "a", false},
		{"found later, with a name behind", "z", false},
	} {
		dir := t.TempDir()
		own, rank := openStore(t, dir, "api"), openStore(t, dir, "rank-0")
		own.Counter(promptTokens, nil).Add(1)
		counter := rank.Counter(generationTokens, nil)
		counter.Add(2)
		g := newGatherer(t, dir)
		g.Guard(own, nil)
		if !c.early {
			scrape(t, g)
		}
		for i, s := range []*Store{own, rank} {
			data, err := os.ReadFile(s.Path())
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%d.metrics", c.name, i)), data, 0o400)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		check := func(when, generated string, faults map[string]string) {
			t.Helper()
			text := scrape(t, g)
			want := map[string]string{"sglang:prompt_tokens_total": "1", "sglang:generation_tokens_total": generated}
			if diff := cmp.Diff(want, values(text, "sglang:prompt_tokens_total", "sglang:generation_tokens_total")); diff != "" {
				t.Errorf("%s, %s: values (-want +got):\n%s", c.reason, when, diff)
			}
			if diff := cmp.Diff(faults, faultsOf(text)); diff != "" {
				t.Errorf("%s, %s: faults (-want +got):\n%s", c.reason, when, diff)
			}
		}
		check("copied", "2", map[string]string{"duplicate": "2"})
		counter.Add(3)
		check("the original goes on", "5", map[string]string{"duplicate": "2"})
		if err := os.Rename(rank.Path(), filepath.Join(dir, "other.metrics")); err != nil {
			t.Fatal(err)
		}
		counter.Add(4)
		check("renamed", "9", map[string]string{"duplicate": "3", "missing": "1"})
	}
}

// TestTooManyFiles: files that are no stores, or of nobody who lives, push out neither the own store nor those that live.
func TestTooManyFiles(t *testing.T) {
	dir := t.TempDir()
	const junk = maxStores + 10
	for i := range junk {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("a-%d-%d.metrics", 1<<30, i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	own, rank := openStore(t, dir, "y-api"), openStore(t, dir, "z-rank-0")
	own.Counter(promptTokens, nil).Add(1)
	rank.Counter(generationTokens, nil).Add(2)
	g := newGatherer(t, dir)
	g.Guard(own, nil)
	for _, c := range []struct {
		reason string
		faults map[string]string
	}{
		{"what is cut is counted", map[string]string{"limit": "11", "header": strconv.Itoa(maxStores - 1)}},
		{"what is no store takes no place, so the rest is looked at", map[string]string{"limit": "11", "header": strconv.Itoa(junk)}},
		{"and then nothing is new", map[string]string{"limit": "11", "header": strconv.Itoa(junk)}},
	} {
		text := scrape(t, g)
		want := map[string]string{"sglang:prompt_tokens_total": "1", "sglang:generation_tokens_total": "2"}
		if diff := cmp.Diff(want, values(text, "sglang:prompt_tokens_total", "sglang:generation_tokens_total")); diff != "" {
			t.Errorf("%s: values (-want +got):\n%s", c.reason, diff)
		}
		if diff := cmp.Diff(c.faults, faultsOf(text)); diff != "" {
			t.Errorf("%s: faults (-want +got):\n%s", c.reason, diff)
		}
	}
}

// withoutDescriptors runs f while this process can open no file.
func withoutDescriptors(t *testing.T, f func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Fatal(err)
		}
	}()
	f()
}

// TestOutOfDescriptors: a scrape for which no file can be opened has all that was known before and the own store, says what
// is wrong, and the next one has everything.
func TestOutOfDescriptors(t *testing.T) {
	dir := t.TempDir()
	own, known, late := openStore(t, dir, "api"), openStore(t, dir, "rank-0"), openStore(t, dir, "rank-1")
	held := filepath.Join(filepath.Dir(dir), "held.metrics")
	if err := os.Rename(late.path, held); err != nil {
		t.Fatal(err)
	}
	g := newGatherer(t, dir)
	g.Guard(own, nil)
	own.Counter(promptTokens, nil).Add(1)
	grown := known.Counter(generationTokens, nil)
	grown.Add(2)
	late.Counter(generationTokens, nil).Add(4)
	check := func(reason, generated string, faults map[string]string) {
		t.Helper()
		text := scrape(t, g)
		want := map[string]string{"sglang:prompt_tokens_total": "1", "sglang:generation_tokens_total": generated}
		if diff := cmp.Diff(want, values(text, "sglang:prompt_tokens_total", "sglang:generation_tokens_total")); diff != "" {
			t.Errorf("%s: values (-want +got):\n%s", reason, diff)
		}
		if diff := cmp.Diff(faults, faultsOf(text)); diff != "" {
			t.Errorf("%s: faults (-want +got):\n%s", reason, diff)
		}
	}
	check("two stores", "2", map[string]string{})
	if err := os.Rename(held, late.path); err != nil {
		t.Fatal(err)
	}
	grown.Add(8)
	for i := range 1000 { // more than is mapped of it
		known.Counter(realTokens, []Label{{"mode", strconv.Itoa(i)}})
	}
	withoutDescriptors(t, func() {
		check("nothing can be listed, a store that grew can't be mapped anew, and the new one is not seen", "10", map[string]string{"list": "1", "open": "1"})
		g.stores.open(filepath.Base(late.path)) // as if the list had come in time
		check("or opened", "10", map[string]string{"list": "2", "open": "3"})
	})
	check("all is well again", "14", map[string]string{"list": "2", "open": "3"})
	if text := scrape(t, g); !strings.Contains(text, `sglang:realtime_tokens_total{mode="999"} 0`) {
		t.Error("the store that grew was left alone")
	}
}

// TestEndsAreSeen: handles and /proc say the same about processes that live, that have ended, and whose end nobody reaped.
func TestEndsAreSeen(t *testing.T) {
	dir := t.TempDir()
	for _, handles := range []bool{true, false} {
		w := startWriter(t, dir)
		w.write(1)
		start, ok := processStart(w.cmd.Process.Pid)
		if !ok {
			t.Fatal("a writer that answers does not live")
		}
		l := watched(process{pid: w.cmd.Process.Pid, start: start}, handles)
		other := watched(process{pid: w.cmd.Process.Pid, start: start + 1}, handles)
		look([]*life{&other, &l})
		if l.ended || !other.ended || other.handle != -1 || (l.handle >= 0) != handles {
			t.Errorf("handles %v: a process that lives is %+v, one that had its id before is %+v", handles, l, other)
		}
		if err := w.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if w.out.Scan() { // its output ends with it, but nobody has reaped it
			t.Fatal("a killed writer answers")
		}
		for due := time.Now().Add(30 * time.Second); !l.ended && time.Now().Before(due); { // the output is closed a moment before the end
			look([]*life{&l})
		}
		if !l.ended || l.handle != -1 {
			t.Errorf("handles %v: a killed process is %+v", handles, l)
		}
		w.kill()
	}
}

// TestHandlesOfTheEnded: a process that ends gives its handle to one that had to go without.
func TestHandlesOfTheEnded(t *testing.T) {
	dir := t.TempDir()
	g := newGatherer(t, dir)
	g.stores.handles = 2
	var all []*writer
	for range 4 {
		w := startWriter(t, dir)
		w.write(1)
		all = append(all, w)
	}
	watchedOnes := func() (with, without []int) {
		for _, r := range g.stores.readers {
			switch {
			case r.life.ended:
			case r.life.handle >= 0:
				with = append(with, r.process.pid)
			default:
				without = append(without, r.process.pid)
			}
		}
		slices.Sort(with)
		return with, without
	}
	for living := len(all); living > 0; living-- {
		var with []int
		for due := time.Now().Add(30 * time.Second); time.Now().Before(due); { // an end shows a moment after the output is closed
			scrape(t, g)
			var without []int
			if with, without = watchedOnes(); len(with)+len(without) == living {
				break
			}
		}
		if len(with) != min(2, living) {
			t.Fatalf("of %d processes that live, %v are watched by a handle", living, with)
		}
		for _, w := range all {
			if w.cmd.Process.Pid == with[0] {
				w.kill()
			}
		}
	}
}
