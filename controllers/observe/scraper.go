package observe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// ScraperConfig says how the metrics of engines are read.
type ScraperConfig struct {
	// Interval between two scrapes of a pod; by default 15 s. A pod whose newest scrape failed is asked again after a third
	// of it.
	Interval time.Duration
	// Timeout of one scrape; by default 5 s, at most the interval.
	Timeout time.Duration
	// Concurrency is how many scrapes run at a time; by default 8. As many more run of what failed the last time, so that dead
	// engines never delay live ones.
	Concurrency int
	// LimitBytes is the largest exposition that is read; by default 16 MiB.
	LimitBytes int64

	// Pods reads pods, from the manager's cache.
	Pods client.Reader
	// Proofs takes the readings.
	Proofs *Proofs
	// Prometheus says what was stored; nil: none is known.
	Prometheus *Prometheus
	Metrics    *ProofMetrics
	Clock      clock.Clock
	// Random gives numbers in [0, 1) for the jitter of the pace.
	Random func() float64
	Log    logr.Logger
}

func (c ScraperConfig) withDefaults() (ScraperConfig, error) {
	if c.Interval == 0 {
		c.Interval = 15 * time.Second
	}
	if c.Timeout == 0 {
		c.Timeout = min(5*time.Second, c.Interval)
	}
	if c.Concurrency == 0 {
		c.Concurrency = 8
	}
	if c.LimitBytes == 0 {
		c.LimitBytes = 16 << 20
	}
	switch {
	case c.Interval < 0 || c.Timeout < 0 || c.Concurrency < 0 || c.LimitBytes < 0:
		return c, fmt.Errorf("interval %s, timeout %s, concurrency %d and limit %d must be above 0", c.Interval, c.Timeout, c.Concurrency, c.LimitBytes)
	case c.Pods == nil || c.Proofs == nil || c.Metrics == nil || c.Clock == nil || c.Random == nil:
		return c, errors.New("pods, proofs, metrics, clock and random are all needed")
	}
	return c, nil
}

// Scraper reads /metrics of every engine pod once an interval, as the proof that the series are there. It is a
// manager.Runnable of the leader: only that writes conditions.
type Scraper struct {
	cfg    ScraperConfig
	client *http.Client
}

// NewScraper makes a scraper; Start runs it.
func NewScraper(cfg ScraperConfig) (*Scraper, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("scraper: %w", err)
	}
	return &Scraper{cfg: cfg, client: newClient(cfg.Timeout, 2*cfg.Interval, cfg.Concurrency)}, nil
}

// NeedLeaderElection is true.
func (s *Scraper) NeedLeaderElection() bool { return true }

// scrapeTarget is a pod to scrape. The URL is empty while it has none.
type scrapeTarget struct {
	pod, pool, service types.NamespacedName
	uid                types.UID
	role               v1alpha1.Role
	url                string
}

// task is something that is done again and again: a scrape of a pod, or the questions about a pool.
type task struct {
	due     time.Time
	under   bool // it is under way
	failing bool // its newest run failed; it changes only while the task is not under way
	run     func(context.Context) (next time.Duration, ok bool)
}

// done is the end of a task's run.
type done struct {
	task *task
	next time.Time
	ok   bool
}

// tick is how often the Scraper looks for what is due.
const tick = time.Second

// Start scrapes until ctx ends, then waits for what is under way.
func (s *Scraper) Start(ctx context.Context) error {
	defer s.client.CloseIdleConnections()
	var (
		pods  = map[types.NamespacedName]*podTask{}
		pools = map[types.NamespacedName]*task{}
		ended = make(chan done)
		under = map[bool]int{} // tasks under way, by failing
		scan  time.Time
	)
	start := func(t *task, now time.Time) {
		if t.under || t.due.After(now) || under[t.failing] >= s.cfg.Concurrency {
			return
		}
		under[t.failing]++
		t.under = true
		go func() {
			wait, ok := t.run(ctx)
			ended <- done{t, s.cfg.Clock.Now().Add(wait), ok}
		}()
	}
	finish := func(d done) {
		under[d.task.failing]--
		d.task.under, d.task.due, d.task.failing = false, d.next, !d.ok
	}
	defer func() {
		for under[false]+under[true] > 0 {
			finish(<-ended)
		}
	}()
	for {
		now := s.cfg.Clock.Now()
		// 1. Learn which pods there are.
		if !now.Before(scan) {
			scan = now.Add(2 * tick)
			if err := s.scan(ctx, now, pods, pools); err != nil && ctx.Err() == nil {
				s.cfg.Log.Error(err, "The metrics of engines are read as before")
			}
		}
		// 2. Start what is due.
		for _, p := range pods {
			if p.target.url != "" {
				start(&p.task, now)
			}
		}
		for _, t := range pools {
			start(t, now)
		}
		// 3. Wait for an end or for the next look.
		timer := s.cfg.Clock.NewTimer(tick)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case d := <-ended:
			finish(d)
		case <-timer.C():
		}
		timer.Stop()
	}
}

// podTask scrapes one pod.
type podTask struct {
	task
	target scrapeTarget
}

// scan brings the tasks and the store in line with the pods in the cache.
func (s *Scraper) scan(ctx context.Context, now time.Time, pods map[types.NamespacedName]*podTask, pools map[types.NamespacedName]*task) error {
	var list corev1.PodList
	err := s.cfg.Pods.List(ctx, &list, client.MatchingLabels{v1alpha1.LabelComponent: v1alpha1.ComponentEngine}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return fmt.Errorf("list engine pods: %w", err)
	}
	targets := make([]scrapeTarget, 0, len(list.Items))
	seen := map[types.NamespacedName]bool{}
	for i := range list.Items {
		t, ok := scrapeTargetOf(&list.Items[i])
		if !ok {
			continue
		}
		targets = append(targets, t)
		seen[t.pod] = true
		p := pods[t.pod]
		if p == nil || p.target.uid != t.uid || p.target.url != t.url {
			// The first scrape comes at once; the jitter of the next ones spreads them.
			p = &podTask{task: task{due: now}, target: t}
			p.run = func(ctx context.Context) (time.Duration, bool) { return s.scrape(ctx, t) }
			pods[t.pod] = p
		}
	}
	for pod := range pods {
		if !seen[pod] {
			delete(pods, pod)
		}
	}
	s.cfg.Proofs.sync(targets)
	if s.cfg.Prometheus == nil {
		return nil
	}
	names := map[types.NamespacedName]bool{}
	for _, t := range targets {
		names[t.pool] = true
		if pools[t.pool] == nil {
			pools[t.pool] = &task{due: now, run: func(ctx context.Context) (time.Duration, bool) { return s.ask(ctx, t.pool, t.role) }}
		}
	}
	for pool := range pools {
		if !names[pool] {
			delete(pools, pool)
		}
	}
	return nil
}

// scrapeTargetOf gives what to scrape of a pod, leader or not; false when no EnginePool controls it or it has ended.
func scrapeTargetOf(pod *corev1.Pod) (t scrapeTarget, ok bool) {
	pool, service, ok := place(pod)
	if !ok || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return scrapeTarget{}, false
	}
	t = scrapeTarget{
		pod: client.ObjectKeyFromObject(pod), pool: pool, service: service, uid: pod.UID, role: v1alpha1.Role(pod.Labels[v1alpha1.LabelRole]),
	}
	// A pod that starts has nothing to tell; one that stopped being ready still has.
	if pod.Status.PodIP != "" && pod.Status.Phase == corev1.PodRunning && started(pod) {
		t.url = "http://" + net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(httpPort(pod)))) + metricsPath
	}
	return t, true
}

// started says whether a pod is Ready or its engine's start-up probe has passed.
func started(pod *corev1.Pod) bool {
	if !readySince(pod).IsZero() {
		return true
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.Started != nil && *c.Started {
			return true
		}
	}
	return false
}

// scrape reads one pod, and says when to do so again and whether it answered.
func (s *Scraper) scrape(ctx context.Context, t scrapeTarget) (next time.Duration, ok bool) {
	sent := s.cfg.Clock.Now()
	e, result, err := fetchExposition(ctx, s.client, t.url, t.role, s.cfg.LimitBytes)
	if ctx.Err() != nil {
		return 0, false
	}
	s.cfg.Metrics.scraped(result, s.cfg.Clock.Now().Sub(sent))
	s.cfg.Proofs.put(t, sent, e, result, err)
	wait := s.cfg.Interval
	if err != nil {
		wait /= 3
	}
	return wait - s.cfg.Clock.Now().Sub(sent) + time.Duration((s.cfg.Random()-0.5)*0.2*float64(wait)), err == nil
}

// ask asks Prometheus about one pool, and says when to do so again and whether it answered.
func (s *Scraper) ask(ctx context.Context, pool types.NamespacedName, role v1alpha1.Role) (next time.Duration, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	stored := s.cfg.Prometheus.Ask(ctx, pool, role, s.cfg.Clock.Now())
	if errors.Is(stored.Err, context.Canceled) {
		return 0, false
	}
	s.cfg.Metrics.asked(stored.Err)
	s.cfg.Proofs.putStored(pool, stored)
	return s.cfg.Interval + time.Duration((s.cfg.Random()-0.5)*0.2*float64(s.cfg.Interval)), stored.Err == nil
}

// fetchExposition asks one pod for its metrics. Errors are short and stable: they go into conditions.
func fetchExposition(ctx context.Context, client *http.Client, url string, role v1alpha1.Role, limitBytes int64) (Exposition, outcome, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return Exposition{}, outcomeMalformed, fmt.Errorf("scrape %s: %w", url, err)
	}
	request.Header.Set("Accept", "text/plain;version=0.0.4")
	response, err := client.Do(request)
	if err != nil {
		result := transportOutcome(err)
		return Exposition{}, result, transportError(metricsPath, result, err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return Exposition{}, outcomeStatus, fmt.Errorf("/metrics answers with status %d", response.StatusCode)
	}
	text, result, err := readLimited(response.Body, limitBytes)
	switch {
	case result == outcomeTooLarge:
		return Exposition{}, result, fmt.Errorf("/metrics: %w", err)
	case err != nil:
		return Exposition{}, result, transportError(metricsPath, result, err)
	}
	e, err := parseExposition(text, role)
	if err != nil {
		return Exposition{}, outcomeMalformed, errors.New("/metrics: " + clipped(err.Error()))
	}
	return e, outcomeOK, nil
}
