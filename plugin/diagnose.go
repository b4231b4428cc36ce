package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/plugin/cluster"
	"github.com/sluice-dev/sluice/plugin/diagnosis"
	"github.com/sluice-dev/sluice/plugin/reach"
	"github.com/sluice-dev/sluice/plugin/sample"
)

// DiagnoseOptions are how long a service is looked at, and how much of it is told.
type DiagnoseOptions struct {
	Interval time.Duration // between the two scrapes
	Polls    int           // of /v1/loads in it
	All      bool          // show every number that was looked at
}

func (o DiagnoseOptions) validate() error {
	switch {
	case o.Interval < time.Second || o.Interval > 10*time.Minute:
		return fmt.Errorf("%w: --interval %s: give 1s to 10m", ErrUsage, o.Interval)
	case o.Polls < 1 || o.Polls > 600:
		return fmt.Errorf("%w: --polls %d: give 1 to 600", ErrUsage, o.Polls)
	}
	return nil
}

// Diagnose observes all engines and routers of a service for an interval and says what is behind a complaint, with the numbers.
func (p *Plugin) Diagnose(ctx context.Context, service string, o DiagnoseOptions) error {
	if err := o.validate(); err != nil {
		return err
	}
	states, err := p.services(ctx, service)
	if err != nil {
		return err
	}
	state := states[0]
	if p.Screen {
		p.warn(fmt.Sprintf("looks at %d engines and %d routers for %s", len(leaders(state)), len(state.Routers), o.Interval))
	}
	facts, err := p.observe(ctx, state, o)
	if err != nil {
		return err
	}
	report := diagnosis.Conclude(facts)
	report.Time, report.Namespace, report.Service = p.time(), state.Service.Namespace, state.Service.Name
	return p.write(report, func(wide bool) string { return report.Text(wide || o.All) })
}

// leaders are the pods that answer for a replica and run.
func leaders(state *cluster.State) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(state.Pods), func(pod *corev1.Pod) bool {
		return pod.Labels[v1alpha1.LabelNodeRank] != "0" || pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil
	})
}

func (p *Plugin) observe(ctx context.Context, state *cluster.State, o DiagnoseOptions) (diagnosis.Facts, error) {
	schedule := sample.Schedule{Interval: o.Interval, Polls: o.Polls, Now: p.Now, After: p.After}
	missing := slices.Clone(state.Notes)
	var engines []diagnosis.Observation
	var routers []diagnosis.RouterObservation
	var mu sync.Mutex
	var group sync.WaitGroup
	note := func(pod *corev1.Pod, err error) {
		if errors.Is(err, reach.ErrForbidden) {
			missing = addOnce(missing, mayNotReach(pod.Namespace))
			return
		}
		missing = append(missing, fmt.Sprintf("%s: %s", pod.Name, note(err)))
	}
	for _, pod := range leaders(state) {
		group.Go(func() {
			to := engineTarget(pod)
			get := func(ctx context.Context, path string) ([]byte, error) { return p.Pods.Get(ctx, to, path) }
			seen, err := sample.Engine(ctx, get, schedule, pod.Labels[v1alpha1.LabelPool], pod.Labels[v1alpha1.LabelRole], pod.Name)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				note(pod, err)
				return
			}
			engines = append(engines, seen)
		})
	}
	for _, pod := range state.Routers {
		if pod.Status.Phase != corev1.PodRunning {
			continue
		}
		group.Go(func() {
			to := routerTarget(pod)
			get := func(ctx context.Context, path string) ([]byte, error) { return p.Pods.Get(ctx, to, path) }
			seen, err := sample.Router(ctx, get, schedule, pod.Name)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				note(pod, err)
				return
			}
			routers = append(routers, seen)
		})
	}
	group.Wait()
	if err := ctx.Err(); err != nil {
		return diagnosis.Facts{}, err
	}
	slices.Sort(missing)
	return diagnosis.Measure(engines, routers, missing), nil
}
