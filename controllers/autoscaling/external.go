package autoscaling

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/metrics/pkg/apis/external_metrics"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsprovider "sigs.k8s.io/custom-metrics-apiserver/pkg/provider"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/semantics"
)

// Labels of an external metric.
const (
	LabelService    = "inference_service"
	LabelPool       = "pool"
	LabelEngineType = "engine_type"
)

// externalProvider answers external.metrics.k8s.io: the signals of the pools of a namespace, one value a pool, with labels
// that a metric selector may pick by. A signal that a picked pool's role does not have is not among the values; one that is
// no number now is an error for the whole answer, as in the custom metrics API.
type externalProvider struct{ *provider }

var _ metricsprovider.ExternalMetricsProvider = externalProvider{}

// ListAllExternalMetrics gives what discovery shows.
func (p externalProvider) ListAllExternalMetrics() []metricsprovider.ExternalMetricInfo {
	var infos []metricsprovider.ExternalMetricInfo
	for _, signal := range semantics.Signals() {
		infos = append(infos, metricsprovider.ExternalMetricInfo{Metric: signal.Metric})
	}
	return infos
}

// GetExternalMetric gives the signal of each pool of the namespace that the selector picks and whose role has it.
func (p externalProvider) GetExternalMetric(ctx context.Context, namespace string, selector labels.Selector, info metricsprovider.ExternalMetricInfo) (*external_metrics.ExternalMetricValueList, error) {
	signal, ok := semantics.SignalNamed(info.Metric)
	if !ok {
		return nil, apierrors.NewNotFound(external_metrics.Resource("externalmetrics"), info.Metric)
	}
	var pools v1alpha1.EnginePoolList
	if err := p.pools.List(ctx, &pools, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list EnginePools in %s: %w", namespace, err)
	}
	list := &external_metrics.ExternalMetricValueList{}
	for i := range pools.Items {
		pool := &pools.Items[i]
		of := labels.Set{LabelService: pool.Spec.Service, LabelPool: pool.Spec.Pool, LabelEngineType: pool.Spec.Role.EngineType()}
		if !signal.Defined(pool.Spec.Role) || (selector != nil && !selector.Matches(of)) {
			continue
		}
		folded, why := p.fold(signal, pool)
		if why != nil {
			return nil, why.status()
		}
		list.Items = append(list.Items, external_metrics.ExternalMetricValue{
			MetricName: signal.Metric, MetricLabels: of, Timestamp: metav1.NewTime(folded.taken),
			Value: *resource.NewMilliQuantity(folded.milli, resource.DecimalSI),
		})
	}
	if len(list.Items) == 0 {
		return nil, unavailable(ReasonNoSamples, signal.Metric, "no pool of the namespace has it and these labels", nil).status()
	}
	return list, nil
}
