package owned

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// NotOwnedError says that an object's name is taken by an object of another owner.
type NotOwnedError struct {
	Kind  string
	Name  string // NAMESPACE/NAME
	Owner string // KIND NAME of the controller, or "nobody"
}

// Error names the object and the remedy.
func (e *NotOwnedError) Error() string {
	return fmt.Sprintf("%s %s exists and belongs to %s; remove it or choose another name", e.Kind, e.Name, e.Owner)
}

// LeftoverError says that an object's name is taken by one that goes by itself: it is being deleted, or its owner was an
// earlier object of the name that the new owner has.
type LeftoverError struct {
	Kind string
	Name string // NAMESPACE/NAME
}

// Error names the object.
func (e *LeftoverError) Error() string {
	return fmt.Sprintf("%s %s is left of an earlier owner and still ends; it is made anew when it is gone", e.Kind, e.Name)
}

// CheckOwner gives nil when owner controls the object of that kind that exists, else a LeftoverError or a NotOwnedError.
func CheckOwner(kind string, live client.Object, owner metav1.OwnerReference) error {
	controller := metav1.GetControllerOf(live)
	if controller != nil && controller.UID == owner.UID {
		return nil
	}
	key := client.ObjectKeyFromObject(live).String()
	if live.GetDeletionTimestamp() != nil || controller != nil && controller.Kind == owner.Kind && controller.Name == owner.Name {
		return &LeftoverError{Kind: kind, Name: key}
	}
	by := "nobody"
	if controller != nil {
		by = controller.Kind + " " + controller.Name
	}
	return &NotOwnedError{Kind: kind, Name: key, Owner: by}
}

// How long to wait before what was not possible is tried again.
const (
	conflictDelay  = 100 * time.Millisecond // gives a late cache time to follow
	leftoverDelay  = time.Second
	namespaceDelay = time.Minute // the object that is reconciled is about to go itself
)

// Wait says whether every part of an error is no failure but something to wait for, and for how long: a conflict with
// another writer or with a cache that is late, a leftover, or a namespace that is being deleted. Nil is none.
func Wait(err error) (delay time.Duration, waits bool) {
	var joined interface{ Unwrap() []error }
	var leftover *LeftoverError
	switch {
	case err == nil:
		return 0, false
	case errors.As(err, &joined):
		for _, one := range joined.Unwrap() {
			d, ok := Wait(one)
			if !ok {
				return 0, false
			}
			delay = max(delay, d)
		}
		return delay, true
	case errors.As(err, &leftover):
		return leftoverDelay, true
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return namespaceDelay, true
	case apierrors.IsConflict(err):
		return conflictDelay, true
	default:
		return 0, false
	}
}
