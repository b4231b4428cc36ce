package inferenceservice

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/monitoring"
	"github.com/sluice-dev/sluice/controllers/observe"
	"github.com/sluice-dev/sluice/controllers/owned"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// loadInterval is the least time between two writes of a status in which only the load changed.
const loadInterval = 10 * time.Second

// Reasons of the conditions of an InferenceService.
const (
	reasonServing      = "Serving"
	reasonPoolNotReady = "PoolNotReady"
	reasonRouter       = "RouterNotReady"
	reasonNameConflict = "NameConflict"
	reasonLeftover     = "OldStillEnds"
	reasonApplyFailed  = "ApplyFailed"
	reasonStable       = "AsAllocated"
	reasonPools        = "PoolsChanging"
	reasonRouterRolls  = "RouterChanging"
	reasonRouterReady  = "RouterPodReady"
	reasonNoRouterPod  = "NoReadyRouterPod"
	reasonAllRanks     = "AllRanksReport"
	reasonMissingRanks = "RanksMissing"
	reasonNoSamples    = "NoSamplesYet"
	reasonLevelApplied = "LevelApplied"
	reasonLevelRefused = "LevelRefused"
	reasonAllScale     = "ValidMetric"
)

// writeStatus computes the status and writes it when it changed. again is when to come back for a load that is not due
// yet; 0 is never.
func (r *Reconciler) writeStatus(ctx context.Context, step *step) (again time.Duration, err error) {
	service := step.service
	before := service.DeepCopy()
	now := r.Clock.Now()
	if wait := step.unobserved(now); wait > 0 {
		return wait, nil
	}
	observeService(step, r.kv(service))
	keepLoads(&before.Status, &service.Status)
	if equality.Semantic.DeepEqual(before.Status, service.Status) {
		return 0, nil
	}
	if equality.Semantic.DeepEqual(withoutLoad(before.Status), withoutLoad(service.Status)) {
		if wait := r.loadDue(service, now); wait > 0 {
			return wait, nil
		}
	}
	err = r.Client.Status().Update(ctx, service)
	if err != nil {
		return 0, client.IgnoreNotFound(fmt.Errorf("write the status of InferenceService %s: %w", client.ObjectKeyFromObject(service), err))
	}
	r.mu.Lock()
	r.loadWritten[client.ObjectKeyFromObject(service)] = now
	r.mu.Unlock()
	r.announce(before, service)
	return 0, nil
}

// firstStatus is how long after a service was made its first status may wait for that of its pools.
const firstStatus = 2 * time.Second

// unobserved says how long the first status waits: a status that says only that nothing was observed yet would be
// written again as soon as the pools' controller has looked.
func (s *step) unobserved(now time.Time) time.Duration {
	if s.err != nil || !s.read || s.service.Status.ObservedGeneration != 0 {
		return 0
	}
	for _, spec := range s.service.Spec.Pools {
		if pool := s.pool(spec.Name); pool == nil || pool.Status.ObservedGeneration == 0 {
			return max(0, s.service.CreationTimestamp.Add(firstStatus).Sub(now))
		}
	}
	return 0
}

func (r *Reconciler) loadDue(service *v1alpha1.InferenceService, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.loadWritten[client.ObjectKeyFromObject(service)].Add(loadInterval).Sub(now)
}

// keepLoads leaves loads as they were that differ in the time of their samples alone.
func keepLoads(before, after *v1alpha1.InferenceServiceStatus) {
	for i := range after.Pools {
		for j := range before.Pools {
			if before.Pools[j].Name == after.Pools[i].Name && observe.SameLoad(before.Pools[j].Load, after.Pools[i].Load) {
				after.Pools[i].Load = before.Pools[j].Load
			}
		}
	}
}

func withoutLoad(status v1alpha1.InferenceServiceStatus) v1alpha1.InferenceServiceStatus {
	status = *status.DeepCopy()
	for i := range status.Pools {
		status.Pools[i].Load, status.Pools[i].Cost = nil, nil
	}
	status.Conditions = goodNews(status.Conditions)
	if status.Summary != nil {
		status.Summary = &v1alpha1.ServiceSummary{Replicas: status.Summary.Replicas}
	}
	return status
}

// announce tells when the service becomes ready or stops being so.
func (r *Reconciler) announce(before, service *v1alpha1.InferenceService) {
	was := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionReady)
	is := meta.FindStatusCondition(service.Status.Conditions, v1alpha1.ConditionReady)
	if is == nil || (was != nil && was.Status == is.Status && was.Reason == is.Reason) {
		return
	}
	kind := corev1.EventTypeNormal
	lost := was != nil && was.Status == metav1.ConditionTrue && is.Status == metav1.ConditionFalse
	if lost || is.Reason == reasonNameConflict || is.Reason == reasonApplyFailed {
		kind = corev1.EventTypeWarning
	}
	r.Recorder.Eventf(service, nil, kind, is.Reason, "Observe", "%s", is.Message)
}

// observeService fills in the status.
func observeService(step *step, kv observe.KVVerdict) {
	service := step.service
	status := &service.Status
	if step.read {
		status.ObservedGeneration = service.Generation
		status.URL = plan.URL(service)
		status.Pools = nil
		for _, spec := range service.Spec.Pools {
			entry := v1alpha1.PoolStatus{Name: spec.Name, Role: spec.Role}
			if pool := step.pool(spec.Name); pool != nil {
				entry.ReplicaCounts = pool.Status.ReplicaCounts
				entry.Load = pool.Status.Load.DeepCopy()
				entry.Cost = pool.Status.Cost.DeepCopy()
			}
			status.Pools = append(status.Pools, entry)
		}
		status.Summary = plan.Summary(status.Pools)
		setRouterReady(step)
		setProgressing(step)
		setMetricsFlowing(step)
		setDegraded(step)
		setLedger(step, kv)
		setScalingActive(step)
		setTracingApplied(step)
		if len(step.monitors) > 0 {
			meta.SetStatusCondition(&status.Conditions, step.provisioned())
			status.Observability = monitoring.Status(step.monitors)
		}
	}
	if step.read && step.dashboards {
		setDashboards(step)
	}
	setReady(step)
}

func (s *step) pool(name string) *v1alpha1.EnginePool {
	return s.pools[plan.PoolName(s.service.Name, name)]
}

func (s *step) set(kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&s.service.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: s.service.Generation,
	})
}

func setRouterReady(step *step) {
	if step.router != nil && step.router.Status.ReadyReplicas > 0 {
		step.set(v1alpha1.ConditionRouterReady, metav1.ConditionTrue, reasonRouterReady, "at least one router pod is ready")
		return
	}
	message := "no router pod is ready; a router is ready when it has engines to send to"
	if step.routerWaits != "" {
		message = "no router pod is ready: " + step.routerWaits
	}
	step.set(v1alpha1.ConditionRouterReady, metav1.ConditionFalse, reasonNoRouterPod, message)
}

func setReady(step *step) {
	var conflict *owned.NotOwnedError
	var leftover *owned.LeftoverError
	_, onlyWaits := owned.Wait(step.err)
	switch {
	case errors.As(step.err, &conflict):
		step.set(v1alpha1.ConditionReady, metav1.ConditionFalse, reasonNameConflict, conflict.Error())
		return
	case errors.As(step.err, &leftover) && onlyWaits:
		step.set(v1alpha1.ConditionReady, metav1.ConditionFalse, reasonLeftover, leftover.Error())
		return
	case step.err != nil && !onlyWaits && !errors.Is(step.err, context.Canceled):
		step.set(v1alpha1.ConditionReady, metav1.ConditionFalse, reasonApplyFailed, step.err.Error())
		return
	case !step.read:
		return
	}
	var waits []string
	for _, spec := range step.service.Spec.Pools {
		if ready := step.condition(spec.Name, v1alpha1.ConditionReady); ready == nil {
			waits = append(waits, fmt.Sprintf("pool %s was not observed yet", spec.Name))
		} else if ready.Status != metav1.ConditionTrue {
			waits = append(waits, fmt.Sprintf("pool %s: %s", spec.Name, ready.Message))
		}
	}
	if len(waits) > 0 {
		step.set(v1alpha1.ConditionReady, metav1.ConditionFalse, reasonPoolNotReady, strings.Join(waits, "; "))
		return
	}
	if !meta.IsStatusConditionTrue(step.service.Status.Conditions, v1alpha1.ConditionRouterReady) {
		step.set(v1alpha1.ConditionReady, metav1.ConditionFalse, reasonRouter, "no router pod is ready")
		return
	}
	step.set(v1alpha1.ConditionReady, metav1.ConditionTrue, reasonServing, "every pool has a ready replica and the router serves")
}

// condition finds a condition of a pool; nil when there is none.
func (s *step) condition(pool, kind string) *metav1.Condition {
	live := s.pool(pool)
	if live == nil {
		return nil
	}
	return meta.FindStatusCondition(live.Status.Conditions, kind)
}

func setProgressing(step *step) {
	var waits []string
	for _, spec := range step.service.Spec.Pools {
		pool := step.pool(spec.Name)
		progressing := step.condition(spec.Name, v1alpha1.ConditionProgressing)
		switch {
		case pool == nil || progressing == nil:
			waits = append(waits, fmt.Sprintf("pool %s was not observed yet", spec.Name))
		case progressing.Status == metav1.ConditionTrue:
			waits = append(waits, fmt.Sprintf("pool %s: %s", spec.Name, progressing.Message))
		case pool.Status.ObservedGeneration != pool.Generation:
			waits = append(waits, fmt.Sprintf("pool %s: its newest spec was not observed yet", spec.Name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(step.pools)) {
		if pool := step.pools[name]; !step.listed(pool.Spec.Pool) {
			waits = append(waits, fmt.Sprintf("pool %s leaves with %d replicas", pool.Spec.Pool, pool.Status.Replicas))
		}
	}
	if len(waits) > 0 {
		step.set(v1alpha1.ConditionProgressing, metav1.ConditionTrue, reasonPools, strings.Join(waits, "; "))
		return
	}
	if router := step.router; router == nil || router.Status.ObservedGeneration != router.Generation ||
		router.Spec.Replicas == nil || router.Status.UpdatedReplicas != *router.Spec.Replicas || router.Status.Replicas != router.Status.UpdatedReplicas {
		step.set(v1alpha1.ConditionProgressing, metav1.ConditionTrue, reasonRouterRolls, "router pods are created or updated")
		return
	}
	step.set(v1alpha1.ConditionProgressing, metav1.ConditionFalse, reasonStable, "replicas are as allocated, of the newest revision")
}

func (s *step) listed(pool string) bool {
	for _, spec := range s.service.Spec.Pools {
		if spec.Name == pool {
			return true
		}
	}
	return false
}

// setMetricsFlowing is the worst of the pools' conditions.
func setMetricsFlowing(step *step) {
	var missing, unknown []string
	reason := ""
	for _, spec := range step.service.Spec.Pools {
		flowing := step.condition(spec.Name, v1alpha1.ConditionMetricsFlowing)
		switch {
		case flowing == nil || flowing.Status == metav1.ConditionUnknown:
			unknown = append(unknown, spec.Name)
		case flowing.Status == metav1.ConditionFalse:
			missing = append(missing, fmt.Sprintf("pool %s: %s", spec.Name, flowing.Message))
			if reason == "" {
				reason = flowing.Reason
			} else if reason != flowing.Reason {
				reason = reasonMissingRanks
			}
		}
	}
	switch {
	case len(missing) > 0:
		step.set(v1alpha1.ConditionMetricsFlowing, metav1.ConditionFalse, reason, strings.Join(missing, "; "))
	case len(unknown) > 0:
		step.set(v1alpha1.ConditionMetricsFlowing, metav1.ConditionUnknown, reasonNoSamples, "no ready replica with a sample in "+strings.Join(unknown, ", "))
	default:
		step.set(v1alpha1.ConditionMetricsFlowing, metav1.ConditionTrue, reasonAllRanks, "every rank of every ready replica has a fresh sample")
	}
}

// setScalingActive is the worst of the conditions of the pools that scale.
func setScalingActive(step *step) {
	var scaling int
	var worst *metav1.Condition
	var messages []string
	for _, spec := range step.service.Spec.Pools {
		if spec.Autoscaling == nil {
			continue
		}
		scaling++
		active := step.condition(spec.Name, v1alpha1.ConditionScalingActive)
		if active == nil {
			active = &metav1.Condition{Status: metav1.ConditionUnknown, Reason: "Pending", Message: "the pool was not observed yet"}
		}
		if active.Status == metav1.ConditionTrue {
			continue
		}
		messages = append(messages, fmt.Sprintf("pool %s: %s", spec.Name, active.Message))
		if worst == nil || (worst.Status == metav1.ConditionUnknown && active.Status == metav1.ConditionFalse) {
			worst = active
		}
	}
	switch {
	case scaling == 0:
		meta.RemoveStatusCondition(&step.service.Status.Conditions, v1alpha1.ConditionScalingActive)
	case worst != nil:
		step.set(v1alpha1.ConditionScalingActive, worst.Status, worst.Reason, strings.Join(messages, "; "))
	default:
		step.set(v1alpha1.ConditionScalingActive, metav1.ConditionTrue, reasonAllScale, "the autoscaler of every pool that scales reads a number")
	}
}

// setTracingApplied is the worst of the pools' conditions; absent until a pool has one.
func setTracingApplied(step *step) {
	var applied, refused []string
	for _, spec := range step.service.Spec.Pools {
		condition := step.condition(spec.Name, v1alpha1.ConditionTracingApplied)
		switch {
		case condition == nil:
		case condition.Status == metav1.ConditionTrue:
			applied = append(applied, spec.Name)
		default:
			refused = append(refused, fmt.Sprintf("pool %s: %s", spec.Name, condition.Message))
		}
	}
	switch {
	case step.service.Spec.Engine.Tracing == nil:
		meta.RemoveStatusCondition(&step.service.Status.Conditions, v1alpha1.ConditionTracingApplied)
	case len(refused) > 0:
		step.set(v1alpha1.ConditionTracingApplied, metav1.ConditionFalse, reasonLevelRefused, strings.Join(refused, "; "))
	case len(applied) > 0:
		step.set(v1alpha1.ConditionTracingApplied, metav1.ConditionTrue, reasonLevelApplied, "every ready engine traces at the level of the spec")
	}
}
