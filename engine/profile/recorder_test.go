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
