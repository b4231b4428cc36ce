package rank

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// playWaitingParent is a serve whose ranks wait for those of another node, which never come.
func playWaitingParent(dir string) {
	cfg := testConfig(dir)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		cfg.TPSize, cfg.PPSize = 2, 2
		cfg.Nodes = NodesConfig{Count: 2, Rendezvous: ln.Addr().String(), Listener: ln.(*net.TCPListener)}
		_, err = StartWorld(context.Background(), cfg)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// TestParentDiesWhileItStarts: neither a rank nor, after the next start, a folder stays.
func TestParentDiesWhileItStarts(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	temp := t.TempDir()
	cmd := exec.Command(self, "world", seededModel(t))
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), "TMPDIR="+temp)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // unless the test did
	// Each task of the parent may have started one; the runtime starts others, for a moment.
	ctx, ranks := waiting(t), map[int]bool{}
	met := func() bool { // the ranks of this host have mapped their memory
		found, _ := filepath.Glob(filepath.Join(temp, meetingPrefix+"*", "*"))
		return len(found) > 0
	}
	for len(ranks) < 2 || !met() {
		if ctx.Err() != nil {
			t.Fatalf("the parent started the ranks %v", ranks)
		}
		lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, list := range lists {
			text, _ := os.ReadFile(list) // a task that has ended has none
			for _, word := range strings.Fields(string(text)) {
				line, _ := os.ReadFile(filepath.Join("/proc", word, "cmdline"))
				if pid, err := strconv.Atoi(word); err == nil && strings.HasSuffix(string(line), "\x00rank\x00") {
					ranks[pid] = true
				}
			}
		}
	}
	fds := []int{}
	for pid := range ranks {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		fds = append(fds, fd)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it says that it was killed
	for _, fd := range fds {
		if err := waitExit(fd); err != nil {
			t.Errorf("a rank of %v outlives its parent: %v", ranks, err)
		}
	}
	t.Setenv("TMPDIR", temp)
	RemoveLeftOver()
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("%v stays: %v", left, err)
	}
}
