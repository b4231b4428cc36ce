package view

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// phrase is what a condition says when it is True, False and Unknown.
type phrase struct{ kind, yes, no, unknown string }

// phrases are in the order in which conditions are shown.
func phrases() []phrase {
	return []phrase{
		{v1alpha1.ConditionReady, "it serves", "it does not serve", "it is not known whether it serves"},
		{v1alpha1.ConditionProgressing, "replicas change", "nothing changes", "it is not known whether replicas change"},
		{v1alpha1.ConditionRouterReady, "the router takes requests", "no router is ready", "it is not known whether a router is ready"},
		{v1alpha1.ConditionMetricsFlowing, "every rank reports", "ranks do not report", "no rank can report yet"},
		{v1alpha1.ConditionMonitoringProvisioned, "Prometheus is told what to scrape", "Prometheus is not told all that it has to scrape", "the cluster has no monitors"},
		{v1alpha1.ConditionScalingActive, "autoscaling reads its numbers", "autoscaling holds: a number is missing", "it is not known whether autoscaling works"},
		{v1alpha1.ConditionTracingApplied, "engines trace as asked", "engines do not trace as asked", "it is not known how engines trace"},
		{v1alpha1.ConditionLedgerConsistent, "the engines' books add up", "the engines' books do not add up", "the engines' books were not seen yet"},
		{v1alpha1.ConditionDegraded, "it serves worse than it should", "nothing is degraded", "it is not known whether it is degraded"},
		{v1alpha1.ConditionDashboardsProvisioned, "its dashboards are there", "its dashboards are missing", "it is not known where dashboards go"},
	}
}

// words says what a condition means; one that is not known is named.
func words(kind string, status metav1.ConditionStatus) string {
	for _, p := range phrases() {
		if p.kind != kind {
			continue
		}
		switch status {
		case metav1.ConditionTrue:
			return p.yes
		case metav1.ConditionFalse:
			return p.no
		default:
			return p.unknown
		}
	}
	return fmt.Sprintf("%s is %s", kind, status)
}

// rankOf is the place of a condition; unknown ones come last.
func rankOf(kind string) int {
	if i := slices.IndexFunc(phrases(), func(p phrase) bool { return p.kind == kind }); i >= 0 {
		return i
	}
	return len(phrases())
}
