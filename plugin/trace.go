package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/plugin/cluster"
	"github.com/sluice-dev/sluice/plugin/reach"
	"github.com/sluice-dev/sluice/plugin/trail"
)

const requestsPath = "/debug/requests"

// Trace finds a request by its rid, or by the room where its halves met, and shows it in the router and in the engines. service
// says where to look; empty looks at all services of the namespace.
func (p *Plugin) Trace(ctx context.Context, rid, service string) error {
	if rid == "" {
		return fmt.Errorf("%w: the rid is empty", ErrUsage)
	}
	states, err := p.services(ctx, service)
	if err != nil {
		return err
	}
	var missing []string
	for _, state := range states {
		t, err := p.find(ctx, state, rid)
		if err != nil {
			return err
		}
		if t.Router != nil || len(t.Engines) > 0 {
			t.Sort()
			return p.write(t, func(bool) string { return t.Text() })
		}
		missing = append(missing, t.Missing...)
	}
	text := fmt.Sprintf("no router or engine in namespace %s remembers request %s: it is older than their --debug-requests, its client gave no rid, or it went to another service", p.Cluster.Namespace, rid)
	if len(missing) > 0 {
		text += "; not all could be asked: " + missing[0]
	}
	return errors.New(text)
}

// find asks the routers first, since their record names the engines and the room. An engine's own rid leads to the room, and so to
// the other engine and the router.
func (p *Plugin) find(ctx context.Context, state *cluster.State, rid string) (*trail.Trace, error) {
	t := &trail.Trace{
		Kind: "Trace", Time: p.time(), Namespace: state.Service.Namespace, Service: state.Service.Name, Engines: []trail.EnginePart{}, Missing: slices.Clone(state.Notes),
	}
	if t.Missing == nil {
		t.Missing = []string{}
	}
	byName := requestsPath + "/" + url.PathEscape(rid)
	p.askRouters(ctx, state, byName, t)
	if t.Router != nil {
		rooms := t.Router.Rooms()
		for _, room := range rooms {
			p.askEngines(ctx, named(state, t.Router), roomPath(room), t)
		}
		if len(rooms) == 0 {
			p.askEngines(ctx, named(state, t.Router), byName, t)
		}
		return t, ctx.Err()
	}
	p.askEngines(ctx, leaders(state), byName, t)
	for _, part := range slices.Clone(t.Engines) {
		if part.Room == nil {
			continue
		}
		room := *part.Room
		t.Engines = slices.DeleteFunc(t.Engines, func(e trail.EnginePart) bool { return e.Room != nil && *e.Room == room })
		p.askEngines(ctx, leaders(state), roomPath(room), t)
		if t.Router == nil {
			p.askRouters(ctx, state, requestsPath+"/"+strconv.FormatInt(room, 10), t)
		}
	}
	return t, ctx.Err()
}

func roomPath(room int64) string { return requestsPath + "?room=" + strconv.FormatInt(room, 10) }

// named are the pods of the engines that a router's record names; all when it names none of them.
func named(state *cluster.State, r *trail.RouterPart) []*corev1.Pod {
	all := leaders(state)
	var pods []*corev1.Pod
	for _, pod := range all {
		if slices.ContainsFunc(r.Attempts, func(a trail.Attempt) bool {
			return a.Decode.Name == pod.Name || a.Prefill != nil && a.Prefill.Name == pod.Name
		}) {
			pods = append(pods, pod)
		}
	}
	if len(pods) == 0 {
		return all
	}
	return pods
}

// askRouters fills in the record of the first router that has one.
func (p *Plugin) askRouters(ctx context.Context, state *cluster.State, path string, t *trail.Trace) {
	bodies := p.askAll(ctx, state.Routers, routerTarget, path, t)
	for i, pod := range state.Routers {
		if bodies[i] == nil || t.Router != nil {
			continue
		}
		record, err := trail.ReadRouter(bodies[i])
		if err != nil {
			t.Missing = append(t.Missing, fmt.Sprintf("%s: %v", pod.Name, err))
			continue
		}
		t.Router = &trail.RouterPart{Pod: pod.Name, RouterRecord: record}
	}
}

func (p *Plugin) askEngines(ctx context.Context, pods []*corev1.Pod, path string, t *trail.Trace) {
	bodies := p.askAll(ctx, pods, engineTarget, path, t)
	for i, pod := range pods {
		if bodies[i] == nil {
			continue
		}
		records, err := trail.ReadEngine(bodies[i])
		if err != nil {
			t.Missing = append(t.Missing, fmt.Sprintf("%s: %v", pod.Name, err))
		}
		for _, record := range records {
			t.Engines = append(t.Engines, trail.EnginePart{Pod: pod.Name, Pool: pod.Labels[v1alpha1.LabelPool], Role: pod.Labels[v1alpha1.LabelRole], EngineRecord: record})
		}
	}
}

// askAll asks pods the same at once. A pod that does not know the answer (404) gives nil; one that can't be asked is missing.
func (p *Plugin) askAll(ctx context.Context, pods []*corev1.Pod, to func(*corev1.Pod) reach.Target, path string, t *trail.Trace) [][]byte {
	bodies, failures := make([][]byte, len(pods)), make([]error, len(pods))
	var group sync.WaitGroup
	for i, pod := range pods {
		group.Go(func() { bodies[i], failures[i] = p.Pods.Get(ctx, to(pod), path) })
	}
	group.Wait()
	for i, err := range failures {
		var status *reach.StatusError
		switch {
		case err == nil, errors.As(err, &status) && status.Status == http.StatusNotFound:
		case errors.Is(err, reach.ErrForbidden):
			t.Missing = addOnce(t.Missing, mayNotReach(pods[i].Namespace))
		default:
			t.Missing = append(t.Missing, fmt.Sprintf("%s: %s", pods[i].Name, note(err)))
		}
	}
	return bodies
}
