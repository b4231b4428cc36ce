package rank

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// lostGrace is how long a process whose connection broke may take to end by itself before it is killed.
const lostGrace = 2 * time.Second

// Process is a rank in a child process.
//
// Its life: Start spawns it with the configuration on standard input, a pipe for its report and one end of a pair of
// sockets for requests; it says hello. Nothing of it has a name in the file system. It ends when standard input ends
// (Close), when this process dies (the kernel kills it), or by itself, and then Err names rank, pid and cause.
type Process struct {
	*handle
	name  string // with the pid
	child *osChild
}

// osChild is the operating system's part of a Process.
type osChild struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr *tailWriter
	exited chan struct{} // closed when the process is reaped; err and told are set before
	err    error         // of Wait
	told   string        // the reason that the child reported, if any
}

// Start spawns a rank process, this executable with the argument "rank", and returns when it serves. ctx bounds the
// start alone. The rank's log goes to this process's standard error.
func Start(ctx context.Context, cfg Config) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start %s: find this executable: %w", cfg.name(), err)
	}
	return start(ctx, cfg, exec.Command(self, "rank"), os.Stderr)
}

func start(ctx context.Context, cfg Config, cmd *exec.Cmd, stderr io.Writer) (p *Process, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("start %s: %w", cfg.name(), err)
		}
	}()
	if _, err := cfg.Validate(); err != nil {
		return nil, err
	}
	own, theirs, err := newLink()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = own.Close() // it was never used
		}
	}()
	c := &osChild{cmd: cmd, stderr: newTailWriter(stderr), exited: make(chan struct{})}
	files := []*os.File{theirs}
	if l := cfg.Nodes.Listener; l != nil {
		f, err := l.File() // a copy
		if err != nil {
			return nil, errors.Join(fmt.Errorf("hand over the rendezvous: %w", err), theirs.Close())
		}
		files, cfg.Nodes.Inherited = append(files, f), true
	}
	hello, err := c.spawn(cfg, files)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.kill()
		}
	}()
	select {
	case ok := <-hello:
		if !ok {
			<-c.exited
			return nil, c.cause()
		}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p = &Process{name: cfg.name(fmt.Sprintf("pid %d", cmd.Process.Pid)), child: c}
	if p.handle, err = connect(ctx, once(own), c.lost); err != nil {
		return nil, err
	}
	go func() {
		<-c.exited
		p.end(p.fate())
	}()
	return p, nil
}

// spawn starts the process and a goroutine that reaps it. The child gets files, from descriptor 4 on; they are closed
// here. The channel gets true when the child serves, false when it will not.
func (c *osChild) spawn(cfg Config, files []*os.File) (<-chan bool, error) {
	defer func() {
		for _, f := range files {
			_ = f.Close() // the child has a copy
		}
	}()
	if len(cfg.Metrics.Backends) > 0 {
		return nil, errors.New("backends of metrics can't reach another process: start the rank in this one")
	}
	config, err := json.Marshal(cfg)
	if err != nil {
		return nil, fmt.Errorf("encode its configuration: %w", err)
	}
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("make its standard input: %w", err)
	}
	c.stdin = stdin
	report, reportWriter, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make its report pipe: %w", err)
	}
	c.cmd.ExtraFiles = append([]*os.File{reportWriter}, files...) // see ReportFile, LinkFile and rendezvousFile
	c.cmd.Stderr = c.stderr
	// A group of its own keeps a terminal's signals away: this process tells the rank when to end. The kernel kills the
	// rank when the thread that made it dies, so that thread is kept until the rank is reaped.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}

	started := make(chan error, 1)
	hellos := make(chan bool, 1)
	reported := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		<-reported // everything that the child wrote is read before Wait
		c.err = c.cmd.Wait()
		close(c.exited)
	}()
	err = <-started
	_ = reportWriter.Close() // the child's copy is the one that counts
	if err != nil {
		return nil, errors.Join(err, report.Close(), stdin.Close())
	}
	go func() {
		defer close(reported)
		defer report.Close()
		c.readReport(report, hellos)
	}()
	// It fails when the child died before it read, and then its end says why.
	_, _ = stdin.Write(append(config, '\n'))
	return hellos, nil
}

// readReport reads the child's report to its end, which is the child's.
func (c *osChild) readReport(report io.Reader, hellos chan<- bool) {
	said := false
	for d := json.NewDecoder(report); ; {
		var h hello
		if err := d.Decode(&h); err != nil {
			break
		}
		if h.Error != "" {
			c.told = h.Error
		}
		if h.Serving && !said {
			said = true
			hellos <- true
		}
	}
	if !said {
		hellos <- false
	}
}

// cause says how the process ended. It is valid once exited is closed.
func (c *osChild) cause() error {
	how := "exit status 0"
	if c.err != nil {
		how = c.err.Error()
	}
	if c.told != "" {
		return fmt.Errorf("%s: %s", how, c.told)
	}
	if lines := c.stderr.tail(); len(lines) > 0 {
		return fmt.Errorf("%s; its last words: %s", how, strings.Join(lines, " | "))
	}
	return errors.New(how)
}

// lost is called when the connection broke. Nearly always the process is about to end, and its own end says more.
func (c *osChild) lost() {
	t := time.NewTimer(lostGrace)
	defer t.Stop()
	select {
	case <-c.exited:
	case <-t.C:
		c.signal()
	}
}

// signal kills the process if it lives.
func (c *osChild) signal() {
	_ = c.cmd.Process.Kill() // an error says that it is gone
}

// kill ends the process for sure and waits until it is reaped.
func (c *osChild) kill() {
	c.signal()
	<-c.exited
}

// killed reports whether a signal ended the process. It is valid once exited is closed.
func (p *Process) killed() bool {
	var failed *exec.ExitError
	return errors.As(p.child.err, &failed) && failed.ProcessState.Sys().(syscall.WaitStatus).Signaled()
}

// fate says how the process ended. It is valid once exited is closed.
func (p *Process) fate() error {
	return fmt.Errorf("%s ended: %w", p.name, p.child.cause())
}

// PID is the process's id.
func (p *Process) PID() int { return p.child.cmd.Process.Pid }

// Close implements Client.
func (p *Process) Close(ctx context.Context) error {
	p.beginClose()
	_ = p.child.stdin.Close() // an error says that it was closed before
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
	}
	p.child.signal()
	<-p.done
	return fmt.Errorf("close %s: it did not end in time and was killed: %w", p.name, ctx.Err())
}
