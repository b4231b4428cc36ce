package enginepool

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/autoscaling"
	"github.com/sluice-dev/sluice/controllers/monitoring"
	"github.com/sluice-dev/sluice/controllers/owned"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// applyReplicas does what the plan says, in its order, and stops at the first refusal.
func (r *Reconciler) applyReplicas(ctx context.Context, step *step) error {
	if len(step.plan.Actions) == 0 {
		r.Counts.Kept(step.plan.Progressing)
	}
	for _, action := range step.plan.Actions {
		err := r.applyAction(ctx, step, action)
		r.Counts.Acted(action, err)
		if err != nil {
			return fmt.Errorf("%s: %w", action.Reason, err)
		}
		step.done = append(step.done, action)
		r.Recorder.Eventf(step.pool, leader(step.pool, action), corev1.EventTypeNormal, eventReason(action.Kind), string(action.Cause), "%s", action.Reason)
	}
	return nil
}

// leader refers to the leader of the replica of an action. Events are told apart by it: without it, several in a short
// time would be counted as one.
func leader(pool *v1alpha1.EnginePool, action plan.Action) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pool.Namespace, Name: plan.PodName(pool.Name, action.Ordinal, 0)}}
}

func (r *Reconciler) applyAction(ctx context.Context, step *step, action plan.Action) error {
	pods := step.podsOf(action.Ordinal)
	switch action.Kind {
	case plan.CreateReplica:
		return r.createPods(ctx, step, action.Ordinal, action.Restarts)
	case plan.ReplaceReplica:
		if err := r.deletePods(ctx, pods); err != nil {
			return err
		}
		return r.createPods(ctx, step, action.With, action.Restarts)
	case plan.DeleteReplica:
		return r.deletePods(ctx, pods)
	case plan.DrainReplica:
		return r.markPods(ctx, pods, step.now)
	case plan.UndrainReplica:
		return r.unmarkPods(ctx, pods)
	default:
		return fmt.Errorf("action %q is not known", action.Kind)
	}
}

// createPods makes the pods of a replica that are not there.
func (r *Reconciler) createPods(ctx context.Context, step *step, ordinal, restarts int32) error {
	for node := range step.layout.Nodes {
		pod, err := plan.Pod(step.pool, r.Engine, ordinal, node, restarts)
		if err != nil {
			return err
		}
		pod.OwnerReferences = plan.OwnedByPool(step.pool)
		err = r.Client.Create(ctx, pod)
		if apierrors.IsAlreadyExists(err) {
			if err := r.checkExisting(ctx, step.pool, pod.Name); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("create pod %s: %w", pod.Name, err)
		}
	}
	return nil
}

// checkExisting says whether a pod that is there already is ours and stays.
func (r *Reconciler) checkExisting(ctx context.Context, pool *v1alpha1.EnginePool, name string) error {
	live := &corev1.Pod{}
	key := client.ObjectKey{Namespace: pool.Namespace, Name: name}
	if err := r.Live.Get(ctx, key, live); err != nil {
		return fmt.Errorf("read pod %s: %w", key, err)
	}
	if err := owned.CheckOwner("Pod", live, plan.OwnedByPool(pool)[0]); err != nil {
		return err
	}
	if live.DeletionTimestamp != nil {
		return &owned.LeftoverError{Kind: "Pod", Name: key.String()}
	}
	// Without these it is not found among the pool's pods.
	selector := plan.EngineSelector(pool.Spec)
	for _, label := range slices.Sorted(maps.Keys(selector)) {
		if value := selector[label]; live.Labels[label] != value {
			return fmt.Errorf("pod %s lacks the label %s=%s; put it back or delete the pod", name, label, value)
		}
	}
	return nil
}

// deletePods deletes pods as they were read: one that has changed since is not deleted, which is a conflict.
func (r *Reconciler) deletePods(ctx context.Context, pods []*corev1.Pod) error {
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil {
			continue
		}
		uid, version := pod.UID, pod.ResourceVersion
		err := r.Client.Delete(ctx, pod, client.Preconditions{UID: &uid, ResourceVersion: &version})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete pod %s: %w", pod.Name, err)
		}
	}
	return nil
}

// markPods stops admission: routers leave marked pods out, and so do autoscalers.
func (r *Reconciler) markPods(ctx context.Context, pods []*corev1.Pod, now time.Time) error {
	for _, pod := range pods {
		if _, marked := pod.Annotations[v1alpha1.AnnotationDraining]; marked {
			continue
		}
		before := pod.DeepCopy()
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, v1alpha1.AnnotationDraining, now.UTC().Format(time.RFC3339Nano))
		metav1.SetMetaDataLabel(&pod.ObjectMeta, v1alpha1.LabelDraining, "true")
		if err := r.patch(ctx, before, pod); err != nil {
			return fmt.Errorf("mark pod %s as draining: %w", pod.Name, err)
		}
	}
	return nil
}

func (r *Reconciler) unmarkPods(ctx context.Context, pods []*corev1.Pod) error {
	for _, pod := range pods {
		before := pod.DeepCopy()
		delete(pod.Annotations, v1alpha1.AnnotationDraining)
		delete(pod.Labels, v1alpha1.LabelDraining)
		if err := r.patch(ctx, before, pod); err != nil {
			return fmt.Errorf("bring back pod %s: %w", pod.Name, err)
		}
	}
	return nil
}

func (r *Reconciler) patch(ctx context.Context, before, pod *corev1.Pod) error {
	return r.Client.Patch(ctx, pod, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// scaledObject gives the ScaledObject that the pool should have; nil: none. It is not known when none can be made, which
// step.noScaler tells.
func (r *Reconciler) scaledObject(step *step) (want *unstructured.Unstructured, known bool) {
	want, step.noScaler = autoscaling.BuildScaledObject(step.pool, r.PrometheusURL)
	return want, step.noScaler == nil
}

// applyScaledObject makes or removes KEDA's ScaledObject.
func (r *Reconciler) applyScaledObject(ctx context.Context, step *step) error {
	want, known := r.scaledObject(step)
	if !known {
		return nil // for a person to mend; trying again would not
	}
	if want == nil {
		_, err := r.Scalers.Remove(ctx, ScaledObjects, client.ObjectKeyFromObject(step.pool), plan.OwnedByPool(step.pool)[0])
		return err
	}
	change, err := r.Scalers.Apply(ctx, want)
	step.noKEDA, step.noScaler = change.Outcome == monitoring.CRDMissing, err
	return err
}

// applyAutoscaler makes or removes the HorizontalPodAutoscaler.
func (r *Reconciler) applyAutoscaler(ctx context.Context, step *step) error {
	if want := autoscaling.BuildHPA(step.pool); want != nil {
		_, err := r.applier.Apply(ctx, want)
		return err
	}
	if step.hpa == nil {
		return nil
	}
	want := step.hpa.DeepCopy()
	want.OwnerReferences = plan.OwnedByPool(step.pool)
	_, err := r.applier.Delete(ctx, want)
	return err
}

// podsOf gives the pods of a replica.
func (s *step) podsOf(ordinal int32) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, pod := range s.pods {
		if pod.Labels[v1alpha1.LabelReplica] == fmt.Sprint(ordinal) {
			pods = append(pods, pod)
		}
	}
	return pods
}

// eventReason gives ReplicaCreated for CreateReplica.
func eventReason(kind plan.ActionKind) string {
	switch kind {
	case plan.CreateReplica:
		return "ReplicaCreated"
	case plan.UndrainReplica:
		return "ReplicaBroughtBack"
	case plan.ReplaceReplica:
		return "ReplicaReplaced"
	case plan.DrainReplica:
		return "ReplicaDraining"
	case plan.DeleteReplica:
		return "ReplicaDeleted"
	default:
		return strings.TrimSuffix(string(kind), "Replica")
	}
}
