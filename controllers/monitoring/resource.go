package monitoring

import (
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Resource is a kind of another operator that a cluster may have or not.
type Resource struct {
	Kind string
	GVR  schema.GroupVersionResource
}

// ServiceMonitors, PodMonitors and PrometheusRules are resources of prometheus-operator.
var (
	ServiceMonitors = Resource{monitoringv1.ServiceMonitorsKind, monitoringv1.SchemeGroupVersion.WithResource(monitoringv1.ServiceMonitorName)}
	PodMonitors     = Resource{monitoringv1.PodMonitorsKind, monitoringv1.SchemeGroupVersion.WithResource(monitoringv1.PodMonitorName)}
	PrometheusRules = Resource{monitoringv1.PrometheusRuleKind, monitoringv1.SchemeGroupVersion.WithResource(monitoringv1.PrometheusRuleName)}
)

// name is the resource as people write it: servicemonitors.monitoring.coreos.com.
func (r Resource) name() string { return r.GVR.GroupResource().String() }
