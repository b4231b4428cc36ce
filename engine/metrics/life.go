package metrics

import (
	"errors"

	"golang.org/x/sys/unix"
)

// maxHandles bounds the file descriptors that a gatherer holds to learn of the end of processes.
const maxHandles = 256

// life is what is known of whether a process lives. A process that has ended stays so: its id and its start name it.
//
// Invariant: handle >= 0 only while the process has not been seen ended.
type life struct {
	process
	handle int // of the process; -1: none, so /proc is asked at every scrape
	ended  bool
}

// watched finds out whether a process lives, and gets a handle of it when one may be had.
func watched(p process, handles bool) life {
	l := life{process: p, handle: -1}
	if handles {
		if fd, err := unix.PidfdOpen(p.pid, 0); err == nil {
			l.handle = fd
		}
	}
	// Asked after the handle was made: if it still is this process, the handle is of no other.
	if l.ended = !p.alive(); l.ended {
		l.forget()
	}
	return l
}

// forget gives the handle back.
func (l *life) forget() {
	if l.handle >= 0 {
		_ = unix.Close(l.handle) // nothing was written to it
		l.handle = -1
	}
}

// look finds out which processes have ended. All handles take one system call.
func look(lives []*life) {
	var polled []unix.PollFd
	for _, l := range lives {
		if l.handle >= 0 {
			polled = append(polled, unix.PollFd{Fd: int32(l.handle), Events: unix.POLLIN})
		}
	}
	asked := len(polled) == 0 || poll(polled) == nil
	for _, l := range lives {
		switch {
		case l.ended:
		case l.handle >= 0 && asked:
			l.ended = polled[0].Revents != 0
			polled = polled[1:]
		default:
			l.ended = !l.alive()
		}
		if l.ended {
			l.forget()
		}
	}
}

// poll asks without waiting.
func poll(fds []unix.PollFd) error {
	for {
		if _, err := unix.Poll(fds, 0); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
