package rank

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
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
	inquest = 400 * time.Millisecond
)

// World is the ranks of one copy of the model that are on this node, each in a child process. On the only node, or on node
// 0 of several, requests go to rank 0, which leads; elsewhere the world takes none. They live and die together: the first
// that ends takes the others with it, and Err names it.
type World struct {
	*Process // the leader; the first of this node where the leader is elsewhere
	ranks    []*Process

	mu      sync.Mutex
	closing bool
	err     error
	failure error         // of Fail
	failed  chan struct{} // closed by Fail
	doomed  chan struct{} // closed when err is set, or the end in order has begun
	done    chan struct{}
}

// StartWorld spawns the processes of all ranks that are on this node and returns when they serve. ctx bounds the start
// alone. When one does not start, none stays.
func StartWorld(ctx context.Context, cfg Config) (*World, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start the ranks: find this executable: %w", err)
	}
	return startWorld(ctx, cfg, func() *exec.Cmd { return exec.Command(self, "rank") })
}

func startWorld(ctx context.Context, cfg Config, command func() *exec.Cmd) (w *World, err error) {
	if l := cfg.Nodes.Listener; l != nil {
		defer l.Close() // rank 0 has a copy
	}
	if _, err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("start the ranks: %w", err)
	}
	meeting, err := newMeeting()
	if err != nil {
		return nil, fmt.Errorf("start the ranks: %w", err)
	}
	defer func() { err = errors.Join(err, meeting.Remove()) }()
	cfg.MeetingDir = meeting.Path
	from, to := cfg.localRanks()
	w = &World{
		ranks: make([]*Process, to-from), failed: make(chan struct{}), doomed: make(chan struct{}), done: make(chan struct{}),
	}
	starts, started := errgroup.WithContext(ctx) // one that fails ends the wait of the others for it
	for i := range w.ranks {
		own := cfg
		if own.Rank = from + i; own.Rank > 0 {
			own.Nodes.Listener = nil
		}
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
				<-p.Done()
			}
		}
		return nil, err
	}
	w.Process = w.ranks[0]
	go w.watch()
	return w, nil
}

// watch waits for the first rank that ends, or for Fail, and ends the others.
func (w *World) watch() {
	defer close(w.done)
	cause := w.cause()
	w.mu.Lock()
	if !w.closing {
		w.err = cause
	}
	closing := w.closing
	w.mu.Unlock()
	close(w.doomed)
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

// cause waits for the first end and says why it came. A rank that was killed, or another node's word, explains the end of
// one that says it lost another, if it is known soon.
func (w *World) cause() error {
	const failed, late = 0, 1
	cases := []reflect.SelectCase{{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(w.failed)}, {Dir: reflect.SelectRecv}}
	for _, p := range w.ranks {
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(p.child.exited)})
	}
	var first *Process
	for {
		switch chosen, _, _ := reflect.Select(cases); chosen {
		case failed:
			return w.failure
		case late:
			return first.fate()
		default:
			p := w.ranks[chosen-2]
			if p.killed() {
				return p.fate()
			}
			if first == nil {
				first = p
				timeout := time.NewTimer(inquest)
				defer timeout.Stop()
				cases[late].Chan = reflect.ValueOf(timeout.C)
			}
			cases[chosen].Chan = reflect.Value{} // it has been heard
		}
	}
}

// Fail ends the world because of something that went wrong elsewhere, on another node. Its ranks end as after a death.
func (w *World) Fail(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failure == nil {
		w.failure = cause
		close(w.failed)
	}
}

// Doomed is closed before Done, as soon as Err is known: the ranks are about to end.
func (w *World) Doomed() <-chan struct{} { return w.doomed }

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

// StartProfile implements Client. After an error no rank records that did not before.
func (w *World) StartProfile(ctx context.Context, o profile.Options) error {
	return profile.Several{
		Num:   len(w.ranks),
		Begin: func(ctx context.Context, i int) error { return w.ranks[i].StartProfile(ctx, o) },
		End:   func(ctx context.Context, i int) ([]string, error) { return w.ranks[i].StopProfile(ctx) },
	}.Start(ctx)
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
	meeting := parallel.Config{Place: place, Dir: cfg.MeetingDir}
	if n := cfg.Nodes; n.Count > 1 {
		meeting.Nodes, meeting.Rendezvous, meeting.Secret = n.Count, n.Rendezvous, []byte(n.Secret)
	}
	if cfg.Nodes.Inherited && cfg.Rank == 0 {
		f := rendezvousFile()
		meeting.Listener, err = net.FileListener(f) // a copy
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("use the rendezvous of the API process: %w", err)
		}
	}
	return parallel.Join(ctx, meeting)
}

// introduction is what each rank of a world tells the others before they serve.
type introduction struct {
	ModelID string      `json:"model_id"`
	Process RankProcess `json:"process"`
}

// introduce gives the processes of all ranks, in their order, and compares their weights: on several nodes each has files
// of its own.
func introduce(ctx context.Context, world *parallel.World, own RankProcess, modelID string) ([]RankProcess, error) {
	if world == nil {
		return []RankProcess{own}, nil
	}
	said, err := json.Marshal(introduction{ModelID: modelID, Process: own})
	if err != nil {
		return nil, err
	}
	all, err := world.Peers().Exchange(ctx, said)
	if err != nil {
		return nil, fmt.Errorf("meet the other ranks: %w", err)
	}
	processes := make([]RankProcess, len(all))
	for rank, raw := range all {
		var other introduction
		if err := json.Unmarshal(raw, &other); err != nil {
			return nil, fmt.Errorf("meet rank %d, which says %.64q: %w", rank, raw, err)
		}
		if other.ModelID != modelID {
			return nil, fmt.Errorf("the model of rank %d (id %.64q) is not that of rank %d (id %q): --model-path must name the same model on all nodes",
				rank, other.ModelID, own.Rank, modelID)
		}
		processes[rank] = other.Process
	}
	return processes, nil
}

// slowest gives of each time that of the rank that took longest.
func slowest(ctx context.Context, world *parallel.World, own Startup) (Startup, error) {
	if world == nil {
		return own, nil
	}
	said, err := json.Marshal(own)
	if err != nil {
		return Startup{}, err
	}
	all, err := world.Peers().Exchange(ctx, said)
	if err != nil {
		return Startup{}, fmt.Errorf("compare start-up times with the other ranks: %w", err)
	}
	for rank, raw := range all {
		var other Startup
		if err := json.Unmarshal(raw, &other); err != nil {
			return Startup{}, fmt.Errorf("start-up times of rank %d, which says %.64q: %w", rank, raw, err)
		}
		own = own.Longest(other)
	}
	return own, nil
}
