package monitoring

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// Result is what became of one monitor.
type Result struct {
	Monitor Monitor
	Change  Change
	Err     error // with Failed
}

// Provisioned gives the condition MonitoringProvisioned of a service from the results of its monitors: False when the API
// server refused one, Unknown when the cluster has no such resource, else True. The caller sets the transition time.
func Provisioned(results []Result, generation int64) metav1.Condition {
	condition := metav1.Condition{Type: v1alpha1.ConditionMonitoringProvisioned, ObservedGeneration: generation}
	var failed, missing []string
	wanted := 0
	for _, r := range results {
		if r.Monitor.Kind != v1alpha1.MonitorNone {
			wanted++
		}
		switch r.Change.Outcome {
		case Failed:
			failed = append(failed, fmt.Sprintf("%s: %v", r.Monitor.Of, r.Err))
		case CRDMissing:
			missing = append(missing, resourceOfKind(r.Monitor.Kind).name())
		}
	}
	slices.Sort(failed)
	slices.Sort(missing)
	switch {
	case len(failed) > 0:
		condition.Status, condition.Reason = metav1.ConditionFalse, "ApplyFailed"
		condition.Message = strings.Join(failed, "; ")
	case len(missing) > 0:
		condition.Status, condition.Reason = metav1.ConditionUnknown, string(CRDMissing)
		condition.Message = fmt.Sprintf("the cluster has no resource %s; metrics are served and not scraped by it", strings.Join(slices.Compact(missing), ", "))
	case wanted == 0:
		condition.Status, condition.Reason = metav1.ConditionTrue, "NotWanted"
		condition.Message = "observability.monitor is None: something else scrapes"
	default:
		condition.Status, condition.Reason = metav1.ConditionTrue, "Provisioned"
		condition.Message = fmt.Sprintf("%d of %d monitors exist: of each pool and of the router", wanted, len(results))
	}
	return condition
}

// Status tells of the monitors that were made, in the order of their names; nil when there are none.
func Status(results []Result) *v1alpha1.ObservabilityStatus {
	status := &v1alpha1.ObservabilityStatus{}
	for _, r := range results {
		if r.Change.Outcome != CRDMissing && r.Change.Outcome != Failed && r.Monitor.Kind != v1alpha1.MonitorNone {
			status.Monitors = append(status.Monitors, r.Monitor.Status())
		}
	}
	if len(status.Monitors) == 0 {
		return nil
	}
	slices.SortFunc(status.Monitors, func(a, b v1alpha1.MonitorStatus) int { return cmp.Compare(a.Name, b.Name) })
	return status
}

func resourceOfKind(kind v1alpha1.MonitorKind) Resource {
	if kind == v1alpha1.MonitorPod {
		return PodMonitors
	}
	return ServiceMonitors
}
