package inferenceservice

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/monitoring"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// step is one reconcile: what was read, done and found out.
type step struct {
	service *v1alpha1.InferenceService

	pools  map[string]*v1alpha1.EnginePool // by name of the EnginePool; those that the service owns
	router *appsv1.Deployment              // nil when there is none
	// routerWaits is what a pod of the router waits for while none is ready, where Kubernetes says so.
	routerWaits string
	read        bool // the fields above are filled

	secretHash string // of the PD Secret; empty when it is not known
	monitors   []monitoring.Result
	err        error

	dashboards              bool // the operator makes some
	rulesErr, dashboardsErr error
	rulesInvalid            bool // rulesErr is about the spec: it comes again until that changes
}

// monitorFailed says whether something was refused that a service serves without.
func (s *step) monitorFailed() bool {
	return s.rulesErr != nil && !s.rulesInvalid || s.dashboardsErr != nil || slices.ContainsFunc(s.monitors, func(r monitoring.Result) bool { return r.Change.Outcome == monitoring.Failed })
}

// read fills the step from the cache.
func (r *Reconciler) read(ctx context.Context, step *step) error {
	service := step.service
	var pools v1alpha1.EnginePoolList
	err := r.Client.List(ctx, &pools, client.InNamespace(service.Namespace), client.MatchingLabels{v1alpha1.LabelService: service.Name})
	if err != nil {
		return fmt.Errorf("list the EnginePools of InferenceService %s: %w", client.ObjectKeyFromObject(service), err)
	}
	step.pools = map[string]*v1alpha1.EnginePool{}
	for i := range pools.Items {
		if metav1.IsControlledBy(&pools.Items[i], service) {
			step.pools[pools.Items[i].Name] = &pools.Items[i]
		}
	}
	router := &appsv1.Deployment{}
	err = r.Client.Get(ctx, client.ObjectKey{Namespace: service.Namespace, Name: plan.RouterName(service.Name)}, router)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read the router of InferenceService %s: %w", client.ObjectKeyFromObject(service), err)
	}
	if err == nil && metav1.IsControlledBy(router, service) {
		step.router = router
	}
	if err := r.readRouterWait(ctx, step); err != nil {
		return err
	}
	step.read = true
	return nil
}

// readRouterWait finds out what a router waits for of which no pod is ready, such as a Secret that is not there.
func (r *Reconciler) readRouterWait(ctx context.Context, step *step) error {
	if step.router == nil || step.router.Status.ReadyReplicas > 0 {
		return nil
	}
	service := step.service
	var pods corev1.PodList
	err := r.Client.List(ctx, &pods, client.InNamespace(service.Namespace),
		client.MatchingLabels{v1alpha1.LabelService: service.Name, v1alpha1.LabelComponent: v1alpha1.ComponentRouter})
	if err != nil {
		return fmt.Errorf("list the router pods of InferenceService %s: %w", client.ObjectKeyFromObject(service), err)
	}
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	for i := range pods.Items {
		if step.routerWaits = plan.DescribeWait(&pods.Items[i]); step.routerWaits != "" {
			return nil
		}
	}
	return nil
}
