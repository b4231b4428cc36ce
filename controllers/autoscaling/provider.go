package autoscaling

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/metrics/pkg/apis/custom_metrics"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsprovider "sigs.k8s.io/custom-metrics-apiserver/pkg/provider"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/observe"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// Resources that have metrics.
var (
	podResource  = schema.GroupResource{Resource: "pods"}
	poolResource = schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "enginepools"}
)

// Samples is what the custom metrics API reads. Each call gives the newest knowledge. *observe.Store has it.
type Samples interface {
	// Pod gives one leader pod; false when it is not known.
	Pod(pod types.NamespacedName) (observe.PodSample, bool)
	// Pool gives the leader pods of an EnginePool.
	Pool(pool types.NamespacedName) observe.PoolSample
	// Select gives the leader pods of a namespace that match a selector, in the order of their names.
	Select(namespace string, selector labels.Selector) []observe.PodSample
	// FreshFor is how long a sample counts.
	FreshFor() time.Duration
}

// provider answers custom.metrics.k8s.io from the samples. Every value is exact in thousandths.
type provider struct {
	store Samples
	pools client.Reader
	clock clock.PassiveClock
}

var _ metricsprovider.CustomMetricsProvider = (*provider)(nil)

// ListAllMetrics gives what discovery shows.
func (p *provider) ListAllMetrics() []metricsprovider.CustomMetricInfo {
	var infos []metricsprovider.CustomMetricInfo
	for _, r := range []schema.GroupResource{podResource, poolResource} {
		for _, m := range metrics() {
			infos = append(infos, metricsprovider.CustomMetricInfo{GroupResource: r, Namespaced: true, Metric: m.name})
		}
	}
	return infos
}

// GetMetricByName gives the metric of one leader pod or of one EnginePool.
func (p *provider) GetMetricByName(ctx context.Context, name types.NamespacedName, info metricsprovider.CustomMetricInfo, metricSelector labels.Selector) (*custom_metrics.MetricValue, error) {
	m, err := lookup(info, metricSelector)
	if err != nil {
		return nil, err
	}
	if info.GroupResource == poolResource {
		var pool v1alpha1.EnginePool
		if err := p.pools.Get(ctx, name, &pool); err != nil {
			if apierrors.IsNotFound(err) {
				return nil, metricsprovider.NewMetricNotFoundForError(info.GroupResource, info.Metric, name.Name)
			}
			return nil, fmt.Errorf("read EnginePool %s: %w", name, err)
		}
		return p.poolValue(m, &pool)
	}
	pod, ok := p.store.Pod(name)
	if !ok {
		return nil, metricsprovider.NewMetricNotFoundForError(info.GroupResource, info.Metric, name.Name)
	}
	readings, why := read([]observe.PodSample{pod}, m, p.ranksOf(ctx), p.clock.Now(), p.store.FreshFor())
	if why != nil {
		return nil, why.status()
	}
	return podValue(m, name.Namespace, readings[0]), nil
}

// GetMetricBySelector gives the metric of the leader pods or EnginePools of a namespace that the selector picks.
func (p *provider) GetMetricBySelector(ctx context.Context, namespace string, selector labels.Selector, info metricsprovider.CustomMetricInfo, metricSelector labels.Selector) (*custom_metrics.MetricValueList, error) {
	m, err := lookup(info, metricSelector)
	if err != nil {
		return nil, err
	}
	list := &custom_metrics.MetricValueList{}
	if info.GroupResource == poolResource {
		var pools v1alpha1.EnginePoolList
		if err := p.pools.List(ctx, &pools, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
			return nil, fmt.Errorf("list EnginePools in %s: %w", namespace, err)
		}
		for i := range pools.Items {
			value, err := p.poolValue(m, &pools.Items[i])
			if err != nil {
				return nil, err
			}
			list.Items = append(list.Items, *value)
		}
		return list, nil
	}
	readings, why := read(p.store.Select(namespace, selector), m, p.ranksOf(ctx), p.clock.Now(), p.store.FreshFor())
	if why != nil {
		return nil, why.status()
	}
	for _, r := range readings {
		list.Items = append(list.Items, *podValue(m, namespace, r))
	}
	return list, nil
}

// lookup finds the metric that a request names.
func lookup(info metricsprovider.CustomMetricInfo, metricSelector labels.Selector) (metric, error) {
	m, ok := metricNamed(info.Metric)
	if !ok || !info.Namespaced || (info.GroupResource != podResource && info.GroupResource != poolResource) {
		return metric{}, metricsprovider.NewMetricNotFoundError(info.GroupResource, info.Metric)
	}
	if metricSelector != nil && !metricSelector.Empty() {
		return metric{}, apierrors.NewBadRequest(fmt.Sprintf("%s has no labels of its own; leave metric.selector out", info.Metric))
	}
	return m, nil
}

// poolValue is the metric of a pool: the mean or the sum over the replicas that have a number.
func (p *provider) poolValue(m metric, pool *v1alpha1.EnginePool) (*custom_metrics.MetricValue, error) {
	key := client.ObjectKeyFromObject(pool)
	ranks := ranksPerLeader(pool)
	readings, why := read(p.store.Pool(key).Pods, m, func(types.NamespacedName) int { return ranks }, p.clock.Now(), p.store.FreshFor())
	if why != nil {
		return nil, why.status()
	}
	values := make([]int64, len(readings))
	oldest := readings[0].taken
	for i, r := range readings {
		values[i] = r.milli
		if r.taken.Before(oldest) {
			oldest = r.taken
		}
	}
	return value(m, custom_metrics.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "EnginePool", Namespace: pool.Namespace, Name: pool.Name,
	}, m.combine(values), oldest), nil
}

// ranksOf tells how many DP ranks the leaders of a pool answer for; 1 when the pool is not known, as it may be gone
// while its pods end.
func (p *provider) ranksOf(ctx context.Context) func(types.NamespacedName) int {
	known := map[types.NamespacedName]int{}
	return func(key types.NamespacedName) int {
		if n, ok := known[key]; ok {
			return n
		}
		known[key] = 1
		var pool v1alpha1.EnginePool
		if err := p.pools.Get(ctx, key, &pool); err == nil {
			known[key] = ranksPerLeader(&pool)
		}
		return known[key]
	}
}

func ranksPerLeader(pool *v1alpha1.EnginePool) int {
	layout, err := plan.NewLayout(pool.Spec.EngineShape)
	if err != nil {
		return 1 // such a pool has no pods
	}
	return int(layout.Data)
}

func podValue(m metric, namespace string, r reading) *custom_metrics.MetricValue {
	return value(m, custom_metrics.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: r.pod}, r.milli, r.taken)
}

func value(m metric, of custom_metrics.ObjectReference, milli int64, taken time.Time) *custom_metrics.MetricValue {
	return &custom_metrics.MetricValue{
		DescribedObject: of,
		Metric:          custom_metrics.MetricIdentifier{Name: m.name},
		Timestamp:       metav1.NewTime(taken),
		Value:           *resource.NewMilliQuantity(milli, resource.DecimalSI),
	}
}
