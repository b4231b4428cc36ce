package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// State is one service with what belongs to it. What could not be read is absent, and Notes says why.
type State struct {
	Service *v1alpha1.InferenceService
	Pools   []*v1alpha1.EnginePool                            // in the order of spec.pools, retired ones last
	Pods    []*corev1.Pod                                     // of engines, by name
	Routers []*corev1.Pod                                     // by name
	Scalers map[string]*autoscalingv2.HorizontalPodAutoscaler // by name of the EnginePool
	Notes   []string

	// PodsHidden says that the user may not list pods, so that Pods and Routers are empty whatever there is.
	PodsHidden bool
}

// PoolPods are the engine pods of a pool, by name.
func (s *State) PoolPods(pool *v1alpha1.EnginePool) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, pod := range s.Pods {
		if metav1.IsControlledBy(pod, pool) {
			pods = append(pods, pod)
		}
	}
	return pods
}

// Services lists the services of a namespace, or of all for "", by namespace and name.
func (c *Cluster) Services(ctx context.Context, namespace string) ([]*v1alpha1.InferenceService, error) {
	var list v1alpha1.InferenceServiceList
	if err := c.Client.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, explain(err, "list InferenceServices", where(namespace), c.Config.Host)
	}
	services := make([]*v1alpha1.InferenceService, 0, len(list.Items))
	for i := range list.Items {
		services = append(services, &list.Items[i])
	}
	slices.SortFunc(services, func(a, b *v1alpha1.InferenceService) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return services, nil
}

// Service reads one service of the chosen namespace.
func (c *Cluster) Service(ctx context.Context, name string) (*v1alpha1.InferenceService, error) {
	service := &v1alpha1.InferenceService{}
	err := c.Client.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: name}, service)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%w as %s in namespace %s: see kubectl sluice status -A", ErrNoService, name, c.Namespace)
	}
	if err != nil {
		return nil, explain(err, "read InferenceService "+name, where(c.Namespace), c.Config.Host)
	}
	return service, nil
}

// State reads what belongs to a service.
func (c *Cluster) State(ctx context.Context, service *v1alpha1.InferenceService) (*State, error) {
	s := &State{Service: service, Scalers: map[string]*autoscalingv2.HorizontalPodAutoscaler{}}
	labels := client.MatchingLabels{v1alpha1.LabelService: service.Name}
	var pools v1alpha1.EnginePoolList
	if err := c.Client.List(ctx, &pools, client.InNamespace(service.Namespace), labels); err != nil {
		return nil, explain(err, "list EnginePools", where(service.Namespace), c.Config.Host)
	}
	for i := range pools.Items {
		if metav1.IsControlledBy(&pools.Items[i], service) {
			s.Pools = append(s.Pools, &pools.Items[i])
		}
	}
	s.sortPools()
	var pods corev1.PodList
	if err := c.Client.List(ctx, &pods, client.InNamespace(service.Namespace), labels); err != nil {
		if err = c.note(s, err, "list pods"); err != nil {
			return nil, err
		}
		s.PodsHidden = true
	}
	for i := range pods.Items {
		switch pod := &pods.Items[i]; pod.Labels[v1alpha1.LabelComponent] {
		case v1alpha1.ComponentEngine:
			s.Pods = append(s.Pods, pod)
		case v1alpha1.ComponentRouter:
			s.Routers = append(s.Routers, pod)
		}
	}
	for _, list := range [][]*corev1.Pod{s.Pods, s.Routers} {
		slices.SortFunc(list, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	}
	if !slices.ContainsFunc(s.Pools, func(p *v1alpha1.EnginePool) bool { return p.Spec.Autoscaling != nil }) {
		return s, nil
	}
	var scalers autoscalingv2.HorizontalPodAutoscalerList
	if err := c.Client.List(ctx, &scalers, client.InNamespace(service.Namespace)); err != nil {
		if err = c.note(s, err, "list HorizontalPodAutoscalers"); err != nil {
			return nil, err
		}
	}
	for i, scaler := range scalers.Items {
		if target := scaler.Spec.ScaleTargetRef; target.Kind == "EnginePool" && strings.HasPrefix(target.APIVersion, v1alpha1.GroupVersion.Group+"/") {
			s.Scalers[target.Name] = &scalers.Items[i]
		}
	}
	return s, nil
}

// note makes a missing right a note of the state; another error stays one.
func (c *Cluster) note(s *State, err error, what string) error {
	explained := explain(err, what, where(s.Service.Namespace), c.Config.Host)
	if apierrors.IsForbidden(err) {
		s.Notes = append(s.Notes, explained.Error())
		return nil
	}
	return explained
}

func (s *State) sortPools() {
	position := map[string]int{}
	for i, pool := range s.Service.Spec.Pools {
		position[plan.PoolName(s.Service.Name, pool.Name)] = i - len(s.Service.Spec.Pools)
	}
	slices.SortFunc(s.Pools, func(a, b *v1alpha1.EnginePool) int {
		return cmp.Or(cmp.Compare(position[a.Name], position[b.Name]), strings.Compare(a.Name, b.Name))
	})
}

// Pool finds a pool of the state by the name that it has in its service.
func (s *State) Pool(name string) (*v1alpha1.EnginePool, error) {
	var names []string
	for _, pool := range s.Pools {
		if pool.Spec.Pool == name {
			return pool, nil
		}
		names = append(names, pool.Spec.Pool)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("InferenceService %s has no pools yet: see kubectl describe inferenceservices.inference.sluice.dev %s", s.Service.Name, s.Service.Name)
	}
	return nil, fmt.Errorf("InferenceService %s has no pool %s: it has %s", s.Service.Name, name, strings.Join(names, ", "))
}

// Update writes a changed service; what was done goes into the error.
func (c *Cluster) Update(ctx context.Context, service *v1alpha1.InferenceService, what string) error {
	return explain(c.Client.Update(ctx, service), what, where(service.Namespace), c.Config.Host)
}

// Explain gives an error of the API server as one line with a remedy.
func (c *Cluster) Explain(err error, what, namespace string) error {
	return explain(err, what, where(namespace), c.Config.Host)
}

// IsNoService says whether an error says that the service does not exist.
func IsNoService(err error) bool { return errors.Is(err, ErrNoService) }

func where(namespace string) string {
	if namespace == "" {
		return " in all namespaces"
	}
	return " in namespace " + namespace
}
