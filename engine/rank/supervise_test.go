package rank

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// playParent is a serve that starts a rank, says its pid and waits for its own death.
func playParent(dir string) {
	cfg := testConfig(dir)
	p, err := Start(context.Background(), cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(p.PID())
	select {}
}

// TestParentDies: a rank never outlives the process that started it.
func TestParentDies(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := seededModel(t)
	cmd := exec.Command(self, "parent", dir)
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := waitExit(fd); err != nil {
		t.Errorf("rank %d outlives its parent: %v", pid, err)
	}
	_ = cmd.Wait() // it says that it was killed
}

// waitExit waits until the process of a pidfd has ended.
func waitExit(fd int) error {
	for end := time.Now().Add(patience); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Until(end).Milliseconds()))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		case n == 0:
			return context.DeadlineExceeded
		default:
			return nil
		}
	}
}

// TestStuckRankIsKilled: Close gives a rank that doesn't end the time that its context has.
func TestStuckRankIsKilled(t *testing.T) {
	p, err := Start(waiting(t), testConfig(seededModel(t)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(p.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := p.Close(ctx); err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("Close gives %v, want that it was killed", err)
	}
	<-p.Done()
	if p.Err() != nil {
		t.Errorf("Err after Close is %v", p.Err())
	}
}

func TestStartLeavesNoFiles(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	p, err := Start(waiting(t), testConfig(seededModel(t)))
	if err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(tmp, "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("files of a rank that serves: %v, %v", left, err)
	}
	if err := p.Close(waiting(t)); err != nil {
		t.Error(err)
	}
}

// TestReaderThatNeverReads: one client that takes nothing keeps no other from its answer.
func TestReaderThatNeverReads(t *testing.T) {
	dir := seededModel(t)
	for _, k := range startKinds {
		t.Run(k.name, func(t *testing.T) {
			c := startClient(t, k, testConfig(dir))
			lazy := submit(t, c, newRequest("lazy", prompt(8), 300))
			for i := range 20 {
				answer(t, submit(t, c, newRequest(fmt.Sprint("r", i), prompt(8), 30)))
			}
			if tokens, _ := answer(t, lazy); len(tokens) != 300 {
				t.Errorf("the lazy reader gets %d tokens, want 300", len(tokens))
			}
		})
	}
}

// TestStoreOfARankIsCut: who has the rights to and cuts the file that a rank counts in ends the rank, and the supervisor says
// which one and by what.
func TestStoreOfARankIsCut(t *testing.T) {
	cfg := testConfig(seededModel(t))
	cfg.Metrics = MetricsConfig{Enabled: true, Dir: t.TempDir()}
	p, err := Start(waiting(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(cfg.Metrics.Dir, "rank-0-*.metrics"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the store of the rank: %v, %v", files, err)
	}
	if err := os.Chmod(files[0], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(files[0], 0); err != nil {
		t.Fatal(err)
	}
	if s, err := p.Submit(waiting(t), newRequest("r", prompt(8), 5)); err == nil {
		_, _, _ = readAll(waiting(t), s) // its rank ends
	}
	select {
	case <-p.Done():
	case <-waiting(t).Done():
		t.Fatal("the rank counts on in a file that is not there")
	}
	for _, want := range []string{"rank 0 (pid ", ") ended: exit status 2", "fatal error: fault", "SIGBUS"} {
		if !strings.Contains(fmt.Sprint(p.Err()), want) {
			t.Errorf("the end of the rank is %v, without %q", p.Err(), want)
		}
	}
}
