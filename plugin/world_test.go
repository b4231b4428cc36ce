package plugin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/config/crd"
	"github.com/sluice-dev/sluice/controllers/plan"
	"github.com/sluice-dev/sluice/engine/loads"
	"github.com/sluice-dev/sluice/hack/devcluster/apiserver"
	"github.com/sluice-dev/sluice/plugin"
	"github.com/sluice-dev/sluice/plugin/cluster"
	"github.com/sluice-dev/sluice/plugin/reach"
)

var update = flag.Bool("update", false, "write the expected answers anew")

var (
	server  *apiserver.Server
	kubelet *node
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	ctrl.SetLogger(logr.Discard())
	var err error
	// The last value of a flag counts: no authority means that the kubelet's certificate is not checked.
	if server, err = apiserver.Start(ctx, apiserver.Options{ExtraArgs: []string{"--kubelet-certificate-authority="}}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer server.Stop()
	kubelet = startNode()
	defer kubelet.stop()
	api, err := newClient(server.Config)
	if err == nil {
		err = errors.Join(crd.Install(ctx, server.Config), makeNode(ctx, api))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func newClient(config *rest.Config) (client.Client, error) {
	c, err := cluster.New(config, "default")
	if err != nil {
		return nil, err
	}
	return c.Client, nil
}

func makeNode(ctx context.Context, api client.Client) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	if err := api.Create(ctx, node); err != nil {
		return err
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = kubelet.port()
	return api.Status().Update(ctx, node)
}

// now is the time in all tests.
var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// world is one namespace with the objects that an operator would make.
type world struct {
	*testing.T
	api       client.Client
	namespace string
}

func newWorld(t *testing.T, namespace string) *world {
	t.Helper()
	api, err := newClient(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, api: api, namespace: namespace}
	w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	return w
}

func (w *world) create(object client.Object) {
	w.Helper()
	if err := w.api.Create(w.Context(), object); err != nil {
		w.Fatal(err)
	}
}

// writeStatus writes the status of an object as it is.
func (w *world) writeStatus(object client.Object) {
	w.Helper()
	if err := w.api.Status().Update(w.Context(), object); err != nil {
		w.Fatal(err)
	}
}

const pair = `
apiVersion: inference.sluice.dev/v1alpha1
kind: InferenceService
metadata: {name: chat}
spec:
  model: {name: tiny, uri: "pvc://models/tiny"}
  pools:
  - {name: prefill, role: Prefill}
  - name: decode
    role: Decode
    replicas: 2
    autoscaling: {minReplicas: 1, maxReplicas: 4, metrics: [{type: Utilization, target: "0.8"}]}
`

func condition(kind string, status metav1.ConditionStatus, reason, message string, ago time.Duration) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now.Add(-ago))}
}

// service makes an InferenceService with its status.
func (w *world) service(text string, status v1alpha1.InferenceServiceStatus) *v1alpha1.InferenceService {
	w.Helper()
	service := &v1alpha1.InferenceService{}
	if err := yaml.UnmarshalStrict([]byte(text), service); err != nil {
		w.Fatal(err)
	}
	service.Namespace = w.namespace
	w.create(service)
	service.Status = status
	w.writeStatus(service)
	return service
}

// pools makes the EnginePools of a service, with status as given by the pool's name.
func (w *world) pools(service *v1alpha1.InferenceService, status map[string]v1alpha1.EnginePoolStatus) map[string]*v1alpha1.EnginePool {
	w.Helper()
	made := map[string]*v1alpha1.EnginePool{}
	for _, pool := range plan.EnginePools(service, "0123456789") {
		w.create(pool)
		pool.Status = status[pool.Spec.Pool]
		w.writeStatus(pool)
		made[pool.Spec.Pool] = pool
	}
	return made
}

// engine makes a ready pod of a replica; handler answers on its port.
func (w *world) engine(pool *v1alpha1.EnginePool, ordinal int32, revision string, handler http.Handler) *corev1.Pod {
	w.Helper()
	labels := plan.PoolLabels(pool.Spec)
	labels[v1alpha1.LabelReplica], labels[v1alpha1.LabelNodeRank], labels[v1alpha1.LabelRevision] = fmt.Sprint(ordinal), "0", revision
	return w.pod(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: plan.PodName(pool.Name, ordinal, 0), Labels: labels, OwnerReferences: plan.OwnedByPool(pool)},
		Spec: corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{
			Name: "engine", Image: "engine:v1", Ports: []corev1.ContainerPort{{Name: v1alpha1.PortHTTP, ContainerPort: v1alpha1.DefaultEnginePort}},
		}}},
	}, v1alpha1.DefaultEnginePort, handler)
}

// router makes a ready pod of the router.
func (w *world) router(service *v1alpha1.InferenceService, handler http.Handler) *corev1.Pod {
	w.Helper()
	labels := map[string]string{v1alpha1.LabelService: service.Name, v1alpha1.LabelComponent: v1alpha1.ComponentRouter}
	return w.pod(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: plan.RouterName(service.Name) + "-5d9c7b-x2x4z", Labels: labels},
		Spec: corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{
			Name: "router", Image: "router:v1", Ports: []corev1.ContainerPort{{Name: v1alpha1.PortHTTP, ContainerPort: v1alpha1.DefaultRouterPort}},
		}}},
	}, v1alpha1.DefaultRouterPort, handler)
}

func (w *world) pod(pod *corev1.Pod, port int32, handler http.Handler) *corev1.Pod {
	w.Helper()
	pod.Namespace = w.namespace
	w.create(pod)
	pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, "10.0.0.5"
	pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, Ready: true, Started: new(true), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	w.writeStatus(pod)
	if handler != nil {
		kubelet.serve(w.namespace, pod.Name, port, handler)
	}
	return pod
}

// routes answers paths with bodies; what is not there gets 404.
type routes map[string]string

func (r routes) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, ok := r[request.URL.Path]
	if !ok {
		http.Error(w, `{"error": "not there"}`, http.StatusNotFound)
		return
	}
	_, _ = w.Write([]byte(body))
}

// tells answers /v1/loads.
func tells(t *testing.T, list ...loads.Load) routes {
	t.Helper()
	body, err := json.Marshal(loads.Response{Timestamp: now, Version: "test", NumAccelerators: 1, Loads: list})
	if err != nil {
		t.Fatal(err)
	}
	return routes{"/v1/loads": string(body)}
}

// output collects what a command writes. Safe for concurrent use.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// plugin makes the plugin on the world, as a user where one is named.
func (w *world) plugin(user string, form plugin.Output) (p *plugin.Plugin, out, errs *output) {
	w.Helper()
	config := rest.CopyConfig(server.Config)
	if user != "" {
		config.Impersonate = rest.ImpersonationConfig{UserName: user}
	}
	c, err := cluster.New(config, w.namespace)
	if err != nil {
		w.Fatal(err)
	}
	pods, err := reach.New(c.Config, "", reach.DefaultLimits())
	if err != nil {
		w.Fatal(err)
	}
	out, errs = &output{}, &output{}
	return &plugin.Plugin{
		Cluster: c, Pods: pods, Output: form, Out: out, Err: errs, Now: func() time.Time { return now },
		After: func(time.Duration) <-chan time.Time { c := make(chan time.Time, 1); c <- now; return c },
	}, out, errs
}

// golden compares a text with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
	if strings.Contains(got, "\x1b") {
		t.Errorf("%s: there are escape codes in what goes to a pipe", path)
	}
}

func keyOf(object client.Object) client.ObjectKey { return client.ObjectKeyFromObject(object) }
