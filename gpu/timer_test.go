package gpu

import (
	"testing"
	"testing/synctest"
	"time"
)

// slow is a device on which an addition takes 3 ms of the bubble's clock.
type slow struct{ Ops }

func (slow) Add(_, _ Tensor) { time.Sleep(3 * time.Millisecond) }

func TestTimer(t *testing.T) {
	type step string
	const (
		add  step = "add"
		wait step = "wait" // 5 ms in which the caller does something else
		sync step = "sync"
	)
	tests := []struct {
		name  string
		steps []step
		want  time.Duration
	}{
		{"nothing", []step{sync, wait, sync}, 0},
		{"a kernel", []step{wait, add, sync}, 3 * time.Millisecond},
		{"what runs is not over", []step{add, add}, 0},
		{"from the first to the last with what is between", []step{add, wait, add, sync}, 11 * time.Millisecond},
		{"until the device is waited for", []step{add, wait, sync}, 8 * time.Millisecond},
		{"not what is between a wait and the next kernel", []step{add, sync, wait, add, sync, wait, sync}, 6 * time.Millisecond},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var timer Timer
				ops := timer.Timed(slow{})
				for _, s := range test.steps {
					switch s {
					case add:
						ops.Add(Tensor{}, Tensor{})
					case wait:
						time.Sleep(5 * time.Millisecond)
					case sync:
						timer.Sync()
					}
				}
				// A first kernel that begins with the clock begins a nanosecond late: 0 means that none has.
				if got := timer.BusyNanos(); got > int64(test.want) || got < int64(test.want)-1 {
					t.Errorf("busy for %v, want %v", time.Duration(got), test.want)
				}
			})
		})
	}
}
