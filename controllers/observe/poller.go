package observe

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/engine/loads"
)

// PollerConfig says how engines are polled.
type PollerConfig struct {
	// Interval between two polls of an engine; by default 2 s. It is also how often new pods are looked for.
	Interval time.Duration
	// Timeout of one poll; by default the interval, at most 1 s.
	Timeout time.Duration
	// Concurrency is how many polls run at a time against engines that answer; by default 32. A quarter as many more
	// run against engines whose newest poll failed, so that dead engines never delay live ones.
	Concurrency int
	// LimitBytes is the largest body that is read; by default 1 MiB.
	LimitBytes int64

	// Pods reads pods, from the manager's cache.
	Pods client.Reader
	// Latency lists the pools that scale on latency, whose engines' histograms are read too; nil means none.
	Latency func(context.Context) (map[types.NamespacedName]bool, error)
	// Store takes the samples.
	Store *Store
	// Metrics counts the polls.
	Metrics *Metrics
	// Clock stamps samples and paces the polls; the time-out of a poll is real time.
	Clock clock.Clock
	// Random gives numbers in [0, 1) for the jitter of the pace.
	Random func() float64
	Log    logr.Logger
}

// withDefaults fills what is left out and says what is wrong with the rest.
func (c PollerConfig) withDefaults() (PollerConfig, error) {
	if c.Interval == 0 {
		c.Interval = 2 * time.Second
	}
	if c.Timeout == 0 {
		c.Timeout = min(c.Interval, time.Second)
	}
	if c.Concurrency == 0 {
		c.Concurrency = 32
	}
	if c.LimitBytes == 0 {
		c.LimitBytes = 1 << 20
	}
	switch {
	case c.Interval < 0:
		return c, fmt.Errorf("interval is %s, want above 0, for example 2s", c.Interval)
	case c.Timeout < 0:
		return c, fmt.Errorf("timeout is %s, want above 0, for example 1s", c.Timeout)
	case c.Concurrency < 0:
		return c, fmt.Errorf("concurrency is %d, want above 0, for example 32", c.Concurrency)
	case c.LimitBytes < 0:
		return c, fmt.Errorf("limit is %d bytes, want above 0, for example 1048576", c.LimitBytes)
	case c.Pods == nil || c.Store == nil || c.Metrics == nil || c.Clock == nil || c.Random == nil:
		return c, errors.New("pods, store, metrics, clock and random are all needed")
	}
	return c, nil
}

// Poller asks every leader pod for its load once an interval. It is a manager.Runnable that runs on every replica of
// the operator.
type Poller struct {
	cfg    PollerConfig
	client *http.Client
}

// NewPoller makes a poller; Start runs it.
func NewPoller(cfg PollerConfig) (*Poller, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("poller: %w", err)
	}
	return &Poller{cfg: cfg, client: newClient(cfg.Timeout, 4*cfg.Interval, cfg.Concurrency)}, nil
}

// NeedLeaderElection is false: every replica serves the custom metrics API from its own samples.
func (p *Poller) NeedLeaderElection() bool { return false }

// Start polls until ctx ends, then waits for the polls under way. It fails only when pods cannot be read at all.
func (p *Poller) Start(ctx context.Context) error {
	defer p.client.CloseIdleConnections()
	l := &loop{
		PollerConfig: p.cfg,
		client:       p.client,
		engines:      map[types.NamespacedName]*engine{},
		results:      make(chan result),
		dirty:        map[types.NamespacedName]bool{},
		healthy:      lane{limit: p.cfg.Concurrency},
		failing:      lane{limit: max(1, p.cfg.Concurrency/4)},
	}
	return l.run(ctx)
}

// loop is the state of a running poller; its goroutine alone touches it.
type loop struct {
	PollerConfig
	client *http.Client

	engines map[types.NamespacedName]*engine // by pod; holds every pod that can be polled
	results chan result                      // one for each poll under way
	healthy lane                             // engines whose newest poll succeeded, or that had none
	failing lane                             // engines whose newest poll failed

	dirty        map[types.NamespacedName]bool // pools to announce
	nextScan     time.Time
	nextAnnounce time.Time
}

// engine is one pod that is polled. It is either under way (in no lane) or in exactly one lane, or gone.
type engine struct {
	target
	due      time.Time // of the next poll
	eventsAt time.Time // of the next reading of its histograms
	failures int       // consecutive polls that failed
	gone     bool      // left the set of pods; dropped when its lane or its poll gives it back
}

// result is the outcome of one poll.
type result struct {
	engine  *engine
	sent    time.Time
	ranks   []loads.Load
	outcome outcome
	err     error

	asked  bool // for histograms
	events histograms
	noted  error // why there are none
}

func (l *loop) run(ctx context.Context) error {
	defer l.wait()
	for {
		now := l.Clock.Now()

		// 1. Learn which pods there are.
		if !now.Before(l.nextScan) {
			if err := l.scan(ctx, now); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				l.Log.Error(err, "Engines are polled as before")
			}
			l.nextScan = now.Add(l.Interval)
		}

		// 2. Send what is due.
		l.send(ctx, &l.healthy, now)
		l.send(ctx, &l.failing, now)

		// 3. Tell the controllers what changed.
		if !now.Before(l.nextAnnounce) {
			l.Store.announce(slices.Collect(maps.Keys(l.dirty)))
			clear(l.dirty)
			l.nextAnnounce = now.Add(l.Interval / 4)
		}

		// 4. Wait for an answer or for the next thing that is due.
		timer := l.Clock.NewTimer(l.next().Sub(now))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case r := <-l.results:
			l.take(r)
		case <-timer.C():
		}
		timer.Stop()
	}
}

// wait takes the answers of the polls under way, which the end of ctx cut short.
func (l *loop) wait() {
	for l.healthy.sent+l.failing.sent > 0 {
		r := <-l.results
		l.laneOf(r.engine).sent--
	}
}

// scan brings the engines and the store in line with the pods in the cache.
func (l *loop) scan(ctx context.Context, now time.Time) error {
	var list corev1.PodList
	err := l.Pods.List(ctx, &list, client.MatchingLabels(leaderLabels()), client.UnsafeDisableDeepCopy)
	if err != nil {
		return fmt.Errorf("list engine pods: %w", err)
	}
	var latency map[types.NamespacedName]bool
	if l.Latency != nil {
		if latency, err = l.Latency(ctx); err != nil {
			return err
		}
	}
	targets := make([]target, 0, len(list.Items))
	seen := make(map[types.NamespacedName]bool, len(list.Items))
	for i := range list.Items {
		t, ok := targetOf(&list.Items[i])
		if !ok {
			continue
		}
		if !latency[t.pool] {
			t.metricsURL = ""
		}
		targets = append(targets, t)
		if t.url == "" {
			continue
		}
		seen[t.pod] = true
		old := l.engines[t.pod]
		if old != nil && old.uid == t.uid && old.url == t.url {
			old.target = t
			continue
		}
		if old != nil {
			old.gone = true
		}
		e := &engine{target: t, due: now}
		l.engines[t.pod] = e
		heap.Push(&l.healthy, e)
	}
	for pod, e := range l.engines {
		if !seen[pod] {
			e.gone = true
			delete(l.engines, pod)
		}
	}
	l.Store.sync(targets)
	// Samples age without a poll, so every pool may have changed.
	for _, pool := range l.Store.poolNames() {
		l.dirty[pool] = true
	}
	for _, pool := range l.Store.announced() {
		l.dirty[pool] = true
	}
	return nil
}

// send starts the polls of a lane that are due, as far as its limit allows.
func (l *loop) send(ctx context.Context, lane *lane, now time.Time) {
	for lane.sent < lane.limit && lane.Len() > 0 {
		e := lane.engines[0]
		if !e.gone && e.due.After(now) {
			return
		}
		heap.Pop(lane)
		if e.gone {
			continue
		}
		lane.sent++
		url, metricsURL := e.url, e.metricsURL
		if now.Before(e.eventsAt) {
			metricsURL = ""
		}
		go func() {
			r := result{engine: e, sent: l.Clock.Now()}
			if metricsURL != "" {
				r.asked = true
				r.events, r.noted = fetchHistograms(ctx, l.client, metricsURL)
			}
			r.ranks, r.outcome, r.err = fetch(ctx, l.client, url, l.LimitBytes)
			l.results <- r
		}()
	}
}

// take records an answer and plans the engine's next poll.
func (l *loop) take(r result) {
	e := r.engine
	l.laneOf(e).sent--
	l.Metrics.polled(r.outcome, l.Clock.Now().Sub(r.sent))
	if e.gone {
		return
	}
	l.Store.put(e.pod, e.uid, r.sent, r.ranks, r.err)
	if r.asked {
		l.Store.putEvents(e.pod, e.uid, r.sent, r.events)
		e.eventsAt = r.sent.Add(eventsStep)
		if r.noted != nil {
			l.Log.V(1).Info("An engine gives no histograms", "pod", e.pod, "error", r.noted.Error())
		}
	}
	l.dirty[e.pool] = true

	switch {
	case r.err != nil && e.failures == 0:
		l.Log.Info("An engine gives no load", "pod", e.pod, "outcome", r.outcome, "error", r.err.Error())
	case r.err == nil && e.failures > 0:
		l.Log.Info("The engine gives its load again", "pod", e.pod, "failedPolls", e.failures)
	}
	if e.failures++; r.err == nil {
		e.failures = 0
	}
	e.due = r.sent.Add(pace(l.Interval, e.failures, e.draining, l.Random()))
	heap.Push(l.laneOf(e), e)
}

// next is when something is due.
func (l *loop) next() time.Time {
	next := l.nextScan
	if len(l.dirty) > 0 && l.nextAnnounce.Before(next) {
		next = l.nextAnnounce
	}
	for _, lane := range []*lane{&l.healthy, &l.failing} {
		if lane.sent < lane.limit && lane.Len() > 0 && lane.engines[0].due.Before(next) {
			next = lane.engines[0].due
		}
	}
	return next
}

// laneOf gives the lane of an engine; it changes only in take, between the two calls.
func (l *loop) laneOf(e *engine) *lane {
	if e.failures > 0 {
		return &l.failing
	}
	return &l.healthy
}

// pace is the time from one poll to the next: the interval give or take a tenth, so that polls spread, and up to four
// intervals while an engine fails. A draining engine is waited for, so it keeps the interval.
func pace(interval time.Duration, failures int, draining bool, random float64) time.Duration {
	d := interval
	if !draining {
		d <<= min(max(failures-1, 0), 2)
	}
	return d + time.Duration((random-0.5)*0.2*float64(interval))
}

// lane holds engines by the time of their next poll, and bounds how many polls of its kind are under way.
// 0 <= sent <= limit.
type lane struct {
	engines []*engine // a heap by due
	sent    int
	limit   int
}

func (l *lane) Len() int           { return len(l.engines) }
func (l *lane) Less(i, j int) bool { return l.engines[i].due.Before(l.engines[j].due) }
func (l *lane) Swap(i, j int)      { l.engines[i], l.engines[j] = l.engines[j], l.engines[i] }
func (l *lane) Push(x any)         { l.engines = append(l.engines, x.(*engine)) }
func (l *lane) Pop() any {
	last := len(l.engines) - 1
	e := l.engines[last]
	l.engines[last] = nil
	l.engines = l.engines[:last]
	return e
}
