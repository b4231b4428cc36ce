package inferenceservice

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/observe"
)

// Proofs is what the controller needs to know of the engines' metrics. *observe.Proofs has it.
type Proofs interface {
	// KV says whether the hand-overs of a service add up.
	KV(service types.NamespacedName) observe.KVVerdict
	// ServiceSource tells for which services that changed.
	ServiceSource() source.Source
}

const (
	reasonKVBytes  = "KVBytesDiffer"
	reasonLawsHold = "EveryLawHolds"
	reasonMoving   = "EveryRankMoves"
)

// setDegraded is True when one pool's is.
func setDegraded(step *step) {
	worst, messages := step.worst(v1alpha1.ConditionDegraded, metav1.ConditionTrue)
	switch {
	case worst == nil:
	case worst.Status == metav1.ConditionTrue:
		step.set(v1alpha1.ConditionDegraded, metav1.ConditionTrue, worst.Reason, messages)
	case worst.Status == metav1.ConditionUnknown:
		step.set(v1alpha1.ConditionDegraded, metav1.ConditionUnknown, worst.Reason, messages)
	default:
		step.set(v1alpha1.ConditionDegraded, metav1.ConditionFalse, reasonMoving, "every rank that holds work does some")
	}
}

// setLedger is False when one pool's is, or when prefill engines sent another amount of KV than decode engines received.
func setLedger(step *step, kv observe.KVVerdict) {
	worst, messages := step.worst(v1alpha1.ConditionLedgerConsistent, metav1.ConditionFalse)
	switch {
	case kv.Broken != "":
		message := fmt.Sprintf("%s; since %s sent %.0f, failed %.0f, received %.0f bytes", kv.Broken, kv.Since.UTC().Format(time.RFC3339), kv.Sent, kv.Failed, kv.Received)
		if old := meta.FindStatusCondition(step.service.Status.Conditions, v1alpha1.ConditionLedgerConsistent); old != nil && old.Reason == reasonKVBytes && strings.HasPrefix(old.Message, kv.Broken) {
			message = old.Message // the numbers of when it was found
		}
		step.set(v1alpha1.ConditionLedgerConsistent, metav1.ConditionFalse, reasonKVBytes, message)
	case worst == nil:
	case worst.Status == metav1.ConditionFalse:
		step.set(v1alpha1.ConditionLedgerConsistent, metav1.ConditionFalse, worst.Reason, messages)
	case worst.Status == metav1.ConditionUnknown:
		step.set(v1alpha1.ConditionLedgerConsistent, metav1.ConditionUnknown, worst.Reason, messages)
	case kv.Judged:
		step.set(v1alpha1.ConditionLedgerConsistent, metav1.ConditionTrue, reasonLawsHold, "no engine's ledger broke a law, and KV that was sent was received")
	default:
		message := "no engine's ledger broke a law since its start"
		if old := meta.FindStatusCondition(step.service.Status.Conditions, v1alpha1.ConditionLedgerConsistent); old != nil && old.Status == metav1.ConditionTrue {
			message = old.Message // hand-overs were judged by an operator before this one, which has not read enough yet
		}
		step.set(v1alpha1.ConditionLedgerConsistent, metav1.ConditionTrue, reasonLawsHold, message)
	}
}

// worst finds the condition of the pools that decides, bad before Unknown before good, and joins the messages of those like
// it. It is nil when no pool has the condition.
func (s *step) worst(kind string, bad metav1.ConditionStatus) (worst *metav1.Condition, messages string) {
	severity := func(c *metav1.Condition) int {
		switch c.Status {
		case bad:
			return 2
		case metav1.ConditionUnknown:
			return 1
		default:
			return 0
		}
	}
	var texts []string
	for _, spec := range s.service.Spec.Pools {
		c := s.condition(spec.Name, kind)
		if c == nil {
			continue
		}
		if worst == nil || severity(c) > severity(worst) {
			worst, texts = c, nil
		}
		if severity(c) == severity(worst) {
			texts = append(texts, fmt.Sprintf("pool %s: %s", spec.Name, c.Message))
		}
	}
	return worst, strings.Join(texts, "; ")
}

// goodNews leaves out the conditions that say that nothing is wrong: they may wait for the next write.
func goodNews(conditions []metav1.Condition) []metav1.Condition {
	return slices.DeleteFunc(slices.Clone(conditions), func(c metav1.Condition) bool {
		return c.Type == v1alpha1.ConditionDegraded && c.Status == metav1.ConditionFalse ||
			c.Type == v1alpha1.ConditionLedgerConsistent && c.Status == metav1.ConditionTrue
	})
}

// kv gives the verdict on the service's hand-overs.
func (r *Reconciler) kv(service *v1alpha1.InferenceService) observe.KVVerdict {
	if r.Proofs == nil {
		return observe.KVVerdict{}
	}
	return r.Proofs.KV(client.ObjectKeyFromObject(service))
}
