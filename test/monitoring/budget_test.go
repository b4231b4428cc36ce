package monitoring

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	monitors "github.com/sluice-dev/sluice/controllers/monitoring"
	"github.com/sluice-dev/sluice/router/discovery"
	"github.com/sluice-dev/sluice/router/metrics"
	"github.com/sluice-dev/sluice/router/proxy"
)

// TestRouterBudget: the table of a router's families, with as many label values as it may have, is within the sample
// limit of the router's monitor.
func TestRouterBudget(t *testing.T) {
	values := map[string]int{
		"route": len(proxy.Routes()), "outcome": len(proxy.Outcomes()), "reason": len(proxy.RetryReasons()),
		"role":  len([]discovery.Role{discovery.Prefill, discovery.Decode, discovery.Unified}),
		"state": len([]discovery.State{discovery.StateReady, discovery.StateNotReady, discovery.StateDraining}),
		"code":  30, // whatever engines answer; those that they and the router know are fewer
	}
	series := 0
	for _, f := range metrics.Families() {
		n := 1
		for _, label := range f.Labels {
			if values[label] == 0 {
				t.Errorf("%s has a label %s that is not counted", f.Name, label)
			}
			n *= values[label]
		}
		if f.Kind == metrics.Histogram {
			n *= len(f.Buckets) + 3
		}
		series += n
	}
	service := &v1alpha1.InferenceService{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "chat"}}
	if b := monitors.RouterMonitor(service, monitors.Options{}).Budget; series > b.Series {
		t.Errorf("a router may export %d series, %d were expected", series, b.Series)
	}
}
