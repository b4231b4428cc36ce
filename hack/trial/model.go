package trial

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// ModelClaim is the claim that holds the model files.
	ModelClaim = "models"
	// ModelURI is the model on the claim, as a manifest names it.
	ModelURI = "pvc://" + ModelClaim + "/tiny"
	// volumeRoot is the folder of a node that holds the volumes of a cluster without a storage class.
	volumeRoot = "/var/lib/sluice-trial"
)

// EnsureModel makes a small seeded model on the claim ModelClaim of a namespace, by a Job that runs the engine's own
// init-model. The claim is bound by the cluster's default storage class, or, where there is none, by a volume in a folder
// of the node. It is safe to call again.
func (t *Trial) EnsureModel(ctx context.Context, namespace string) error {
	if err := t.ensureClaim(ctx, namespace); err != nil {
		return fmt.Errorf("make claim %s: %w", ModelClaim, err)
	}
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "make-model"},
		Spec: batchv1.JobSpec{
			BackoffLimit: ptr.To[int32](3),
			Template: corev1.PodTemplateSpec{
				Spec: corev1.PodSpec{
					RestartPolicy: corev1.RestartPolicyNever,
					// A folder of the node belongs to root, so this Job, and it alone, writes as root.
					SecurityContext: &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](0), RunAsNonRoot: ptr.To(false)},
					Containers: []corev1.Container{{
						Name:            "init-model",
						Image:           t.Images["sluice-engine"],
						ImagePullPolicy: corev1.PullIfNotPresent,
						Args:            []string{"init-model", "--arch", "llama", "--out", "/models/tiny", "--force"},
						VolumeMounts:    []corev1.VolumeMount{{Name: "models", MountPath: "/models"}},
					}},
					Volumes: []corev1.Volume{{Name: "models", VolumeSource: corev1.VolumeSource{
						PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: ModelClaim},
					}}},
				},
			},
		},
	}
	if err := t.Client.Create(ctx, job); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create the model job: %w", err)
	}
	return t.Until(ctx, 3*time.Minute, "the model job to finish", func(ctx context.Context) (string, bool, error) {
		var now batchv1.Job
		if err := t.Client.Get(ctx, client.ObjectKeyFromObject(job), &now); err != nil {
			return "", false, err
		}
		return fmt.Sprintf("active %d, succeeded %d, failed %d", now.Status.Active, now.Status.Succeeded, now.Status.Failed),
			now.Status.Succeeded > 0, nil
	})
}

func (t *Trial) ensureClaim(ctx context.Context, namespace string) error {
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: ModelClaim},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: size},
		},
	}
	provisioned, err := t.hasDefaultStorageClass(ctx)
	if err != nil {
		return err
	}
	if !provisioned {
		volume, err := t.ensureVolume(ctx, namespace, size)
		if err != nil {
			return err
		}
		claim.Spec.StorageClassName = ptr.To("")
		claim.Spec.VolumeName = volume.Name
	}
	if err := t.Client.Create(ctx, claim); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

// ensureVolume makes the volume of a namespace in a folder of the node. A volume that is left of a namespace that was
// deleted is made free again; its folder still holds the model.
func (t *Trial) ensureVolume(ctx context.Context, namespace string, size corev1.ResourceList) (*corev1.PersistentVolume, error) {
	ref := &corev1.ObjectReference{Namespace: namespace, Name: ModelClaim}
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: t.volumeName(namespace)},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      size,
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:                      ref,
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{
				Path: volumeRoot + "/" + namespace,
				Type: ptr.To(corev1.HostPathDirectoryOrCreate),
			}},
		},
	}
	err := t.Client.Create(ctx, volume)
	if !apierrors.IsAlreadyExists(err) {
		return volume, err
	}
	if err := t.Client.Get(ctx, client.ObjectKeyFromObject(volume), volume); err != nil {
		return nil, err
	}
	var claim corev1.PersistentVolumeClaim
	err = t.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ModelClaim}, &claim)
	if client.IgnoreNotFound(err) != nil {
		return nil, err
	}
	if volume.Spec.ClaimRef != nil && volume.Spec.ClaimRef.UID != claim.UID {
		before := volume.DeepCopy()
		volume.Spec.ClaimRef = ref
		return volume, t.Client.Patch(ctx, volume, client.MergeFrom(before))
	}
	return volume, nil
}

func (t *Trial) volumeName(namespace string) string { return "sluice-trial-" + namespace }

func (t *Trial) hasDefaultStorageClass(ctx context.Context) (bool, error) {
	var classes storagev1.StorageClassList
	if err := t.Client.List(ctx, &classes); err != nil {
		return false, err
	}
	for _, class := range classes.Items {
		if class.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" {
			return true, nil
		}
	}
	return false, nil
}
