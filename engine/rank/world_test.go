package rank

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// descriptors counts what this process has open.
func descriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// smallWorld starts two processes that share each layer.
func smallWorld(t *testing.T, dir string, command func() *exec.Cmd) (*World, error) {
	t.Helper()
	cfg := testConfig(dir)
	cfg.TPSize, cfg.Threads = 2, 1
	return startWorld(waiting(t), cfg, command)
}

func selfAsRank(t *testing.T) func() *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return func() *exec.Cmd { return exec.Command(self, "rank") }
}

// TestWorldEnds: however a world ends, its requests do, and no descriptor, process or folder stays; Err names who began.
func TestWorldEnds(t *testing.T) {
	dir, temp := seededModel(t), t.TempDir()
	t.Setenv("TMPDIR", temp)
	elsewhere := errors.New("node 1: rank 5 ended")
	for _, c := range []struct {
		name string
		end  func(w *World) (want string, err error)
	}{
		{"in order", func(w *World) (string, error) { return "", w.Close(waiting(t)) }},
		{"leader", func(w *World) (string, error) {
			pid := w.ranks[0].PID()
			return fmt.Sprintf("rank 0 (tp 0, pp 0, pid %d) ended: signal: killed", pid), syscall.Kill(pid, syscall.SIGKILL)
		}},
		{"follower", func(w *World) (string, error) {
			pid := w.ranks[1].PID()
			return fmt.Sprintf("rank 1 (tp 1, pp 0, pid %d) ended: signal: killed", pid), syscall.Kill(pid, syscall.SIGKILL)
		}},
		{"another node", func(w *World) (string, error) {
			w.Fail(elsewhere)
			return elsewhere.Error(), nil
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := descriptors(t)
			w, err := smallWorld(t, dir, selfAsRank(t))
			if err != nil {
				t.Fatal(err)
			}
			s := submit(t, w, newRequest("a", prompt(8), 400))
			if _, err := s.Recv(waiting(t)); err != nil {
				t.Fatal(err)
			}
			want, err := c.end(w)
			if err != nil {
				t.Fatal(err)
			}
			select {
			case <-w.Done():
			case <-waiting(t).Done():
				t.Fatal("the world doesn't end")
			}
			if _, f, err := readAll(waiting(t), s); f.Outcome == "" && err == nil {
				t.Error("the request has no end")
			}
			if got := w.Err(); want == "" && got != nil || want != "" && (got == nil || !strings.HasPrefix(got.Error(), want)) {
				t.Errorf("Err is %v, want %q", got, want)
			}
			for _, p := range w.ranks {
				select {
				case <-p.child.exited:
				default:
					t.Errorf("%s lives", p.name)
				}
			}
			if left, err := filepath.Glob(filepath.Join(temp, meetingPrefix+"*")); err != nil || len(left) > 0 {
				t.Errorf("%v stays: %v", left, err)
			}
			if after := descriptors(t); after > before {
				t.Errorf("%d descriptors are open, %d were before", after, before)
			}
		})
	}
}

// TestWorldThatDoesNotStart: one rank that does not start is named, and the others don't stay.
func TestWorldThatDoesNotStart(t *testing.T) {
	temp := t.TempDir()
	dir := seededModel(t)
	t.Setenv("TMPDIR", temp)
	before := descriptors(t)
	rank, calls := selfAsRank(t), make(chan struct{}, 1)
	calls <- struct{}{}
	_, err := smallWorld(t, dir, func() *exec.Cmd {
		select {
		case <-calls: // one of the two
			return exec.Command("/bin/sh", "-c", "read line; echo no device here >&2; exit 3")
		default:
			return rank()
		}
	})
	if err == nil || !strings.Contains(err.Error(), "exit status 3; its last words: no device here") || !strings.Contains(err.Error(), "start rank ") {
		t.Errorf("the error is %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(temp, "*")); err != nil || len(left) > 0 {
		t.Errorf("%v stays: %v", left, err)
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors are open, %d were before", after, before)
	}
}
