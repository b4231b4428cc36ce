package owned

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestCheckOwner(t *testing.T) {
	owner := metav1.OwnerReference{Kind: "EnginePool", Name: "chat-decode", UID: "now", Controller: new(true)}
	by := func(kind, name string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{Kind: kind, Name: name, UID: "x", Controller: new(true)}, {Kind: "Other", UID: "y"}}
	}
	tests := []struct {
		name     string
		reason   string
		owners   []metav1.OwnerReference
		deleting bool
		want     string
	}{
		{"ours", "nothing to say", []metav1.OwnerReference{owner}, false, ""},
		{"ours and deleted", "the caller sees to that", []metav1.OwnerReference{owner}, true, ""},
		{"nobody's", "a person made it", nil, false, "Pod ns/p exists and belongs to nobody; remove it or choose another name"},
		{"another's", "the names of two services can meet", by("EnginePool", "chat"), false,
			"Pod ns/p exists and belongs to EnginePool chat; remove it or choose another name"},
		{"an earlier one's", "the garbage collector takes it", by("EnginePool", "chat-decode"), false,
			"Pod ns/p is left of an earlier owner and still ends; it is made anew when it is gone"},
		{"another's and deleted", "it goes by itself", by("ReplicaSet", "web"), true,
			"Pod ns/p is left of an earlier owner and still ends; it is made anew when it is gone"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			live := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", OwnerReferences: test.owners}}
			if test.deleting {
				live.DeletionTimestamp = new(metav1.Now())
			}
			got := ""
			if err := CheckOwner("Pod", live, owner); err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("%s: got %q, want %q", test.reason, got, test.want)
			}
		})
	}
}

func TestWait(t *testing.T) {
	pods := corev1.Resource("pods")
	conflict := fmt.Errorf("update: %w", apierrors.NewConflict(pods, "p", errors.New("late")))
	leftover := fmt.Errorf("create: %w", &LeftoverError{})
	forbidden := apierrors.NewForbidden(pods, "p", errors.New("quota"))
	ending := apierrors.NewForbidden(pods, "p", errors.New("it ends"))
	ending.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	tests := []struct {
		name  string
		err   error
		delay time.Duration
		waits bool
	}{
		{"none", nil, 0, false},
		{"conflict", conflict, conflictDelay, true},
		{"leftover", leftover, leftoverDelay, true},
		{"namespace that ends", ending, namespaceDelay, true},
		{"refusal", forbidden, 0, false},
		{"another's", &NotOwnedError{}, 0, false},
		{"the longest wait", errors.Join(conflict, errors.Join(leftover)), leftoverDelay, true},
		{"one failure is enough", errors.Join(conflict, errors.Join(leftover, forbidden)), 0, false},
		{"wrapped joins", fmt.Errorf("apply: %w", errors.Join(conflict, forbidden)), 0, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if delay, waits := Wait(test.err); delay != test.delay || waits != test.waits {
				t.Errorf("got %s, %t, want %s, %t", delay, waits, test.delay, test.waits)
			}
		})
	}
}
