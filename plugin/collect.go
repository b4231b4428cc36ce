package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/engine/loads"
	"github.com/sluice-dev/sluice/plugin/cluster"
	"github.com/sluice-dev/sluice/plugin/reach"
	"github.com/sluice-dev/sluice/plugin/view"
)

const loadsPath = "/v1/loads?include=all"

// services reads the services that a command is about, each with its state: the one named, or all of the namespaces chosen.
func (p *Plugin) services(ctx context.Context, name string) ([]*cluster.State, error) {
	var services []*v1alpha1.InferenceService
	if name != "" {
		if p.AllNamespaces {
			return nil, fmt.Errorf("%w: -A and the name %s: leave one out", ErrUsage, name)
		}
		service, err := p.Cluster.Service(ctx, name)
		if err != nil {
			return nil, err
		}
		services = append(services, service)
	} else {
		namespace := p.Cluster.Namespace
		if p.AllNamespaces {
			namespace = ""
		}
		var err error
		if services, err = p.Cluster.Services(ctx, namespace); err != nil {
			return nil, err
		}
	}
	states := make([]*cluster.State, 0, len(services))
	for _, service := range services {
		state, err := p.Cluster.State(ctx, service)
		if err != nil {
			return nil, err
		}
		states = append(states, state)
	}
	return states, nil
}

// status shows states with the load that the engines tell now.
func (p *Plugin) status(ctx context.Context, states []*cluster.State) (*view.Status, error) {
	answers, err := p.ask(ctx, states)
	if err != nil {
		return nil, err
	}
	status := &view.Status{Kind: "Status", Time: p.time(), Services: []view.Service{}}
	for _, state := range states {
		var pools []view.PoolObjects
		for _, pool := range state.Pools {
			pools = append(pools, view.PoolObjects{Pool: pool, Pods: state.PoolPods(pool)})
		}
		status.Services = append(status.Services, view.NewService(state.Service, pools, view.Seen{
			Routers: state.Routers, Answers: answers[state], Notes: state.Notes, PodsHidden: state.PodsHidden,
		}))
	}
	return status, nil
}

// ask asks the leaders of all replicas for their loads. When the user may not reach pods, that is said once a service.
func (p *Plugin) ask(ctx context.Context, states []*cluster.State) (map[*cluster.State]map[string]view.Answer, error) {
	answers := map[*cluster.State]map[string]view.Answer{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, state := range states {
		of := map[string]view.Answer{}
		answers[state] = of
		for _, pod := range state.Pods {
			if pod.Labels[v1alpha1.LabelNodeRank] != "0" {
				continue
			}
			group.Go(func() {
				var answer view.Answer // of a pod that does not run there is nothing to say
				if pod.Status.Phase == corev1.PodRunning {
					answer = p.askLeader(ctx, pod)
				}
				mu.Lock()
				defer mu.Unlock()
				of[pod.Name] = answer
				if answer.Forbidden {
					state.Notes = addOnce(state.Notes, "the engines' own load is missing: "+mayNotReach(pod.Namespace))
				}
			})
		}
	}
	group.Wait()
	return answers, ctx.Err()
}

// mayNotReach says which right is missing to ask pods of a namespace, and who has it.
func mayNotReach(namespace string) string {
	return fmt.Sprintf("you may not create pods/portforward in namespace %s; ask for that right, which the chart's ClusterRole sluice-plugin has", namespace)
}

func (p *Plugin) askLeader(ctx context.Context, pod *corev1.Pod) view.Answer {
	body, err := p.Pods.Get(ctx, engineTarget(pod), loadsPath)
	if errors.Is(err, reach.ErrForbidden) {
		return view.Answer{Note: "not asked", Forbidden: true}
	}
	var response loads.Response
	if err == nil {
		err = json.Unmarshal(body, &response)
	}
	if err == nil && len(response.Loads) == 0 {
		err = fmt.Errorf("the engine tells of no rank")
	}
	if err != nil {
		return view.Answer{Note: note(err)}
	}
	return view.Answer{Loads: response.Loads}
}

// note gives an error of a pod as a few words, with a remedy where there is one.
func note(err error) string {
	var status *reach.StatusError
	if errors.As(err, &status) {
		if status.Status == 401 || status.Status == 403 {
			return "the engine wants a key: give --api-key-file"
		}
		return fmt.Sprintf("status %d: %s", status.Status, status.Body)
	}
	return err.Error()
}

func addOnce(list []string, text string) []string {
	if slices.Contains(list, text) {
		return list
	}
	return append(list, text)
}

// engineTarget is where an engine answers.
func engineTarget(pod *corev1.Pod) reach.Target {
	return target(pod, v1alpha1.PortHTTP, v1alpha1.DefaultEnginePort)
}

// routerTarget is where a router answers.
func routerTarget(pod *corev1.Pod) reach.Target {
	return target(pod, v1alpha1.PortHTTP, v1alpha1.DefaultRouterPort)
}

func target(pod *corev1.Pod, name string, without int32) reach.Target {
	t := reach.Target{Namespace: pod.Namespace, Pod: pod.Name, Port: without}
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			if port.Name == name {
				t.Port = port.ContainerPort
			}
		}
	}
	return t
}
