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
	"github.com/sluice-dev/sluice/controllers/semantics"
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
		for _, signal := range semantics.Signals() {
			infos = append(infos, metricsprovider.CustomMetricInfo{GroupResource: r, Namespaced: true, Metric: signal.Metric})
		}
	}
	return infos
}

// GetMetricByName gives the metric of one leader pod or of one EnginePool.
func (p *provider) GetMetricByName(ctx context.Context, name types.NamespacedName, info metricsprovider.CustomMetricInfo, metricSelector labels.Selector) (*custom_metrics.MetricValue, error) {
	signal, err := lookup(info, metricSelector)
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
		return p.poolValue(signal, &pool)
	}
	pod, ok := p.store.Pod(name)
	if !ok {
		return nil, metricsprovider.NewMetricNotFoundForError(info.GroupResource, info.Metric, name.Name)
	}
	readings, why := p.sampler(ctx, signal).read([]observe.PodSample{pod})
	if why != nil {
		return nil, why.status()
	}
	return podValue(signal, name.Namespace, readings[0]), nil
}

// GetMetricBySelector gives the metric of the leader pods or EnginePools of a namespace that the selector picks.
func (p *provider) GetMetricBySelector(ctx context.Context, namespace string, selector labels.Selector, info metricsprovider.CustomMetricInfo, metricSelector labels.Selector) (*custom_metrics.MetricValueList, error) {
	signal, err := lookup(info, metricSelector)
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
			value, err := p.poolValue(signal, &pools.Items[i])
			if err != nil {
				return nil, err
			}
			list.Items = append(list.Items, *value)
		}
		return list, nil
	}
	readings, why := p.sampler(ctx, signal).read(p.store.Select(namespace, selector))
	if why != nil {
		return nil, why.status()
	}
	for _, r := range readings {
		list.Items = append(list.Items, *podValue(signal, namespace, r))
	}
	return list, nil
}

// lookup finds the signal that a request names.
func lookup(info metricsprovider.CustomMetricInfo, metricSelector labels.Selector) (semantics.Signal, error) {
	signal, ok := semantics.SignalNamed(info.Metric)
	if !ok || !info.Namespaced || (info.GroupResource != podResource && info.GroupResource != poolResource) {
		return semantics.Signal{}, metricsprovider.NewMetricNotFoundError(info.GroupResource, info.Metric)
	}
	if metricSelector != nil && !metricSelector.Empty() {
		return semantics.Signal{}, apierrors.NewBadRequest(fmt.Sprintf("%s has no labels of its own; leave metric.selector out", info.Metric))
	}
	return signal, nil
}

// sampler reads a signal now.
func (p *provider) sampler(ctx context.Context, signal semantics.Signal) sampler {
	return sampler{signal: signal, slo: p.objectives(ctx), pool: p.store.Pool, now: p.clock.Now(), freshFor: p.store.FreshFor()}
}

// poolValue is the signal of a pool, folded over the replicas that have a number.
func (p *provider) poolValue(signal semantics.Signal, pool *v1alpha1.EnginePool) (*custom_metrics.MetricValue, error) {
	folded, why := p.fold(signal, pool)
	if why != nil {
		return nil, why.status()
	}
	return value(signal, custom_metrics.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "EnginePool", Namespace: pool.Namespace, Name: pool.Name,
	}, folded.milli, folded.taken), nil
}

// fold reads a signal of a pool. The time is that of the oldest sample in it.
func (p *provider) fold(signal semantics.Signal, pool *v1alpha1.EnginePool) (reading, *Unavailable) {
	key := client.ObjectKeyFromObject(pool)
	sample := p.store.Pool(key)
	s := sampler{
		signal: signal, slo: func(types.NamespacedName) *v1alpha1.SLOSpec { return pool.Spec.SLO },
		pool: func(types.NamespacedName) observe.PoolSample { return sample }, now: p.clock.Now(), freshFor: p.store.FreshFor(),
	}
	readings, why := s.read(sample.Pods)
	if why != nil {
		return reading{}, why
	}
	values := make([]int64, len(readings))
	folded := reading{pool: key, taken: readings[0].taken}
	for i, r := range readings {
		values[i] = r.milli
		if r.taken.Before(folded.taken) {
			folded.taken = r.taken
		}
	}
	folded.milli = signal.Fold(values)
	return folded, nil
}

// objectives reads spec.slo of pools; a pool that is not known may be gone while its pods end.
func (p *provider) objectives(ctx context.Context) func(types.NamespacedName) *v1alpha1.SLOSpec {
	known := map[types.NamespacedName]*v1alpha1.SLOSpec{}
	return func(key types.NamespacedName) *v1alpha1.SLOSpec {
		if slo, ok := known[key]; ok {
			return slo
		}
		var pool v1alpha1.EnginePool
		known[key] = nil
		if err := p.pools.Get(ctx, key, &pool); err == nil {
			known[key] = pool.Spec.SLO
		}
		return known[key]
	}
}

func podValue(signal semantics.Signal, namespace string, r reading) *custom_metrics.MetricValue {
	return value(signal, custom_metrics.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: r.pod}, r.milli, r.taken)
}

func value(signal semantics.Signal, of custom_metrics.ObjectReference, milli int64, taken time.Time) *custom_metrics.MetricValue {
	return &custom_metrics.MetricValue{
		DescribedObject: of,
		Metric:          custom_metrics.MetricIdentifier{Name: signal.Metric},
		Timestamp:       metav1.NewTime(taken),
		Value:           *resource.NewMilliQuantity(milli, resource.DecimalSI),
	}
}
