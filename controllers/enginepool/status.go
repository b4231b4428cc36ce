package enginepool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/autoscaling"
	"github.com/sluice-dev/sluice/controllers/observe"
	"github.com/sluice-dev/sluice/controllers/owned"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// loadInterval is the least time between two writes of a status in which only the load changed.
const loadInterval = 10 * time.Second

// writeStatus computes the status and writes it when it changed. again is when to come back for a load that is not due
// yet; 0 is never.
func (r *Reconciler) writeStatus(ctx context.Context, step *step) (again time.Duration, err error) {
	pool := step.pool
	before := pool.DeepCopy()
	r.readClaims(ctx, step)
	now := r.Clock.Now()
	again = r.observe(ctx, step, now)
	keepSame(&before.Status, &pool.Status)
	if equality.Semantic.DeepEqual(before.Status, pool.Status) {
		return again, nil
	}
	if onlyLoad(before.Status, pool.Status) {
		if wait := r.loadDue(pool, now); wait > 0 {
			return sooner(again, wait), nil
		}
	}
	err = r.Client.Status().Update(ctx, pool)
	if err != nil {
		return again, client.IgnoreNotFound(fmt.Errorf("write the status of EnginePool %s: %w", client.ObjectKeyFromObject(pool), err))
	}
	r.mu.Lock()
	r.loadWritten[client.ObjectKeyFromObject(pool)] = now
	delete(r.unwritten, client.ObjectKeyFromObject(pool))
	r.mu.Unlock()
	r.countDecision(before.Status.LastDecisions, pool.Status.LastDecisions)
	r.announce(before, pool)
	r.announceRollOut(before, pool)
	r.announceTracing(before, pool)
	return again, nil
}

// countDecision counts the newest decision when the status did not tell of it before.
func (r *Reconciler) countDecision(before, after []v1alpha1.ScalingDecision) {
	n, m := len(after), len(before)
	if n == 0 || m > 0 && equality.Semantic.DeepEqual(before[m-1], after[n-1]) {
		return
	}
	r.Counts.Scaled(after[n-1], m == 0)
}

// keepSame leaves what tells nothing new but that time went by as it was.
func keepSame(before, after *v1alpha1.EnginePoolStatus) {
	if observe.SameLoad(before.Load, after.Load) {
		after.Load = before.Load
	}
	if observe.SameRankLoads(before.Ranks, after.Ranks) {
		after.Ranks = before.Ranks
	}
	if sameCost(before.Cost, after.Cost) {
		after.Cost = before.Cost
	}
}

// loadDue is how long a change of the load alone must wait.
func (r *Reconciler) loadDue(pool *v1alpha1.EnginePool, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.loadWritten[client.ObjectKeyFromObject(pool)].Add(loadInterval).Sub(now)
}

func onlyLoad(a, b v1alpha1.EnginePoolStatus) bool {
	for _, status := range []*v1alpha1.EnginePoolStatus{&a, &b} {
		status.Load, status.Ranks, status.MoreRanks, status.Cost = nil, nil, 0, nil
		status.Conditions = goodNews(status.Conditions)
	}
	return equality.Semantic.DeepEqual(a, b)
}

// announce tells when the pool becomes ready or stops being so.
func (r *Reconciler) announce(before, pool *v1alpha1.EnginePool) {
	if r.Proofs != nil {
		r.announceProof(before, pool)
	}
	was := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionReady)
	is := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionReady)
	if is == nil || (was != nil && was.Status == is.Status && was.Reason == is.Reason) || (was == nil && is.Reason == reasonStarting) {
		return
	}
	kind := corev1.EventTypeNormal
	if is.Status != metav1.ConditionTrue && is.Reason != reasonScaledToZero && is.Reason != reasonStarting {
		kind = corev1.EventTypeWarning
	}
	r.Recorder.Eventf(pool, nil, kind, is.Reason, "Observe", "%s", is.Message)
}

// announceRollOut tells when a new revision begins to replace replicas, and when it has replaced them all. What happens to each
// replica in between has an event of its own.
func (r *Reconciler) announceRollOut(before, pool *v1alpha1.EnginePool) {
	was, is := before.Status, pool.Status
	if was.Revision != "" && was.Revision != is.Revision && is.Replicas > 0 {
		r.Recorder.Eventf(pool, nil, corev1.EventTypeNormal, "RollOutStarted", string(plan.CauseRollOut),
			"revision %s takes the place of %s, one replica after the other: %d of %d have it", is.Revision, was.Revision, is.UpdatedReplicas, is.Replicas)
	}
	if meta.IsStatusConditionTrue(was.Conditions, v1alpha1.ConditionProgressing) && meta.IsStatusConditionFalse(is.Conditions, v1alpha1.ConditionProgressing) &&
		is.LastDecision != nil && is.LastDecision.Action == string(plan.CauseRollOut) && is.Replicas == is.UpdatedReplicas {
		r.Recorder.Eventf(pool, nil, corev1.EventTypeNormal, "RollOutFinished", string(plan.CauseRollOut), "every replica has revision %s", is.Revision)
	}
}

// Reasons of the conditions of an EnginePool.
const (
	reasonLevelApplied  = "LevelApplied"
	reasonLevelRefused  = "LevelRefused"
	reasonReady         = "ReplicasReady"
	reasonStarting      = "ReplicasStarting"
	reasonNoReady       = "NoReadyReplica"
	reasonScaledToZero  = "ScaledToZero"
	reasonAsleep        = "Asleep"
	reasonInvalidSpec   = "InvalidSpec"
	reasonApplyFailed   = "ApplyFailed"
	reasonLeftover      = "OldStillEnds"
	reasonStable        = "AsAllocated"
	reasonProgressing   = "ReplicasChanging"
	reasonAllRanks      = "AllRanksReport"
	reasonMissingRanks  = "RanksMissing"
	reasonNoSamplesYet  = "NoSamplesYet"
	reasonNothingToPoll = "NoReadyReplica"
)

// observe fills in the status. again is when it changes without an event; 0 is never.
func (r *Reconciler) observe(ctx context.Context, step *step, now time.Time) (again time.Duration) {
	pool := step.pool
	status := &pool.Status
	if !step.read {
		// Nothing is known of the replicas; the rest of the status stays as it was.
		var invalid *invalidSpecError
		if errors.As(step.err, &invalid) {
			status.ObservedGeneration = pool.Generation
			setCondition(pool, v1alpha1.ConditionReady, metav1.ConditionFalse, reasonInvalidSpec, step.err.Error())
			setCondition(pool, v1alpha1.ConditionProgressing, metav1.ConditionFalse, reasonInvalidSpec, step.err.Error())
		}
		return 0
	}
	status.ObservedGeneration = pool.Generation
	status.ReplicaCounts = step.counts()
	status.Selector = plan.ScaleSelector(pool.Spec)
	status.Revision = step.revision
	if last := r.lastDecision(step, now); last != nil {
		status.LastDecision = last
	}
	setReady(step)
	setProgressing(step)
	again = sooner(sooner(r.observeLoad(step, now), r.observeDemand(step, now)), r.observeProof(ctx, step, now))
	status.Cost = r.countCost(step, now)
	again = sooner(again, setTracing(step))
	scaling := autoscaling.ScalingActive(pool, step.hpa)
	if autoscaling.UsesKEDA(pool) {
		scaling = autoscaling.ScaledByKEDA(pool, step.scaler, step.noKEDA, step.noScaler)
	}
	if scaling != nil {
		meta.SetStatusCondition(&status.Conditions, *scaling)
	} else {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionScalingActive)
	}
	return again
}

// counts are those after the plan's actions, or those before where one was not done: the next reconcile counts what was.
func (s *step) counts() v1alpha1.ReplicaCounts {
	if s.err == nil {
		return s.plan.Counts
	}
	return s.plan.Before
}

func setReady(step *step) {
	pool, counts := step.pool, step.counts()
	message := fmt.Sprintf("%d of %d replicas are ready", counts.ReadyReplicas, counts.Allocated)
	switch {
	case isRefusal(step.err) && counts.ReadyReplicas == 0:
		setCondition(pool, v1alpha1.ConditionReady, metav1.ConditionFalse, reasonApplyFailed, step.err.Error())
	case counts.ReadyReplicas > 0:
		// How many are ready is in the counts; a message with them would be a change of the condition at each step.
		setCondition(pool, v1alpha1.ConditionReady, metav1.ConditionTrue, reasonReady, "at least one replica is ready")
	case counts.Allocated == 0 && autoscaling.Asleep(pool):
		setCondition(pool, v1alpha1.ConditionReady, metav1.ConditionTrue, reasonAsleep, "no replica is needed; the next request makes one")
	case counts.Allocated == 0:
		setCondition(pool, v1alpha1.ConditionReady, metav1.ConditionFalse, reasonScaledToZero, "the demand is 0 replicas")
	default:
		reason := reasonStarting
		for _, replica := range step.replicas {
			if replica.Phase == plan.ReplicaFailed {
				reason = reasonNoReady
				message += "; " + replica.Failure
				break
			}
			if replica.Active() && replica.Phase == plan.ReplicaStarting {
				if replica.Waiting != "" {
					message += "; " + replica.Waiting
					break
				}
				if last := pool.Status.LastDecision; replica.Restarts > 0 && last != nil && last.Action == string(plan.CauseReplace) {
					message += "; before: " + last.Reason
					break
				}
			}
			if replica.Active() && replica.Phase == plan.ReplicaUnready {
				reason = reasonNoReady
				message += fmt.Sprintf("; replica %d started and is not ready", replica.Ordinal)
				break
			}
		}
		setCondition(pool, v1alpha1.ConditionReady, metav1.ConditionFalse, reason, message)
	}
}

func setProgressing(step *step) {
	status, reason, message := metav1.ConditionFalse, reasonStable, "replicas are as allocated, of the newest revision"
	if step.plan.Progressing {
		status, reason, message = metav1.ConditionTrue, reasonProgressing, step.plan.Progress
	}
	var leftover *owned.LeftoverError
	switch {
	case isRefusal(step.err):
		status, reason, message = metav1.ConditionTrue, reasonApplyFailed, step.err.Error()
	case errors.As(step.err, &leftover):
		status, reason, message = metav1.ConditionTrue, reasonLeftover, leftover.Error()
	}
	setCondition(step.pool, v1alpha1.ConditionProgressing, status, reason, message)
}

// isRefusal says whether the API server said no, other than for something to wait for.
func isRefusal(err error) bool {
	_, waits := owned.Wait(err)
	return err != nil && !waits && !errors.Is(err, context.Canceled)
}

// observeLoad fills in the load and whether all ranks report. A rank is expected from when its replica serves and had
// time to be polled once. Shortly after the operator's start what the last one saw stays until samples are there.
func (r *Reconciler) observeLoad(step *step, now time.Time) (again time.Duration) {
	pool := step.pool
	sample := r.Samples.Pool(client.ObjectKeyFromObject(pool))
	grace := r.Samples.FreshFor()
	var expected []observe.Rank
	young := 0
	for _, pod := range step.pods {
		since, serving := servingSince(pod)
		if !serving || pod.Labels[v1alpha1.LabelNodeRank] != "0" {
			continue
		}
		due := max(since.Add(grace).Sub(now), r.started.Add(grace).Sub(now))
		if due > 0 && !wasPolled(sample, pod.Name) {
			young++
			again = sooner(again, due)
			continue
		}
		for rank := range plan.LayoutOf(pod).Data {
			expected = append(expected, observe.Rank{Pod: pod.Name, Rank: int(rank)})
		}
	}
	load, missing := observe.Load(sample, pool.Spec.Role, expected, now)
	starting := r.started.Add(grace).Sub(now)
	if starting > 0 && young > 0 {
		return again
	}
	pool.Status.Load = load
	pool.Status.Ranks, pool.Status.MoreRanks = observe.RankLoads(sample, pool.Spec.Role, now)
	switch {
	case len(expected) == 0 && young > 0:
		setCondition(pool, v1alpha1.ConditionMetricsFlowing, metav1.ConditionUnknown, reasonNoSamplesYet, "ready engines have not been polled yet")
	case len(expected) == 0:
		setCondition(pool, v1alpha1.ConditionMetricsFlowing, metav1.ConditionUnknown, reasonNothingToPoll, "no replica is ready")
	case len(missing) > 0:
		setCondition(pool, v1alpha1.ConditionMetricsFlowing, metav1.ConditionFalse, missingReason(missing), missingMessage(missing))
	default:
		setCondition(pool, v1alpha1.ConditionMetricsFlowing, metav1.ConditionTrue, reasonAllRanks, "every rank of every ready replica has a fresh sample")
	}
	return again
}

// namedRanks is how many missing ranks a message names.
const namedRanks = 8

// missingReason is TargetDown where no missing rank's pod answers.
func missingReason(missing []observe.Missing) string {
	if slices.ContainsFunc(missing, func(m observe.Missing) bool { return m.Reason != observe.MissingDown }) {
		return reasonMissingRanks
	}
	return string(observe.CauseTargetDown)
}

func missingMessage(missing []observe.Missing) string {
	names := make([]string, 0, namedRanks)
	for _, rank := range missing[:min(len(missing), namedRanks)] {
		names = append(names, rank.String())
	}
	message := "no fresh sample of " + strings.Join(names, ", ")
	if more := len(missing) - namedRanks; more > 0 {
		message += fmt.Sprintf(" and %d more", more)
	}
	return message
}

func wasPolled(sample observe.PoolSample, pod string) bool {
	for _, p := range sample.Pods {
		if p.Name == pod {
			return !p.Taken.IsZero()
		}
	}
	return false
}

// servingSince says since when a pod that is meant to stay has been Ready.
func servingSince(pod *corev1.Pod) (since time.Time, serving bool) {
	if pod.DeletionTimestamp != nil || !plan.DrainStart(pod).IsZero() {
		return time.Time{}, false
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.LastTransitionTime.Time, condition.Status == corev1.ConditionTrue
		}
	}
	return time.Time{}, false
}

// lastDecision gives the decision of this step, else an earlier one that the status does not tell of yet, else nil.
func (r *Reconciler) lastDecision(step *step, now time.Time) *v1alpha1.Decision {
	key := client.ObjectKeyFromObject(step.pool)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(step.done) > 0 {
		r.unwritten[key] = decision(step.done, now)
	}
	return r.unwritten[key]
}

func decision(done []plan.Action, now time.Time) *v1alpha1.Decision {
	reasons := make([]string, 0, len(done))
	for _, action := range done {
		reasons = append(reasons, action.Reason)
	}
	return &v1alpha1.Decision{Time: metav1.NewTime(now.Truncate(time.Second)), Action: string(done[0].Cause), Reason: strings.Join(reasons, "; ")}
}

// observeDemand fills in who made the present demand, and why.
func (r *Reconciler) observeDemand(step *step, now time.Time) (again time.Duration) {
	key, demand := client.ObjectKeyFromObject(step.pool), demandOf(step.pool)
	r.mu.Lock()
	seen, ok := r.demandSeen[key]
	if !ok || seen.replicas != demand {
		seen = demandSeen{replicas: demand, at: now}
		r.demandSeen[key] = seen
	}
	r.mu.Unlock()
	ready := int32(0)
	for _, pod := range step.pods {
		if _, serving := servingSince(pod); serving && pod.Labels[v1alpha1.LabelNodeRank] == "0" {
			ready++
		}
	}
	step.pool.Status.LastDecisions, again = autoscaling.Decisions(autoscaling.DemandChange{
		Pool: step.pool, HPA: step.scaler, Ready: ready, Seen: seen.at, Now: now,
	})
	return again
}

func setCondition(pool *v1alpha1.EnginePool, kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&pool.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: pool.Generation,
	})
}

// sooner gives the shorter of two delays, of which 0 is never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || (b > 0 && b < a) {
		return b
	}
	return a
}
