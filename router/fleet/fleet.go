package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-dev/sluice/router/discovery"
	"github.com/sluice-dev/sluice/router/policy"
)

// Listener hears what happens to engines. It must not block.
type Listener interface {
	// Changed: the state of an engine changed, or it came (from is "") or went (to is "").
	Changed(e discovery.Engine, from, to discovery.State)
	// Quarantined: the engine failed and gets nothing for a while.
	Quarantined(e discovery.Engine)
	// Picked: a request goes there.
	Picked(e discovery.Engine)
}

// Config configures a Fleet.
type Config struct {
	Policy     policy.Policy
	Quarantine time.Duration // after a first failure, > 0
	MaxWaiting int           // requests that may wait for an engine at once, > 0
	Wake       time.Duration // wait of a request while some role that it needs has no ready engine; 0: no longer than for others
	Turn       uint64        // where taking turns begins; random, so that routers differ
	Now        func() time.Time
	Listener   Listener
}

// Fleet is the engines of a router.
type Fleet struct {
	cfg Config

	mu      sync.Mutex
	members map[string]*member           // by engine ID
	ordered map[discovery.Role][]*member // the same by role, ordered by name
	changed chan struct{}                // closed and replaced when an engine may have become usable
	waiting int                          // 0 <= waiting <= MaxWaiting
	turn    map[discovery.Role]uint64
}

// New makes a fleet without engines.
func New(cfg Config) (*Fleet, error) {
	if cfg.Quarantine <= 0 {
		return nil, fmt.Errorf("--quarantine is %v: give more than 0s, for example 1s", cfg.Quarantine)
	}
	if cfg.MaxWaiting <= 0 {
		return nil, fmt.Errorf("--max-waiting is %d: give 1 or more", cfg.MaxWaiting)
	}
	if cfg.Wake < 0 {
		return nil, fmt.Errorf("--wake-timeout is %v: give 0s where no pool may be empty, or for example 5m", cfg.Wake)
	}
	turn := map[discovery.Role]uint64{discovery.Prefill: cfg.Turn, discovery.Decode: cfg.Turn, discovery.Unified: cfg.Turn}
	return &Fleet{cfg: cfg, members: map[string]*member{}, changed: make(chan struct{}), turn: turn}, nil
}

func (f *Fleet) changedLocked() {
	if f.waiting == 0 {
		return
	}
	close(f.changed)
	f.changed = make(chan struct{})
}

// change is what a Listener hears as Changed.
type change struct {
	e        discovery.Engine
	from, to discovery.State
}

// Update takes the whole list of engines.
func (f *Fleet) Update(engines []discovery.Engine) {
	f.mu.Lock()
	changes := f.updateLocked(engines)
	f.mu.Unlock()
	slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(a.e.Name, b.e.Name) })
	for _, c := range changes {
		f.cfg.Listener.Changed(c.e, c.from, c.to)
	}
}

func (f *Fleet) updateLocked(engines []discovery.Engine) []change {
	var changes []change
	here := map[string]bool{}
	for _, e := range engines {
		here[e.ID] = true
		m := f.members[e.ID]
		if m == nil {
			m = &member{engine: discovery.Engine{ID: e.ID}}
			f.members[e.ID] = m
		}
		if m.engine.State != e.State {
			changes = append(changes, change{e, m.engine.State, e.State})
			if e.State == discovery.StateReady {
				m.epoch++
				m.succeeded()
			}
		}
		m.engine = e
	}
	for id, m := range f.members {
		if !here[id] {
			m.gone = true
			delete(f.members, id)
			changes = append(changes, change{m.engine, m.engine.State, ""})
		}
	}
	f.orderLocked()
	f.changedLocked()
	return changes
}

// orderLocked fills ordered, so that picks depend on no map's order.
func (f *Fleet) orderLocked() {
	f.ordered = map[discovery.Role][]*member{}
	for _, m := range f.members {
		f.ordered[m.engine.Role] = append(f.ordered[m.engine.Role], m)
	}
	for _, list := range f.ordered {
		slices.SortFunc(list, func(a, b *member) int {
			return cmp.Or(cmp.Compare(a.engine.Name, b.engine.Name), cmp.Compare(a.engine.ID, b.engine.ID))
		})
	}
}

// Lease is the engines of one request: a pair, or one unified engine.
type Lease struct {
	Prefill *Use // nil on a unified engine
	Decode  *Use // the engine whose answer goes to the client
}

// Avoid is what one request has tried without success. The zero value avoids nothing.
type Avoid struct {
	engines map[*member]uint64 // never again in the life that has this epoch
	halves  map[*member]uint64 // not both together
}

// Engine avoids an engine until it becomes ready anew.
func (a *Avoid) Engine(u *Use) {
	if a.engines == nil {
		a.engines = map[*member]uint64{}
	}
	a.engines[u.member] = u.epoch
}

// Pair avoids two engines that did not get together: preferably both, at least one of them.
func (a *Avoid) Pair(l Lease) {
	if a.halves == nil {
		a.halves = map[*member]uint64{}
	}
	a.halves[l.Prefill.member], a.halves[l.Decode.member] = l.Prefill.epoch, l.Decode.epoch
}

func has(set map[*member]uint64, m *member) bool {
	epoch, here := set[m]
	return here && epoch == m.epoch
}

// ErrNone is the cause of an Acquire that found no engine in time.
var ErrNone = errors.New("no engine can take the request now")

// Acquire picks engines for a request of about the given prompt tokens, waiting up to wait for one to become usable, and up
// to Config.Wake while a role that every request needs has no ready engine: somebody sees that by Waiting and makes one. When
// pools wake meanwhile, wait begins anew. Done must be called on each Use. The error is ErrNone with the state of the fleet,
// or ctx's.
func (f *Fleet) Acquire(ctx context.Context, tokens int64, avoid *Avoid, wait time.Duration) (Lease, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l, ok := f.pickLocked(tokens, avoid); ok {
		return l, nil
	}
	p := newPatience(wait, f.cfg.Wake, f.cfg.Now(), f.asleepLocked(f.readyLocked()))
	left := p.left(p.came, p.asleep)
	if left <= 0 {
		return Lease{}, f.noneLocked()
	}
	if f.waiting >= f.cfg.MaxWaiting {
		return Lease{}, fmt.Errorf("%w; %d requests wait for one already", f.noneLocked(), f.waiting)
	}
	f.waiting++
	defer func() { f.waiting-- }()
	for left > 0 {
		if again := f.quarantineEndLocked(); again >= 0 {
			left = min(left, again)
		}
		if err := f.sleepLocked(ctx, left); err != nil {
			return Lease{}, err
		}
		if l, ok := f.pickLocked(tokens, avoid); ok {
			return l, nil
		}
		left = p.left(f.cfg.Now(), f.asleepLocked(f.readyLocked()))
	}
	return Lease{}, p.lost(f.noneLocked(), f.cfg.Now(), f.cfg.Wake > 0)
}

// sleepLocked sleeps without the lock until an engine may have become usable or the time is over. The error is ctx's.
func (f *Fleet) sleepLocked(ctx context.Context, most time.Duration) error {
	changed := f.changed
	f.mu.Unlock()
	defer f.mu.Lock()
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-changed:
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// readyLocked says which roles have a ready engine.
func (f *Fleet) readyLocked() map[discovery.Role]bool {
	ready := map[discovery.Role]bool{}
	for _, m := range f.members {
		if m.engine.State == discovery.StateReady && m.engine.URL != "" {
			ready[m.engine.Role] = true
		}
	}
	return ready
}

// asleepLocked says whether no request can be served, quarantines aside: they are short.
func (f *Fleet) asleepLocked(ready map[discovery.Role]bool) bool {
	return !ready[discovery.Unified] && (!ready[discovery.Prefill] || !ready[discovery.Decode])
}

// Waiting is how many requests wait for a ready engine of each role that has none; 0 while requests can be served.
func (f *Fleet) Waiting() map[discovery.Role]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	waiting, ready := map[discovery.Role]int{}, f.readyLocked()
	for _, role := range []discovery.Role{discovery.Prefill, discovery.Decode, discovery.Unified} {
		waiting[role] = 0
		if f.asleepLocked(ready) && !ready[role] {
			waiting[role] = f.waiting
		}
	}
	return waiting
}

// quarantineEndLocked is the time until the next quarantine ends, -1 when none will.
func (f *Fleet) quarantineEndLocked() time.Duration {
	now, next := f.cfg.Now(), time.Duration(-1)
	for _, m := range f.members {
		if m.quarantined() && !m.trial && m.until.After(now) {
			if d := m.until.Sub(now); next < 0 || d < next {
				next = d
			}
		}
	}
	return next
}

// pickLocked takes a pair or a unified engine, whichever the policy prefers by the side that answers.
func (f *Fleet) pickLocked(tokens int64, avoid *Avoid) (Lease, bool) {
	now := f.cfg.Now()
	unified := f.usableLocked(discovery.Unified, now, avoid.engines)
	prefills, decodes := f.halvesLocked(now, avoid)
	var answering *member
	switch {
	case len(decodes) == 0 && len(unified) == 0:
		return Lease{}, false
	case len(decodes) == 0:
		answering = f.chooseLocked(discovery.Unified, unified)
	case len(unified) == 0:
		answering = f.chooseLocked(discovery.Decode, decodes)
	default:
		answering = f.chooseLocked(discovery.Decode, append(unified, decodes...))
	}
	l := Lease{Decode: f.useLocked(answering, tokens)}
	if answering.engine.Role == discovery.Decode {
		l.Prefill = f.useLocked(f.chooseLocked(discovery.Prefill, prefills), tokens)
	}
	return l, true
}

// halvesLocked gives the prefill and decode engines that may be paired, or none of either. Halves of pairs that failed
// come back on one side when the other side has somebody new.
func (f *Fleet) halvesLocked(now time.Time, avoid *Avoid) (prefills, decodes []*member) {
	allPrefills := f.usableLocked(discovery.Prefill, now, avoid.engines)
	allDecodes := f.usableLocked(discovery.Decode, now, avoid.engines)
	if len(allPrefills) == 0 || len(allDecodes) == 0 {
		return nil, nil
	}
	if len(avoid.halves) == 0 {
		return allPrefills, allDecodes
	}
	newPrefills := f.usableLocked(discovery.Prefill, now, avoid.engines, avoid.halves)
	newDecodes := f.usableLocked(discovery.Decode, now, avoid.engines, avoid.halves)
	for _, pair := range [][2][]*member{{newPrefills, newDecodes}, {allPrefills, newDecodes}, {newPrefills, allDecodes}} {
		if len(pair[0]) > 0 && len(pair[1]) > 0 {
			return pair[0], pair[1]
		}
	}
	return nil, nil
}

// usableLocked lists the engines of a role that are in none of the sets, in a fixed order.
func (f *Fleet) usableLocked(role discovery.Role, now time.Time, sets ...map[*member]uint64) []*member {
	var list []*member
	for _, m := range f.ordered[role] {
		if m.usable(now) && !slices.ContainsFunc(sets, func(s map[*member]uint64) bool { return has(s, m) }) {
			list = append(list, m)
		}
	}
	return list
}

func (f *Fleet) chooseLocked(role discovery.Role, list []*member) *member {
	candidates := make([]policy.Candidate, len(list))
	for i, m := range list {
		candidates[i] = m.candidate()
	}
	i := f.cfg.Policy(candidates, f.turn[role])
	f.turn[role]++
	return list[i]
}

func (f *Fleet) useLocked(m *member, tokens int64) *Use {
	u := &Use{Engine: m.engine, fleet: f, member: m, epoch: m.epoch, tokens: tokens, trial: m.failures > 0}
	m.requests++
	m.tokens += tokens
	m.trial = u.trial
	f.cfg.Listener.Picked(m.engine)
	return u
}

// noneLocked says what is missing.
func (f *Fleet) noneLocked() error {
	type tally struct{ known, ready, quarantined int }
	count := map[discovery.Role]*tally{discovery.Prefill: {}, discovery.Decode: {}, discovery.Unified: {}}
	for _, m := range f.members {
		t := count[m.engine.Role]
		t.known++
		if m.engine.State == discovery.StateReady {
			t.ready++
		}
		if m.quarantined() {
			t.quarantined++
		}
	}
	var parts []string
	for _, role := range []discovery.Role{discovery.Prefill, discovery.Decode, discovery.Unified} {
		if t := count[role]; t.known > 0 {
			parts = append(parts, fmt.Sprintf("%d of %d %s engines are ready, %d of them just failed", t.ready, t.known, role, t.quarantined))
		}
	}
	if len(parts) == 0 {
		parts = []string{"no engine is known"}
	}
	return fmt.Errorf("%w: %s", ErrNone, strings.Join(parts, "; "))
}

// Ready is nil when a request could be served now, quarantines aside: they are short. Where requests may wait for a pool to
// wake up it is always nil, for they could not come to wait otherwise.
func (f *Fleet) Ready() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cfg.Wake > 0 || !f.asleepLocked(f.readyLocked()) {
		return nil
	}
	return f.noneLocked()
}

// Worker is one engine as GET /workers shows it.
type Worker struct {
	Name        string          `json:"name"`
	Role        discovery.Role  `json:"role"`
	URL         string          `json:"url"`
	State       discovery.State `json:"state"`
	Reason      string          `json:"reason,omitempty"`
	Draining    bool            `json:"draining"`
	Quarantined bool            `json:"quarantined"`
	Failures    int             `json:"consecutive_failures"`
	Outstanding int             `json:"outstanding_requests"`
	Tokens      int64           `json:"outstanding_prompt_tokens"` // estimated
}

// Workers lists all engines, ordered by name.
func (f *Fleet) Workers() []Worker {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]Worker, 0, len(f.members))
	for _, m := range f.members {
		list = append(list, Worker{
			Name: m.engine.Name, Role: m.engine.Role, URL: m.engine.URL, State: m.engine.State, Reason: m.engine.Reason,
			Draining: m.engine.State == discovery.StateDraining, Quarantined: m.quarantined(), Failures: m.failures,
			Outstanding: m.requests, Tokens: m.tokens,
		})
	}
	slices.SortFunc(list, func(a, b Worker) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.URL, b.URL)) })
	return list
}

// Any gives the ready engines for a question that every engine can answer, healthy ones first.
func (f *Fleet) Any() []discovery.Engine {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []*member
	for _, m := range f.members {
		if m.engine.State == discovery.StateReady && m.engine.URL != "" {
			list = append(list, m)
		}
	}
	slices.SortFunc(list, func(a, b *member) int {
		return cmp.Or(cmp.Compare(min(a.failures, 1), min(b.failures, 1)), cmp.Compare(a.requests, b.requests), cmp.Compare(a.engine.Name, b.engine.Name))
	})
	engines := make([]discovery.Engine, len(list))
	for i, m := range list {
		engines[i] = m.engine
	}
	return engines
}
