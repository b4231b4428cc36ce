package enginepool

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/observe"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// Proofs is what the controller needs to know of the engines' metrics. *observe.Proofs has it.
type Proofs interface {
	// Pool gives the newest readings of a pool's pods, and what Prometheus stored.
	Pool(pool types.NamespacedName) observe.PoolProof
	// Note takes the findings of a pool.
	Note(pool types.NamespacedName, findings []observe.Finding)
	// Source tells which pools' readings changed.
	Source() source.Source
}

const (
	reasonPrometheusUnreachable = "PrometheusUnreachable"
	reasonFrozen                = "Frozen"
	reasonMoving                = "EveryRankMoves"
	reasonLawsHold              = "EveryLawHolds"
	reasonLawBroken             = "LawBroken"
)

// expectedPods lists the pods that must export series: those of the replicas that are meant to stay and have served, or
// replace one that had. A replica that starts for the first time has nothing to prove.
func expectedPods(step *step) []observe.ExpectedPod {
	var expected []observe.ExpectedPod
	allRanks := plan.AllRanksExport(step.pool.Spec)
	for _, replica := range step.replicas {
		if !replica.Active() || (replica.Phase == plan.ReplicaStarting && replica.Restarts == 0) {
			continue
		}
		pods := map[string]*corev1.Pod{}
		layout := step.layout
		for _, pod := range step.podsOf(replica.Ordinal) {
			pods[pod.Labels[v1alpha1.LabelNodeRank]] = pod
			layout = plan.LayoutOf(pod)
		}
		for node := range layout.Nodes {
			pod := pods[strconv.Itoa(int(node))]
			e := observe.ExpectedPod{Name: plan.PodName(step.pool.Name, replica.Ordinal, node), Labels: seriesLabels(step.pool, pod)}
			for _, rank := range layout.Exporting(node, allRanks) {
				e.Ranks = append(e.Ranks, observe.RankID{DP: int(rank.DP), PP: int(rank.PP), TP: int(rank.TP)})
			}
			e.Absent, e.Since = absence(pod)
			expected = append(expected, e)
		}
	}
	return expected
}

// absence says why a pod cannot be scraped, or since when it can.
func absence(pod *corev1.Pod) (why string, since time.Time) {
	switch {
	case pod == nil:
		return "the pod does not exist", time.Time{}
	case pod.Status.Phase != corev1.PodRunning:
		return "the pod is " + cmp.Or(string(pod.Status.Phase), string(corev1.PodPending)), time.Time{}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
			return "", condition.LastTransitionTime.Time
		}
	}
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == plan.EngineContainer && status.Started != nil && *status.Started {
			return "", pod.CreationTimestamp.Time
		}
	}
	return "the engine starts", time.Time{}
}

// seriesLabels are those that the monitor puts on every series of a pod.
func seriesLabels(pool *v1alpha1.EnginePool, pod *corev1.Pod) map[string]string {
	labels := map[string]string{
		"namespace": pool.Namespace, "tenant": cmp.Or(pool.Spec.Tenant, pool.Namespace), "inference_service": pool.Spec.Service, "pool": pool.Spec.Pool,
	}
	if pod != nil {
		labels["replica"], labels["node_rank"] = pod.Labels[v1alpha1.LabelReplica], pod.Labels[v1alpha1.LabelNodeRank]
		labels["revision"] = pod.Labels[v1alpha1.LabelRevision]
	}
	return labels
}

// observeProof sets the conditions that rest on the engines' metrics. again is when a grace ends; 0 is never.
func (r *Reconciler) observeProof(ctx context.Context, step *step, now time.Time) (again time.Duration) {
	if r.Proofs == nil {
		return 0
	}
	pool, key := step.pool, client.ObjectKeyFromObject(step.pool)
	proof := r.Proofs.Pool(key)
	if wait := r.started.Add(proof.Grace()).Sub(now); wait > 0 && len(step.pods) > 0 && len(proof.Pods) < len(step.pods) {
		return wait // the pods were not read yet; what the last operator found stays
	}
	proof.NoMonitor = pool.Spec.Observability.Monitor == v1alpha1.MonitorNone
	expected := expectedPods(step)
	findings, again := observe.Prove(pool.Spec.Role, expected, proof, now)
	r.namePolicies(ctx, step, findings)
	r.Proofs.Note(key, findings)
	flowing := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionMetricsFlowing)
	switch {
	case len(findings) > 0:
		setCondition(pool, v1alpha1.ConditionMetricsFlowing, metav1.ConditionFalse, string(findings[0].Cause), findingsMessage(findings))
	case flowing != nil && flowing.Status == metav1.ConditionTrue && proof.Stored != nil && proof.Stored.Err != nil:
		setCondition(pool, v1alpha1.ConditionMetricsFlowing, metav1.ConditionUnknown, reasonPrometheusUnreachable,
			"every rank exports its series; whether they are stored is not known: "+proof.Stored.Err.Error())
	}
	setDegraded(step, expected, proof)
	setLedger(step, expected, proof)
	return again
}

// findingsMessage names the first ranks; the causes that count most come first.
func findingsMessage(findings []observe.Finding) string {
	names := make([]string, 0, namedRanks)
	for _, f := range findings[:min(len(findings), namedRanks)] {
		names = append(names, f.String())
	}
	message := "no fresh series of " + strings.Join(names, ", ")
	if more := len(findings) - namedRanks; more > 0 {
		message += fmt.Sprintf(" and %d more", more)
	}
	return message
}

// setDegraded names the ranks that hold work and do none.
func setDegraded(step *step, expected []observe.ExpectedPod, proof observe.PoolProof) {
	var frozen []string
	judged := false
	for _, pod := range expected {
		reading := proof.Pods[pod.Name]
		judged = judged || !reading.Taken.IsZero()
		for _, f := range reading.Frozen {
			frozen = append(frozen, frozenText(pod.Name, f))
		}
	}
	switch {
	case len(frozen) > 0:
		setCondition(step.pool, v1alpha1.ConditionDegraded, metav1.ConditionTrue, reasonFrozen, strings.Join(frozen[:min(len(frozen), namedRanks)], "; "))
	case judged:
		setCondition(step.pool, v1alpha1.ConditionDegraded, metav1.ConditionFalse, reasonMoving, "every rank that holds work does some")
	case len(expected) == 0:
		leaveUnjudged(step.pool, v1alpha1.ConditionDegraded)
	}
}

func frozenText(pod string, f observe.FrozenRank) string {
	return fmt.Sprintf("rank %s/%s holds requests and computed no token since %s", pod, f.Rank, f.Since.UTC().Format(time.RFC3339))
}

// setLedger names the laws that do not hold, with the engines and their numbers.
func setLedger(step *step, expected []observe.ExpectedPod, proof observe.PoolProof) {
	var broken []string
	judged := false
	for _, pod := range expected {
		violations := proof.Pods[pod.Name].Exposition.Violations
		judged = judged || violations != nil
		for _, law := range slices.Sorted(maps.Keys(violations)) {
			if n := violations[law]; n > 0 {
				broken = append(broken, fmt.Sprintf("%s: %s, %.0f times", pod.Name, law, n))
			}
		}
	}
	switch {
	case len(broken) > 0:
		setCondition(step.pool, v1alpha1.ConditionLedgerConsistent, metav1.ConditionFalse, reasonLawBroken, strings.Join(broken[:min(len(broken), namedRanks)], "; "))
	case judged:
		setCondition(step.pool, v1alpha1.ConditionLedgerConsistent, metav1.ConditionTrue, reasonLawsHold, "no engine's ledger broke a law since its start")
	case len(expected) == 0:
		leaveUnjudged(step.pool, v1alpha1.ConditionLedgerConsistent)
	}
}

// leaveUnjudged says that nothing is known any more of what was known once.
func leaveUnjudged(pool *v1alpha1.EnginePool, kind string) {
	if meta.FindStatusCondition(pool.Status.Conditions, kind) != nil {
		setCondition(pool, kind, metav1.ConditionUnknown, reasonNothingToPoll, "no replica has served")
	}
}

// announceProof tells when series stop arriving, a rank freezes or a law breaks, and when that is over.
func (r *Reconciler) announceProof(before, pool *v1alpha1.EnginePool) {
	for _, of := range []struct {
		kind string
		bad  metav1.ConditionStatus
	}{
		{v1alpha1.ConditionMetricsFlowing, metav1.ConditionFalse}, {v1alpha1.ConditionDegraded, metav1.ConditionTrue},
		{v1alpha1.ConditionLedgerConsistent, metav1.ConditionFalse},
	} {
		was := meta.FindStatusCondition(before.Status.Conditions, of.kind)
		is := meta.FindStatusCondition(pool.Status.Conditions, of.kind)
		wasBad, isBad := was != nil && was.Status == of.bad, is != nil && is.Status == of.bad
		switch {
		case isBad && !wasBad:
			r.Recorder.Eventf(pool, nil, corev1.EventTypeWarning, is.Reason, "Observe", "%s is %s: %s", of.kind, is.Status, is.Message)
		case wasBad && is != nil && !isBad:
			r.Recorder.Eventf(pool, nil, corev1.EventTypeNormal, is.Reason, "Observe", "%s is %s: %s", of.kind, is.Status, is.Message)
		}
	}
}

// failFrozen makes replicas failed that have a frozen rank, where the pool's policy says so: a failed replica is replaced,
// with the delay that grows with the failures in a row.
func (r *Reconciler) failFrozen(step *step) {
	if r.Proofs == nil || step.pool.Spec.Observability.FrozenPolicy != v1alpha1.FrozenRestart {
		return
	}
	proof := r.Proofs.Pool(client.ObjectKeyFromObject(step.pool))
	for i := range step.replicas {
		replica := &step.replicas[i]
		if !replica.Active() || replica.Phase == plan.ReplicaStarting || replica.Phase == plan.ReplicaFailed {
			continue
		}
		for _, pod := range step.podsOf(replica.Ordinal) {
			reading := proof.Pods[pod.Name]
			if len(reading.Frozen) == 0 || reading.UID != pod.UID {
				continue
			}
			f := reading.Frozen[0]
			replica.Phase, replica.Failure = plan.ReplicaFailed, frozenText(pod.Name, f)
			replica.FailedAt, replica.Ran = f.Since, f.Since.Sub(pod.CreationTimestamp.Time)
			break
		}
	}
}

// goodNews leaves out the conditions that say that nothing is wrong: they may wait for the next write.
func goodNews(conditions []metav1.Condition) []metav1.Condition {
	return slices.DeleteFunc(slices.Clone(conditions), func(c metav1.Condition) bool {
		return c.Type == v1alpha1.ConditionDegraded && c.Status == metav1.ConditionFalse ||
			c.Type == v1alpha1.ConditionLedgerConsistent && c.Status == metav1.ConditionTrue
	})
}
