package monitoring

import (
	"strings"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// severalRanks is the value of a rank's labels on series of a process that serves several ranks: go_*, process_*, HTTP.
const severalRanks = "all"

// EngineTypeRouter is the label engine_type of a router's series, PoolRouter their label pool.
const (
	EngineTypeRouter = "router"
	PoolRouter       = "router"
)

// rankLabels are the labels of a series that say which rank it is of, and the labels of pods that host one rank alone.
func rankLabels() []podLabel {
	return []podLabel{
		{"tp_rank", v1alpha1.LabelTPRank},
		{"pp_rank", v1alpha1.LabelPPRank},
		{"dp_rank", v1alpha1.LabelDPRank},
		{"moe_ep_rank", v1alpha1.LabelMoEEPRank},
	}
}

// podLabel says which label of a series is filled from which label of the pod.
type podLabel struct{ series, pod string }

// engineRelabelings make the target of an engine pod:
//
//  1. Only the engine's container of a pod that runs is a target. A pod whose image is pulled, or that has ended, would
//     be a target that is down.
//  2. What the pod says of itself. A pod that hosts one rank names it; one that hosts several says all, and on the series of
//     its ranks the engine's own labels win.
//  3. Constants.
func engineRelabelings(pool *v1alpha1.EnginePool) []monitoringv1.RelabelConfig {
	rules := runningContainer(plan.EngineContainer)
	for _, l := range []podLabel{{"replica", v1alpha1.LabelReplica}, {"node_rank", v1alpha1.LabelNodeRank}, {"revision", v1alpha1.LabelRevision}} {
		rules = append(rules, fromPodLabel(l))
	}
	for _, l := range rankLabels() {
		rules = append(rules, constant(l.series, severalRanks), fromPodLabel(l))
	}
	rules = append(rules, constant("engine_type", pool.Spec.Role.EngineType()))
	return append(rules, identity(poolIdentity(pool))...)
}

// routerRelabelings make the target of a router pod, with the same labels as those of engines.
func routerRelabelings(service *v1alpha1.InferenceService) []monitoringv1.RelabelConfig {
	rules := runningContainer(plan.RouterContainer)
	rules = append(rules,
		fromMeta("replica", "__meta_kubernetes_pod_name"),
		constant("node_rank", "0"),
		fromPodLabel(podLabel{"revision", "pod-template-hash"}),
	)
	for _, l := range rankLabels() {
		rules = append(rules, constant(l.series, severalRanks))
	}
	rules = append(rules, constant("engine_type", EngineTypeRouter))
	return append(rules, identity(routerIdentity(service))...)
}

// owner is whose series they are.
type owner struct{ namespace, tenant, service, pool, job string }

func poolIdentity(pool *v1alpha1.EnginePool) owner {
	tenant := pool.Spec.Tenant
	if tenant == "" {
		tenant = pool.Namespace
	}
	return owner{pool.Namespace, tenant, pool.Spec.Service, pool.Spec.Pool, pool.Name}
}

func routerIdentity(service *v1alpha1.InferenceService) owner {
	return owner{service.Namespace, plan.Tenant(service), service.Name, PoolRouter, plan.RouterName(service.Name)}
}

// identity sets the labels that say whose series these are. They are set on the target, for up and scrape_*, and again on
// every sample, since a process's own labels are honoured before that.
func identity(of owner) []monitoringv1.RelabelConfig {
	return []monitoringv1.RelabelConfig{
		constant("namespace", of.namespace),
		constant("tenant", of.tenant),
		constant("inference_service", of.service),
		constant("pool", of.pool),
		constant("job", of.job),
	}
}

// sampleRelabelings are run on every sample: what is ours by name stays, the families that the budget has no room for go,
// and nobody says that it is somebody else.
func sampleRelabelings(of owner, dropped []string) []monitoringv1.RelabelConfig {
	rules := []monitoringv1.RelabelConfig{{Action: "keep", SourceLabels: []monitoringv1.LabelName{"__name__"}, Regex: ownNames}}
	if len(dropped) > 0 {
		rules = append(rules, monitoringv1.RelabelConfig{
			Action: "drop", SourceLabels: []monitoringv1.LabelName{"__name__"},
			Regex: "(" + strings.Join(dropped, "|") + ")(_bucket|_sum|_count)?",
		})
	}
	return append(rules, identity(of)...)
}

// ownNames are the names of the series that engines and routers export.
const ownNames = "(sglang:|sluice_|go_|process_|promhttp_).*"

// runningContainer keeps the targets of one container of pods that run.
func runningContainer(name string) []monitoringv1.RelabelConfig {
	return []monitoringv1.RelabelConfig{
		{Action: "keep", SourceLabels: []monitoringv1.LabelName{"__meta_kubernetes_pod_phase"}, Regex: "Running"},
		{Action: "keep", SourceLabels: []monitoringv1.LabelName{"__meta_kubernetes_pod_container_name"}, Regex: name},
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
	return fromMeta(l.series, "__meta_kubernetes_pod_label_"+metaName(l.pod))
}

func fromMeta(label, meta string) monitoringv1.RelabelConfig {
	return monitoringv1.RelabelConfig{
		Action:       "replace",
		SourceLabels: []monitoringv1.LabelName{monitoringv1.LabelName(meta)},
		Regex:        "(.+)",
		TargetLabel:  label,
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
