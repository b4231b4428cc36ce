package monitoring

import (
	"maps"
	"slices"
	"strconv"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// job is what prometheus-operator makes of a monitor: a scrape configuration.
type job struct {
	target, sample []*relabel.Config
	honor          bool
	role           string // of the service discovery: endpointslice or pod
}

// newJob writes the scrape configuration of a monitor: the rules that prometheus-operator has for every one, then the
// monitor's own.
func newJob(t *testing.T, monitor client.Object) job {
	t.Helper()
	var (
		own, sample []monitoringv1.RelabelConfig
		j           job
	)
	rule := func(action, target, replacement, regex string, source ...monitoringv1.LabelName) monitoringv1.RelabelConfig {
		c := monitoringv1.RelabelConfig{Action: action, TargetLabel: target, Regex: regex, SourceLabels: source}
		if replacement != "" {
			c.Replacement = &replacement
		}
		return c
	}
	selected := func(selector map[string]string, kind string) (rules []monitoringv1.RelabelConfig) {
		for _, key := range slices.Sorted(maps.Keys(selector)) {
			name := metaName(key)
			rules = append(rules, rule("keep", "", "", "("+selector[key]+");true",
				monitoringv1.LabelName("__meta_kubernetes_"+kind+"_label_"+name), monitoringv1.LabelName("__meta_kubernetes_"+kind+"_labelpresent_"+name)))
		}
		return rules
	}
	general := []monitoringv1.RelabelConfig{
		rule("replace", "__tmp_prometheus_job_name", "", "", "job"),
		rule("drop", "", "", "(Failed|Succeeded)", "__meta_kubernetes_pod_phase"),
	}
	switch m := monitor.(type) {
	case *monitoringv1.ServiceMonitor:
		e := m.Spec.Endpoints[0]
		j.role, j.honor, own, sample = "endpointslice", e.HonorLabels, e.RelabelConfigs, e.MetricRelabelConfigs
		general = append(general, selected(m.Spec.Selector.MatchLabels, "service")...)
		general = append(general,
			rule("keep", "", "", e.Port, "__meta_kubernetes_endpointslice_port_name"),
			rule("replace", "node", "${1}", "Node;(.*)", "__meta_kubernetes_endpointslice_address_target_kind", "__meta_kubernetes_endpointslice_address_target_name"),
			rule("replace", "pod", "${1}", "Pod;(.*)", "__meta_kubernetes_endpointslice_address_target_kind", "__meta_kubernetes_endpointslice_address_target_name"),
			rule("replace", "namespace", "", "", "__meta_kubernetes_namespace"),
			rule("replace", "service", "", "", "__meta_kubernetes_service_name"),
			rule("replace", "pod", "", "", "__meta_kubernetes_pod_name"),
			rule("replace", "container", "", "", "__meta_kubernetes_pod_container_name"),
			rule("replace", "job", "${1}", "", "__meta_kubernetes_service_name"),
			rule("replace", "endpoint", e.Port, ""),
		)
	case *monitoringv1.PodMonitor:
		e := m.Spec.PodMetricsEndpoints[0]
		j.role, j.honor, own, sample = "pod", e.HonorLabels, e.RelabelConfigs, e.MetricRelabelConfigs
		general = append(general, selected(m.Spec.Selector.MatchLabels, "pod")...)
		general = append(general,
			rule("keep", "", "", *e.Port, "__meta_kubernetes_pod_container_port_name"),
			rule("replace", "namespace", "", "", "__meta_kubernetes_namespace"),
			rule("replace", "container", "", "", "__meta_kubernetes_pod_container_name"),
			rule("replace", "pod", "", "", "__meta_kubernetes_pod_name"),
			rule("replace", "job", m.Namespace+"/"+m.Name, ""),
			rule("replace", "endpoint", *e.Port, ""),
		)
	default:
		t.Fatalf("a monitor is %T", monitor)
	}
	j.target, j.sample = rules(t, append(general, own...)), rules(t, sample)
	return j
}

// rules turns relabelings into Prometheus' own configuration, by the names that its file has.
func rules(t *testing.T, configs []monitoringv1.RelabelConfig) []*relabel.Config {
	t.Helper()
	var out []*relabel.Config
	for _, c := range configs {
		rule := relabel.DefaultRelabelConfig
		rule.Action = relabel.Action(c.Action)
		rule.TargetLabel = c.TargetLabel
		for _, l := range c.SourceLabels {
			rule.SourceLabels = append(rule.SourceLabels, model.LabelName(l))
		}
		if c.Separator != nil {
			rule.Separator = *c.Separator
		}
		if c.Regex != "" {
			rule.Regex = relabel.MustNewRegexp(c.Regex)
		}
		if c.Replacement != nil {
			rule.Replacement = *c.Replacement
		}
		if err := rule.Validate(); err != nil {
			t.Fatalf("rule for %s: %v", c.TargetLabel, err)
		}
		out = append(out, &rule)
	}
	return out
}

// discover gives what the service discovery of a role finds of a pod behind a Service: a target for each port of the
// Service, or for each port of the pod.
func discover(role string, pod *corev1.Pod, service *corev1.Service) (targets []map[string]string) {
	base := map[string]string{
		"__scheme__": "http", "__metrics_path__": "/metrics",
		"__meta_kubernetes_namespace": pod.Namespace, "__meta_kubernetes_pod_name": pod.Name, "__meta_kubernetes_pod_ip": "10.0.0.1",
		"__meta_kubernetes_pod_phase": string(pod.Status.Phase), "__meta_kubernetes_pod_ready": "true",
	}
	labelled := func(kind string, of map[string]string) {
		for key, value := range of {
			base["__meta_kubernetes_"+kind+"_label_"+metaName(key)] = value
			base["__meta_kubernetes_"+kind+"_labelpresent_"+metaName(key)] = "true"
		}
	}
	labelled("pod", pod.Labels)
	target := func(port int32, more map[string]string) {
		m := maps.Clone(base)
		m["__address__"] = "10.0.0.1:" + strconv.Itoa(int(port))
		maps.Copy(m, more)
		targets = append(targets, m)
	}
	if role == "endpointslice" {
		labelled("service", service.Labels)
		base["__meta_kubernetes_service_name"] = service.Name
		base["__meta_kubernetes_endpointslice_address_target_kind"], base["__meta_kubernetes_endpointslice_address_target_name"] = "Pod", pod.Name
	}
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			of := map[string]string{
				"__meta_kubernetes_pod_container_name": c.Name, "__meta_kubernetes_pod_container_port_name": p.Name,
				"__meta_kubernetes_pod_container_port_number": strconv.Itoa(int(p.ContainerPort)),
			}
			if role == "endpointslice" {
				for _, s := range service.Spec.Ports { // a port that the Service has not is a target without a name
					if s.TargetPort.StrVal == p.Name {
						of["__meta_kubernetes_endpointslice_port_name"] = s.Name
					}
				}
			}
			target(p.ContainerPort, of)
		}
	}
	return targets
}

// up does what Prometheus does with a target: relabel it, and take its address as the instance. It gives the labels of up.
func (j job) up(meta map[string]string) (up map[string]string, keep bool) {
	target, keep := relabel.Process(labels.FromMap(meta), j.target...)
	if !keep {
		return nil, false
	}
	up = map[string]string{"instance": target.Get("__address__")}
	target.Range(func(l labels.Label) {
		if len(l.Name) <= 2 || l.Name[:2] != "__" {
			up[l.Name] = l.Value
		}
	})
	return up, true
}

// store does what Prometheus does with a sample of a target: merge the labels, of which honoured ones win, and relabel.
func (j job) store(up, exposed map[string]string) (sample map[string]string, keep bool) {
	merged := maps.Clone(up)
	for name, value := range exposed {
		switch _, clash := up[name]; {
		case !clash || j.honor:
			merged[name] = value
		default:
			merged["exported_"+name] = value
		}
	}
	final, keep := relabel.Process(labels.FromMap(merged), j.sample...)
	return final.Map(), keep
}
