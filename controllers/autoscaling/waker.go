package autoscaling

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/observe"
	"github.com/sluice-dev/sluice/controllers/plan"
	"github.com/sluice-dev/sluice/router/demand"
)

// wakeInterval is how often routers of services with a pool that may be empty are asked. A request that comes to an empty
// pool waits this long, on average half of it, until the pool is told to grow.
const wakeInterval = time.Second

// demandLimitBytes bounds a router's answer.
const demandLimitBytes = 16 << 10

// WakerConfig is what a Waker works with. All fields are needed.
type WakerConfig struct {
	// Client reads EnginePools and router pods from the cache and writes the demand of pools.
	Client client.Client
	// Samples tells what the engines hold.
	Samples Outstanding
	// Recorder takes an event for each decision.
	Recorder events.EventRecorder
	Clock    clock.Clock
	Log      logr.Logger
}

// Outstanding is what the Waker needs to know of engines. *observe.Store has it.
type Outstanding interface {
	// Pool gives the newest samples of a pool's leaders.
	Pool(pool types.NamespacedName) observe.PoolSample
}

// Waker moves pools with minReplicas 0 between no replica and some, which an autoscaler does not: it leaves a pool alone
// that asks for no replica. It is a manager.Runnable that runs on the leader.
//
// Its write carries the version of the pool that it decided on, as an autoscaler's does, so that of two who decide at the
// same time one is refused and looks again.
type Waker struct {
	cfg    WakerConfig
	client *http.Client
	memory map[types.NamespacedName]ZeroMemory // by service
}

// NewWaker makes a Waker; Start runs it.
func NewWaker(cfg WakerConfig) (*Waker, error) {
	if cfg.Client == nil || cfg.Samples == nil || cfg.Recorder == nil || cfg.Clock == nil {
		return nil, errors.New("waker: client, samples, recorder and clock are all needed")
	}
	return &Waker{cfg: cfg, memory: map[types.NamespacedName]ZeroMemory{}, client: &http.Client{
		Timeout: wakeInterval,
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: wakeInterval}).DialContext, MaxIdleConnsPerHost: 1, IdleConnTimeout: 10 * wakeInterval,
			ResponseHeaderTimeout: wakeInterval, MaxResponseHeaderBytes: 16 << 10, DisableCompression: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// NeedLeaderElection is true: one operator decides.
func (w *Waker) NeedLeaderElection() bool { return true }

// Start decides once an interval until ctx ends.
func (w *Waker) Start(ctx context.Context) error {
	defer w.client.CloseIdleConnections()
	for {
		if err := w.round(ctx); err != nil && ctx.Err() == nil {
			w.cfg.Log.Error(err, "Pools are neither woken nor emptied now")
		}
		timer := w.cfg.Clock.NewTimer(wakeInterval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
	}
}

// round reads all services with a pool that may be empty, decides and writes.
func (w *Waker) round(ctx context.Context) error {
	// 1. Which services?
	services, err := w.services(ctx)
	if err != nil {
		return err
	}
	for service := range w.memory {
		if _, ok := services[service]; !ok {
			delete(w.memory, service)
		}
	}
	// 2. What do their routers say?
	if err := w.ask(ctx, services); err != nil {
		return err
	}
	// 3. Decide and write.
	var failures []error
	for name, service := range services {
		var decisions []ZeroDecision
		decisions, w.memory[name] = DecideZero(w.state(service), w.memory[name])
		for _, decision := range decisions {
			if err := w.apply(ctx, service.pools, decision); err != nil {
				failures = append(failures, err)
			}
		}
	}
	return errors.Join(failures...)
}

// zeroService is a service with its pools and routers.
type zeroService struct {
	pools   []*v1alpha1.EnginePool
	routers []RouterDemand
}

// services lists those with a pool that may be empty, with all of their pools.
func (w *Waker) services(ctx context.Context) (map[types.NamespacedName]*zeroService, error) {
	var list v1alpha1.EnginePoolList
	if err := w.cfg.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list EnginePools: %w", err)
	}
	services := map[types.NamespacedName]*zeroService{}
	for i := range list.Items {
		if pool := &list.Items[i]; mayBeZero(pool) {
			services[serviceOf(pool)] = &zeroService{}
		}
	}
	for i := range list.Items {
		pool := &list.Items[i]
		if service, ok := services[serviceOf(pool)]; ok && pool.DeletionTimestamp == nil {
			service.pools = append(service.pools, pool)
		}
	}
	return services, nil
}

func mayBeZero(pool *v1alpha1.EnginePool) bool {
	return pool.DeletionTimestamp == nil && pool.Spec.Autoscaling != nil && pool.Spec.Autoscaling.Min() == 0
}

func serviceOf(pool *v1alpha1.EnginePool) types.NamespacedName {
	return types.NamespacedName{Namespace: pool.Namespace, Name: pool.Spec.Service}
}

// concurrency is how many routers are asked at a time.
const concurrency = 32

// ask fills in what the routers of the services say.
func (w *Waker) ask(ctx context.Context, services map[types.NamespacedName]*zeroService) error {
	var (
		asking sync.WaitGroup
		places = make(chan struct{}, concurrency)
	)
	defer asking.Wait()
	for name, service := range services {
		var pods corev1.PodList
		err := w.cfg.Client.List(ctx, &pods, client.InNamespace(name.Namespace), client.UnsafeDisableDeepCopy,
			client.MatchingLabels{v1alpha1.LabelService: name.Name, v1alpha1.LabelComponent: v1alpha1.ComponentRouter})
		if err != nil {
			return fmt.Errorf("list the router pods of %s: %w", name, err)
		}
		var urls []string
		for i := range pods.Items {
			if pod := &pods.Items[i]; pod.Status.Phase == corev1.PodRunning && pod.Status.PodIP != "" {
				service.routers = append(service.routers, RouterDemand{Router: string(pod.UID) + "/" + restarts(pod)})
				urls = append(urls, routerURL(pod))
			}
		}
		for i, url := range urls {
			places <- struct{}{}
			asking.Go(func() {
				defer func() { <-places }()
				w.read(ctx, url, &service.routers[i])
			})
		}
	}
	return nil
}

// restarts tells the processes of a pod apart.
func restarts(pod *corev1.Pod) string {
	n := int32(0)
	for _, c := range pod.Status.ContainerStatuses {
		n += c.RestartCount
	}
	return strconv.Itoa(int(n))
}

// routerURL is where a router pod serves its demand: at the port of its container, which has one.
func routerURL(pod *corev1.Pod) string {
	port := int32(v1alpha1.DefaultRouterPort)
	for _, c := range pod.Spec.Containers {
		if c.Name == plan.RouterContainer && len(c.Ports) > 0 {
			port = c.Ports[0].ContainerPort
		}
	}
	return "http://" + net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(port))) + demand.Path
}

// read asks one router. What it does not answer is not known.
func (w *Waker) read(ctx context.Context, url string, router *RouterDemand) {
	report, err := w.fetch(ctx, url)
	if err != nil {
		w.cfg.Log.V(1).Info("A router does not say what it has to do", "url", url, "error", err.Error())
		return
	}
	router.Report, router.Answered = report, true
}

func (w *Waker) fetch(ctx context.Context, url string) (demand.Report, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return demand.Report{}, fmt.Errorf("ask %s: %w", url, err)
	}
	response, err := w.client.Do(request)
	if err != nil {
		return demand.Report{}, fmt.Errorf("ask: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, demandLimitBytes))
	if err != nil {
		return demand.Report{}, fmt.Errorf("ask %s: read the body: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		return demand.Report{}, fmt.Errorf("ask %s: status %d, want 200", url, response.StatusCode)
	}
	return parseDemand(body)
}

// parseDemand reads a router's answer. A field that is missing is no 0: an older router has other routes.
func parseDemand(body []byte) (demand.Report, error) {
	var answer struct {
		Waiting map[string]int `json:"waiting_requests"`
		Begun   *uint64        `json:"requests_begun"`
		Open    *int64         `json:"requests_open"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return demand.Report{}, fmt.Errorf("read the answer: %w", err)
	}
	if answer.Waiting == nil || answer.Begun == nil || answer.Open == nil {
		return demand.Report{}, errors.New("the answer lacks waiting_requests, requests_begun or requests_open")
	}
	for role, n := range answer.Waiting {
		if n < 0 {
			return demand.Report{}, fmt.Errorf("waiting_requests of %s is %d, want 0 or more", role, n)
		}
	}
	if *answer.Open < 0 {
		return demand.Report{}, fmt.Errorf("requests_open is %d, want 0 or more", *answer.Open)
	}
	return demand.Report{Waiting: answer.Waiting, Begun: *answer.Begun, Open: *answer.Open}, nil
}

// state is what a decision about the service depends on.
func (w *Waker) state(service *zeroService) ZeroState {
	state := ZeroState{Now: w.cfg.Clock.Now(), Routers: service.routers}
	for _, pool := range service.pools {
		p := ZeroPool{
			Name: pool.Name, Role: pool.Spec.Role, Demand: 1, MayBeZero: mayBeZero(pool), IdleAfter: v1alpha1.DefaultScaleToZeroAfterSeconds * time.Second,
		}
		if pool.Spec.Replicas != nil {
			p.Demand = *pool.Spec.Replicas
		}
		if scaling := pool.Spec.Autoscaling; scaling != nil && scaling.ScaleToZeroAfterSeconds != nil {
			p.IdleAfter = time.Duration(*scaling.ScaleToZeroAfterSeconds) * time.Second
		}
		p.Outstanding, p.Known = outstanding(w.cfg.Samples.Pool(client.ObjectKeyFromObject(pool)), state.Now)
		state.Pools = append(state.Pools, p)
	}
	return state
}

// outstanding adds up what the engines of a pool hold; known is false when one of them does not tell, as one that was ready
// and is not any more: it may be too busy to say so. An engine that never was ready holds nothing.
func outstanding(sample observe.PoolSample, now time.Time) (requests int64, known bool) {
	for _, pod := range sample.Pods {
		if pod.ReadySince.IsZero() && !pod.Draining && pod.Taken.IsZero() {
			continue
		}
		n, ok := pod.Outstanding()
		if !ok || !pod.Fresh(now, sample.FreshFor) {
			return 0, false
		}
		requests += n
	}
	return requests, true
}

// Scaled is the value of v1alpha1.AnnotationScaled: the newest decision of the operator about a pool's demand.
type Scaled struct {
	By     v1alpha1.ScalingActor `json:"by"`
	From   int32                 `json:"from"`
	To     int32                 `json:"to"`
	Reason string                `json:"reason"`
}

// apply writes a decision, unless somebody else has changed the pool meanwhile: then the next round decides anew.
func (w *Waker) apply(ctx context.Context, pools []*v1alpha1.EnginePool, decision ZeroDecision) error {
	at := slices.IndexFunc(pools, func(p *v1alpha1.EnginePool) bool { return p.Name == decision.Pool })
	pool := pools[at].DeepCopy()
	note, err := json.Marshal(Scaled{By: decision.By, From: decision.From, To: decision.To, Reason: decision.Reason})
	if err != nil {
		return fmt.Errorf("encode the decision about %s: %w", decision.Pool, err)
	}
	metav1.SetMetaDataAnnotation(&pool.ObjectMeta, v1alpha1.AnnotationScaled, string(note))
	pool.Spec.Replicas = new(decision.To)
	err = w.cfg.Client.Update(ctx, pool)
	switch {
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("write the demand of EnginePool %s/%s: %w", pool.Namespace, pool.Name, err)
	}
	reason := "WokenUp"
	if decision.To == 0 {
		reason = "PutToSleep"
	}
	w.cfg.Log.Info(reason, "pool", client.ObjectKeyFromObject(pool), "reason", decision.Reason)
	w.cfg.Recorder.Eventf(pool, nil, corev1.EventTypeNormal, reason, string(decision.By), "%s", decision.Reason)
	return nil
}
