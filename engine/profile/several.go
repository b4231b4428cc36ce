package profile

import (
	"context"
	"errors"
	"os"
	"sync"
)

// Several is recorders that begin and end together, in this process or behind calls; i is one of them.
type Several struct {
	Num   int
	Begin func(ctx context.Context, i int) error
	End   func(ctx context.Context, i int) (files []string, err error)
}

// Start starts all at the same time, or none: when one does not start, those that did are ended and what they wrote is removed,
// as far as it is on this machine. What another caller records is left alone. The error is of those that did not start.
func (s Several) Start(ctx context.Context) error {
	errs := make([]error, s.Num)
	s.each(func(i int) { errs[i] = s.Begin(ctx, i) })
	err := errors.Join(errs...)
	if err == nil {
		return nil
	}
	ctx = context.WithoutCancel(ctx) // who asked may have gone: that's no reason to record on
	s.each(func(i int) {
		if errs[i] == nil {
			files, _ := s.End(ctx, i) // the first error is the one to tell
			Discard(files)
		}
	})
	return err
}

func (s Several) each(f func(i int)) {
	var group sync.WaitGroup
	for i := range s.Num {
		group.Go(func() { f(i) })
	}
	group.Wait()
}

// Discard removes the files of a recording that nobody wants; those of other machines stay.
func Discard(files []string) {
	for _, file := range files {
		_ = os.Remove(file)
	}
}
