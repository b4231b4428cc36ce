package enginepool

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
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
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/autoscaling"
	"github.com/sluice-dev/sluice/controllers/metrics"
	"github.com/sluice-dev/sluice/controllers/monitoring"
	"github.com/sluice-dev/sluice/controllers/observe"
	"github.com/sluice-dev/sluice/controllers/owned"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// +kubebuilder:rbac:groups=inference.sluice.dev,resources=enginepools,verbs=get;list;watch
// +kubebuilder:rbac:groups=inference.sluice.dev,resources=enginepools/status,verbs=update
// +kubebuilder:rbac:groups=inference.sluice.dev,resources=enginepools/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=resource.k8s.io,resources=resourceclaims,verbs=get
// +kubebuilder:rbac:groups=autoscaling,resources=horizontalpodautoscalers,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=keda.sh,resources=scaledobjects,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Samples is what the controller needs to know of the engines. *observe.Store has it.
type Samples interface {
	// Pool gives the newest samples of a pool's leaders.
	Pool(pool types.NamespacedName) observe.PoolSample
	// Drained says whether a pod has had no request since a time.
	Drained(pod types.NamespacedName, since time.Time) (drained, known bool)
	// Outstanding says how many requests a pod holds.
	Outstanding(pod types.NamespacedName) (requests int64, known bool)
	// FreshFor is how long a sample counts.
	FreshFor() time.Duration
	// Source tells which pools' samples changed.
	Source() source.Source
}

// Counts takes what the controller decides, for the operator's own series. *metrics.Metrics has it.
type Counts interface {
	// Acted counts an action that was applied, or refused with an error.
	Acted(action plan.Action, err error)
	// Kept counts a plan without an action; progressing says that replicas are not yet as allocated.
	Kept(progressing bool)
	// Scaled counts a decision about the demand of a pool, which may be its first.
	Scaled(decision v1alpha1.ScalingDecision, first bool)
	// Changed counts what was done with an object of a kind.
	Changed(kind string, change metrics.Change)
}

// Scalers writes autoscalers of an optional kind. *monitoring.Applier has it.
type Scalers interface {
	// Apply brings an object in line; a cluster without its resource is no error.
	Apply(ctx context.Context, desired client.Object) (monitoring.Change, error)
	// Remove deletes an object that the owner controls.
	Remove(ctx context.Context, resource monitoring.Resource, name types.NamespacedName, owner metav1.OwnerReference) (removed bool, err error)
	// Source tells when the resource appears, and when an object is not as it was applied.
	Source(all func(context.Context) []reconcile.Request, of func(context.Context, client.Object) []reconcile.Request) source.Source
}

// ScaledObjects is the resource that Scalers must know.
var ScaledObjects = monitoring.Resource{Kind: autoscaling.ScaledObjectKind, GVR: autoscaling.ScaledObjectResource}

// Config is what a Reconciler works with. All fields but Proofs, PrometheusURL and Counts are needed.
type Config struct {
	Client   client.Client // reads from the cache
	Live     client.Reader // reads from the API server
	Recorder events.EventRecorder
	Samples  Samples
	Proofs   Proofs // nil: the engines' metrics are not read
	Clock    clock.PassiveClock
	Engine   plan.EngineDefaults
	Scalers  Scalers
	// PrometheusURL is where KEDA's triggers ask; empty where nobody may choose provider KEDA.
	PrometheusURL string
	// Counts may be nil: nothing is counted.
	Counts Counts
}

// uncounted is who counts when nobody does.
type uncounted struct{}

func (uncounted) Acted(plan.Action, error)              {}
func (uncounted) Kept(bool)                             {}
func (uncounted) Scaled(v1alpha1.ScalingDecision, bool) {}
func (uncounted) Changed(string, metrics.Change)        {}

// Reconciler reconciles EnginePools.
type Reconciler struct {
	Config
	applier owned.Applier
	// started is when this process began to reconcile, which a standby does long after its start: engines have not been scraped
	// before. Reconcile sets it, once.
	started time.Time
	begin   sync.Once

	mu sync.Mutex
	// loadWritten is when the load of a pool was last written to its status, by this process.
	loadWritten map[types.NamespacedName]time.Time
	// unwritten is the newest decision on a pool of which the status does not tell yet: its write failed. The actions
	// are done, so no later plan holds them.
	unwritten map[types.NamespacedName]*v1alpha1.Decision
	// meters count what the pools cost.
	meters map[types.NamespacedName]*meter
	// tracers hold what the engines of pools were told of tracing; traces tells them.
	tracers map[types.NamespacedName]*tracer
	traces  *http.Client
	// demandSeen is the newest demand of a pool and when it was first seen, by this process.
	demandSeen map[types.NamespacedName]demandSeen
	// claims are what the claims of a pool's pods were given.
	claims map[types.NamespacedName]podClaims
}

// demandSeen is a demand and when it was first seen.
type demandSeen struct {
	replicas int32
	at       time.Time
}

// New makes a Reconciler.
func New(config Config) *Reconciler {
	if config.Counts == nil {
		config.Counts = uncounted{}
	}
	return &Reconciler{
		Config:      config,
		applier:     owned.Applier{Client: config.Client, Live: config.Live, Heard: metrics.HearOwned(config.Counts.Changed)},
		loadWritten: map[types.NamespacedName]time.Time{},
		unwritten:   map[types.NamespacedName]*v1alpha1.Decision{},
		meters:      map[types.NamespacedName]*meter{},
		tracers:     map[types.NamespacedName]*tracer{},
		traces:      newTraceClient(),
		demandSeen:  map[types.NamespacedName]demandSeen{},
		claims:      map[types.NamespacedName]podClaims{},
	}
}

// SetupWithManager makes the manager call the reconciler when a pool's spec, one of its pods, its autoscaler, its samples
// or its metrics change.
func (r *Reconciler) SetupWithManager(manager ctrl.Manager) error {
	of := ctrl.NewControllerManagedBy(manager).
		Named("enginepool").
		For(&v1alpha1.EnginePool{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&corev1.Pod{}).
		Owns(&autoscalingv2.HorizontalPodAutoscaler{}).
		Watches(&autoscalingv2.HorizontalPodAutoscaler{}, handler.EnqueueRequestsFromMapFunc(poolOfKEDA)).
		WatchesRawSource(r.Samples.Source()).
		WatchesRawSource(r.Scalers.Source(r.withKEDA, poolOf))
	if r.Proofs != nil {
		of = of.WatchesRawSource(r.Proofs.Source())
	}
	err := of.WithOptions(controller.Options{
		MaxConcurrentReconciles: 8,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
	}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the enginepool controller: %w", err)
	}
	return nil
}

// withKEDA lists the pools that want a ScaledObject.
func (r *Reconciler) withKEDA(ctx context.Context) []reconcile.Request {
	var list v1alpha1.EnginePoolList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache ends
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if autoscaling.UsesKEDA(&list.Items[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

// poolOf gives the pool of a ScaledObject, which has its name.
func poolOf(_ context.Context, object client.Object) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(object)}}
}

// poolOfKEDA gives the pool whose ScaledObject KEDA made an autoscaler for.
func poolOfKEDA(_ context.Context, object client.Object) []reconcile.Request {
	hpa, ok := object.(*autoscalingv2.HorizontalPodAutoscaler)
	if !ok {
		return nil
	}
	name, ok := autoscaling.PoolOfKEDA(hpa)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: hpa.Namespace, Name: name}}}
}

// Reconcile brings one pool a step closer to its spec.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (result ctrl.Result, err error) {
	r.begin.Do(func() { r.started = r.Clock.Now() })
	pool := &v1alpha1.EnginePool{}
	if err := r.Client.Get(ctx, request.NamespacedName, pool); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(request.NamespacedName)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("read EnginePool %s: %w", request.NamespacedName, err)
	}
	if pool.DeletionTimestamp != nil {
		// Owner references take everything away.
		r.forget(request.NamespacedName)
		return ctrl.Result{}, nil
	}

	// 1. Read and plan, from the cache first, which is enough when there is nothing to do.
	step := &step{pool: pool}
	defer func() { result, err = r.finish(ctx, step, result, err) }()
	if err := r.read(ctx, step, r.Client); err != nil {
		return ctrl.Result{}, err
	}
	if len(step.plan.Actions) > 0 {
		if err := r.read(ctx, step, r.Live); err != nil {
			return ctrl.Result{}, err
		}
	}
	// 2. Apply. What running engines are told holds nothing up.
	r.applyTracing(ctx, step)
	if err := errors.Join(r.applyReplicas(ctx, step), r.applyAutoscaler(ctx, step), r.applyScaledObject(ctx, step)); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: step.plan.After}, nil
}

// finish observes and writes the status, whatever happened before. What only needs time, such as a conflict with
// another writer, is no error: the pool is reconciled again.
func (r *Reconciler) finish(ctx context.Context, step *step, result ctrl.Result, err error) (ctrl.Result, error) {
	step.err = err
	again, statusErr := r.writeStatus(ctx, step)
	if again > 0 && (result.RequeueAfter == 0 || again < result.RequeueAfter) {
		result.RequeueAfter = again
	}
	err = errors.Join(err, statusErr)
	if delay, waits := owned.Wait(err); waits {
		return ctrl.Result{RequeueAfter: delay}, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	return result, nil
}

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
	delete(r.unwritten, key)
	delete(r.meters, key)
	delete(r.tracers, key)
	delete(r.demandSeen, key)
	delete(r.claims, key)
	if r.Proofs != nil {
		r.Proofs.Note(key, nil)
	}
}
