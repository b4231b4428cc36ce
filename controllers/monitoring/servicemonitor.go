package monitoring

import (
	"maps"
	"strings"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// DefaultInterval between two scrapes.
const DefaultInterval = "15s"

// Options are the parts of a monitor that the installation decides.
type Options struct {
	// Labels are added to every ServiceMonitor, for a Prometheus that selects by labels, for example release=prometheus.
	Labels map[string]string
	// Interval between two scrapes, in Prometheus' spelling; by default DefaultInterval.
	Interval string
}

// podLabel says which label of a series is filled from which label of the pod.
type podLabel struct{ series, pod string }

// podLabels are put on every series on which the engine does not put them itself. The rank labels exist only on pods
// that host exactly one rank.
func podLabels() []podLabel {
	return []podLabel{
		{"replica", v1alpha1.LabelReplica},
		{"node_rank", v1alpha1.LabelNodeRank},
		{"revision", v1alpha1.LabelRevision},
		{"engine_type", v1alpha1.LabelEngineType},
		{"tp_rank", v1alpha1.LabelTPRank},
		{"pp_rank", v1alpha1.LabelPPRank},
		{"moe_ep_rank", v1alpha1.LabelMoEEPRank},
	}
}

// BuildServiceMonitor gives the ServiceMonitor of a pool, owned by it and with its name. It selects the pool's headless
// Service and scrapes the port named http of every pod of every replica.
func BuildServiceMonitor(pool *v1alpha1.EnginePool, options Options) *monitoringv1.ServiceMonitor {
	interval := options.Interval
	if interval == "" {
		interval = DefaultInterval
	}
	labels := plan.PoolLabels(pool.Spec)
	maps.Copy(labels, options.Labels)

	constants := constantLabels(pool)
	var relabel []monitoringv1.RelabelConfig
	for _, l := range podLabels() {
		relabel = append(relabel, fromPodLabel(l))
	}
	relabel = append(relabel, constants...)

	return &monitoringv1.ServiceMonitor{
		TypeMeta: metav1.TypeMeta{APIVersion: monitoringv1.SchemeGroupVersion.String(), Kind: monitoringv1.ServiceMonitorsKind},
		ObjectMeta: metav1.ObjectMeta{
			Name:            pool.Name,
			Namespace:       pool.Namespace,
			Labels:          labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pool, v1alpha1.GroupVersion.WithKind("EnginePool"))},
		},
		Spec: monitoringv1.ServiceMonitorSpec{
			Selector:          metav1.LabelSelector{MatchLabels: plan.EngineSelector(pool.Spec)},
			NamespaceSelector: monitoringv1.NamespaceSelector{MatchNames: []string{pool.Namespace}},
			Endpoints: []monitoringv1.Endpoint{{
				Port:                 v1alpha1.PortHTTP,
				Path:                 "/metrics",
				Scheme:               "http",
				Interval:             monitoringv1.Duration(interval),
				HonorLabels:          true,
				FollowRedirects:      new(false), // an engine must not send Prometheus elsewhere
				RelabelConfigs:       relabel,
				MetricRelabelConfigs: constants,
			}},
		},
	}
}

// constantLabels are the labels that identify whose series these are. They are set on the target, for up and scrape_*,
// and again on every sample, since an engine's own labels are honoured before that.
func constantLabels(pool *v1alpha1.EnginePool) []monitoringv1.RelabelConfig {
	tenant := pool.Spec.Tenant
	if tenant == "" {
		tenant = pool.Namespace
	}
	return []monitoringv1.RelabelConfig{
		constant("namespace", pool.Namespace),
		constant("tenant", tenant),
		constant("inference_service", pool.Spec.Service),
		constant("pool", pool.Spec.Pool),
	}
}

func constant(label, value string) monitoringv1.RelabelConfig {
	return monitoringv1.RelabelConfig{
		Action:      "replace",
		TargetLabel: label,
		// A dollar sign would refer to a group of the regular expression.
		Replacement: new(strings.ReplaceAll(value, "$", "$$")),
	}
}

// fromPodLabel copies a label of the pod that is there and not empty.
func fromPodLabel(l podLabel) monitoringv1.RelabelConfig {
	return monitoringv1.RelabelConfig{
		Action:       "replace",
		SourceLabels: []monitoringv1.LabelName{monitoringv1.LabelName("__meta_kubernetes_pod_label_" + metaName(l.pod))},
		Regex:        "(.+)",
		TargetLabel:  l.series,
		Replacement:  new("$1"),
	}
}

// metaName is a Kubernetes label key as Prometheus' service discovery spells it.
func metaName(key string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, key)
}
