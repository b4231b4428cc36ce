package profile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSeveralOrNone: where one of several still records for somebody else, that goes on, nothing of the new recording stays and the
// others are as before.
func TestSeveralOrNone(t *testing.T) {
	dir := t.TempDir()
	all := []*Recorder{NewRecorder("rank0", quiet()), NewRecorder("rank1", quiet()), NewRecorder("rank2", quiet())}
	start := func(name string) error {
		return Several{
			Num: len(all),
			Begin: func(_ context.Context, i int) error {
				return all[i].Start(nil, Options{Dir: dir, Name: name, Memory: true})
			},
			End: func(_ context.Context, i int) ([]string, error) { return all[i].Stop() },
		}.Start(t.Context())
	}
	if err := start("first"); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, r := range all[:2] { // their part is over
		files, err := r.Stop()
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, files...)
	}
	if err := start("second"); !errors.Is(err, ErrRunning) {
		t.Errorf("start of a second: %v", err)
	}
	for i, r := range all[:2] {
		if files, err := r.Stop(); !errors.Is(err, ErrIdle) {
			t.Errorf("recorder %d records on: %v, %v", i, files, err)
		}
	}
	files, err := all[2].Stop()
	if len(files) != 1 || err != nil {
		t.Errorf("the first recording of the last: %v, %v", files, err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if diff := cmp.Diff(append(want, files...), left); diff != "" || err != nil {
		t.Errorf("%v, files (-want +got):\n%s", err, diff)
	}
	Discard(left)
	if entries, err := os.ReadDir(dir); len(entries) != 0 || err != nil {
		t.Errorf("after they were discarded: %v, %v", entries, err)
	}
}
