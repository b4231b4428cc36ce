package autoscaling

import (
	"fmt"
	"strconv"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
	"github.com/sluice-dev/sluice/controllers/semantics"
)

// ScaledObjectResource is the resource of KEDA's ScaledObjects.
var ScaledObjectResource = schema.GroupVersionResource{Group: "keda.sh", Version: "v1alpha1", Resource: "scaledobjects"}

// ScaledObjectKind is their kind.
const ScaledObjectKind = "ScaledObject"

// kedaPollingSeconds is how often KEDA looks at its triggers.
const kedaPollingSeconds = 15

// UsesKEDA says whether a pool is to have a ScaledObject, now or when it wakes.
func UsesKEDA(pool *v1alpha1.EnginePool) bool {
	return pool.Spec.Autoscaling != nil && pool.Spec.Autoscaling.Provider == v1alpha1.ProviderKEDA
}

// BuildScaledObject gives the ScaledObject of a pool with provider KEDA, owned by it and with its name, whose triggers ask
// the Prometheus at prometheusURL; nil for other pools, and for a pool without demand: KEDA would give a pool its minimum at
// once, and whether it has no replica is decided by who waits in the routers.
func BuildScaledObject(pool *v1alpha1.EnginePool, prometheusURL string) (*unstructured.Unstructured, error) {
	if !UsesKEDA(pool) || (pool.Spec.Replicas != nil && *pool.Spec.Replicas == 0) {
		return nil, nil
	}
	if prometheusURL == "" {
		return nil, fmt.Errorf("autoscaling.provider of pool %s is KEDA, whose triggers ask a Prometheus: start the operator with --prometheus-url, for example http://prometheus.monitoring:9090", pool.Spec.Pool)
	}
	layout, err := plan.NewLayout(pool.Spec.EngineShape)
	if err != nil {
		return nil, err // such a pool has no pods
	}
	spec := pool.Spec.Autoscaling
	triggers := make([]any, 0, len(spec.Metrics))
	for _, m := range spec.Metrics {
		signal, _ := semantics.SignalOf(m.Type)
		query, ok := signal.Query(PoolSelector(pool), int(layout.Data), pool.Spec.SLO)
		if !ok {
			return nil, fmt.Errorf("autoscaling.metrics type %s of pool %s cannot be asked of a Prometheus: use another type, or autoscaling.provider MetricsAPI", m.Type, pool.Spec.Pool)
		}
		kind := autoscalingv2.AverageValueMetricType
		if signal.Shared {
			kind = autoscalingv2.ValueMetricType
		}
		triggers = append(triggers, map[string]any{
			"type":       "prometheus",
			"name":       strings.ToLower(string(m.Type)),
			"metricType": string(kind),
			"metadata": map[string]any{
				"serverAddress": prometheusURL,
				"query":         query,
				"threshold":     decimalOf(m.Target.MilliValue()),
				// An empty answer is no 0: the autoscaler then holds.
				"ignoreNullValues": "false",
			},
		})
	}
	behavior, err := plain(behavior(spec))
	if err != nil {
		return nil, fmt.Errorf("encode autoscaling.behavior of pool %s: %w", pool.Spec.Pool, err)
	}
	object := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{
			"scaleTargetRef": map[string]any{
				"apiVersion": v1alpha1.GroupVersion.String(), "kind": "EnginePool", "name": pool.Name,
			},
			"pollingInterval": int64(kedaPollingSeconds),
			"minReplicaCount": int64(max(1, spec.Min())),
			"maxReplicaCount": int64(spec.MaxReplicas),
			"advanced":        map[string]any{"horizontalPodAutoscalerConfig": map[string]any{"behavior": behavior}},
			"triggers":        triggers,
		},
	}}
	object.SetGroupVersionKind(ScaledObjectResource.GroupVersion().WithKind(ScaledObjectKind))
	object.SetName(pool.Name)
	object.SetNamespace(pool.Namespace)
	object.SetLabels(plan.PoolLabels(pool.Spec))
	object.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(pool, v1alpha1.GroupVersion.WithKind("EnginePool"))})
	return object, nil
}

// AutoscalerName is the name of the HorizontalPodAutoscaler that scales a pool: the pool's, or the one that KEDA gives it.
func AutoscalerName(pool *v1alpha1.EnginePool) string {
	if UsesKEDA(pool) {
		return "keda-hpa-" + pool.Name
	}
	return pool.Name
}

// PoolOfKEDA gives the name of the pool that a HorizontalPodAutoscaler of KEDA's scales: that of the ScaledObject which it was
// made for. ok is false for every other autoscaler.
func PoolOfKEDA(hpa *autoscalingv2.HorizontalPodAutoscaler) (name string, ok bool) {
	owner := metav1.GetControllerOf(hpa)
	if owner == nil || owner.Kind != ScaledObjectKind || !strings.HasPrefix(owner.APIVersion, ScaledObjectResource.Group+"/") {
		return "", false
	}
	target := hpa.Spec.ScaleTargetRef
	return owner.Name, target.Kind == "EnginePool" && target.Name == owner.Name && strings.HasPrefix(target.APIVersion, v1alpha1.GroupVersion.Group+"/")
}

// triggerMetric is the name under which KEDA serves the value of a pool's trigger.
func triggerMetric(trigger int) string { return fmt.Sprintf("s%d-prometheus", trigger) }

// PoolSelector picks the series of a pool by the labels that its monitor sets.
func PoolSelector(pool *v1alpha1.EnginePool) string {
	return fmt.Sprintf("namespace=%s,inference_service=%s,pool=%s",
		strconv.Quote(pool.Namespace), strconv.Quote(pool.Spec.Service), strconv.Quote(pool.Spec.Pool))
}

// decimalOf writes thousandths as a decimal number: KEDA reads no quantities.
func decimalOf(milli int64) string {
	text := strconv.FormatInt(milli/1000, 10)
	if rest := milli % 1000; rest != 0 {
		text += "." + strings.TrimRight(fmt.Sprintf("%03d", rest), "0")
	}
	return text
}

// plain gives a value as JSON has it.
func plain(value any) (map[string]any, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	var object map[string]any
	err = json.Unmarshal(text, &object)
	return object, err
}
