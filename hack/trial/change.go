package trial

import (
	"context"
	"fmt"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// Scale sets the demand of a pool: on the pool's entry in the service, since a pool without autoscaling follows it.
func (t *Trial) Scale(ctx context.Context, namespace, service, pool string, replicas int32) error {
	svc, err := t.Service(ctx, namespace, service)
	if err != nil {
		return err
	}
	before := svc.DeepCopy()
	for i := range svc.Spec.Pools {
		if svc.Spec.Pools[i].Name == pool {
			svc.Spec.Pools[i].Replicas = ptr.To(replicas)
			return t.Client.Patch(ctx, svc, client.MergeFrom(before))
		}
	}
	return fmt.Errorf("service %s has no pool %s", service, pool)
}

// ScalePool writes the scale subresource of a pool, as an autoscaler does.
func (t *Trial) ScalePool(ctx context.Context, namespace, service, pool string, replicas int32) error {
	obj := &v1alpha1.EnginePool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: service + "-" + pool}}
	scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: replicas}}
	return t.Client.SubResource("scale").Update(ctx, obj, client.WithSubResourceBody(scale))
}

// DeleteService deletes a service and waits until it and its pods are gone.
func (t *Trial) DeleteService(ctx context.Context, namespace, name string, limit time.Duration) error {
	svc := &v1alpha1.InferenceService{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := t.Client.Delete(ctx, svc); client.IgnoreNotFound(err) != nil {
		return err
	}
	return t.Until(ctx, limit, "service "+name+" to be gone", func(ctx context.Context) (string, bool, error) {
		pods, err := t.EnginePods(ctx, namespace, name, "")
		if err != nil {
			return "", false, err
		}
		err = t.Client.Get(ctx, client.ObjectKeyFromObject(svc), svc)
		return fmt.Sprintf("%d engine pods", len(pods)), apierrors.IsNotFound(err) && len(pods) == 0, client.IgnoreNotFound(err)
	})
}

// RemoveNamespace deletes a namespace with all in it, and the volume that EnsureModel made for it.
func (t *Trial) RemoveNamespace(ctx context.Context, name string) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	err := t.Client.Get(ctx, client.ObjectKeyFromObject(ns), ns)
	if err == nil {
		if ns.Labels[ownLabel] != FieldOwner {
			t.logf("namespace %s is somebody else's and stays", name)
			return nil
		}
		err = t.Client.Delete(ctx, ns)
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove namespace %s: %w", name, err)
	}
	err = t.Until(ctx, 2*time.Minute, "namespace "+name+" to be gone", func(ctx context.Context) (string, bool, error) {
		err := t.Client.Get(ctx, client.ObjectKeyFromObject(ns), ns)
		return string(ns.Status.Phase), apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
	if err != nil {
		return err
	}
	return t.RemoveVolume(ctx, name)
}

// RemoveVolume removes the volume that was made for a namespace, if there is one.
func (t *Trial) RemoveVolume(ctx context.Context, namespace string) error {
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: t.volumeName(namespace)}}
	return client.IgnoreNotFound(t.Client.Delete(ctx, volume))
}
