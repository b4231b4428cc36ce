package disagg

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

var errBootstrapTimeout = errors.New("bootstrap time-out")

// Receiver is the decode rank's side of one room: fetches from the prefill ranks that hold some of this rank's layers and
// KV heads. Its methods never block and may be called from any goroutine.
type Receiver struct {
	group
	d            *Decode
	promptTokens int
	server       string // host:port of the bootstrap server
	ctx          context.Context
	cancel       context.CancelFunc

	born     time.Time
	progress atomic.Int64  // nanoseconds from born to the last page of any peer; 0 before Allocate
	here     chan struct{} // closed when everything of every peer is here

	// Guarded by group.mu.
	fetches []*fetch
	dst     *destination // nil until Allocate
	first   First        // valid in Done
	arrived int          // fetches that have everything; 0 <= arrived <= len(fetches)
}

// destination is where a prompt's pages go. It does not change.
type destination struct {
	pages  []int32 // [pages of the prompt]
	window []int32 // the same for layers with a window, -1 before FirstWindowPage; nil without such layers
	at     int64   // cfg.Now
}

// page gives the place of a page of a layer.
func (p *destination) page(windowed bool, ordinal int) int32 {
	if windowed {
		return p.window[ordinal]
	}
	return p.pages[ordinal]
}

// Allocate gives the hand-over its pages, dst[i] for page i of the prompt, NumPages(promptTokens) of them, in state
// WaitingPages. For layers with a window it is window[i], the page of their own pool, from FirstWindowPage(promptTokens) on;
// what comes before is not looked at, and without such layers window is not looked at. They belong to the hand-over until it
// is terminal. A wrong call fails it.
func (r *Receiver) Allocate(dst, window []int32) {
	r.mu.Lock()
	moved := r.allocateLocked(dst, window)
	r.mu.Unlock()
	if moved {
		r.cfg.Wake()
	}
}

func (r *Receiver) allocateLocked(dst, window []int32) (moved bool) {
	l := &r.d.shard.layout
	pages := l.NumPages(r.promptTokens)
	switch {
	case r.failed != nil || r.state.Terminal():
		return false
	case r.state != WaitingPages:
		r.failLocked(faultf(ReasonLocal, "Allocate in state %v", r.state))
		return false
	case len(dst) != pages:
		r.failLocked(faultf(ReasonLocal, "Allocate got %d pages, the prompt of %d tokens takes %d", len(dst), r.promptTokens, pages))
		return false
	}
	if strings.Contains(l.WindowLayers, "1") {
		first := l.FirstWindowPage(r.promptTokens)
		if len(window) != pages || slices.Contains(window[first:], -1) {
			r.failLocked(faultf(ReasonLocal, "Allocate got %d pages for layers with a window, the prompt of %d tokens takes pages %d to %d of these",
				len(window), r.promptTokens, first, pages-1))
			return false
		}
	}
	r.dst = &destination{pages: slices.Clone(dst), window: slices.Clone(window), at: r.cfg.Now()}
	r.progressed()
	for _, f := range r.fetches {
		f.allocate(r.dst)
	}
	return r.moveLocked(Transferring)
}

// First is the first token; ok is false before Done.
func (r *Receiver) First() (first First, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first, r.state == Done
}

// Abort ends the hand-over unless it is over or failing already, and tells the peers. It does not wait: the pages may be
// freed when the state is terminal.
func (r *Receiver) Abort(err error) {
	r.group.Abort(err)
	r.cancel()
}

// run asks who the peers are and then fetches from all of them.
func (r *Receiver) run() {
	defer r.d.wg.Done()
	defer r.d.forget(r)
	defer r.cancel()
	replica, err := r.ask()
	if err == nil {
		err = r.d.fits(replica)
	}
	var work sync.WaitGroup
	r.mu.Lock()
	if err != nil {
		r.failLocked(err)
	}
	if r.failed == nil {
		r.fetches = r.fetchesFrom(replica)
		r.whole = true
		for _, f := range r.fetches {
			r.sessions = append(r.sessions, &f.session)
			work.Go(f.run)
		}
	}
	r.asking = false
	r.mu.Unlock()
	r.refresh() // ends the hand-over when there is nobody to fetch from
	work.Wait()
	r.takeLeave()
}

// fetchesFrom makes a fetch for each rank of a prefill replica that has something for this rank.
func (r *Receiver) fetchesFrom(replica replicaRoute) []*fetch {
	prefill := world{tp: replica.AttnTPSize, pp: replica.PPSize}
	var list []*fetch
	for _, i := range incoming(r.d.shard.layout.shape(), prefill, r.d.shard.world, r.d.shard.at) {
		list = append(list, newFetch(r, replica.Ranks[i.peer.pp*prefill.tp+i.peer.tp].rankRoute, i.cut))
	}
	return list
}

// takeLeave tells the peers that the hand-over was aborted before they had met, so that they do not wait until their time-out.
// The hand-over is over by then. Requests that are refused come here faster than peers that don't answer give up, so what exceeds
// MaxFarewells is left to that time-out.
func (r *Receiver) takeLeave() {
	r.mu.Lock()
	failed, fetches := r.err, r.fetches
	r.mu.Unlock()
	if failed == nil || failed.Reason != ReasonAborted {
		return
	}
	select {
	case r.d.visits <- struct{}{}:
		defer func() { <-r.d.visits }()
	default:
		return
	}
	ctx, cancel := context.WithTimeout(r.d.leaving, r.cfg.RouteTimeout+r.cfg.HandshakeTimeout)
	defer cancel()
	if len(fetches) == 0 { // nobody had said who the peers are
		var replica replicaRoute
		err := retry(ctx, 10*time.Millisecond, 200*time.Millisecond, tooEarly, func() (err error) {
			replica, err = getReplica(ctx, r.d.client, r.server, r.room)
			return err
		})
		if err != nil || r.d.fits(replica) != nil {
			return
		}
		fetches = r.fetchesFrom(replica)
	}
	var visits sync.WaitGroup
	for _, f := range fetches {
		if !f.hasMet() {
			visits.Go(func() { f.visit(ctx, failed.fault()) })
		}
	}
	visits.Wait()
}

// ask asks the bootstrap server for the ranks. It tries again for a moment when the server or a rank is only starting, and
// until the bootstrap time-out when it is not known yet which replica has the room.
func (r *Receiver) ask() (replicaRoute, error) {
	for {
		route, err := r.askOnce()
		if err == nil {
			return route, nil
		}
		if tooEarly(err) && r.ctx.Err() == nil {
			continue
		}
		return replicaRoute{}, r.blame(faultf(ReasonUnreachable, "ask the bootstrap server at %s for the prefill ranks: %v", r.server, err))
	}
}

func (r *Receiver) askOnce() (route replicaRoute, err error) {
	ctx, cancel := context.WithTimeout(r.ctx, r.cfg.RouteTimeout)
	defer cancel()
	err = retry(ctx, 10*time.Millisecond, 200*time.Millisecond, worthRetrying, func() (err error) {
		route, err = getReplica(ctx, r.d.client, r.server, r.room)
		return err
	})
	return route, err
}

// blame replaces an error that follows from an abort or the bootstrap time-out by that.
func (r *Receiver) blame(err error) error {
	r.mu.Lock()
	failed := r.failed
	r.mu.Unlock()
	if failed != nil {
		return failed.fault()
	}
	if errors.Is(context.Cause(r.ctx), errBootstrapTimeout) {
		return faultf(ReasonTimeout, "not ready within %v: %v", r.cfg.BootstrapTimeout, err)
	}
	return err
}

// arrive notes that everything of one peer is here. The first tokens of all must be the same; what was asked about it may
// be known to some only.
func (r *Receiver) arrive(first First) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.arrived == 0:
		r.first = first
	case first.Token != r.first.Token || first.Seed != r.first.Seed:
		return faultf(ReasonProtocol, "prefill ranks disagree about the first token: %d with seed %d, and %d with seed %d",
			r.first.Token, r.first.Seed, first.Token, first.Seed)
	case r.first.Logprobs == nil && first.Logprobs != nil:
		r.first = first
	}
	r.arrived++
	if r.arrived == len(r.fetches) {
		close(r.here)
	}
	return nil
}

// progressed notes that something came, or that it may come from now on.
func (r *Receiver) progressed() { r.progress.Store(max(1, int64(time.Since(r.born)))) }

// due is when the next page of any peer has to have come; zero before Allocate.
func (r *Receiver) due() time.Time {
	last := r.progress.Load()
	if last == 0 {
		return time.Time{}
	}
	return r.born.Add(time.Duration(last) + r.cfg.WaitingTimeout)
}
