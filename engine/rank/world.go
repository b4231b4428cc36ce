package rank

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-dev/sluice/engine/parallel"
	"github.com/sluice-dev/sluice/engine/profile"
)

const (
	// mourning is how long the other ranks of a world may take to end after one has died, before they are killed.
	mourning = 500 * time.Millisecond
	// inquest is how long a rank that says it lost another is given for that one's end to be known.
	inquest = 200 * time.Millisecond
)

// World is the ranks of one copy of the model, each in a child process on this machine. Requests go to rank 0, which leads.
// They live and die together: the first that ends takes the others with it, and Err names it.
type World struct {
	*Process // the leader
	ranks    []*Process

	mu      sync.Mutex
	closing bool
	err     error
	done    chan struct{}
}

// StartWorld spawns the processes of all ranks and returns when they serve. ctx bounds the start alone. When one does not
// start, none stays.
func StartWorld(ctx context.Context, cfg Config) (*World, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start the ranks: find this executable: %w", err)
	}
	return startWorld(ctx, cfg, func() *exec.Cmd { return exec.Command(self, "rank") })
}

func startWorld(ctx context.Context, cfg Config, command func() *exec.Cmd) (w *World, err error) {
	if cfg.MeetingDir, err = os.MkdirTemp("", "sluice-world-"); err != nil {
		return nil, fmt.Errorf("start the ranks: make a folder where they meet: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(cfg.MeetingDir)) }()
	w = &World{ranks: make([]*Process, cfg.worldSize()), done: make(chan struct{})}
	starts, started := errgroup.WithContext(ctx) // one that fails ends the wait of the others for it
	for i := range w.ranks {
		own := cfg
		own.Rank = i
		starts.Go(func() (err error) {
			w.ranks[i], err = start(started, own, command(), os.Stderr)
			return err
		})
	}
	if err := starts.Wait(); err != nil {
		for _, p := range w.ranks {
			if p != nil {
				p.beginClose()
				p.child.kill()
			}
		}
		return nil, err
	}
	w.Process = w.ranks[0]
	go w.watch()
	return w, nil
}

// watch waits for the first rank that ends and ends the others.
func (w *World) watch() {
	defer close(w.done)
	cases := make([]reflect.SelectCase, len(w.ranks))
	for i, p := range w.ranks {
		cases[i] = reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(p.child.exited)}
	}
	first, _, _ := reflect.Select(cases)
	dead := w.blame(w.ranks[first])
	cause := dead.fate()
	w.mu.Lock()
	if !w.closing {
		w.err = cause
	}
	closing := w.closing
	w.mu.Unlock()
	if !closing {
		w.fail(cause)
		ctx, cancel := context.WithTimeout(context.Background(), mourning)
		defer cancel()
		_ = w.each(func(_ int, p *Process) error { return p.Close(ctx) }) // the first death is the one that counts
	}
	for _, p := range w.ranks {
		<-p.Done()
	}
}

// blame gives the rank whose end was the cause of another's: one that was killed, if it is known soon, else that other.
func (w *World) blame(first *Process) *Process {
	if first.killed() {
		return first
	}
	timeout := time.NewTimer(inquest)
	defer timeout.Stop()
	for _, p := range w.ranks {
		select {
		case <-p.child.exited:
			if p.killed() {
				return p
			}
		case <-timeout.C:
			return first
		}
	}
	return first
}

// each calls f for all ranks at the same time and joins what fails.
func (w *World) each(f func(i int, p *Process) error) error {
	errs := make([]error, len(w.ranks))
	var group sync.WaitGroup
	for i, p := range w.ranks {
		group.Go(func() { errs[i] = f(i, p) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// StartProfile implements Client.
func (w *World) StartProfile(ctx context.Context, o profile.Options) error {
	return w.each(func(_ int, p *Process) error { return p.StartProfile(ctx, o) })
}

// StopProfile implements Client.
func (w *World) StopProfile(ctx context.Context) (files []string, err error) {
	lists := make([][]string, len(w.ranks))
	err = w.each(func(i int, p *Process) (err error) {
		lists[i], err = p.StopProfile(ctx)
		return err
	})
	return slices.Concat(lists...), err
}

// Collect implements Client.
func (w *World) Collect(ctx context.Context) error {
	return w.each(func(_ int, p *Process) error { return p.Collect(ctx) })
}

// Done implements Client: closed when all ranks have ended.
func (w *World) Done() <-chan struct{} { return w.done }

// Err implements Client.
func (w *World) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Close implements Client.
func (w *World) Close(ctx context.Context) error {
	w.mu.Lock()
	if w.err == nil {
		w.closing = true
	}
	w.mu.Unlock()
	for _, p := range w.ranks {
		p.beginClose() // all before the first leaves, which the others take for a loss
	}
	err := w.each(func(_ int, p *Process) error { return p.Close(ctx) })
	<-w.done
	return err
}

// join meets the other ranks of the configuration's world; nil for a world of one.
func join(ctx context.Context, cfg Config) (*parallel.World, error) {
	if cfg.worldSize() == 1 {
		return nil, nil
	}
	place, err := parallel.At(cfg.Rank, max(1, cfg.TPSize), max(1, cfg.PPSize))
	if err != nil {
		return nil, err
	}
	return parallel.Join(ctx, parallel.Config{Place: place, Dir: cfg.MeetingDir})
}
