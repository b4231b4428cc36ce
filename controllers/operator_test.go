package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/config/crd"
	"github.com/sluice-dev/sluice/controllers"
	"github.com/sluice-dev/sluice/hack/devcluster/apiserver"
)

// observeInterval is short, so that a load is seen soon.
const observeInterval = 200 * time.Millisecond

// patience is how long a condition may take; only a fault takes that long.
const patience = 60 * time.Second

var server *apiserver.Server

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	ctrl.SetLogger(logr.Discard())
	var err error
	server, err = apiserver.Start(ctx, apiserver.Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer server.Stop()
	if err := errors.Join(crd.Install(ctx, server.Config), grant(ctx)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// operatorUser is who the operators of the tests are. In the namespaces that they watch they have the rights of the chart,
// and elsewhere none.
const operatorUser = "sluice-operator"

// grant makes the operator's role, which the chart holds.
func grant(ctx context.Context) error {
	text, err := os.ReadFile("../charts/sluice/files/role.yaml")
	if err != nil {
		return err
	}
	role := &rbacv1.ClusterRole{}
	if err := yaml.UnmarshalStrict(text, role); err != nil {
		return err
	}
	scheme, err := controllers.NewScheme()
	if err != nil {
		return err
	}
	api, err := client.New(server.Config, client.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	return api.Create(ctx, role)
}

// bind gives the operator's user its role in a namespace.
func bind(ctx context.Context, api client.Client, namespace string) error {
	return api.Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: operatorUser},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "sluice-operator"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: operatorUser}},
	})
}

// trial is one namespace with an operator and a kubelet of its own.
type trial struct {
	*testing.T
	client.Client
	namespace string
	kubelet   *kubelet
	operator  *operator
	edit      []func(*controllers.Config) // of the operator
}

func newTrial(t *testing.T, edit ...func(*controllers.Config)) *trial {
	t.Helper()
	scheme, err := controllers.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	api, err := client.New(server.Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	if err := api.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	if err := bind(t.Context(), api, namespace.Name); err != nil {
		t.Fatal(err)
	}
	trial := &trial{T: t, Client: api, namespace: namespace.Name, edit: edit}
	trial.kubelet = startKubelet(t, api, namespace.Name)
	trial.operator = startOperator(t, namespace.Name, edit...)
	t.Cleanup(func() { trial.operator.stop(t) })
	return trial
}

// operator is a running manager whose writes are counted.
type operator struct {
	cancel context.CancelFunc
	done   chan error

	mu     sync.Mutex
	writes map[string]int // by method and path
}

func startOperator(t *testing.T, namespace string, edit ...func(*controllers.Config)) *operator {
	t.Helper()
	o := &operator{done: make(chan error, 1), writes: map[string]int{}}
	config := rest.CopyConfig(server.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: operatorUser, Groups: []string{"system:authenticated"}}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			if request.Method != http.MethodGet {
				o.mu.Lock()
				o.writes[request.Method+" "+request.URL.Path]++
				o.mu.Unlock()
			}
			return next.RoundTrip(request)
		})
	})
	log := logr.Discard()
	if testing.Verbose() {
		log = testr.New(t)
	}
	settings := controllers.Config{
		EngineImage: "engine:v1", RouterImage: "router:v1", PrometheusURL: "http://prometheus:9090",
		WatchNamespaces: []string{namespace}, MetricsAddress: "0", ProbeAddress: "0",
		ObserveInterval: observeInterval, Log: log, Clock: clock.RealClock{}, Registry: prometheus.NewRegistry(),
	}
	for _, e := range edit {
		e(&settings)
	}
	manager, err := controllers.NewManager(config, settings)
	if err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, o.cancel = context.WithCancel(context.Background())
	go func() { o.done <- manager.Start(ctx) }()
	return o
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

func (o *operator) stop(t *testing.T) {
	t.Helper()
	if o.cancel == nil {
		return
	}
	o.cancel()
	o.cancel = nil
	if err := <-o.done; err != nil {
		t.Errorf("the manager ended: %v", err)
	}
}

// written lists the writes so far.
func (o *operator) written() map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.writes)
}

// until waits for a condition; it fails the test with the newest answer when that takes too long.
func (t *trial) until(what string, condition func() (done bool, state string)) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	var state string
	for {
		var done bool
		if done, state = condition(); done {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("waited for %s; now: %s", what, state)
		case <-tick.C:
		}
	}
}

// apply creates an InferenceService from YAML in the trial's namespace.
func (t *trial) apply(text string) *v1alpha1.InferenceService {
	t.Helper()
	service := &v1alpha1.InferenceService{}
	if err := yaml.UnmarshalStrict([]byte(text), service); err != nil {
		t.Fatal(err)
	}
	service.Namespace = t.namespace
	if err := t.Create(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	return service
}

// change edits an object until the API server takes it.
func change[T client.Object](t *trial, object T, edit func(T)) {
	t.Helper()
	t.until("a change", func() (bool, string) {
		if err := t.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
			t.Fatal(err)
		}
		edit(object)
		err := t.Update(t.Context(), object)
		return err == nil, fmt.Sprint(err)
	})
}

// pods lists the engine pods of a pool that are not being deleted, by name.
func (t *trial) pods(pool string) []*corev1.Pod {
	t.Helper()
	var list corev1.PodList
	if err := t.List(t.Context(), &list, client.InNamespace(t.namespace), client.MatchingLabels{v1alpha1.LabelPool: pool}); err != nil {
		t.Fatal(err)
	}
	var pods []*corev1.Pod
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp == nil {
			pods = append(pods, &list.Items[i])
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods
}

func names(pods []*corev1.Pod) []string {
	all := make([]string, 0, len(pods))
	for _, pod := range pods {
		all = append(all, pod.Name)
	}
	return all
}

func (t *trial) pool(service, name string) *v1alpha1.EnginePool {
	t.Helper()
	pool := &v1alpha1.EnginePool{}
	if err := t.Get(t.Context(), client.ObjectKey{Namespace: t.namespace, Name: service + "-" + name}, pool); err != nil {
		t.Fatal(err)
	}
	return pool
}

// untilCondition waits until a condition of the service is as wanted.
func (t *trial) untilCondition(name, kind string, status metav1.ConditionStatus, reason string) *v1alpha1.InferenceService {
	t.Helper()
	service := &v1alpha1.InferenceService{}
	t.until(fmt.Sprintf("%s to be %s with reason %s", kind, status, reason), func() (bool, string) {
		if err := t.Get(t.Context(), client.ObjectKey{Namespace: t.namespace, Name: name}, service); err != nil {
			t.Fatal(err)
		}
		condition := meta.FindStatusCondition(service.Status.Conditions, kind)
		if condition == nil {
			return false, "no such condition"
		}
		return condition.Status == status && condition.Reason == reason && service.Status.ObservedGeneration == service.Generation,
			fmt.Sprintf("%s, %s: %s", condition.Status, condition.Reason, condition.Message)
	})
	return service
}

// untilSettled waits until the service is ready, its metrics flow and nothing changes any more.
func (t *trial) untilSettled(name string) *v1alpha1.InferenceService {
	t.Helper()
	t.untilCondition(name, v1alpha1.ConditionReady, metav1.ConditionTrue, "Serving")
	t.untilCondition(name, v1alpha1.ConditionMetricsFlowing, metav1.ConditionTrue, "AllRanksReport")
	return t.untilCondition(name, v1alpha1.ConditionProgressing, metav1.ConditionFalse, "AsAllocated")
}

// untilPolled waits until every engine has been asked n more times.
func (t *trial) untilPolled(n int) {
	t.Helper()
	from := t.kubelet.polls()
	t.until("polls", func() (bool, string) {
		polls := t.kubelet.polls()
		return polls >= from+n, fmt.Sprintf("%d polls, from %d", polls, from)
	})
}

// untilRounds waits until the node has done n more rounds: time in which nothing needs to happen.
func (t *trial) untilRounds(n int) {
	t.Helper()
	from := t.kubelet.roundsDone()
	t.until("rounds of the node", func() (bool, string) {
		rounds := t.kubelet.roundsDone()
		return rounds >= from+n, fmt.Sprintf("%d rounds, from %d", rounds, from)
	})
}
