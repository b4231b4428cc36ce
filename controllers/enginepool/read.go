package enginepool

import (
	"context"
	"fmt"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/autoscaling"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// step is one reconcile: what was read, planned and found out.
type step struct {
	pool *v1alpha1.EnginePool
	now  time.Time

	layout   plan.Layout
	revision string
	pods     []*corev1.Pod         // that the pool owns
	claims   map[string]plan.Claim // that they use, by name, as far as they are known
	replicas []plan.Replica
	hpa      *autoscalingv2.HorizontalPodAutoscaler // that the pool owns; nil when there is none
	scaler   *autoscalingv2.HorizontalPodAutoscaler // that scales the pool: hpa, or with provider KEDA the one that KEDA made
	plan     plan.PoolPlan
	read     bool // the fields above are filled

	done     []plan.Action   // that were applied
	tracing  *tracingOutcome // nil when no engine was looked at
	noKEDA   bool            // the pool wants a ScaledObject and the cluster has no such resource
	noScaler error           // why it has none otherwise
	err      error
}

// invalidSpecError says that the pool's spec makes no pods.
type invalidSpecError struct{ err error }

func (e *invalidSpecError) Error() string { return e.err.Error() }
func (e *invalidSpecError) Unwrap() error { return e.err }

// read fills the step from the cache or live, and plans.
func (r *Reconciler) read(ctx context.Context, step *step, reader client.Reader) error {
	pool := step.pool
	step.now = r.Clock.Now()
	layout, err := plan.NewLayout(pool.Spec.EngineShape)
	if err != nil {
		return &invalidSpecError{err}
	}
	revision, err := plan.Revision(pool.Spec, r.Engine)
	if err != nil {
		return &invalidSpecError{err}
	}
	demand := demandOf(pool)
	if demand > 0 { // a pool that leaves makes no pods
		if _, err := plan.Pod(pool, r.Engine, 0, 0, 0); err != nil {
			return &invalidSpecError{err}
		}
	}
	step.layout, step.revision = layout, revision

	var pods corev1.PodList
	err = reader.List(ctx, &pods, client.InNamespace(pool.Namespace), client.MatchingLabels(plan.EngineSelector(pool.Spec)))
	if err != nil {
		return fmt.Errorf("list the pods of EnginePool %s: %w", client.ObjectKeyFromObject(pool), err)
	}
	step.pods = step.pods[:0]
	var others []*corev1.Pod // of an earlier pool of this name
	for i := range pods.Items {
		if metav1.IsControlledBy(&pods.Items[i], pool) {
			step.pods = append(step.pods, &pods.Items[i])
		} else {
			others = append(others, &pods.Items[i])
		}
	}
	step.hpa, err = r.readAutoscaler(ctx, pool, pool.Name)
	if err != nil {
		return err
	}
	step.scaler = step.hpa
	if autoscaling.UsesKEDA(pool) {
		if step.scaler, err = r.readAutoscaler(ctx, pool, autoscaling.AutoscalerName(pool)); err != nil {
			return err
		}
	}
	step.replicas = plan.Replicas(step.pods, func(name string) plan.Load { return r.load(pool, step.pods, name) })
	r.failFrozen(step)
	step.plan = plan.PlanPool(plan.PoolState{
		Paused:       pool.Spec.Rollout.Paused,
		Now:          step.now,
		Demand:       demand,
		Allocation:   plan.Allocate([]plan.PoolDemand{{Replicas: demand, Held: int32(len(step.replicas))}}, plan.Bounds{})[0],
		Revision:     revision,
		DrainSeconds: plan.DrainSeconds(pool.Spec),
		Replicas:     step.replicas,
		Reserved:     plan.Ordinals(others),
	})
	step.read = true
	return nil
}

// readAutoscaler reads the autoscaler of a name, if it is the pool's or was made by KEDA for the pool's ScaledObject.
func (r *Reconciler) readAutoscaler(ctx context.Context, pool *v1alpha1.EnginePool, name string) (*autoscalingv2.HorizontalPodAutoscaler, error) {
	hpa := &autoscalingv2.HorizontalPodAutoscaler{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: pool.Namespace, Name: name}, hpa)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read HorizontalPodAutoscaler %s/%s: %w", pool.Namespace, name, err)
	}
	if of, ok := autoscaling.PoolOfKEDA(hpa); metav1.IsControlledBy(hpa, pool) || ok && of == pool.Name && autoscaling.UsesKEDA(pool) {
		return hpa, nil
	}
	return nil, nil
}

// load says what the samples tell of one leader.
func (r *Reconciler) load(pool *v1alpha1.EnginePool, pods []*corev1.Pod, name string) plan.Load {
	key := types.NamespacedName{Namespace: pool.Namespace, Name: name}
	var load plan.Load
	load.Outstanding, load.Known = r.Samples.Outstanding(key)
	for _, pod := range pods {
		if pod.Name != name {
			continue
		}
		if start := plan.DrainStart(pod); !start.IsZero() {
			load.Drained, _ = r.Samples.Drained(key, start.Add(plan.DrainSettle))
		}
	}
	return load
}

func demandOf(pool *v1alpha1.EnginePool) int32 {
	if pool.Spec.Replicas == nil {
		return 1
	}
	return *pool.Spec.Replicas
}
