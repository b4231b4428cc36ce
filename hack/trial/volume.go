package trial

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sluice-dev/sluice/hack/images/image"
)

// OfferVolume makes sure that a claim ModelClaim of a namespace will be bound, by whoever makes it: by the default storage class,
// or, on the dev cluster, which has none, by a volume in an empty folder of this machine that the programs of images may write.
// RemoveVolume takes it away.
func (t *Trial) OfferVolume(ctx context.Context, namespace string) error {
	provisioned, err := t.hasDefaultStorageClass(ctx)
	if err != nil || provisioned {
		return err
	}
	if _, foreign, err := target(ctx, t.Root); err != nil {
		return err
	} else if foreign {
		return errors.New("the cluster has no default storage class, so that no claim would be bound; set one")
	}
	folder := filepath.Join(volumeRoot, namespace)
	if err := errors.Join(os.RemoveAll(folder), os.MkdirAll(folder, 0o755), os.Chown(folder, image.UserID, image.UserID)); err != nil {
		return fmt.Errorf("make a folder for the volume of namespace %s: %w", namespace, err)
	}
	_, err = t.ensureVolume(ctx, namespace, corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")})
	return err
}
