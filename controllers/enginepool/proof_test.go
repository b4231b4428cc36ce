package enginepool

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/observe"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// proofs is what was read, as a test wants it.
type proofs struct{ observe.PoolProof }

func (p proofs) Pool(types.NamespacedName) observe.PoolProof  { return p.PoolProof }
func (p proofs) Note(types.NamespacedName, []observe.Finding) {}
func (p proofs) Source() source.Source                        { return nil }
func frozenReading(uid types.UID, at time.Time) observe.PodReading {
	return observe.PodReading{UID: uid, Taken: at, Frozen: []observe.FrozenRank{{Rank: observe.RankID{DP: 1}, Since: at, Held: "1 running"}}}
}

// TestFailFrozen: a frozen rank fails its replica where the policy says so, and nothing else does.
func TestFailFrozen(t *testing.T) {
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name   string
		reason string
		policy v1alpha1.FrozenPolicy
		phase  plan.ReplicaPhase
		uid    types.UID
		want   plan.Replica
	}{
		{"Restart", "the policy asks for it", v1alpha1.FrozenRestart, plan.ReplicaReady, "1",
			plan.Replica{Phase: plan.ReplicaFailed, FailedAt: at, Ran: time.Hour, Failure: "rank d-0-0/1 holds requests and computed no token since 2026-05-01T12:00:00Z"}},
		{"Report", "it is only told", v1alpha1.FrozenReport, plan.ReplicaReady, "1", plan.Replica{Phase: plan.ReplicaReady}},
		{"Starting", "a replica that starts has no request", v1alpha1.FrozenRestart, plan.ReplicaStarting, "1", plan.Replica{Phase: plan.ReplicaStarting}},
		{"Another", "the reading is of a pod of that name before", v1alpha1.FrozenRestart, plan.ReplicaReady, "2", plan.Replica{Phase: plan.ReplicaReady}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Name: "d-0-0", UID: tc.uid, Labels: map[string]string{v1alpha1.LabelReplica: "0", v1alpha1.LabelNodeRank: "0"}, CreationTimestamp: metav1.NewTime(at.Add(-time.Hour)),
			}}
			pool := &v1alpha1.EnginePool{ObjectMeta: metav1.ObjectMeta{Name: "d"}}
			pool.Spec.Observability.FrozenPolicy = tc.policy
			step := &step{pool: pool, pods: []*corev1.Pod{pod}, replicas: []plan.Replica{{Phase: tc.phase}}}
			r := &Reconciler{Config: Config{Proofs: proofs{observe.PoolProof{Pods: map[string]observe.PodReading{"d-0-0": frozenReading("1", at)}}}}}
			r.failFrozen(step)
			if diff := cmp.Diff([]plan.Replica{tc.want}, step.replicas); diff != "" {
				t.Errorf("(-want +got), %s:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestProofConditions: the conditions name the ranks and the laws, and say nothing of what was not read.
func TestProofConditions(t *testing.T) {
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	expected := []observe.ExpectedPod{{Name: "d-0-0", Ranks: []observe.RankID{{}}}}
	condition := func(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
	}
	for _, tc := range []struct {
		name    string
		reason  string
		reading *observe.PodReading
		want    []metav1.Condition
	}{
		{"NotRead", "what the last operator found stays", nil, nil},
		{"Good", "all is well", &observe.PodReading{Taken: at, Exposition: observe.Exposition{Violations: map[string]float64{"kv_pages": 0}}}, []metav1.Condition{
			condition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, "EveryRankMoves", "every rank that holds work does some"),
			condition(v1alpha1.ConditionLedgerConsistent, metav1.ConditionTrue, "EveryLawHolds", "no engine's ledger broke a law since its start"),
		}},
		{"Bad", "both are wrong", &observe.PodReading{Taken: at, Frozen: frozenReading("", at).Frozen, Exposition: observe.Exposition{Violations: map[string]float64{"stages": 2, "kv_pages": 3, "outcomes": 0}}}, []metav1.Condition{
			condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, "Frozen", "rank d-0-0/1 holds requests and computed no token since 2026-05-01T12:00:00Z"),
			condition(v1alpha1.ConditionLedgerConsistent, metav1.ConditionFalse, "LawBroken", "d-0-0: kv_pages, 3 times; d-0-0: stages, 2 times"),
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			step := &step{pool: &v1alpha1.EnginePool{}}
			proof := observe.PoolProof{Pods: map[string]observe.PodReading{}}
			if tc.reading != nil {
				proof.Pods["d-0-0"] = *tc.reading
			}
			setDegraded(step, expected, proof)
			setLedger(step, expected, proof)
			got := step.pool.Status.Conditions
			for i := range got {
				got[i].LastTransitionTime = metav1.Time{}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got), %s:\n%s", tc.reason, diff)
			}
		})
	}
	step := &step{pool: &v1alpha1.EnginePool{}}
	setCondition(step.pool, v1alpha1.ConditionDegraded, metav1.ConditionTrue, reasonFrozen, "x")
	setDegraded(step, nil, observe.PoolProof{})
	if !meta.IsStatusConditionPresentAndEqual(step.pool.Status.Conditions, v1alpha1.ConditionDegraded, metav1.ConditionUnknown) {
		t.Errorf("without a replica: %+v", step.pool.Status.Conditions)
	}
}
