package monitoring

import (
	"maps"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/common/model"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// DefaultInterval between two scrapes.
const DefaultInterval = "15s"

// metricsPath is where engines and routers serve their metrics.
const metricsPath = "/metrics"

// Options are the parts of a monitor that the installation decides.
type Options struct {
	// Labels are added to every monitor, for a Prometheus that selects by labels, for example release=prometheus.
	Labels map[string]string
	// Interval between two scrapes where a service says none, in Prometheus' spelling; by default DefaultInterval.
	Interval string
}

// Monitor makes Prometheus scrape one pool, or the router of a service.
type Monitor struct {
	// Of is the pool, or PoolRouter.
	Of   string
	Name string
	Kind v1alpha1.MonitorKind
	// Object is a *ServiceMonitor or *PodMonitor; nil with kind None.
	Object client.Object
	Budget Budget
}

// PoolMonitor gives the monitor of a pool, owned by it and with its name: of the port named http of every pod of every
// replica.
func PoolMonitor(pool *v1alpha1.EnginePool, options Options) Monitor {
	spec := pool.Spec.Observability
	budget := engineBudget(pool)
	draft := draft{
		meta: metav1.ObjectMeta{
			Name:            pool.Name,
			Namespace:       pool.Namespace,
			Labels:          plan.PoolLabels(pool.Spec),
			OwnerReferences: plan.OwnedByPool(pool),
		},
		selector: plan.EngineSelector(pool.Spec),
		target:   engineRelabelings(pool),
		sample:   sampleRelabelings(poolIdentity(pool), budget.Dropped),
		limit:    budget.Limit,
	}
	return Monitor{Of: pool.Spec.Pool, Name: pool.Name, Kind: kindOf(spec), Object: draft.object(spec, options), Budget: budget}
}

// RouterMonitor gives the monitor of a service's router, owned by the service and with the router's name.
func RouterMonitor(service *v1alpha1.InferenceService, options Options) Monitor {
	spec := service.Spec.Observability.MonitorSpec
	budget := routerBudget()
	router := plan.NewRouter(service, plan.RouterDefaults{}).Service
	draft := draft{
		meta: metav1.ObjectMeta{
			Name:            router.Name,
			Namespace:       router.Namespace,
			Labels:          router.Labels,
			OwnerReferences: router.OwnerReferences,
		},
		selector: router.Spec.Selector,
		target:   routerRelabelings(service),
		sample:   sampleRelabelings(routerIdentity(service), budget.Dropped),
		limit:    budget.Limit,
	}
	return Monitor{Of: PoolRouter, Name: router.Name, Kind: kindOf(spec), Object: draft.object(spec, options), Budget: budget}
}

// Status tells of the monitor in the status of its service.
func (m Monitor) Status() v1alpha1.MonitorStatus {
	return v1alpha1.MonitorStatus{Name: m.Name, Kind: m.Kind, Series: int32(m.Budget.Series), SampleLimit: int32(m.Budget.Limit), Dropped: m.Budget.Dropped}
}

// Unwanted are the resources of which the cluster is not to have an object of this name.
func (m Monitor) Unwanted() []Resource {
	switch m.Kind {
	case v1alpha1.MonitorService:
		return []Resource{PodMonitors}
	case v1alpha1.MonitorPod:
		return []Resource{ServiceMonitors}
	default:
		return []Resource{ServiceMonitors, PodMonitors}
	}
}

func kindOf(spec v1alpha1.MonitorSpec) v1alpha1.MonitorKind {
	if spec.Monitor == "" {
		return v1alpha1.MonitorService
	}
	return spec.Monitor
}

// draft is what the two kinds of monitor have in common.
type draft struct {
	meta           metav1.ObjectMeta
	selector       map[string]string
	target, sample []monitoringv1.RelabelConfig
	limit          int
}

func (d draft) object(spec v1alpha1.MonitorSpec, options Options) client.Object {
	labels := map[string]string{}
	maps.Copy(labels, options.Labels)
	maps.Copy(labels, spec.Labels)
	maps.Copy(labels, d.meta.Labels) // the operator finds its objects by these
	d.meta.Labels = labels
	limit := uint64(d.limit)
	version := monitoringv1.SchemeGroupVersion.String()
	switch kindOf(spec) {
	case v1alpha1.MonitorService:
		return &monitoringv1.ServiceMonitor{
			TypeMeta:   metav1.TypeMeta{APIVersion: version, Kind: monitoringv1.ServiceMonitorsKind},
			ObjectMeta: d.meta,
			Spec: monitoringv1.ServiceMonitorSpec{
				Selector:          metav1.LabelSelector{MatchLabels: d.selector},
				NamespaceSelector: monitoringv1.NamespaceSelector{MatchNames: []string{d.meta.Namespace}},
				SampleLimit:       &limit,
				Endpoints: []monitoringv1.Endpoint{{
					Port:                 v1alpha1.PortHTTP,
					Path:                 metricsPath,
					Scheme:               "http",
					Interval:             interval(spec, options),
					HonorLabels:          true,
					FollowRedirects:      new(false), // an engine must not send Prometheus elsewhere
					RelabelConfigs:       d.target,
					MetricRelabelConfigs: d.sample,
				}},
			},
		}
	case v1alpha1.MonitorPod:
		endpoint := monitoringv1.PodMetricsEndpoint{
			Port:                 new(v1alpha1.PortHTTP),
			Path:                 metricsPath,
			Scheme:               "http",
			Interval:             interval(spec, options),
			HonorLabels:          true,
			RelabelConfigs:       d.target,
			MetricRelabelConfigs: d.sample,
		}
		endpoint.FollowRedirects = new(false)
		return &monitoringv1.PodMonitor{
			TypeMeta:   metav1.TypeMeta{APIVersion: version, Kind: monitoringv1.PodMonitorsKind},
			ObjectMeta: d.meta,
			Spec: monitoringv1.PodMonitorSpec{
				Selector:            metav1.LabelSelector{MatchLabels: d.selector},
				NamespaceSelector:   monitoringv1.NamespaceSelector{MatchNames: []string{d.meta.Namespace}},
				SampleLimit:         &limit,
				PodMetricsEndpoints: []monitoringv1.PodMetricsEndpoint{endpoint},
			},
		}
	default:
		return nil
	}
}

func interval(spec v1alpha1.MonitorSpec, options Options) monitoringv1.Duration {
	switch {
	case spec.Interval != nil && spec.Interval.Duration > 0:
		return monitoringv1.Duration(model.Duration(spec.Interval.Duration).String())
	case options.Interval != "":
		return monitoringv1.Duration(options.Interval)
	default:
		return DefaultInterval
	}
}
