package enginepool

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/controllers/plan"
)

// podClaims are the claims of pods by name, and who uses them. A claim does not change while a pod uses it.
type podClaims map[string]knownClaim

type knownClaim struct {
	plan.Claim
	pod types.UID
}

// readClaims learns what the claims of pods that have a node were given. Each is read once a pod, from the API server: claims are
// not watched. What cannot be read now is tried again at the next reconcile; the cost waits for it.
func (r *Reconciler) readClaims(ctx context.Context, step *step) {
	key := client.ObjectKeyFromObject(step.pool)
	r.mu.Lock()
	before := r.claims[key]
	r.mu.Unlock()
	now := podClaims{}
	step.claims = map[string]plan.Claim{}
	for _, pod := range step.pods {
		if pod.Spec.NodeName == "" {
			continue
		}
		for _, name := range plan.ClaimNames(pod) {
			if _, known := now[name]; known {
				continue // shared
			}
			claim, known := before[name]
			if !known || claim.pod != pod.UID {
				var err error
				if claim, known, err = r.readClaim(ctx, pod, name); err != nil {
					ctrl.LoggerFrom(ctx).V(1).Info("The cost of a pod is not known yet", "pod", pod.Name, "error", err.Error())
				}
			}
			if known {
				now[name], step.claims[name] = claim, claim.Claim
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(now) == 0 {
		delete(r.claims, key)
		return
	}
	r.claims[key] = now
}

// readClaim reads one claim; false while it was given nothing.
func (r *Reconciler) readClaim(ctx context.Context, pod *corev1.Pod, name string) (knownClaim, bool, error) {
	object := &resourcev1.ResourceClaim{}
	if err := r.Live.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: name}, object); err != nil {
		return knownClaim{}, false, err
	}
	claim, allocated := plan.NewClaim(object)
	return knownClaim{claim, pod.UID}, allocated, nil
}
