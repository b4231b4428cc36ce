package docrun

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Session is one shell, as one terminal window: variables, functions and processes in the background last from one command to
// the next. One goroutine uses it.
type Session struct {
	shell  *exec.Cmd
	input  io.WriteCloser
	output *watched
	script string        // the file that holds the command that runs
	end    string        // stands before the exit status, behind the output of a command
	ended  chan struct{} // closed when the shell has ended
}

// Result is what a command did.
type Result struct {
	Output string // what the shell and all its processes wrote meanwhile, to standard output and standard error
	Status int    // exit status
}

// Open starts a shell in a folder with an environment. scratch is an empty folder of its own, where it keeps a file. Close
// must be called.
func Open(dir, scratch string, env []string) (*Session, error) {
	s := &Session{
		shell: exec.Command("bash", "--noprofile", "--norc"), output: &watched{changed: make(chan struct{}, 1)},
		script: filepath.Join(scratch, "command"), end: "end-" + rand.Text(),
		ended: make(chan struct{}),
	}
	s.shell.Dir, s.shell.Env = dir, env
	s.shell.Stdout, s.shell.Stderr = s.output, s.output
	s.shell.WaitDelay = time.Second // what is in the background holds the output open
	s.shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	input, err := s.shell.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start a shell: %w", err)
	}
	s.input = input
	if err := s.shell.Start(); err != nil {
		return nil, fmt.Errorf("start a shell: %w", err)
	}
	go func() {
		_ = s.shell.Wait() // the status of the shell is that of its last command, which Run tells
		close(s.ended)
	}()
	return s, nil
}

// Run runs a command in the shell and waits for its end. When ctx ends before, the session is of no use any more.
func (s *Session) Run(ctx context.Context, command string) (Result, error) {
	if err := os.WriteFile(s.script, []byte(command+"\n"), 0o600); err != nil {
		return Result{}, fmt.Errorf("write the command: %w", err)
	}
	// A syntax error in a sourced file does not end the shell. What a command reads is not what this function writes.
	if _, err := fmt.Fprintf(s.input, ". %s </dev/null; printf '\\n%s %%d\\n' $?\n", quote(s.script), s.end); err != nil {
		return Result{}, fmt.Errorf("the shell has ended: %w", err)
	}
	for {
		if result, ok := s.output.take(s.end); ok {
			return result, nil
		}
		select {
		case <-ctx.Done():
			return Result{Output: s.output.text()}, fmt.Errorf("it has not ended: %w", context.Cause(ctx))
		case <-s.ended:
			return Result{Output: s.output.text()}, errors.New("it ended the shell")
		case <-s.output.changed:
		}
	}
}

// Close ends the shell and every process that it started.
func (s *Session) Close() error {
	_ = s.input.Close()
	if err := syscall.Kill(-s.shell.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("end the shell: %w", err)
	}
	<-s.ended
	return nil
}

func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// watched collects what the shell writes. Safe for concurrent use.
type watched struct {
	mu      sync.Mutex
	b       []byte
	changed chan struct{} // has room for one
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b = append(w.b, p...)
	select {
	case w.changed <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (w *watched) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.b)
}

// take removes the output of a command and the line "END STATUS" behind it; ok is false while that line has not come.
func (w *watched) take(end string) (result Result, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text, rest, found := bytes.Cut(w.b, []byte("\n"+end+" "))
	if !found {
		return Result{}, false
	}
	status, rest, found := bytes.Cut(rest, []byte("\n"))
	if !found {
		return Result{}, false
	}
	n, err := strconv.Atoi(string(status))
	if err != nil {
		return Result{}, false
	}
	result = Result{Output: string(text), Status: n}
	w.b = rest
	return result, true
}
