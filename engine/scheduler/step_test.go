package scheduler

import (
	"runtime"
	"testing"
	"time"
)

// patience bounds what a test waits for; nothing is expected to take it.
const patience = time.Minute

// turn is one step of a scheduler that a test steps by hand.
func (s *Scheduler) turn() (worked bool, err error) {
	worked, _, err = s.step(false)
	return worked, err
}

// await gives what comes over a channel, or that it was closed; what says what it is that does not.
func await[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatal(what)
		panic("unreachable")
	}
}

// eventually does something again and again until a condition holds; what says what it is that does not.
func eventually(t testing.TB, what string, holds func() bool, again func()) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
		again()
	}
}

// turnUntil steps a scheduler by hand until a condition holds, and checks it after each step.
func (s *Scheduler) turnUntil(t testing.TB, what string, holds func() bool) {
	t.Helper()
	eventually(t, what, holds, func() {
		t.Helper()
		if _, err := s.turn(); err != nil {
			t.Fatal(err)
		}
		if err := s.check(); err != nil {
			t.Fatal(err)
		}
	})
}

// over reports whether the sink has the Finish.
func (s *inboxSink) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}
