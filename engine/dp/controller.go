package dp

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"sync"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/loads"
	"github.com/sluice-dev/sluice/engine/profile"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/request"
)

// Controller spreads requests over DP ranks. It is a rank.Client. Safe for concurrent use.
type Controller struct {
	ranks   []rank.Client // by DP rank, at least one
	options Options
	info    rank.Info
	method  Method // resolved

	mu      sync.Mutex
	live    map[string]*placed // by rid; from Submit until the stream's end
	count   []int              // [len(ranks)] of live, by DP rank
	turn    int                // 0 <= turn < len(ranks): where the next choice begins
	closing bool               // Close was called
	err     error              // why the replica ends, set by the first DP rank that ended
	done    chan struct{}
}

var _ rank.Client = (*Controller)(nil)

// placed is a request at its DP rank.
type placed struct {
	dpRank int
	prompt int          // tokens
	stream *rank.Stream // nil until the rank has taken the request
}

// New makes the controller of ranks, the clients by DP rank, at least one, and owns them from now on. With an error, which
// says why they don't belong together, they stay the caller's. method is resolved.
func New(ranks []rank.Client, method Method, options Options) (*Controller, error) {
	if len(ranks) == 0 {
		return nil, errors.New("DP controller: there are no DP ranks: --dp-size is at least 1")
	}
	info, err := agree(ranks)
	if err != nil {
		return nil, err
	}
	c := &Controller{
		ranks: ranks, options: options, info: info, method: method,
		live: map[string]*placed{}, count: make([]int, len(ranks)), done: make(chan struct{}),
	}
	go c.watch()
	return c, nil
}

// agree gives the facts of all DP ranks: those that must be the same, and the least of those that needn't.
func agree(ranks []rank.Client) (rank.Info, error) {
	all := ranks[0].Info()
	for i, r := range ranks[1:] {
		here := r.Info()
		for _, f := range []struct {
			what     string
			all, one any
		}{
			{"weights (model id)", all.ModelID, here.ModelID},
			{"data type of the KV cache", all.DType, here.DType},
			{"vocabulary size", all.VocabSize, here.VocabSize},
			{"number of layers", all.NumLayers, here.NumLayers},
			{"end tokens", fmt.Sprint(all.EOSTokenIDs), fmt.Sprint(here.EOSTokenIDs)},
			{"context length", all.ContextLength, here.ContextLength},
			{"page size", all.PageSize, here.PageSize},
		} {
			if f.all != f.one {
				return rank.Info{}, fmt.Errorf("the %s of DP rank 0 is %v, that of DP rank %d is %v: all DP ranks serve the same "+
					"model, so --model-path must not change while they start", f.what, f.all, i+1, f.one)
			}
		}
		all.MaxTotalNumTokens = min(all.MaxTotalNumTokens, here.MaxTotalNumTokens)
		all.MaxRunningRequests = min(all.MaxRunningRequests, here.MaxRunningRequests)
		all.MaxRunningRequestsUnderSLO = min(all.MaxRunningRequestsUnderSLO, here.MaxRunningRequestsUnderSLO)
		all.WeightBytes = max(all.WeightBytes, here.WeightBytes)
		all.KVBytes = min(all.KVBytes, here.KVBytes)
		all.Startup = all.Startup.Longest(here.Startup)
		all.Ranks = slices.Concat(all.Ranks, here.Ranks)
	}
	return all, nil
}

// Submit implements rank.Client. A request that no DP rank can take gets a stream with its Finish.
func (c *Controller) Submit(ctx context.Context, r *request.Request) (*rank.Stream, error) {
	d := c.begin(r)
	stream, refusal, err := c.submit(ctx, d.request)
	d.end(refusal, err)
	return stream, err
}

// submit is Submit without the time that it takes. refusal says why no DP rank can take the request.
func (c *Controller) submit(ctx context.Context, r *request.Request) (stream *rank.Stream, refusal string, err error) {
	p, refusal, err := c.place(r)
	switch {
	case err != nil:
		return nil, "", fmt.Errorf("submit request %s: %w", r.RID, err)
	case refusal != "":
		return refused(r, refusal), refusal, nil
	}
	stream, err = c.ranks[p.dpRank].Submit(ctx, r)
	if err != nil {
		c.forget(r.RID, p)
		return nil, "", c.name(p.dpRank, err)
	}
	stream.SetDPRank(p.dpRank)
	c.mu.Lock()
	p.stream = stream
	death := c.err
	c.mu.Unlock()
	stream.OnEnd(func() { c.forget(r.RID, p) })
	if death != nil {
		stream.Fail(death)
	}
	return stream, "", nil
}

// place chooses the DP rank of a request and books it there. refusal says why none can take it.
func (c *Controller) place(r *request.Request) (p *placed, refusal string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return nil, "", c.err
	case c.closing:
		return nil, "", rank.ErrClosed
	case c.live[r.RID] != nil:
		return nil, "", fmt.Errorf("%w: send another rid", rank.ErrDuplicate)
	}
	dpRank, refusal := c.pick(r)
	if refusal != "" {
		return nil, refusal, nil
	}
	p = &placed{dpRank: dpRank, prompt: len(r.PromptIDs)}
	c.live[r.RID] = p
	c.count[dpRank]++
	return p, "", nil
}

// pick gives the DP rank of a request: the one that it names, that of its session, or the method's choice.
func (c *Controller) pick(r *request.Request) (dpRank int, refusal string) {
	n := len(c.ranks)
	if r.DPRank != nil && (*r.DPRank < 0 || *r.DPRank >= n) {
		return 0, fmt.Sprintf("routed_dp_rank is %d: this engine has the DP ranks 0 to %d", *r.DPRank, n-1)
	}
	if r.Session != nil {
		home := c.home(r.Session.SessionID)
		if r.DPRank != nil && *r.DPRank != home {
			return 0, fmt.Sprintf("routed_dp_rank is %d, but session %q lives on DP rank %d: leave routed_dp_rank out",
				*r.DPRank, r.Session.SessionID, home)
		}
		return home, ""
	}
	if c.method == FollowBootstrapRoom {
		return c.follow(r)
	}
	if r.DPRank != nil {
		return *r.DPRank, ""
	}
	dpRank = choose(c.method, c.weigh(), c.turn, 0)
	c.turn = (dpRank + 1) % n
	return dpRank, ""
}

// follow gives the DP rank of the request's room. The other half of the request looks for it there, so the request can't
// name another.
func (c *Controller) follow(r *request.Request) (dpRank int, refusal string) {
	if r.Bootstrap == nil {
		return 0, "bootstrap_room is missing: this engine chooses the DP rank by it (--load-balance-method follow_bootstrap_room): " +
			"send the request through the router"
	}
	dpRank = choose(c.method, c.weigh(), c.turn, r.Bootstrap.Room)
	if r.DPRank != nil && *r.DPRank != dpRank && !r.Bootstrap.Fake() {
		return 0, fmt.Sprintf("routed_dp_rank is %d, but bootstrap_room %d belongs to DP rank %d (--load-balance-method follow_bootstrap_room): "+
			"leave routed_dp_rank out, or start the engine with another method", *r.DPRank, r.Bootstrap.Room, dpRank)
	}
	return dpRank, ""
}

// weigh gives the load of each DP rank.
func (c *Controller) weigh() []load {
	all := make([]load, len(c.ranks))
	for i, n := range c.count {
		all[i].requests = n
	}
	if c.method != TotalTokens {
		return all
	}
	for _, p := range c.live {
		all[p.dpRank].tokens += p.prompt
		if p.stream != nil {
			all[p.dpRank].tokens += p.stream.CompletionTokens()
		}
	}
	return all
}

// home is the DP rank of a session: a function of its id, so that nothing has to be remembered until it is closed.
func (c *Controller) home(session string) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(session)) // it never fails
	return int(h.Sum64() % uint64(len(c.ranks)))
}

// forget takes a request off the books; once or more.
func (c *Controller) forget(rid string, p *placed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.live[rid] == p {
		delete(c.live, rid)
		c.count[p.dpRank]--
	}
}

// refused is the answer to a request that no DP rank takes.
func refused(r *request.Request, message string) *rank.Stream {
	s := rank.NewStream()
	s.Put(request.Output{RID: r.RID, PromptTokens: len(r.PromptIDs), Finish: &request.Finish{
		Type: request.FinishAbort, Outcome: request.OutcomeInvalid, Message: message,
	}})
	return s
}

// Abort implements rank.Client.
func (c *Controller) Abort(rid string, reason request.Outcome) error {
	c.mu.Lock()
	p := c.live[rid]
	c.mu.Unlock()
	if p == nil {
		return nil
	}
	return c.name(p.dpRank, c.ranks[p.dpRank].Abort(rid, reason))
}

// AbortAll implements rank.Client.
func (c *Controller) AbortAll(prefix string) error {
	return c.each(func(_ int, r rank.Client) error { return r.AbortAll(prefix) })
}

// Loads implements rank.Client.
func (c *Controller) Loads(ctx context.Context) ([]loads.Load, error) {
	lists := make([][]loads.Load, len(c.ranks))
	err := c.each(func(i int, r rank.Client) (err error) {
		lists[i], err = r.Loads(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	var all []loads.Load
	for i, list := range lists {
		for _, l := range list {
			l.DPRank = i
			all = append(all, l)
		}
	}
	return all, nil
}

// Timelines implements rank.Client: each DP rank is asked, and knows its own.
func (c *Controller) Timelines(ctx context.Context, rids []string) (map[string]*ledger.Record, error) {
	parts := make([]map[string]*ledger.Record, len(c.ranks))
	err := c.each(func(i int, r rank.Client) (err error) {
		parts[i], err = r.Timelines(ctx, rids)
		return err
	})
	found := map[string]*ledger.Record{}
	for _, part := range parts {
		maps.Copy(found, part)
	}
	return found, err
}

// Info implements rank.Client: rank and PID are those of DP rank 0, capacities are the least of all, and Ranks holds those of all.
func (c *Controller) Info() rank.Info { return c.info }

// Flush implements rank.Client. When one DP rank isn't idle the others are flushed all the same.
func (c *Controller) Flush(ctx context.Context) error {
	return c.each(func(_ int, r rank.Client) error { return r.Flush(ctx) })
}

// Pause implements rank.Client. After an error some DP ranks may be paused; Continue is safe for all.
func (c *Controller) Pause(ctx context.Context, mode request.PauseMode) error {
	return c.each(func(_ int, r rank.Client) error { return r.Pause(ctx, mode) })
}

// Continue implements rank.Client.
func (c *Controller) Continue(ctx context.Context) error {
	return c.each(func(_ int, r rank.Client) error { return r.Continue(ctx) })
}

// OpenSession implements rank.Client.
func (c *Controller) OpenSession(ctx context.Context, s request.Session) error {
	home := c.home(s.ID)
	return c.name(home, c.ranks[home].OpenSession(ctx, s))
}

// CloseSession implements rank.Client.
func (c *Controller) CloseSession(ctx context.Context, id string) error {
	home := c.home(id)
	return c.name(home, c.ranks[home].CloseSession(ctx, id))
}

// StartProfile implements rank.Client. After an error no DP rank records that did not before.
func (c *Controller) StartProfile(ctx context.Context, o profile.Options) error {
	return profile.Several{
		Num:   len(c.ranks),
		Begin: func(ctx context.Context, i int) error { return c.name(i, c.ranks[i].StartProfile(ctx, o)) },
		End:   func(ctx context.Context, i int) ([]string, error) { return c.ranks[i].StopProfile(ctx) },
	}.Start(ctx)
}

// StopProfile implements rank.Client.
func (c *Controller) StopProfile(ctx context.Context) (files []string, err error) {
	lists := make([][]string, len(c.ranks))
	err = c.each(func(i int, r rank.Client) (err error) {
		lists[i], err = r.StopProfile(ctx)
		return err
	})
	return slices.Concat(lists...), err
}

// AwaitStep implements rank.Client. Each DP rank counts for itself, so what counts is the one that has come furthest: when it is
// past step n already, its newest step is the answer, whoever answers first.
func (c *Controller) AwaitStep(ctx context.Context, n int64) (newest int64, err error) {
	newest, err = c.newestStep(ctx)
	if err != nil || newest >= n {
		return newest, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan stepAnswer, len(c.ranks))
	for i, r := range c.ranks {
		go func() {
			newest, err := r.AwaitStep(ctx, n)
			answers <- stepAnswer{newest, c.name(i, err)}
		}()
	}
	var errs []error
	for range c.ranks {
		a := <-answers
		if a.err == nil {
			return a.newest, nil
		}
		errs = append(errs, a.err)
	}
	return 0, errors.Join(errs...)
}

// stepAnswer is what one DP rank says about its steps.
type stepAnswer struct {
	newest int64
	err    error
}

// newestStep gives the newest step that is over on any DP rank; an error when none says.
func (c *Controller) newestStep(ctx context.Context) (newest int64, err error) {
	answers := make([]stepAnswer, len(c.ranks))
	err = c.each(func(i int, r rank.Client) error {
		newest, err := r.AwaitStep(ctx, 0)
		answers[i] = stepAnswer{newest, err}
		return err
	})
	for _, a := range answers {
		if a.err == nil {
			newest, err = max(newest, a.newest), nil
		}
	}
	return newest, err
}

// Collect implements rank.Client.
func (c *Controller) Collect(ctx context.Context) error {
	return c.each(func(_ int, r rank.Client) error { return r.Collect(ctx) })
}

// each calls f for all DP ranks at the same time and joins what fails.
func (c *Controller) each(f func(dpRank int, r rank.Client) error) error {
	errs := make([]error, len(c.ranks))
	var wg sync.WaitGroup
	for i, r := range c.ranks {
		wg.Go(func() { errs[i] = c.name(i, f(i, r)) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// name says which DP rank an error is of, where there are several.
func (c *Controller) name(dpRank int, err error) error {
	if err == nil || len(c.ranks) == 1 {
		return err
	}
	return fmt.Errorf("DP rank %d: %w", dpRank, err)
}
