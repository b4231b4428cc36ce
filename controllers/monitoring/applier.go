package monitoring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/sluice-dev/sluice/controllers/owned"
)

// Outcome is what became of a ServiceMonitor.
type Outcome string

const (
	// Applied means that it was made or changed.
	Applied Outcome = "Applied"
	// Unchanged means that it is there as it should be.
	Unchanged Outcome = "Unchanged"
	// CRDMissing means that the cluster has no ServiceMonitor resource; Applier.Source tells when it gets one.
	CRDMissing Outcome = "CRDMissing"
	// Failed means that the API server refused it, or could not be reached.
	Failed Outcome = "Failed"
)

const (
	// fieldManager owns the fields that the operator applies.
	fieldManager = "sluice-operator"

	// checkInterval is how often the Applier looks whether the ServiceMonitor resource exists.
	checkInterval = 10 * time.Second

	// trustFor is how long an applied ServiceMonitor is taken to be as it was. After that, the next Apply reads it again,
	// which mends what somebody else changed.
	trustFor = 5 * time.Minute
)

// ServiceMonitorResource is the resource that the Applier writes.
var ServiceMonitorResource = schema.GroupVersionResource{
	Group: monitoringv1.SchemeGroupVersion.Group, Version: monitoringv1.SchemeGroupVersion.Version, Resource: monitoringv1.ServiceMonitorName,
}

// ApplierConfig says how ServiceMonitors reach the cluster.
type ApplierConfig struct {
	// Dynamic and Discovery reach the API server without a cache.
	Dynamic   dynamic.Interface
	Discovery discovery.ServerResourcesInterface
	Clock     clock.Clock
	Log       logr.Logger
}

// Applier writes ServiceMonitors by server-side apply, only when they differ from what is there. As a manager.Runnable
// it watches whether the resource exists, and makes the listeners of its Source reconcile when that changes. Apply works
// without Start too; it then notices the resource at the next call.
type Applier struct {
	cfg ApplierConfig

	mu        sync.Mutex
	present   *bool                          // nil until the first look
	trusted   map[types.NamespacedName]trust // what was applied or found equal
	listeners map[int]func(context.Context)  // called when the resource appears or goes
	next      int                            // key of the next listener
}

// trust remembers that a ServiceMonitor was as desired.
type trust struct {
	desired string // its JSON
	until   time.Time
}

// NewApplier makes an applier.
func NewApplier(cfg ApplierConfig) (*Applier, error) {
	if cfg.Dynamic == nil || cfg.Discovery == nil || cfg.Clock == nil {
		return nil, errors.New("service monitors: dynamic, discovery and clock are all needed")
	}
	return &Applier{
		cfg:       cfg,
		trusted:   map[types.NamespacedName]trust{},
		listeners: map[int]func(context.Context){},
	}, nil
}

// NewApplierForConfig makes an applier with clients of its own.
func NewApplierForConfig(config *rest.Config, clk clock.Clock, log logr.Logger) (*Applier, error) {
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("service monitors: make a client: %w", err)
	}
	discoveryClient, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("service monitors: make a client: %w", err)
	}
	return NewApplier(ApplierConfig{Dynamic: dynamicClient, Discovery: discoveryClient, Clock: clk, Log: log})
}

// NeedLeaderElection is true: the leader alone reconciles.
func (a *Applier) NeedLeaderElection() bool { return true }

// Start looks for the resource until ctx ends.
func (a *Applier) Start(ctx context.Context) error {
	for {
		a.check(ctx)
		timer := a.cfg.Clock.NewTimer(checkInterval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
	}
}

// Source makes a controller reconcile the requests that list gives whenever the ServiceMonitor resource appears or goes.
func (a *Applier) Source(list func(context.Context) []reconcile.Request) source.Source {
	return source.Func(func(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		a.mu.Lock()
		defer a.mu.Unlock()
		id := a.next
		a.next++
		a.listeners[id] = func(ctx context.Context) {
			for _, request := range list(ctx) {
				q.Add(request)
			}
		}
		context.AfterFunc(ctx, func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			delete(a.listeners, id)
		})
		return nil
	})
}

// check looks whether the resource exists and tells the listeners when that changed since the last look.
func (a *Applier) check(ctx context.Context) {
	present, err := a.lookUp()
	if err != nil {
		a.cfg.Log.Error(err, "Look for the ServiceMonitor resource")
		return
	}
	a.mu.Lock()
	changed := a.present != nil && *a.present != present
	first := a.present == nil
	a.present = &present
	if changed {
		clear(a.trusted)
	}
	var listeners []func(context.Context)
	if changed {
		for _, l := range a.listeners {
			listeners = append(listeners, l)
		}
	}
	a.mu.Unlock()
	if first || changed {
		a.cfg.Log.Info("The ServiceMonitor resource", "present", present)
	}
	for _, tell := range listeners {
		tell(ctx)
	}
}

// lookUp asks the API server whether it has the resource.
func (a *Applier) lookUp() (present bool, err error) {
	list, err := a.cfg.Discovery.ServerResourcesForGroupVersion(ServiceMonitorResource.GroupVersion().String())
	switch {
	case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("discover %s: %w", ServiceMonitorResource.GroupVersion(), err)
	}
	for _, r := range list.APIResources {
		if r.Name == ServiceMonitorResource.Resource {
			return true, nil
		}
	}
	return false, nil
}

// Apply brings the cluster's ServiceMonitor in line. A cluster without the resource is no error. The error says what the
// API server refused.
func (a *Applier) Apply(ctx context.Context, desired *monitoringv1.ServiceMonitor) (Outcome, error) {
	key := types.NamespacedName{Namespace: desired.Namespace, Name: desired.Name}
	object, text, err := encode(desired)
	if err != nil {
		return Failed, fmt.Errorf("encode ServiceMonitor %s: %w", key, err)
	}

	a.mu.Lock()
	known, missing := a.trusted[key], a.present != nil && !*a.present
	a.mu.Unlock()
	if missing {
		return CRDMissing, nil
	}
	now := a.cfg.Clock.Now()
	if known.desired == text && now.Before(known.until) {
		return Unchanged, nil
	}

	outcome := Applied
	monitors := a.cfg.Dynamic.Resource(ServiceMonitorResource).Namespace(desired.Namespace)
	live, err := monitors.Get(ctx, desired.Name, metav1.GetOptions{})
	if err == nil {
		if err := checkOwner(live, desired); err != nil {
			return Failed, err
		}
	}
	switch {
	case err == nil && contains(live.Object, object.Object):
		outcome = Unchanged
	case err == nil || apierrors.IsNotFound(err): // the object or its resource is missing; applying tells which
		_, err = monitors.Apply(ctx, desired.Name, object, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	}
	switch {
	case isNoResource(err):
		return CRDMissing, nil
	case err != nil:
		return Failed, fmt.Errorf("apply ServiceMonitor %s: %w", key, err)
	}
	a.mu.Lock()
	a.trusted[key] = trust{desired: text, until: now.Add(trustFor)}
	a.mu.Unlock()
	return outcome, nil
}

// checkOwner refuses a ServiceMonitor that somebody else made: applying ours would overwrite it.
func checkOwner(live *unstructured.Unstructured, desired *monitoringv1.ServiceMonitor) error {
	owner := metav1.GetControllerOf(desired)
	if owner == nil {
		return fmt.Errorf("apply ServiceMonitor %s/%s: it has no controller; set its owner", desired.Namespace, desired.Name)
	}
	return owned.CheckOwner(monitoringv1.ServiceMonitorsKind, live, *owner)
}

// Forget drops what is remembered of a ServiceMonitor that is not wanted any more.
func (a *Applier) Forget(key types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.trusted, key)
}

// encode gives the object as it is applied, without status and without fields that the server fills, and its JSON.
func encode(desired *monitoringv1.ServiceMonitor) (*unstructured.Unstructured, string, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(desired)
	if err != nil {
		return nil, "", err
	}
	unstructured.RemoveNestedField(fields, "status")
	unstructured.RemoveNestedField(fields, "metadata", "creationTimestamp")
	text, err := json.Marshal(fields)
	return &unstructured.Unstructured{Object: fields}, string(text), err
}

// isNoResource says that the resource itself is missing.
func isNoResource(err error) bool {
	return err != nil && (meta.IsNoMatchError(err) || apierrors.IsNotFound(err))
}

// contains says whether live holds everything that desired does: objects may hold more fields, such as defaults, lists
// must have the same length.
func contains(live, desired any) bool {
	switch want := desired.(type) {
	case map[string]any:
		have, ok := live.(map[string]any)
		if !ok {
			return false
		}
		for key, value := range want {
			if !contains(have[key], value) {
				return false
			}
		}
		return true
	case []any:
		have, ok := live.([]any)
		if !ok || len(have) != len(want) {
			return false
		}
		for i := range want {
			if !contains(have[i], want[i]) {
				return false
			}
		}
		return true
	default:
		return live == desired
	}
}
