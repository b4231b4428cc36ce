package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// Pods finds the engine pods of one service and follows them with a watch.
type Pods struct {
	client    kubernetes.Interface
	namespace string
	service   string
}

// NewPods makes a source of the engines of a service.
func NewPods(client kubernetes.Interface, namespace, service string) (*Pods, error) {
	if namespace == "" || service == "" {
		return nil, fmt.Errorf("engines are found by --namespace and --service; they are %q and %q", namespace, service)
	}
	return &Pods{client: client, namespace: namespace, service: service}, nil
}

// selector picks the pods that FromPod may accept.
func (p *Pods) selector() string {
	return labels.SelectorFromSet(labels.Set{
		v1alpha1.LabelService:   p.service,
		v1alpha1.LabelComponent: v1alpha1.ComponentEngine,
		v1alpha1.LabelNodeRank:  "0",
	}).String()
}

// Run watches pods until ctx ends. Changes that come together are reported together.
func (p *Pods) Run(ctx context.Context, update func([]Engine)) error {
	factory := informers.NewSharedInformerFactoryWithOptions(p.client, 0,
		informers.WithNamespace(p.namespace),
		informers.WithTransform(slim),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = p.selector() }))
	pods := factory.Core().V1().Pods()
	changed := make(chan struct{}, 1)
	poke := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	registration, err := pods.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { poke() },
		UpdateFunc: func(any, any) { poke() },
		DeleteFunc: func(any) { poke() },
	})
	if err != nil {
		return fmt.Errorf("watch engine pods: %w", err)
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return errors.Join(ctx.Err(), errors.New("watch engine pods: ended before the first list"))
	}
	var last []Engine
	for first := true; ; first = false {
		list, err := pods.Lister().List(labels.Everything())
		if err != nil {
			return fmt.Errorf("list engine pods: %w", err)
		}
		engines := FromPods(list)
		if first || !slices.Equal(engines, last) {
			update(engines)
			last = engines
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// FromPods gives the engines among pods, ordered by name.
func FromPods(pods []*corev1.Pod) []Engine {
	var engines []Engine
	for _, pod := range pods {
		if e, ok := FromPod(pod); ok {
			engines = append(engines, e)
		}
	}
	slices.SortFunc(engines, func(a, b Engine) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	return engines
}

// FromPod reads an engine from its pod; ok is false when the pod is none that this router serves.
func FromPod(pod *corev1.Pod) (e Engine, ok bool) {
	role := Role(pod.Labels[v1alpha1.LabelEngineType])
	if role != Prefill && role != Decode && role != Unified {
		return Engine{}, false
	}
	if pod.Labels[v1alpha1.LabelNodeRank] != "0" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return Engine{}, false
	}
	e = Engine{ID: string(pod.UID), Name: pod.Name, Role: role, State: StateReady}
	if pod.Status.PodIP != "" {
		e.URL = "http://" + net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(port(pod, v1alpha1.PortHTTP, v1alpha1.DefaultEnginePort)))
		if role == Prefill {
			e.BootstrapHost, e.BootstrapPort = pod.Status.PodIP, port(pod, v1alpha1.PortBootstrap, v1alpha1.DefaultBootstrapPort)
		}
	}
	switch draining := pod.Annotations[v1alpha1.AnnotationDraining]; {
	case pod.DeletionTimestamp != nil:
		e.State, e.Reason = StateDraining, "being deleted since "+pod.DeletionTimestamp.UTC().Format(time.RFC3339)
	case draining != "":
		e.State, e.Reason = StateDraining, "draining since "+draining
	case pod.Status.PodIP == "":
		e.State, e.Reason = StateNotReady, "has no address yet"
	default:
		e.Reason = notReady(pod)
		if e.Reason != "" {
			e.State = StateNotReady
		}
	}
	return e, true
}

// notReady says why a pod is not Ready, or nothing.
func notReady(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type != corev1.PodReady {
			continue
		}
		if c.Status == corev1.ConditionTrue {
			return ""
		}
		return "pod is not Ready: " + cmp.Or(c.Message, c.Reason, "no reason given")
	}
	return "pod is not Ready: phase " + string(pod.Status.Phase)
}

// port finds a container port by its name.
func port(pod *corev1.Pod, name string, otherwise int) int {
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.Name == name {
				return int(p.ContainerPort)
			}
		}
	}
	return otherwise
}

// slim drops what FromPod does not read, so that a large service costs little memory.
func slim(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	small := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			Labels: pod.Labels, DeletionTimestamp: pod.DeletionTimestamp,
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, PodIP: pod.Status.PodIP, Conditions: pod.Status.Conditions},
	}
	if at, ok := pod.Annotations[v1alpha1.AnnotationDraining]; ok {
		small.Annotations = map[string]string{v1alpha1.AnnotationDraining: at}
	}
	for _, c := range pod.Spec.Containers {
		small.Spec.Containers = append(small.Spec.Containers, corev1.Container{Name: c.Name, Ports: c.Ports})
	}
	return small, nil
}
