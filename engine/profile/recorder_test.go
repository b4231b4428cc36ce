package profile

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// awaited is one wait for a step; what is sent to it is the answer.
type awaited struct {
	step   int64
	answer chan<- any // int64: the newest step; error
}

// scripted is steps as a test says.
type scripted chan awaited

func (s scripted) AwaitStep(ctx context.Context, n int64) (int64, error) {
	answer := make(chan any, 1)
	select {
	case s <- awaited{n, answer}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	select {
	case a := <-answer:
		if err, ok := a.(error); ok {
			return 0, err
		}
		return a.(int64), nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// TestRecordingOfSteps: a recording waits for its first step and ends by itself after its last, also when steps come to an end.
func TestRecordingOfSteps(t *testing.T) {
	gone := errors.New("the scheduler has ended")
	for _, tc := range []struct {
		name, reason string
		from, steps  int64
		answers      []any   // to the waits, in order; the last one stays open where there are fewer
		want         []int64 // steps that are waited for
		files        int
		err          error
	}{
		{"from now", "the newest step is what counts", 0, 3, []any{int64(9), int64(12)}, []int64{0, 12}, 2, nil},
		{"later", "it begins once the step before is over", 5, 3, []any{int64(4), int64(7)}, []int64{4, 7}, 2, nil},
		{"over already", "it begins with the next", 5, 3, []any{int64(9), int64(12)}, []int64{4, 12}, 2, nil},
		{"stopped before", "nothing was recorded", 5, 3, nil, []int64{4}, 0, nil},
		{"stopped meanwhile", "what there is counts", 5, 3, []any{int64(4)}, []int64{4, 7}, 2, nil},
		{"without end", "Stop ends it", 5, 0, []any{int64(4)}, []int64{4}, 2, nil},
		{"end before", "nothing was recorded", 5, 3, []any{gone}, []int64{4}, 0, gone},
		{"end meanwhile", "what there is counts", 5, 3, []any{int64(4), gone}, []int64{4, 7}, 2, gone},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			r, steps := NewRecorder("rank3", quiet()), make(scripted)
			if err := r.Start(steps, Options{Dir: dir, Name: "a", CPU: true, Memory: true, FromStep: tc.from, Steps: tc.steps}); err != nil {
				t.Fatal(err)
			}
			if err := r.Start(steps, Options{Dir: dir, Name: "b", CPU: true}); !errors.Is(err, ErrRunning) {
				t.Errorf("start of a second: %v", err)
			}
			var got []int64
			for i := range tc.want {
				a := <-steps
				got = append(got, a.step)
				if i < len(tc.answers) {
					a.answer <- tc.answers[i]
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: steps that are waited for (-want +got):\n%s", tc.reason, diff)
			}
			if len(tc.answers) == len(tc.want) { // nobody waits any more
				r.following.Wait()
			}
			files, err := r.Stop()
			r.following.Wait()
			if len(files) != tc.files || !errors.Is(err, tc.err) || tc.err == nil && err != nil {
				t.Errorf("%s: files %v, %v", tc.reason, files, err)
			}
			for _, path := range files {
				checkProfile(t, path)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != tc.files {
				t.Errorf("the directory has %v", left)
			}
			if _, err := r.Stop(); !errors.Is(err, ErrIdle) {
				t.Errorf("a second stop: %v", err)
			}
			if err := r.Start(nil, Options{Dir: dir, Name: "c", CPU: true}); err != nil {
				t.Errorf("the next one does not begin: %v", err)
			}
			r.Close()
			if err := r.Start(nil, Options{Dir: dir, Name: "d", CPU: true}); !errors.Is(err, ErrClosed) {
				t.Errorf("start after the end: %v", err)
			}
		})
	}
}

// TestNobodyWaitsForFiles: while a recording that has ended by itself is written, who asks for another is told so at once, and Stop
// waits for the files.
func TestNobodyWaitsForFiles(t *testing.T) {
	dir := t.TempDir()
	r, steps := NewRecorder("rank3", quiet()), make(scripted)
	collecting, goOn := make(chan struct{}), make(chan struct{})
	r.collect = func() { collecting <- struct{}{}; <-goOn }
	if err := r.Start(steps, Options{Dir: dir, Name: "a", Memory: true, Steps: 1}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		(<-steps).answer <- int64(1)
	}
	<-collecting
	if err := r.Start(steps, Options{Dir: dir, Name: "b", Memory: true}); !errors.Is(err, ErrRunning) {
		t.Errorf("start of a second: %v", err)
	}
	stopped := make(chan []string)
	for range 2 {
		go func() {
			files, err := r.Stop()
			if err != nil && !errors.Is(err, ErrIdle) {
				t.Error(err)
			}
			stopped <- files
		}()
	}
	goOn <- struct{}{}
	if all := append(<-stopped, <-stopped...); len(all) != 1 {
		t.Errorf("two stops give the files %v, want the one file once", all)
	}
	r.Close()
}

// TestLevelsOfEnds: that the steps are over is how a recording ends when its process does; that a file can't be written is a fault.
func TestLevelsOfEnds(t *testing.T) {
	over := errors.New("the scheduler has ended")
	for _, tc := range []struct {
		name, reason string
		answers      []any
		damage       bool // of the directory, before the end
		want         string
	}{
		{"whole", "as asked", []any{int64(4), int64(6)}, false, "INFO a profile was recorded"},
		{"short", "the process ends", []any{int64(4), over}, false, "INFO a profile was recorded up to the last step; it was to have more"},
		{"unwritten", "the disk is gone", []any{int64(4), int64(6)}, true, "ERROR a profile could not be recorded"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "profiles")
			var said bytes.Buffer
			r, steps := NewRecorder("rank3", slog.New(slog.NewTextHandler(&said, nil))), make(scripted)
			if err := r.Start(steps, Options{Dir: dir, Name: "a", Memory: true, Steps: 2}); err != nil {
				t.Fatal(err)
			}
			if tc.damage {
				if err := os.Remove(dir); err != nil {
					t.Fatal(err)
				}
			}
			for _, a := range tc.answers {
				(<-steps).answer <- a
			}
			r.following.Wait()
			level, text, _ := strings.Cut(tc.want, " ")
			if got := said.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level="+level+" msg="+strconv.Quote(text)) {
				t.Errorf("%s: the log says %q, want %s", tc.reason, got, tc.want)
			}
			said.Reset()
			if r.Close(); said.Len() > 0 {
				t.Errorf("%s: the end of the process says %q again", tc.reason, said.String())
			}
		})
	}
}

// TestRecording: the files are profiles, and a second recording in the same directory has files of its own.
func TestRecording(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	r := NewRecorder("rank3", quiet())
	file := func(name, kind string) string {
		return filepath.Join(dir, fmt.Sprintf("%s-rank3-%d.%s.pprof", name, os.Getpid(), kind))
	}
	for _, tc := range []struct {
		name, reason string
		options      Options
		want         []string
	}{
		{"both", "one file each", Options{Dir: dir, Name: "a", CPU: true, Memory: true}, []string{file("a", "cpu"), file("a", "heap")}},
		{"processor", "alone", Options{Dir: dir, Name: "b", CPU: true}, []string{file("b", "cpu")}},
		{"memory", "alone", Options{Dir: dir, Name: "c", Memory: true}, []string{file("c", "heap")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := r.Stop(); !errors.Is(err, ErrIdle) {
				t.Errorf("stop of nothing: %v", err)
			}
			if err := r.Start(nil, tc.options); err != nil {
				t.Fatal(err)
			}
			if err := r.Start(nil, tc.options); !errors.Is(err, ErrRunning) {
				t.Errorf("start of a second: %v", err)
			}
			got, err := r.Stop()
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
				t.Fatalf("%s: %v (-want +got)\n%s", tc.reason, err, diff)
			}
			for _, path := range got {
				checkProfile(t, path)
			}
		})
	}
	if err := r.Start(nil, Options{Dir: dir, Name: "a", CPU: true}); err == nil {
		t.Error("a file that is there is overwritten")
	}
}

// checkProfile reads a profile: a compressed message that names the types of its samples.
func checkProfile(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	raw, err := io.ReadAll(unzipped)
	want := map[string]string{"cpu": "nanoseconds", "heap": "inuse_space"}[strings.Split(filepath.Base(path), ".")[1]]
	if err != nil || !bytes.Contains(raw, []byte(want)) {
		t.Errorf("%s: %v, without %s", path, err, want)
	}
}

func TestRefusedRecordings(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "file")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := NewRecorder("api", quiet())
	for name, o := range map[string]Options{
		"path in the name":         {Dir: dir, Name: "../a", CPU: true},
		"no name":                  {Dir: dir, CPU: true},
		"hidden file":              {Dir: dir, Name: ".a", CPU: true},
		"nothing to record":        {Dir: dir, Name: "a"},
		"directory that is a file": {Dir: plain, Name: "a", CPU: true},
	} {
		if err := r.Start(nil, o); err == nil {
			t.Errorf("%s: it records", name)
		}
	}
	if _, err := r.Stop(); !errors.Is(err, ErrIdle) {
		t.Errorf("after refusals: %v", err)
	}
}
