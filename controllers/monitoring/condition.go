package monitoring

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// Result is what became of the ServiceMonitor of one pool.
type Result struct {
	Pool    string
	Outcome Outcome
	Err     error // with Failed
}

// Provisioned gives the condition MonitoringProvisioned of a service from its pools' results: False when the API server
// refused one, Unknown when the cluster has no ServiceMonitor resource, else True. The caller sets the transition time.
func Provisioned(results []Result, generation int64) metav1.Condition {
	condition := metav1.Condition{Type: v1alpha1.ConditionMonitoringProvisioned, ObservedGeneration: generation}
	var failed []string
	missing := false
	for _, r := range results {
		switch r.Outcome {
		case Failed:
			failed = append(failed, fmt.Sprintf("%s: %v", r.Pool, r.Err))
		case CRDMissing:
			missing = true
		}
	}
	slices.Sort(failed)
	switch {
	case len(failed) > 0:
		condition.Status, condition.Reason = metav1.ConditionFalse, "ApplyFailed"
		condition.Message = strings.Join(failed, "; ")
	case missing:
		condition.Status, condition.Reason = metav1.ConditionUnknown, string(CRDMissing)
		condition.Message = "the cluster has no resource servicemonitors.monitoring.coreos.com; metrics are served and not scraped by it"
	default:
		condition.Status, condition.Reason = metav1.ConditionTrue, "Provisioned"
		condition.Message = fmt.Sprintf("%d of %d pools have a ServiceMonitor", len(results), len(results))
	}
	return condition
}
