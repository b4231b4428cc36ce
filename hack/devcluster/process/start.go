package process

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// Command is a program to start.
type Command struct {
	// Path is the executable.
	Path string
	// Args are its arguments, without the program's name.
	Args []string
	// Env is the whole environment; nil means this process's own.
	Env []string
	// Dir is the working directory; it must exist.
	Dir string
	// Log is the file that standard output and standard error are appended to.
	Log string
}

// Running is a process that this program started.
type Running struct {
	Identity
	// exited is closed once the process has ended and was waited for; err is then its result.
	exited chan struct{}
	err    error
}

// Exited is closed when the process has ended.
func (r *Running) Exited() <-chan struct{} { return r.exited }

// Err says how the process ended, nil for status 0. Call it only after Exited is closed.
func (r *Running) Err() error { return r.err }

// StartDetached starts a command in a session of its own, so that it outlives this program and its terminal.
func StartDetached(command Command) (*Running, error) {
	return start(command, &syscall.SysProcAttr{Setsid: true})
}

// StartTied starts a command that the kernel kills as soon as this program ends, however it ends.
func StartTied(command Command) (*Running, error) {
	return start(command, &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL})
}

// start starts the command from an operating system thread that lives as long as the child: the kernel sends
// the parent-death signal when the thread, not the process, that started the child ends.
func start(command Command, attributes *syscall.SysProcAttr) (*Running, error) {
	log, err := os.OpenFile(command.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: open its log: %w", command.Path, err)
	}
	cmd := exec.Command(command.Path, command.Args...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = command.Env, command.Dir, log, log
	cmd.SysProcAttr = attributes

	running := &Running{exited: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		_ = log.Close() // The child holds its own descriptor.
		if err == nil {
			// Nobody has waited for the child yet, so its id is still its own even if it has ended.
			running.Identity, err = ofChild(cmd.Process.Pid)
		}
		started <- err
		if cmd.Process == nil {
			return
		}
		running.err = cmd.Wait()
		close(running.exited)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", command.Path, err)
	}
	return running, nil
}

// ofChild is Of for a child that was not waited for: one that has ended already keeps its identity.
func ofChild(pid int) (Identity, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Identity{}, err
	}
	_, ticks, err := parseStat(stat)
	if err != nil {
		return Identity{}, err
	}
	self, err := Of(os.Getpid())
	if err != nil {
		return Identity{}, err
	}
	return Identity{PID: pid, StartTicks: ticks, BootID: self.BootID}, nil
}
