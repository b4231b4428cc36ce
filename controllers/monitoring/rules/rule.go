package rules

import (
	"fmt"
	"maps"
	"strings"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// DefaultRunbooks is where the pages are that alerts link to.
const DefaultRunbooks = "https://github.com/sluice-dev/sluice/blob/main/docs"

// Options are the parts of rules that the installation decides.
type Options struct {
	// Labels are added to every PrometheusRule, for a Prometheus that selects by labels, for example release=prometheus.
	Labels map[string]string
	// Runbooks is the URL under which the pages of docs/ are; by default DefaultRunbooks.
	Runbooks string
}

// Build gives the PrometheusRule of a service, owned by it and with its name. It fails on objectives that cannot be measured.
func Build(service *v1alpha1.InferenceService, options Options) (*monitoringv1.PrometheusRule, error) {
	s := &scope{namespace: service.Namespace, tenant: plan.Tenant(service), service: service.Name}
	slos, err := objectives(service)
	if err != nil {
		return nil, err
	}
	recorded, alerting := recordings(s), alerts(s, service)
	for _, o := range slos {
		recorded = append(recorded, sloRecordings(s, o)...)
		alerting = append(alerting, sloAlerts(s, o)...)
	}
	scaling, err := scalingRecordings(s, service)
	if err != nil {
		return nil, err
	}
	if err := s.err(); err != nil {
		return nil, err
	}
	groups := []monitoringv1.RuleGroup{
		{Name: group(service, "recording"), Rules: recordingRules(s, recorded)},
		{Name: group(service, "alerts"), Rules: alertingRules(s, alerting, options)},
	}
	if len(scaling) > 0 {
		groups = append(groups, monitoringv1.RuleGroup{Name: group(service, "scaling"), Interval: new(monitoringv1.Duration(scalingInterval)), Rules: recordingRules(s, scaling)})
	}
	labels := maps.Clone(options.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, service.Spec.Observability.Rules.Labels)
	maps.Copy(labels, plan.ServiceLabels(service, v1alpha1.ComponentRules))
	return &monitoringv1.PrometheusRule{
		TypeMeta: metav1.TypeMeta{APIVersion: monitoringv1.SchemeGroupVersion.String(), Kind: monitoringv1.PrometheusRuleKind},
		ObjectMeta: metav1.ObjectMeta{
			Name: service.Name, Namespace: service.Namespace, Labels: labels, OwnerReferences: plan.OwnedByService(service),
		},
		Spec: monitoringv1.PrometheusRuleSpec{Groups: groups},
	}, nil
}

// group names a group. Prometheus knows groups by their file too, but people read the name alone.
func group(service *v1alpha1.InferenceService, kind string) string {
	return fmt.Sprintf("sluice.%s.%s.%s", service.Namespace, service.Name, kind)
}

func recordingRules(s *scope, list []recording) []monitoringv1.Rule {
	rules := make([]monitoringv1.Rule, len(list))
	for i, r := range list {
		rules[i] = monitoringv1.Rule{Record: r.name, Expr: intstr.FromString(r.expr), Labels: s.labels(r.labels)}
	}
	return rules
}

func alertingRules(s *scope, list []alert, options Options) []monitoringv1.Rule {
	// What a template knows are the labels of what the query finds, and few queries keep the service's.
	named := strings.NewReplacer("SERVICE", s.service)
	rules := make([]monitoringv1.Rule, len(list))
	for i, a := range list {
		labels := s.labels(a.labels)
		labels["severity"] = a.severity
		rules[i] = a.rule(labels, named, options.Runbooks)
	}
	return rules
}

// rule gives the alert as prometheus-operator has it, with links to pages under runbooks, by default DefaultRunbooks.
func (a alert) rule(labels map[string]string, named *strings.Replacer, runbooks string) monitoringv1.Rule {
	if runbooks == "" {
		runbooks = DefaultRunbooks
	}
	rule := monitoringv1.Rule{
		Alert: a.name, Expr: intstr.FromString(a.expr), Labels: labels,
		Annotations: map[string]string{
			"summary": named.Replace(a.summary), "description": named.Replace(a.description), "runbook_url": strings.TrimSuffix(runbooks, "/") + "/" + a.anchor,
		},
	}
	if a.wait != "" {
		rule.For = new(monitoringv1.Duration(a.wait))
	}
	return rule
}
