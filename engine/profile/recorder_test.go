package profile

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRecording: the files are profiles, and a second recording in the same directory has files of its own.
func TestRecording(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	r := NewRecorder("rank3")
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
			if err := r.Start(tc.options); err != nil {
				t.Fatal(err)
			}
			if err := r.Start(tc.options); !errors.Is(err, ErrRunning) {
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
	if err := r.Start(Options{Dir: dir, Name: "a", CPU: true}); err == nil {
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
	r := NewRecorder("api")
	for name, o := range map[string]Options{
		"path in the name":         {Dir: dir, Name: "../a", CPU: true},
		"no name":                  {Dir: dir, CPU: true},
		"hidden file":              {Dir: dir, Name: ".a", CPU: true},
		"nothing to record":        {Dir: dir, Name: "a"},
		"directory that is a file": {Dir: plain, Name: "a", CPU: true},
	} {
		if err := r.Start(o); err == nil {
			t.Errorf("%s: it records", name)
		}
	}
	if _, err := r.Stop(); !errors.Is(err, ErrIdle) {
		t.Errorf("after refusals: %v", err)
	}
}
