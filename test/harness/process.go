package harness

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Patience bounds every wait for something that must happen on a slow machine; it says nothing about speed.
const Patience = 2 * time.Minute

// Process is a running program; its end is noticed.
type Process struct {
	Name string

	cmd   *exec.Cmd
	log   lockedBuffer
	ended chan struct{}
}

// lockedBuffer keeps the last bytes that a process wrote.
type lockedBuffer struct {
	mu sync.Mutex
	b  []byte
}

const keptBytes = 1 << 20

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, p...)
	if len(l.b) > 2*keptBytes {
		l.b = bytes.Clone(l.b[len(l.b)-keptBytes:])
	}
	return len(p), nil
}

func (l *lockedBuffer) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.b)
}

// Start runs a program until the test ends. env is added to the environment.
func Start(t testing.TB, name, program string, env []string, args ...string) *Process {
	t.Helper()
	p := &Process{Name: name, cmd: exec.Command(program, args...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	// A killed engine can't remove its files; they go with the programs.
	p.cmd.Env = append(append(os.Environ(), "TMPDIR="+filepath.Dir(program)), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = 5 * time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // killed most of the time
		close(p.ended)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			log := p.Log()
			t.Logf("--- %s\n%s", name, log[max(0, len(log)-8000):])
		}
		p.Kill()
	})
	return p
}

// Kill ends the process at once, as the kernel does when memory is short, and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL) // it may have ended
	<-p.ended
}

// Signal sends a signal; the process may have ended.
func (p *Process) Signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// ExitCode is the exit code once Ended is closed; -1 for one that a signal ended.
func (p *Process) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

// Log is what the process wrote last.
func (p *Process) Log() string { return p.log.text() }

// PID is the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Children lists the pids of a process's children.
func Children(pid int) (pids []int) {
	// A child belongs to the thread that made it, and some kernels have no list of them: every process is asked.
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest)
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			n, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, n)
		}
	}
	return pids
}

// OpenFiles counts the descriptors of a process.
func OpenFiles(t testing.TB, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// FreePorts gives ports that nobody listens on now.
func FreePorts(t testing.TB, n int) []int {
	t.Helper()
	var ports []int
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		ports = append(ports, ln.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

// Eventually polls a condition.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	limit := time.After(Patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%s: not within %v", what, Patience)
		}
	}
}
