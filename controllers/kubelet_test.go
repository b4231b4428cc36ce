package controllers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
	"github.com/sluice-dev/sluice/engine/loads"
)

// kubelet plays the node of one namespace: it binds pods, gives each engine an address on the loopback network with a
// server that answers /v1/loads and, with what a real engine exports, /metrics, makes it Ready, and ends it when it is deleted. It makes router Deployments ready too.
type kubelet struct {
	t         *testing.T
	api       client.Client
	namespace string

	mu      sync.Mutex
	engines map[types.UID]*fakeEngine
	hold    func(*corev1.Pod) bool // pods that do not become ready
	export  func(*corev1.Pod) string
	rounds  int // of sync
}

// fakeEngine answers /v1/loads for one pod.
type fakeEngine struct {
	server *httptest.Server
	ip     string
	role   v1alpha1.Role
	data   int32 // DP ranks

	mu        sync.Mutex
	running   int
	generated int64
	polls     int
	levels    []string // of traces, as they were set
	deaf      bool     // it takes no level
	exports   string   // its metrics; empty: it has none
	scrapes   int
}

// addresses gives each engine of all tests its own address in 127.0.0.0/8.
var addresses struct {
	sync.Mutex
	next int
}

func nextAddress() string {
	addresses.Lock()
	defer addresses.Unlock()
	addresses.next++
	return fmt.Sprintf("127.77.%d.%d", addresses.next/250, addresses.next%250+1)
}

func startKubelet(t *testing.T, api client.Client, namespace string) *kubelet {
	k := &kubelet{t: t, api: api, namespace: namespace, engines: map[types.UID]*fakeEngine{}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			k.sync(ctx)
			k.mu.Lock()
			defer k.mu.Unlock()
			k.rounds++
		}, 30*time.Millisecond)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		k.mu.Lock()
		defer k.mu.Unlock()
		for _, engine := range k.engines {
			engine.server.Close()
		}
	})
	return k
}

// sync does one round. Errors are conflicts with the operator; the next round does it again.
func (k *kubelet) sync(ctx context.Context) {
	var pods corev1.PodList
	if err := k.api.List(ctx, &pods, client.InNamespace(k.namespace)); err != nil {
		return
	}
	for i := range pods.Items {
		k.syncPod(ctx, &pods.Items[i])
	}
	var deployments appsv1.DeploymentList
	if err := k.api.List(ctx, &deployments, client.InNamespace(k.namespace)); err != nil {
		return
	}
	for i := range deployments.Items {
		k.syncDeployment(ctx, &deployments.Items[i])
	}
}

func (k *kubelet) syncPod(ctx context.Context, pod *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	engine := k.engines[pod.UID]
	if pod.DeletionTimestamp != nil {
		_ = k.api.Delete(ctx, pod, client.GracePeriodSeconds(0))
		if engine != nil {
			engine.server.Close()
			delete(k.engines, pod.UID)
		}
		return
	}
	if pod.Spec.NodeName == "" {
		binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}, Target: corev1.ObjectReference{Kind: "Node", Name: "node"}}
		_ = k.api.SubResource("binding").Create(ctx, pod, binding)
		return
	}
	if engine != nil || pod.Status.Phase == corev1.PodFailed || (k.hold != nil && k.hold(pod)) {
		return
	}
	engine = k.startEngine(pod)
	before := pod.DeepCopy()
	pod.Status.Phase = corev1.PodRunning
	pod.Status.PodIP = engine.ip
	pod.Status.PodIPs = []corev1.PodIP{{IP: engine.ip}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "engine", Ready: true, Started: new(true),
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}}
	if err := k.api.Status().Patch(ctx, pod, client.MergeFrom(before)); err != nil {
		engine.server.Close()
		return
	}
	k.engines[pod.UID] = engine
}

func (k *kubelet) startEngine(pod *corev1.Pod) *fakeEngine {
	engine := &fakeEngine{exports: k.exports(pod), ip: nextAddress(), role: v1alpha1.Role(pod.Labels[v1alpha1.LabelRole]), data: plan.LayoutOf(pod).Data}
	listener, err := net.Listen("tcp", net.JoinHostPort(engine.ip, "30000"))
	if err != nil {
		k.t.Errorf("listen for pod %s: %v", pod.Name, err)
		listener, _ = net.Listen("tcp", "127.0.0.1:0")
	}
	engine.server = &httptest.Server{Listener: listener, Config: &http.Server{Handler: engine}}
	engine.server.Start()
	return engine
}

// ServeHTTP answers as an engine with `running` requests on its first DP rank does.
func (e *fakeEngine) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	e.mu.Lock()
	if request.URL.Path == "/set_trace_level" {
		defer e.mu.Unlock()
		if e.deaf {
			http.Error(w, "tracing is off", http.StatusBadRequest)
			return
		}
		e.levels = append(e.levels, request.URL.Query().Get("level"))
		return
	}
	if request.URL.Path == "/metrics" {
		defer e.mu.Unlock()
		e.scrapes++
		if e.exports == "" {
			http.Error(w, "the exporter has stopped", http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, e.exports)
		return
	}
	e.polls++
	load := loads.Load{
		NumRunningReqs: e.running, MaxRunningRequests: 10, MaxTotalNumTokens: 1000, Utilization: float64(e.running) / 10, TotalGenerated: e.generated,
		Disaggregation: &loads.Disaggregation{Mode: e.role.EngineType()}, Queues: &loads.Queues{},
	}
	e.mu.Unlock()
	if e.role == v1alpha1.RolePrefill {
		load.Utilization = -1
	}
	all := []loads.Load{load}
	for rank := 1; rank < int(e.data); rank++ {
		idle := load
		idle.DPRank, idle.NumRunningReqs, idle.Utilization, idle.TotalGenerated = rank, 0, min(0, load.Utilization), 0
		all = append(all, idle)
	}
	_ = json.NewEncoder(w).Encode(loads.Response{Timestamp: time.Now().UTC(), Version: "test", NumAccelerators: 1, Loads: all})
}

func (k *kubelet) syncDeployment(ctx context.Context, deployment *appsv1.Deployment) {
	status := appsv1.DeploymentStatus{
		ObservedGeneration: deployment.Generation, Replicas: *deployment.Spec.Replicas, UpdatedReplicas: *deployment.Spec.Replicas,
		ReadyReplicas: *deployment.Spec.Replicas, AvailableReplicas: *deployment.Spec.Replicas,
	}
	if deployment.Status.ObservedGeneration == status.ObservedGeneration && deployment.Status.ReadyReplicas == status.ReadyReplicas {
		return
	}
	before := deployment.DeepCopy()
	deployment.Status = status
	_ = k.api.Status().Patch(ctx, deployment, client.MergeFrom(before))
}

// setRunning says how many requests the engine of a pod has.
func (k *kubelet) setRunning(pod *corev1.Pod, running int) {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	engine := k.engines[pod.UID]
	if engine == nil {
		k.t.Fatalf("pod %s has no engine", pod.Name)
	}
	engine.mu.Lock()
	defer engine.mu.Unlock()
	engine.running = running
}

// generate makes the engine of a pod tell that it generated so many more tokens.
func (k *kubelet) generate(pod *corev1.Pod, tokens int64) {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	engine := k.engines[pod.UID]
	if engine == nil {
		k.t.Fatalf("pod %s has no engine", pod.Name)
	}
	engine.mu.Lock()
	defer engine.mu.Unlock()
	engine.generated += tokens
}

// setDeaf says whether the engine of a pod refuses trace levels, and gives those that it took.
func (k *kubelet) setDeaf(pod *corev1.Pod, deaf bool) (levels []string) {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	engine := k.engines[pod.UID]
	if engine == nil {
		k.t.Fatalf("pod %s has no engine", pod.Name)
	}
	engine.mu.Lock()
	defer engine.mu.Unlock()
	engine.deaf = deaf
	return slices.Clone(engine.levels)
}

// setHold says which pods do not become ready from now on.
func (k *kubelet) setHold(hold func(*corev1.Pod) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hold = hold
}

// fail ends the engine of a pod.
func (k *kubelet) fail(pod *corev1.Pod) {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	before := pod.DeepCopy()
	pod.Status.Phase = corev1.PodFailed
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}}
	started := metav1.NewTime(time.Now().Add(-time.Minute))
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "engine", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", StartedAt: started, FinishedAt: metav1.Now()}},
	}}
	if err := k.api.Status().Patch(context.Background(), pod, client.MergeFrom(before)); err != nil {
		k.t.Fatal(err)
	}
	if engine := k.engines[pod.UID]; engine != nil {
		engine.server.Close()
		delete(k.engines, pod.UID)
	}
}

// setExport says what engines that start from now on export.
func (k *kubelet) setExport(export func(*corev1.Pod) string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.export = export
}

func (k *kubelet) exports(pod *corev1.Pod) string {
	if k.export == nil {
		return ""
	}
	return k.export(pod)
}

// setExports makes the engine of a pod export something else; nothing stops its exporter.
func (k *kubelet) setExports(pod *corev1.Pod, text string) {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	engine := k.engines[pod.UID]
	if engine == nil {
		k.t.Fatalf("pod %s has no engine", pod.Name)
	}
	engine.mu.Lock()
	defer engine.mu.Unlock()
	engine.exports = text
}

// scrapes is the least number of times that the metrics of an engine were asked for.
func (k *kubelet) scrapes() int { return k.least(func(e *fakeEngine) int { return e.scrapes }) }

// polls is the least number of times that an engine was asked.
func (k *kubelet) polls() int { return k.least(func(e *fakeEngine) int { return e.polls }) }

// least is the smallest count of an engine, 0 without one.
func (k *kubelet) least(count func(*fakeEngine) int) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	least := -1
	for _, engine := range k.engines {
		engine.mu.Lock()
		if n := count(engine); least < 0 || n < least {
			least = n
		}
		engine.mu.Unlock()
	}
	return max(0, least)
}

// roundsDone is how many rounds the node has done; a round takes 30 ms or longer.
func (k *kubelet) roundsDone() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.rounds
}
