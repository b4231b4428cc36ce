package monitoring

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

const (
	// checkInterval is how often the Applier looks which resources exist.
	checkInterval = 10 * time.Second

	// managedLabel is on every object that the operator applies.
	managedLabel = "app.kubernetes.io/managed-by=sluice-operator"
)

// listener is who hears of changes.
type listener struct {
	all func(context.Context)                // a resource appeared or is gone
	one func(context.Context, client.Object) // an object is not as it was applied
}

// NeedLeaderElection is true: the leader alone reconciles.
func (a *Applier) NeedLeaderElection() bool { return true }

// Start looks for the resources, and watches the objects of those that exist, until ctx ends.
func (a *Applier) Start(ctx context.Context) error {
	watches := map[Resource]context.CancelFunc{}
	var running sync.WaitGroup
	defer running.Wait()
	defer func() {
		for _, stop := range watches {
			stop()
		}
	}()
	for {
		for resource, present := range a.check(ctx) {
			stop, watched := watches[resource]
			switch {
			case present && !watched:
				watch, cancel := context.WithCancel(ctx)
				watches[resource] = cancel
				a.watch(watch, resource, &running)
			case !present && watched:
				stop()
				delete(watches, resource)
			}
		}
		timer := a.cfg.Clock.NewTimer(checkInterval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
	}
}

// Source makes a controller reconcile the requests that all gives whenever a resource appears or goes, and those that of
// gives for an object that is not as it was applied.
func (a *Applier) Source(all func(context.Context) []reconcile.Request, of func(context.Context, client.Object) []reconcile.Request) source.Source {
	return source.Func(func(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		a.mu.Lock()
		defer a.mu.Unlock()
		id := a.next
		a.next++
		add := func(requests []reconcile.Request) {
			for _, request := range requests {
				q.Add(request)
			}
		}
		a.listeners[id] = listener{
			all: func(ctx context.Context) { add(all(ctx)) },
			one: func(ctx context.Context, object client.Object) { add(of(ctx, object)) },
		}
		context.AfterFunc(ctx, func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			delete(a.listeners, id)
		})
		return nil
	})
}

// hearers gives the listeners, to be called without the lock.
func (a *Applier) hearers() []listener {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make([]listener, 0, len(a.listeners))
	for _, l := range a.listeners {
		all = append(all, l)
	}
	return all
}

// check looks which resources exist and tells the listeners when that changed since the last look. What could not be
// looked up is left out of the answer.
func (a *Applier) check(ctx context.Context) map[Resource]bool {
	found := map[Resource]bool{}
	groups := map[schema.GroupVersion]map[string]bool{}
	for _, resource := range a.cfg.Resources {
		gv := resource.GVR.GroupVersion()
		names, looked := groups[gv]
		if !looked {
			var err error
			if names, err = a.lookUp(gv); err != nil {
				a.cfg.Log.Error(err, "Look for optional resources")
				continue
			}
			groups[gv] = names
		}
		found[resource] = names[resource.GVR.Resource]
	}

	changed := false
	a.mu.Lock()
	for resource, present := range found {
		before, looked := a.present[resource]
		a.present[resource] = present
		if !looked || before != present {
			a.cfg.Log.Info("An optional resource", "resource", resource.name(), "present", present)
		}
		if !looked || before == present {
			continue
		}
		changed = true
		for key := range a.trusted {
			if key.Resource == resource {
				delete(a.trusted, key)
			}
		}
	}
	a.mu.Unlock()
	if changed {
		for _, l := range a.hearers() {
			l.all(ctx)
		}
	}
	return found
}

// lookUp asks the API server which resources a group has; none when there is no such group.
func (a *Applier) lookUp(gv schema.GroupVersion) (names map[string]bool, err error) {
	list, err := a.cfg.Discovery.ServerResourcesForGroupVersion(gv.String())
	switch {
	case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
		return map[string]bool{}, nil
	case err != nil:
		return nil, fmt.Errorf("discover %s: %w", gv, err)
	}
	names = map[string]bool{}
	for _, r := range list.APIResources {
		names[r.Name] = true
	}
	return names, nil
}

// watch follows the operator's objects of a resource until ctx ends.
func (a *Applier) watch(ctx context.Context, resource Resource, running *sync.WaitGroup) {
	namespaces := a.cfg.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	seen := func(event any) {
		if gone, ok := event.(cache.DeletedFinalStateUnknown); ok {
			event = gone.Obj
		}
		if live, ok := event.(*unstructured.Unstructured); ok {
			a.seen(ctx, resource, live, false)
		}
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    seen,
		UpdateFunc: func(_, event any) { seen(event) },
		DeleteFunc: func(event any) {
			if gone, ok := event.(cache.DeletedFinalStateUnknown); ok {
				event = gone.Obj
			}
			if last, ok := event.(*unstructured.Unstructured); ok {
				a.seen(ctx, resource, last, true)
			}
		},
	}
	for _, namespace := range namespaces {
		informer := dynamicinformer.NewFilteredDynamicInformer(a.cfg.Dynamic, resource.GVR, namespace, 0, cache.Indexers{},
			func(o *metav1.ListOptions) { o.LabelSelector = managedLabel }).Informer()
		// Only what may be compared is kept in memory.
		err := informer.SetTransform(strip)
		if err == nil {
			_, err = informer.AddEventHandler(handler)
		}
		if err != nil {
			a.cfg.Log.Error(err, "Watch an optional resource; foreign changes are noticed later", "resource", resource.name())
			continue
		}
		running.Go(func() { informer.RunWithContext(ctx) })
	}
}

// seen compares an object with how it was applied, and makes the listeners look where it is not so. gone: it was deleted,
// or lost the operator's label.
func (a *Applier) seen(ctx context.Context, resource Resource, live *unstructured.Unstructured, gone bool) {
	key := object{resource, types.NamespacedName{Namespace: live.GetNamespace(), Name: live.GetName()}}
	event, err := sight(live, gone)
	if err != nil {
		a.cfg.Log.Error(err, "Watch an optional resource; foreign changes are noticed later", "resource", resource.name(), "object", key.NamespacedName)
		return
	}
	a.mu.Lock()
	known, applied := a.trusted[key]
	altered := applied && !known.writing && known.altered(event)
	switch {
	case applied && known.writing:
		known.event = &event
		a.trusted[key] = known
	case altered:
		known.until = time.Time{}
		a.trusted[key] = known
	}
	a.mu.Unlock()
	if !altered {
		return
	}
	for _, l := range a.hearers() {
		l.one(ctx, live)
	}
}
