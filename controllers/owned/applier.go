package owned

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// Outcome is what an Apply did.
type Outcome string

const (
	// Unchanged is the outcome when the object was as wanted; nothing was written.
	Unchanged Outcome = "Unchanged"
	// Created is the outcome when the object did not exist.
	Created Outcome = "Created"
	// Updated is the outcome when the object was not as wanted.
	Updated Outcome = "Updated"
	// Deleted is the outcome when the object was there and is not wanted.
	Deleted Outcome = "Deleted"
)

// Applier writes objects with owners.
type Applier struct {
	// Client reads from a cache that may hold our objects only and may be old.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Heard is told of each Apply and each deletion, if it is set.
	Heard func(kind string, outcome Outcome, err error)
}

func (a Applier) tell(kind string, outcome Outcome, err error) {
	if a.Heard != nil {
		a.Heard(kind, outcome, err)
	}
}

// Apply makes the object as wanted. want has a controller owner and no status. Fields that it leaves out are the API
// server's and other people's.
func (a Applier) Apply(ctx context.Context, want client.Object) (Outcome, error) {
	kind, err := a.kind(want)
	if err != nil {
		return Unchanged, err
	}
	outcome, err := a.apply(ctx, kind, want)
	a.tell(kind, outcome, err)
	return outcome, err
}

func (a Applier) apply(ctx context.Context, kind string, want client.Object) (Outcome, error) {
	hash, err := hashOf(want)
	if err != nil {
		return Unchanged, fmt.Errorf("encode %s %s: %w", kind, client.ObjectKeyFromObject(want), err)
	}
	want = want.DeepCopyObject().(client.Object)
	want.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{}) // what is read from a cache has none
	annotate(want, hash)

	live, err := a.empty(want)
	if err != nil {
		return Unchanged, err
	}
	err = a.Client.Get(ctx, client.ObjectKeyFromObject(want), live)
	if apierrors.IsNotFound(err) {
		err = a.Client.Create(ctx, want.DeepCopyObject().(client.Object))
		if err == nil {
			return Created, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return Unchanged, fmt.Errorf("create %s %s: %w", kind, client.ObjectKeyFromObject(want), err)
		}
		// The cache is late, or the object lacks the labels that the cache selects by.
		err = a.Live.Get(ctx, client.ObjectKeyFromObject(want), live)
	}
	if err != nil {
		return Unchanged, fmt.Errorf("read %s %s: %w", kind, client.ObjectKeyFromObject(want), err)
	}
	owner := metav1.GetControllerOf(want)
	if owner == nil {
		return Unchanged, fmt.Errorf("apply %s %s: it has no controller; set its owner", kind, client.ObjectKeyFromObject(want))
	}
	if err := CheckOwner(kind, live, *owner); err != nil {
		return Unchanged, err
	}
	same, err := covers(live, want)
	if err != nil {
		return Unchanged, err
	}
	if same && live.GetAnnotations()[v1alpha1.AnnotationApplied] == hash {
		return Unchanged, nil
	}
	if err := a.Client.Update(ctx, merge(want, live)); err != nil {
		return Unchanged, fmt.Errorf("update %s %s: %w", kind, client.ObjectKeyFromObject(want), err)
	}
	return Updated, nil
}

// Delete deletes the object of this name when the owner of want owns it, and tells whether it did.
func (a Applier) Delete(ctx context.Context, want client.Object) (bool, error) {
	kind, err := a.kind(want)
	if err != nil {
		return false, err
	}
	live, err := a.empty(want)
	if err != nil {
		return false, err
	}
	err = a.Client.Get(ctx, client.ObjectKeyFromObject(want), live)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %s %s: %w", kind, client.ObjectKeyFromObject(want), err)
	}
	if !isOwned(want, live) || live.GetDeletionTimestamp() != nil {
		return false, nil
	}
	uid := live.GetUID()
	err = a.Client.Delete(ctx, live, client.Preconditions{UID: &uid})
	if err != nil && !apierrors.IsNotFound(err) {
		err = fmt.Errorf("delete %s %s: %w", kind, client.ObjectKeyFromObject(want), err)
		a.tell(kind, Deleted, err)
		return false, err
	}
	if err == nil {
		a.tell(kind, Deleted, nil)
	}
	return err == nil, nil
}

func (a Applier) kind(object client.Object) (string, error) {
	gvk, err := apiutil.GVKForObject(object, a.Client.Scheme())
	if err != nil {
		return "", fmt.Errorf("find the kind of %T: %w", object, err)
	}
	return gvk.Kind, nil
}

func (a Applier) empty(like client.Object) (client.Object, error) {
	gvk, err := apiutil.GVKForObject(like, a.Client.Scheme())
	if err != nil {
		return nil, fmt.Errorf("find the kind of %T: %w", like, err)
	}
	object, err := a.Client.Scheme().New(gvk)
	if err != nil {
		return nil, fmt.Errorf("make a %s: %w", gvk.Kind, err)
	}
	return object.(client.Object), nil
}

// isOwned says whether both objects have the same controller.
func isOwned(want, live client.Object) bool {
	wanted, got := metav1.GetControllerOf(want), metav1.GetControllerOf(live)
	return wanted != nil && got != nil && wanted.UID == got.UID
}

// merge lays what is wanted over the live object: its content replaces the live one's, its labels and annotations come
// on top of others'.
func merge(want, live client.Object) client.Object {
	if _, ok := want.(*corev1.ServiceAccount); ok {
		// Others add pull secrets to a ServiceAccount; it has no content of ours.
		updated := live.DeepCopyObject().(client.Object)
		updated.SetLabels(union(live.GetLabels(), want.GetLabels()))
		updated.SetAnnotations(union(live.GetAnnotations(), want.GetAnnotations()))
		return updated
	}
	want.SetLabels(union(live.GetLabels(), want.GetLabels()))
	want.SetAnnotations(union(live.GetAnnotations(), want.GetAnnotations()))
	want.SetResourceVersion(live.GetResourceVersion())
	want.SetUID(live.GetUID())
	want.SetFinalizers(live.GetFinalizers())
	return want
}

func union(under, over map[string]string) map[string]string {
	all := maps.Clone(under)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, over)
	return all
}

func annotate(object client.Object, hash string) {
	annotations := maps.Clone(object.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.AnnotationApplied] = hash
	object.SetAnnotations(annotations)
}

func hashOf(object client.Object) (string, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8]), nil
}
