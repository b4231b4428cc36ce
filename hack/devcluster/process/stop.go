package process

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// killWait is how long a killed process may take to disappear before that is an error. The kernel frees its
// memory and sockets first.
const killWait = 30 * time.Second

// Stop asks the process to end, kills it after the grace period, and returns once it is gone. A process that is
// gone already is no error. When ctx ends early the process is killed at once.
func (id Identity) Stop(ctx context.Context, grace time.Duration) error {
	fd, err := id.open()
	if errors.Is(err, errGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()

	graceful, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if gone, err := signalAndWait(graceful, fd, unix.SIGTERM); gone || err != nil {
		return err
	}
	killed, cancelKill := context.WithTimeout(context.WithoutCancel(ctx), killWait)
	defer cancelKill()
	gone, err := signalAndWait(killed, fd, unix.SIGKILL)
	if err == nil && !gone {
		return fmt.Errorf("process %d did not end within %s of being killed: look at /proc/%d/stack", id.PID, killWait, id.PID)
	}
	return err
}

// Kill ends the process without asking and returns once it is gone.
func (id Identity) Kill(ctx context.Context) error { return id.Stop(ctx, 0) }

// open returns a descriptor that names exactly this process: its id cannot be reused while that is open. The
// identity is compared after opening, since before that the id may already belong to another process.
func (id Identity) open() (fd int, err error) {
	if id.PID <= 0 {
		return -1, errGone
	}
	fd, err = unix.PidfdOpen(id.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, errGone
	}
	if err != nil {
		return -1, fmt.Errorf("open process %d: %w", id.PID, err)
	}
	if !id.Alive() {
		return -1, errors.Join(errGone, unix.Close(fd))
	}
	return fd, nil
}

// signalAndWait sends a signal and waits for the process to end or for ctx to end.
func signalAndWait(ctx context.Context, fd int, signal unix.Signal) (gone bool, err error) {
	if err := unix.PidfdSendSignal(fd, signal, nil, 0); err != nil {
		if errors.Is(err, unix.ESRCH) {
			return true, nil
		}
		return false, fmt.Errorf("send %s: %w", unix.SignalName(signal), err)
	}
	const slice = 50 * time.Millisecond
	for {
		// The descriptor becomes readable when the process ends. Wait in slices, so that ctx is seen.
		ready, pollErr := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(slice/time.Millisecond))
		if pollErr != nil && !errors.Is(pollErr, unix.EINTR) {
			return false, fmt.Errorf("wait for a process: %w", pollErr)
		}
		if ready > 0 {
			return true, nil
		}
		select {
		case <-ctx.Done():
			return false, nil
		default:
		}
	}
}
