package enginepool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
)

const (
	// traceTimeout is how long an engine may take to take a level; a reconcile waits for all at the same time.
	traceTimeout = 2 * time.Second
	// traceRetry is when an engine that did not take one is told again.
	traceRetry = 10 * time.Second
	// traceCalls is how many engines are told at the same time.
	traceCalls = 16
	// namedEngines is how many engines a message names.
	namedEngines = 4
)

// tracer is what this process told the engines of a pool. A new operator tells them all again, which changes nothing where it
// was told before.
type tracer struct {
	told   map[types.UID]int32 // the level that an engine took
	failed map[types.UID]traceFailure
}

// traceFailure is a level that an engine did not take.
type traceFailure struct {
	level int32
	at    time.Time
	err   error
}

// tracingOutcome is what came of telling.
type tracingOutcome struct {
	engines int     // that are ready and trace
	refused []error // one for each that did not take the level, in the order of pods
	again   time.Duration
}

// newTraceClient asks engines directly and follows no redirect.
func newTraceClient() *http.Client {
	return &http.Client{
		Timeout:       traceTimeout,
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// applyTracing tells the level to the ready engines that do not have it.
func (r *Reconciler) applyTracing(ctx context.Context, step *step) {
	tracing := step.pool.Spec.Engine.Tracing
	key := types.NamespacedName{Namespace: step.pool.Namespace, Name: step.pool.Name}
	r.mu.Lock()
	t := r.tracers[key]
	if t == nil {
		t = &tracer{told: map[types.UID]int32{}, failed: map[types.UID]traceFailure{}}
		r.tracers[key] = t
	}
	if tracing == nil {
		delete(r.tracers, key)
	}
	r.mu.Unlock()
	if tracing == nil {
		return
	}
	level := plan.TraceLevel(tracing)
	t.tell(step.pods, level, r.Clock.Now(), func(url string) error { return r.setTraceLevel(ctx, url, level) })
	outcome := t.outcome(step.pods, level, r.Clock.Now())
	step.tracing = &outcome
}

// tell calls set for the engines that need to be told, and waits. Reconciles of one pool never overlap.
func (t *tracer) tell(pods []*corev1.Pod, level int32, now time.Time, set func(url string) error) {
	there := map[types.UID]bool{}
	var lock sync.Mutex // of told and failed
	var running sync.WaitGroup
	turns := make(chan struct{}, traceCalls)
	for _, pod := range pods {
		there[pod.UID] = true
		port, ok := plan.TracedEngine(pod)
		lock.Lock()
		due := ok && t.due(pod.UID, level, now)
		lock.Unlock()
		if !due {
			continue
		}
		turns <- struct{}{}
		running.Go(func() {
			err := set("http://" + net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(port))))
			lock.Lock()
			defer lock.Unlock()
			if err != nil {
				t.failed[pod.UID] = traceFailure{level, now, err}
			} else {
				t.told[pod.UID] = level
				delete(t.failed, pod.UID)
			}
			<-turns
		})
	}
	running.Wait()
	for uid := range t.told {
		if !there[uid] {
			delete(t.told, uid)
		}
	}
	for uid := range t.failed {
		if !there[uid] {
			delete(t.failed, uid)
		}
	}
}

// due says whether an engine is to be told now.
func (t *tracer) due(uid types.UID, level int32, now time.Time) bool {
	if has, ok := t.told[uid]; ok && has == level {
		return false
	}
	failed, ok := t.failed[uid]
	return !ok || failed.level != level || !now.Before(failed.at.Add(traceRetry))
}

// outcome says what the engines have.
func (t *tracer) outcome(pods []*corev1.Pod, level int32, now time.Time) tracingOutcome {
	var outcome tracingOutcome
	for _, pod := range pods {
		if _, ok := plan.TracedEngine(pod); !ok {
			continue
		}
		outcome.engines++
		failed, is := t.failed[pod.UID]
		if has, ok := t.told[pod.UID]; (ok && has == level) || !is {
			continue
		}
		outcome.refused = append(outcome.refused, fmt.Errorf("%s: %w", pod.Name, failed.err))
		outcome.again = sooner(outcome.again, max(time.Millisecond, failed.at.Add(traceRetry).Sub(now)))
	}
	return outcome
}

// setTraceLevel tells one engine.
func (r *Reconciler) setTraceLevel(ctx context.Context, url string, level int32) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("%s/set_trace_level?level=%d", url, level), nil)
	if err != nil {
		return err
	}
	response, err := r.traces.Do(request)
	if err != nil {
		var broken interface{ Unwrap() error } // *url.Error, whose text has the address, which changes
		if errors.As(err, &broken) && broken.Unwrap() != nil {
			err = broken.Unwrap()
		}
		return fmt.Errorf("it does not answer: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	body, _ := io.ReadAll(io.LimitReader(response.Body, 300)) // says why; the status says that
	switch response.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusUnauthorized:
		return errors.New("it wants an admin key, which the operator does not have; leave out --admin-api-key")
	default:
		return fmt.Errorf("it answers %d: %s", response.StatusCode, strings.TrimSpace(strings.ToValidUTF8(string(body), "")))
	}
}

// setTracing makes the condition and the level of the status, from what came of telling.
func setTracing(step *step) (again time.Duration) {
	pool := step.pool
	outcome := step.tracing
	switch {
	case pool.Spec.Engine.Tracing == nil:
		pool.Status.Tracing = nil
		meta.RemoveStatusCondition(&pool.Status.Conditions, v1alpha1.ConditionTracingApplied)
		return 0
	case outcome == nil || outcome.engines == 0:
		return 0 // nobody was told, so what was known stays
	case len(outcome.refused) > 0:
		var named []string
		for _, err := range outcome.refused[:min(len(outcome.refused), namedEngines)] {
			named = append(named, err.Error())
		}
		message := fmt.Sprintf("%d of %d engines did not take trace level %d: %s", len(outcome.refused), outcome.engines, plan.TraceLevel(pool.Spec.Engine.Tracing), strings.Join(named, "; "))
		if more := len(outcome.refused) - namedEngines; more > 0 {
			message += fmt.Sprintf("; and %d more", more)
		}
		setCondition(pool, v1alpha1.ConditionTracingApplied, metav1.ConditionFalse, reasonLevelRefused, message)
	default:
		pool.Status.Tracing = &v1alpha1.TracingStatus{Level: plan.TraceLevel(pool.Spec.Engine.Tracing)}
		setCondition(pool, v1alpha1.ConditionTracingApplied, metav1.ConditionTrue, reasonLevelApplied, "every ready engine traces at the level of the spec")
	}
	return outcome.again
}

// announceTracing tells when the level of the engines changed, and when some did not take it.
func (r *Reconciler) announceTracing(before, pool *v1alpha1.EnginePool) {
	was, is := before.Status.Tracing, pool.Status.Tracing
	if is != nil && (was == nil || was.Level != is.Level) {
		note := fmt.Sprintf("every ready engine traces at level %d", is.Level)
		if was != nil {
			note += fmt.Sprintf(", before at %d", was.Level)
		}
		r.Recorder.Eventf(pool, nil, corev1.EventTypeNormal, "TraceLevelChanged", "Trace", "%s", note)
	}
	had := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionTracingApplied)
	has := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionTracingApplied)
	if has != nil && has.Status == metav1.ConditionFalse && (had == nil || had.Status != has.Status) {
		r.Recorder.Eventf(pool, nil, corev1.EventTypeWarning, has.Reason, "Trace", "%s", has.Message)
	}
}
