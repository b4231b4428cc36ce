package inferenceservice

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/metrics"
	"github.com/sluice-dev/sluice/controllers/monitoring"
	"github.com/sluice-dev/sluice/controllers/owned"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// applySecret makes the PD Secret where there is none, and learns its hash. Secrets are not watched, so that the operator
// need not be allowed to list them; a service that is settled is not asked about.
func (r *Reconciler) applySecret(ctx context.Context, step *step) error {
	service := step.service
	if !plan.NeedsSecret(service) || step.settled() {
		return nil
	}
	key := client.ObjectKey{Namespace: service.Namespace, Name: plan.SecretName(service.Name)}
	live := &corev1.Secret{}
	err := r.Live.Get(ctx, key, live)
	if apierrors.IsNotFound(err) {
		value, err := r.NewSecret()
		if err != nil {
			return fmt.Errorf("make the secret of InferenceService %s: %w", client.ObjectKeyFromObject(service), err)
		}
		// When another operator was faster this fails, and the next attempt finds its Secret.
		if err := r.Client.Create(ctx, plan.Secret(service, value)); err != nil {
			return fmt.Errorf("create Secret %s: %w", key, err)
		}
		step.secretHash = plan.SecretHash([]byte(value))
		return nil
	}
	if err != nil {
		return fmt.Errorf("read Secret %s: %w", key, err)
	}
	if err := owned.CheckOwner("Secret", live, plan.OwnedByService(service)[0]); err != nil {
		return err
	}
	if len(live.Data[plan.SecretKey]) == 0 {
		return fmt.Errorf("secret %s has no key %s; delete it, and a new one is made", key, plan.SecretKey)
	}
	step.secretHash = plan.SecretHash(live.Data[plan.SecretKey])
	return nil
}

// settled says whether every pool's pods run as its newest spec wants, so that they have found the Secret.
func (s *step) settled() bool {
	for _, spec := range s.service.Spec.Pools {
		pool := s.pool(spec.Name)
		if pool == nil || pool.Status.ObservedGeneration != pool.Generation ||
			!meta.IsStatusConditionTrue(pool.Status.Conditions, v1alpha1.ConditionReady) ||
			!meta.IsStatusConditionFalse(pool.Status.Conditions, v1alpha1.ConditionProgressing) {
			return false
		}
	}
	return s.service.Status.ObservedGeneration == s.service.Generation
}

// applyPools makes the EnginePools, and what exists once a pool.
func (r *Reconciler) applyPools(ctx context.Context, step *step) error {
	var failures []error
	for _, want := range plan.EnginePools(step.service, step.secretHash) {
		pool, change, err := r.applyPool(ctx, step, want)
		r.Counts.Changed("EnginePool", change)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		if _, err := r.applier.Apply(ctx, plan.HeadlessService(pool)); err != nil {
			failures = append(failures, err)
		}
		r.applyMonitor(ctx, step, monitoring.PoolMonitor(pool, r.MonitorOptions), pool, plan.OwnedByPool(pool)[0])
	}
	r.applyMonitor(ctx, step, monitoring.RouterMonitor(step.service, r.MonitorOptions), step.service, plan.OwnedByService(step.service)[0])
	return errors.Join(failures...)
}

// applyMonitor makes a monitor and removes the one of another kind that it replaces. What fails goes into the step's results:
// a service serves without.
func (r *Reconciler) applyMonitor(ctx context.Context, step *step, monitor monitoring.Monitor, of client.Object, owner metav1.OwnerReference) {
	result := monitoring.Result{Monitor: monitor, Change: monitoring.Change{Outcome: monitoring.Unchanged}}
	if monitor.Object != nil {
		result.Change, result.Err = r.Monitors.Apply(ctx, monitor.Object)
	}
	if result.Change.Outcome == monitoring.Restored {
		r.Recorder.Eventf(step.service, of, corev1.EventTypeWarning, "MonitorRestored", "Apply", "%s %s is as it was again: %s", monitor.Kind, monitor.Name, result.Change.Detail)
	}
	for _, resource := range monitor.Unwanted() {
		removed, err := r.Monitors.Remove(ctx, resource, client.ObjectKey{Namespace: step.service.Namespace, Name: monitor.Name}, owner)
		switch {
		case err != nil:
			result.Change, result.Err = monitoring.Change{Outcome: monitoring.Failed}, errors.Join(result.Err, err)
		case removed:
			r.Recorder.Eventf(step.service, of, corev1.EventTypeNormal, "MonitorRemoved", "Apply", "%s %s is not wanted any more: observability.monitor is %s", resource.Kind, monitor.Name, monitor.Kind)
		}
	}
	step.monitors = append(step.monitors, result)
}

// applyPool makes one EnginePool as wanted and returns it as the API server has it, with what was done.
func (r *Reconciler) applyPool(ctx context.Context, step *step, want *v1alpha1.EnginePool) (*v1alpha1.EnginePool, metrics.Change, error) {
	live, exists := step.pools[want.Name]
	key := client.ObjectKeyFromObject(want)
	if !exists {
		if err := r.checkName(ctx, want); err != nil {
			return nil, metrics.Failed, err
		}
		err := r.Client.Create(ctx, want)
		if err == nil {
			step.pools[want.Name] = want
			return want, metrics.Created, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, metrics.Failed, fmt.Errorf("create EnginePool %s: %w", key, err)
		}
		live = &v1alpha1.EnginePool{}
		if err := r.Live.Get(ctx, key, live); err != nil {
			return nil, metrics.Failed, fmt.Errorf("read EnginePool %s: %w", key, err)
		}
		if err := owned.CheckOwner("EnginePool", live, want.OwnerReferences[0]); err != nil {
			return nil, metrics.Failed, err
		}
		step.pools[want.Name] = live
	}
	if live.DeletionTimestamp != nil {
		return nil, metrics.Failed, &owned.LeftoverError{Kind: "EnginePool", Name: key.String()}
	}
	before := live.Spec.DeepCopy()
	if !plan.UpdatePool(live, want) {
		return live, metrics.Unchanged, nil
	}
	if err := plan.RecordHistory(live, before, step.service.Generation, r.Clock.Now()); err != nil {
		return nil, metrics.Failed, fmt.Errorf("record what EnginePool %s was: %w", key, err)
	}
	if err := r.Client.Update(ctx, live); err != nil {
		return nil, metrics.Failed, fmt.Errorf("update EnginePool %s: %w", key, err)
	}
	return live, metrics.Updated, nil
}

// checkName asks the cache whether another has the name of a pool, so that a service that waits for it does not try to
// make the pool all the time.
func (r *Reconciler) checkName(ctx context.Context, want *v1alpha1.EnginePool) error {
	other := &v1alpha1.EnginePool{}
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(want), other)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read EnginePool %s: %w", client.ObjectKeyFromObject(want), err)
	}
	return owned.CheckOwner("EnginePool", other, want.OwnerReferences[0])
}

// applyRouter makes the router: its rights first.
func (r *Reconciler) applyRouter(ctx context.Context, step *step) error {
	router := plan.NewRouter(step.service, r.Router)
	var failures []error
	for _, want := range []client.Object{router.ServiceAccount, router.Role, router.RoleBinding, router.Service, router.Deployment} {
		if _, err := r.applier.Apply(ctx, want); err != nil {
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}

// retirePools drains the pools that the service lists no more, and deletes them when they are empty.
func (r *Reconciler) retirePools(ctx context.Context, step *step) error {
	var failures []error
	wanted := map[string]bool{}
	for _, pool := range step.service.Spec.Pools {
		wanted[plan.PoolName(step.service.Name, pool.Name)] = true
	}
	for _, name := range slices.Sorted(maps.Keys(step.pools)) {
		pool := step.pools[name]
		if wanted[name] || pool.DeletionTimestamp != nil {
			continue
		}
		if plan.RetirePool(pool) {
			if err := r.Client.Update(ctx, pool); err != nil {
				failures = append(failures, fmt.Errorf("scale EnginePool %s to 0: %w", client.ObjectKeyFromObject(pool), err))
				continue
			}
			r.Recorder.Eventf(step.service, pool, corev1.EventTypeNormal, "PoolRetired", "ScaleIn",
				"pool %s is not in spec.pools any more: drain its %d replicas", pool.Spec.Pool, pool.Status.Replicas)
			continue
		}
		if !plan.IsEmpty(pool) {
			continue
		}
		uid := pool.UID
		if err := r.Client.Delete(ctx, pool, client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil {
			failures = append(failures, fmt.Errorf("delete EnginePool %s: %w", client.ObjectKeyFromObject(pool), err))
			continue
		}
		r.Counts.Changed("EnginePool", metrics.Deleted)
		r.Monitors.Forget(client.ObjectKeyFromObject(pool))
		r.Recorder.Eventf(step.service, pool, corev1.EventTypeNormal, "PoolDeleted", "ScaleIn", "pool %s is empty: delete it", pool.Spec.Pool)
	}
	return errors.Join(failures...)
}
