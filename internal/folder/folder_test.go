package folder

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const prefix = "sluice-folder-test-"

func TestMain(m *testing.M) {
	if base := os.Getenv("FOLDER_TEST_OWNER"); base != "" {
		own(base)
	}
	os.Exit(m.Run())
}

// own makes a folder with a file in it, tells where and waits for its end.
func own(base string) {
	f, err := Make(base, prefix)
	if err == nil {
		err = os.WriteFile(filepath.Join(f.Path, "file"), nil, 0o600)
	}
	if err != nil {
		_, _ = os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	_, _ = os.Stdout.WriteString(f.Path + "\n")
	_, _ = os.Stdin.Read(make([]byte, 1))
	os.Exit(0)
}

// owner starts a process with a folder of its own.
func owner(t *testing.T, base string) (*exec.Cmd, string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "FOLDER_TEST_OWNER="+base)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // unless the test did
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return cmd, strings.TrimSpace(line)
}

func names(t *testing.T, base string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(base)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, filepath.Join(base, e.Name()))
	}
	return list
}

// TestSweep: the folder of a killed process goes, those of living ones, of this one and of others stay.
func TestSweep(t *testing.T) {
	base := t.TempDir()
	killed, left := owner(t, base)
	_, living := owner(t, base)
	mine, err := Make(base, prefix)
	if err != nil {
		t.Fatal(err)
	}
	other, spared := filepath.Join(base, "other"), filepath.Join(base, prefix+"spared")
	for _, dir := range []string{other, spared} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{living, mine.Path, other, spared}
	slices.Sort(want)

	Sweep(base, prefix, nil)
	if got := names(t, base); !slices.Contains(got, left) || slices.Contains(got, spared) {
		t.Errorf("%v are there while the owner of %s lives, and nobody owns %s", got, left, spared)
	}
	if err := os.Mkdir(spared, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait() // it says that it was killed
	Sweep(base, prefix, func(dir string) bool { return dir == spared })
	if got := names(t, base); !slices.Equal(got, want) {
		t.Errorf("%v are there, want %v", got, want)
	}
	if err := mine.Remove(); err != nil {
		t.Error(err)
	}
	if got := names(t, base); slices.Contains(got, mine.Path) {
		t.Errorf("%s is there after its end", mine.Path)
	}
}

// TestSweepWhileOthersMake: a folder that is being made is never taken from its owner.
func TestSweepWhileOthersMake(t *testing.T) {
	base := t.TempDir()
	var makers, sweeper sync.WaitGroup
	over := make(chan struct{})
	sweeper.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
				Sweep(base, prefix, nil)
			}
		}
	})
	for range 4 {
		makers.Go(func() {
			for range 200 {
				f, err := Make(base, prefix)
				if err != nil {
					t.Error(err)
					return
				}
				if err := os.WriteFile(filepath.Join(f.Path, "file"), nil, 0o600); err != nil {
					t.Error(err)
				}
				if err := f.Remove(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	makers.Wait()
	close(over)
	sweeper.Wait()
	if got := names(t, base); len(got) > 0 {
		t.Errorf("%v stay", got)
	}
}
