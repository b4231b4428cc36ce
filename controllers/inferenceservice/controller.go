package inferenceservice

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/metrics"
	"github.com/sluice-dev/sluice/controllers/monitoring"
	"github.com/sluice-dev/sluice/controllers/monitoring/dashboards"
	"github.com/sluice-dev/sluice/controllers/monitoring/rules"
	"github.com/sluice-dev/sluice/controllers/owned"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// +kubebuilder:rbac:groups=inference.sluice.dev,resources=inferenceservices,verbs=get;list;watch
// +kubebuilder:rbac:groups=inference.sluice.dev,resources=inferenceservices/status,verbs=update
// +kubebuilder:rbac:groups=inference.sluice.dev,resources=inferenceservices/finalizers,verbs=update
// +kubebuilder:rbac:groups=inference.sluice.dev,resources=enginepools,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=get;list;watch;create;update
// +kubebuilder:rbac:groups="",resources=services;serviceaccounts,verbs=get;list;watch;create;update
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=roles;rolebindings,verbs=get;list;watch;create;update
// +kubebuilder:rbac:groups=monitoring.coreos.com,resources=servicemonitors;podmonitors,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Monitors makes Prometheus scrape pools. *monitoring.Applier has it.
type Monitors interface {
	// Apply brings a monitor in line, if the cluster has its resource.
	Apply(ctx context.Context, desired client.Object) (monitoring.Change, error)
	// Remove deletes a monitor that the owner controls.
	Remove(ctx context.Context, resource monitoring.Resource, name types.NamespacedName, owner metav1.OwnerReference) (removed bool, err error)
	// Missing says whether the cluster is known to lack a resource.
	Missing(resource monitoring.Resource) bool
	// Settled says whether an object is known to be as it was applied last.
	Settled(resource monitoring.Resource, name types.NamespacedName) bool
	// Forget drops what is remembered of the monitors of a name.
	Forget(name types.NamespacedName)
	// Source asks for all services anew when a resource appears or goes, and for one whose monitor somebody changed.
	Source(all func(context.Context) []reconcile.Request, of func(context.Context, client.Object) []reconcile.Request) source.Source
}

// Counts takes what the controller does, for the operator's own series. *metrics.Metrics has it.
type Counts interface {
	// Changed counts what was done with an object of a kind.
	Changed(kind string, change metrics.Change)
}

// Config is what a Reconciler works with. All fields but options, Dashboards and Proofs are needed.
type Config struct {
	Client         client.Client // reads from the cache
	Live           client.Reader // reads from the API server
	Recorder       events.EventRecorder
	Monitors       Monitors
	MonitorOptions monitoring.Options
	RuleOptions    rules.Options
	// Dashboards keeps those of tenants; nil makes none.
	Dashboards *dashboards.Applier
	// Proofs may be nil: the engines' metrics are not read.
	Proofs Proofs
	Clock  clock.PassiveClock
	Router plan.RouterDefaults
	// NewSecret makes the shared secret of a service's engines: hex digits.
	NewSecret func() (string, error)
	Counts    Counts
}

// Reconciler reconciles InferenceServices.
type Reconciler struct {
	Config
	applier owned.Applier

	mu sync.Mutex
	// loadWritten is when the load of a service was last written to its status, by this process.
	loadWritten map[types.NamespacedName]time.Time
	// rulesOf is the generation of a service whose rules were applied last, by this process.
	rulesOf map[types.NamespacedName]int64
}

// New makes a Reconciler.
func New(config Config) *Reconciler {
	return &Reconciler{
		Config:      config,
		applier:     owned.Applier{Client: config.Client, Live: config.Live, Heard: metrics.HearOwned(config.Counts.Changed)},
		loadWritten: map[types.NamespacedName]time.Time{},
		rulesOf:     map[types.NamespacedName]int64{},
	}
}

// SetupWithManager makes the manager call the reconciler when a service's spec or anything that it is made of changes,
// when somebody changes its monitors, and when the cluster gets the resources of monitors.
func (r *Reconciler) SetupWithManager(manager ctrl.Manager) error {
	control := ctrl.NewControllerManagedBy(manager).
		Named("inferenceservice").
		For(&v1alpha1.InferenceService{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.EnginePool{}, soon()).
		Watches(&appsv1.Deployment{}, soon()).
		Watches(&corev1.Pod{}, soon(), builder.WithPredicates(routerWaits())).
		Owns(&corev1.ServiceAccount{}).
		Owns(&rbacv1.Role{}).
		Owns(&rbacv1.RoleBinding{}).
		// Headless Services belong to pools, so a label leads to the service.
		Watches(&corev1.Service{}, handler.EnqueueRequestsFromMapFunc(serviceOf)).
		WatchesRawSource(r.Monitors.Source(r.all, r.keeperOf)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: 8,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		})
	if r.Dashboards != nil {
		// What is in a ConfigMap is not kept in memory: its version tells when it changed.
		control.WatchesMetadata(&corev1.ConfigMap{}, handler.EnqueueRequestsFromMapFunc(r.keeperOf)).
			// The dashboards of a service that goes need an owner.
			Watches(&v1alpha1.InferenceService{}, handler.Funcs{DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				if service, ok := e.Object.(*v1alpha1.InferenceService); ok {
					for _, request := range r.heir(ctx, service.Namespace, plan.Tenant(service)) {
						q.Add(request)
					}
				}
			}})
	}
	if r.Proofs != nil {
		control.WatchesRawSource(r.Proofs.ServiceSource())
	}
	if err := control.Complete(r); err != nil {
		return fmt.Errorf("set up the inferenceservice controller: %w", err)
	}
	return nil
}

// together is how long the changes of a service's pools and router are collected, so that pools that become ready at
// about the same time make one write of the service's status.
const together = 200 * time.Millisecond

// soon asks for the service of an object after the time in which changes are collected.
func soon() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	add := func(ctx context.Context, object client.Object, q queue) {
		for _, request := range serviceOf(ctx, object) {
			q.AddAfter(request, together)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { add(ctx, e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { add(ctx, e.ObjectNew, q) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { add(ctx, e.Object, q) },
	}
}

// routerWaits passes pods of routers that begin to wait for something, or have stopped.
func routerWaits() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, was := e.ObjectOld.(*corev1.Pod)
			after, is := e.ObjectNew.(*corev1.Pod)
			return was && is && after.Labels[v1alpha1.LabelComponent] == v1alpha1.ComponentRouter && plan.DescribeWait(before) != plan.DescribeWait(after)
		},
	}
}

// serviceOf gives the service that an object's label names.
func serviceOf(_ context.Context, object client.Object) []reconcile.Request {
	name := object.GetLabels()[v1alpha1.LabelService]
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: name}}}
}

// all lists every service.
func (r *Reconciler) all(ctx context.Context) []reconcile.Request {
	var services v1alpha1.InferenceServiceList
	if err := r.Client.List(ctx, &services); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "List the InferenceServices")
		return nil
	}
	requests := make([]reconcile.Request, 0, len(services.Items))
	for i := range services.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&services.Items[i])})
	}
	return requests
}

// Reconcile brings one service a step closer to its spec.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (result ctrl.Result, err error) {
	service := &v1alpha1.InferenceService{}
	if err := r.Client.Get(ctx, request.NamespacedName, service); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(request.NamespacedName)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("read InferenceService %s: %w", request.NamespacedName, err)
	}
	if service.DeletionTimestamp != nil {
		// Owner references take everything away.
		r.forget(request.NamespacedName)
		return ctrl.Result{}, nil
	}
	step := &step{service: service}
	defer func() { result, err = r.finish(ctx, step, err) }()

	// 1. Read.
	if err := r.read(ctx, step); err != nil {
		return ctrl.Result{}, err
	}
	// 2. Plan and apply; a part that fails does not hold the others up.
	err = errors.Join(
		r.applySecret(ctx, step),
		r.applyPools(ctx, step),
		r.applyRouter(ctx, step),
		r.retirePools(ctx, step),
	)
	r.applyRules(ctx, step)
	r.applyDashboards(ctx, step)
	return ctrl.Result{}, err
}

// finish observes and writes the status, whatever happened before. What only needs time, such as a conflict with
// another writer, is no error: the service is reconciled again.
func (r *Reconciler) finish(ctx context.Context, step *step, err error) (ctrl.Result, error) {
	step.err = err
	again, statusErr := r.writeStatus(ctx, step)
	err = errors.Join(err, statusErr)
	if delay, waits := owned.Wait(err); waits {
		return ctrl.Result{RequeueAfter: delay}, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	if step.monitorFailed() && (again == 0 || again > monitorRetry) {
		again = monitorRetry
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

// monitorRetry is when a monitor that was refused is tried again; the service serves without it.
const monitorRetry = 10 * time.Second

// What fails is tried again after firstRetry, then after twice that, up to lastRetry: a quota that was raised is noticed
// within that time.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 30 * time.Second
)

func (r *Reconciler) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.loadWritten, key)
	delete(r.rulesOf, key)
}
