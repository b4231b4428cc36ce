package autoscaling

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	"k8s.io/metrics/pkg/client/custom_metrics"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/observe"
	"github.com/sluice-dev/sluice/controllers/semantics"
	"github.com/sluice-dev/sluice/hack/devcluster/apiserver"
)

const (
	operatorNamespace = "sluice-system"
	metricsService    = "metrics"
)

// installation is an API server with everything that the chart puts there for the metrics API, and one pool.
type installation struct {
	config        *rest.Config
	core          *kubernetes.Clientset
	registrations aggregatorclient.ApiregistrationV1Interface
	pools         client.Client
	listener      net.Listener
}

// install starts an API server whose aggregator reaches the listener by way of a Service.
func install(t *testing.T) *installation {
	t.Helper()
	// Without routing to endpoints, the aggregator follows the name of a Service of type ExternalName.
	server, err := apiserver.Start(t.Context(), apiserver.Options{ExtraArgs: []string{"--enable-aggregator-routing=false"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	i := &installation{config: server.Config, listener: listener}
	i.core = kubernetes.NewForConfigOrDie(i.config)
	i.registrations = aggregatorclient.NewForConfigOrDie(i.config)
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	ctx := t.Context()
	i.makeCRD(t)
	for _, namespace := range []string{operatorNamespace, "team-a"} {
		_, err := i.core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
		must(t, err)
	}
	port := int32(listener.Addr().(*net.TCPAddr).Port)
	_, err = i.core.CoreV1().Services(operatorNamespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: metricsService},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost", Ports: []corev1.ServicePort{{Port: port}}},
	}, metav1.CreateOptions{})
	must(t, err)
	for _, version := range []string{"v1beta1", "v1beta2"} {
		_, err := i.registrations.APIServices().Create(ctx, &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{
				Name:   version + ".custom.metrics.k8s.io",
				Labels: map[string]string{v1alpha1.LabelComponent: v1alpha1.ComponentMetricsAPI},
			},
			Spec: apiregistrationv1.APIServiceSpec{
				Group: "custom.metrics.k8s.io", Version: version, GroupPriorityMinimum: 100, VersionPriority: 100,
				Service: &apiregistrationv1.ServiceReference{Namespace: operatorNamespace, Name: metricsService, Port: &port},
			},
		}, metav1.CreateOptions{})
		must(t, err)
	}
	// What the chart gives to the autoscaler's account.
	_, err = i.core.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "metrics-reader"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"custom.metrics.k8s.io"}, Resources: []string{"*/" + semantics.MetricUtilization}, Verbs: []string{"get"}}},
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = i.core.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "metrics-reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "autoscaler"}},
	}, metav1.CreateOptions{})
	must(t, err)

	poll(t, func() error { // the CRD takes a moment to be served
		i.pools, err = client.New(i.config, client.Options{Scheme: scheme})
		if err != nil {
			return err
		}
		pool := testPool(func(p *v1alpha1.EnginePool) { p.UID, p.Generation = "", 0; p.Spec.Model.URI = "pvc://models/tiny" })
		if err := i.pools.Create(ctx, pool); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		return nil
	})
	return i
}

func (i *installation) makeCRD(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "config", "crd", "bases", "inference.sluice.dev_enginepools.yaml"))
	must(t, err)
	var crd apiextensionsv1.CustomResourceDefinition
	must(t, yaml.UnmarshalStrict(text, &crd))
	_, err = apiextensionsclient.NewForConfigOrDie(i.config).ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), &crd, metav1.CreateOptions{})
	must(t, err)
}

// serve runs the metrics server; stop ends it and waits.
func (i *installation) serve(t *testing.T, s Samples, clk clock.Clock, listener net.Listener) (server *MetricsServer, stop func()) {
	t.Helper()
	server, err := NewMetricsServer(MetricsServerConfig{
		REST: i.config, Pools: i.pools, Store: s, Clock: clk, Log: testr.New(t),
		Listener: listener, Namespace: operatorNamespace, Service: metricsService, Secret: "metrics-tls",
	})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Start(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("the metrics server ended with %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return server, stop
}

// as gives the autoscaler's own client of the custom metrics API, as a user.
func (i *installation) as(t *testing.T, user string) custom_metrics.CustomMetricsClient {
	t.Helper()
	config := rest.CopyConfig(i.config)
	if user != "" {
		config.Impersonate.UserName = user
	}
	discoveryClient := discovery.NewDiscoveryClientForConfigOrDie(i.config)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discoveryClient))
	return custom_metrics.NewForConfig(config, mapper, custom_metrics.NewAvailableAPIsGetter(discoveryClient))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// poll tries until the check succeeds.
func poll(t *testing.T, check func() error) {
	t.Helper()
	deadline := time.NewTimer(60 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("after 60 s: %v", err)
		case <-tick.C:
		}
	}
}

// shared is a Samples whose contents the test changes.
type shared struct {
	mu sync.Mutex
	samples
}

func (s *shared) set(pods ...observe.PodSample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.samples = pods
}

func (s *shared) Select(namespace string, selector labels.Selector) []observe.PodSample {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.samples.Select(namespace, selector)
}

// TestMetricsAPI reads as the HorizontalPodAutoscaler's controller does: through a real API server's aggregator.
func TestMetricsAPI(t *testing.T) {
	i := install(t)
	clk := testingclock.NewFakeClock(time.Now())
	taken := func(p *observe.PodSample) {
		p.Taken, p.ReadySince = clk.Now().Add(-time.Second), clk.Now().Add(-time.Minute)
	}
	s := &shared{}
	s.set(engine("chat-decode-0-0", rank(0.8125, 0.25, 3, 2), taken), engine("chat-decode-1-0", rank(0.5, 0.5, 1, 0), taken))
	server, stop := i.serve(t, s, clk, i.listener)
	poll(t, func() error { return server.Ready(nil) })

	pods := schema.GroupKind{Kind: "Pod"}
	decode := labels.SelectorFromSet(labels.Set{"pool": "decode"})
	everything := labels.Everything()
	admin, autoscaler, stranger := i.as(t, ""), i.as(t, "autoscaler"), i.as(t, "stranger")

	t.Run("Available", func(t *testing.T) {
		for _, version := range []string{"v1beta1", "v1beta2"} {
			poll(t, func() error { return i.available(t, version) })
		}
		if diff := cmp.Diff([]Registration{
			{APIService: "v1beta1.custom.metrics.k8s.io", State: Registered}, {APIService: "v1beta2.custom.metrics.k8s.io", State: Registered},
		}, server.Registrations()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("Discovery", func(t *testing.T) {
		for _, version := range []string{"v1beta1", "v1beta2"} {
			var list *metav1.APIResourceList
			poll(t, func() (err error) { // the aggregator's proxy follows the condition a moment later
				list, err = i.core.Discovery().ServerResourcesForGroupVersion("custom.metrics.k8s.io/" + version)
				return err
			})
			var names []string
			for _, r := range list.APIResources {
				names = append(names, r.Name)
			}
			if !slices.Contains(names, "pods/sluice_utilization") || !slices.Contains(names, "enginepools.inference.sluice.dev/sluice_queue_length") {
				t.Errorf("%s shows %v", version, names)
			}
		}
	})
	t.Run("PodsAsTheAutoscaler", func(t *testing.T) {
		list, err := autoscaler.NamespacedMetrics("team-a").GetForObjects(pods, decode, semantics.MetricUtilization, everything)
		must(t, err)
		got := map[string]int64{}
		for _, item := range list.Items {
			got[item.DescribedObject.Name] = item.Value.MilliValue()
			if want := clk.Now().Add(-time.Second).Truncate(time.Second); !item.Timestamp.Time.Equal(want) {
				t.Errorf("timestamp %s, want %s", item.Timestamp, want)
			}
		}
		if diff := cmp.Diff(map[string]int64{"chat-decode-0-0": 813, "chat-decode-1-0": 500}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("PoolAsTheAutoscaler", func(t *testing.T) {
		value, err := autoscaler.NamespacedMetrics("team-a").GetForObject(schema.GroupKind{Group: "inference.sluice.dev", Kind: "EnginePool"}, "chat-decode", semantics.MetricUtilization, everything)
		must(t, err)
		if got := value.Value.MilliValue(); got != 657 {
			t.Errorf("got %d thousandths, want the mean 657", got)
		}
	})
	t.Run("OneMetricAllowedOthersNot", func(t *testing.T) {
		_, err := autoscaler.NamespacedMetrics("team-a").GetForObjects(pods, decode, semantics.MetricQueueLength, everything)
		if !apierrors.IsForbidden(err) {
			t.Errorf("got %v, want a refusal: the role names one metric", err)
		}
		list, err := admin.NamespacedMetrics("team-a").GetForObjects(pods, decode, semantics.MetricQueueLength, everything)
		must(t, err)
		if len(list.Items) != 2 {
			t.Errorf("the administrator reads %d values, want 2", len(list.Items))
		}
	})
	t.Run("StrangerRefused", func(t *testing.T) {
		_, err := stranger.NamespacedMetrics("team-a").GetForObjects(pods, decode, semantics.MetricUtilization, everything)
		if !apierrors.IsForbidden(err) {
			t.Errorf("got %v, want a refusal", err)
		}
	})
	t.Run("WithoutTheAggregatorRefused", func(t *testing.T) {
		current, _, err := server.vault.refresh(t.Context())
		must(t, err)
		for _, header := range []http.Header{
			{}, {"X-Remote-User": {"system:admin"}, "X-Remote-Group": {"system:masters"}}, {"Authorization": {"Bearer made-up"}},
		} {
			code := directly(t, i.listener.Addr().String(), current.AuthorityBundle, "/apis/custom.metrics.k8s.io/v1beta2/namespaces/team-a/pods/*/sluice_utilization", header)
			if code != http.StatusForbidden && code != http.StatusUnauthorized {
				t.Errorf("with headers %v: status %d, want a refusal", header, code)
			}
		}
		if code := directly(t, i.listener.Addr().String(), current.AuthorityBundle, "/readyz", nil); code != http.StatusOK {
			t.Errorf("health without credentials: status %d, want 200", code)
		}
	})
	t.Run("ReasonsReachTheAutoscaler", func(t *testing.T) {
		for _, tc := range []struct {
			reason Reason
			pods   []observe.PodSample
		}{
			{ReasonSentinelValue, []observe.PodSample{engine("chat-decode-0-0", rank(-1, 0, 0, 0), taken)}},
			{ReasonStaleSample, []observe.PodSample{engine("chat-decode-0-0", rank(1, 0, 0, 0), taken, func(p *observe.PodSample) { p.Taken = p.Taken.Add(-freshFor) })}},
			{ReasonPartialSamples, []observe.PodSample{engine("chat-decode-0-0", rank(1, 0, 0, 0), taken), engine("chat-decode-1-0", nil, taken, func(p *observe.PodSample) { p.Taken = time.Time{} })}},
			{ReasonNoSamples, nil},
		} {
			s.set(tc.pods...)
			_, err := autoscaler.NamespacedMetrics("team-a").GetForObjects(pods, decode, semantics.MetricUtilization, everything)
			if err == nil || !strings.Contains(err.Error(), string(tc.reason)+": ") {
				t.Errorf("got %v, want an error with %q", err, tc.reason)
			}
		}
		s.set(engine("chat-decode-0-0", rank(1, 0, 0, 0), taken))
	})
	t.Run("RenewedWithoutRestart", func(t *testing.T) {
		before := i.servedSerial(t)
		secret, err := i.core.CoreV1().Secrets(operatorNamespace).Get(t.Context(), "metrics-tls", metav1.GetOptions{})
		must(t, err)
		oldBundle := secret.Data["ca.crt"]
		delete(secret.Data, "ca.key") // forces a new authority
		_, err = i.core.CoreV1().Secrets(operatorNamespace).Update(t.Context(), secret, metav1.UpdateOptions{})
		must(t, err)
		poll(t, func() error {
			if clk.HasWaiters() {
				clk.Step(time.Second)
			}
			if i.servedSerial(t).Cmp(before) == 0 {
				return errors.New("still the old certificate")
			}
			return nil
		})
		apiService, err := i.registrations.APIServices().Get(t.Context(), "v1beta2.custom.metrics.k8s.io", metav1.GetOptions{})
		must(t, err)
		poll(t, func() error {
			if clk.HasWaiters() {
				clk.Step(time.Second)
			}
			apiService, err = i.registrations.APIServices().Get(t.Context(), "v1beta2.custom.metrics.k8s.io", metav1.GetOptions{})
			must(t, err)
			if n := authorities(apiService.Spec.CABundle); n != 2 || !bytes.HasSuffix(apiService.Spec.CABundle, oldBundle) {
				return fmt.Errorf("the registration trusts %d authorities, want the new one and then the old one", n)
			}
			return nil
		})
		s.set(engine("chat-decode-0-0", rank(1, 0, 0, 0), taken))
		poll(t, func() error {
			_, err := autoscaler.NamespacedMetrics("team-a").GetForObjects(pods, decode, semantics.MetricUtilization, everything)
			return err
		})
	})
	t.Run("BundleRestored", func(t *testing.T) {
		_, err := i.registrations.APIServices().Patch(t.Context(), "v1beta1.custom.metrics.k8s.io", "application/merge-patch+json", []byte(`{"spec":{"caBundle":null}}`), metav1.PatchOptions{})
		must(t, err)
		poll(t, func() error {
			if clk.HasWaiters() {
				clk.Step(time.Second)
			}
			a, err := i.registrations.APIServices().Get(t.Context(), "v1beta1.custom.metrics.k8s.io", metav1.GetOptions{})
			if err != nil || len(a.Spec.CABundle) == 0 {
				return fmt.Errorf("no bundle: %w", err)
			}
			return nil
		})
	})
	t.Run("ForeignAdapterLeftAlone", func(t *testing.T) {
		foreign := []byte(`{"metadata":{"labels":{"inference.sluice.dev/component":null}},"spec":{"caBundle":null,"insecureSkipTLSVerify":true,"service":{"namespace":"monitoring","name":"adapter"}}}`)
		patched, err := i.registrations.APIServices().Patch(t.Context(), "v1beta1.custom.metrics.k8s.io", "application/merge-patch+json", foreign, metav1.PatchOptions{})
		must(t, err)
		poll(t, func() error {
			if clk.HasWaiters() {
				clk.Step(time.Second)
			}
			if r := server.Registrations()[0]; r.State != RegistrationForeign || !strings.Contains(r.Message, "(it is served by monitoring/adapter)") {
				return fmt.Errorf("registration is %+v", r)
			}
			return nil
		})
		a, err := i.registrations.APIServices().Get(t.Context(), "v1beta1.custom.metrics.k8s.io", metav1.GetOptions{})
		must(t, err)
		if diff := cmp.Diff(patched.Spec, a.Spec); diff != "" {
			t.Errorf("the foreign registration changed (-was +is):\n%s", diff)
		}
		must(t, i.registrations.APIServices().Delete(t.Context(), "v1beta1.custom.metrics.k8s.io", metav1.DeleteOptions{}))
		poll(t, func() error {
			if clk.HasWaiters() {
				clk.Step(time.Second)
			}
			if r := server.Registrations()[0]; r.State != RegistrationMissing {
				return fmt.Errorf("registration is %+v", r)
			}
			return nil
		})
	})
	t.Run("StopsCleanly", func(t *testing.T) {
		stop()
		if err := server.Ready(nil); err == nil {
			t.Error("ready after the end")
		}
		if _, err := net.DialTimeout("tcp", i.listener.Addr().String(), time.Second); err == nil {
			t.Error("still listening after the end")
		}
	})
}

// available says why a version is not available.
func (i *installation) available(t *testing.T, version string) error {
	a, err := i.registrations.APIServices().Get(t.Context(), version+".custom.metrics.k8s.io", metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range a.Status.Conditions {
		if c.Type == apiregistrationv1.Available && c.Status == apiregistrationv1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("%s is not available: %+v", version, a.Status.Conditions)
}

// servedSerial gives the serial number of the certificate that a new connection sees.
func (i *installation) servedSerial(t *testing.T) *big.Int {
	t.Helper()
	connection, err := tls.Dial("tcp", i.listener.Addr().String(), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // reads the certificate, trusts nothing
	must(t, err)
	defer func() { _ = connection.Close() }()
	return connection.ConnectionState().PeerCertificates[0].SerialNumber
}

// directly asks the server without the aggregator and gives the status.
func directly(t *testing.T, address string, bundle []byte, path string, header http.Header) int {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: metricsService + "." + operatorNamespace + ".svc"}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+path, nil)
	must(t, err)
	for name, values := range header {
		request.Header[name] = values
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	must(t, err)
	_ = response.Body.Close()
	return response.StatusCode
}

// TestReplicasRaceForTheSecret starts many replicas at once against one API server.
func TestReplicasRaceForTheSecret(t *testing.T) {
	i := install(t)
	_ = i.listener.Close()
	const replicas = 8
	servers := make([]*MetricsServer, replicas)
	for n := range servers {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		servers[n], _ = i.serve(t, samples{}, clock.RealClock{}, listener)
	}
	for _, server := range servers {
		poll(t, func() error { return server.Ready(nil) })
	}
	secret, err := i.core.CoreV1().Secrets(operatorNamespace).Get(t.Context(), "metrics-tls", metav1.GetOptions{})
	must(t, err)
	for n, server := range servers {
		certificate, _ := server.serving.CurrentCertKeyContent()
		if !bytes.Equal(certificate, secret.Data[corev1.TLSCertKey]) {
			t.Errorf("replica %d serves another certificate than the Secret's", n)
		}
	}
	if err := fromSecret(secret).check(servers[0].vault.dnsNames, time.Now()); err != nil {
		t.Error(err)
	}
	for _, version := range []string{"v1beta1", "v1beta2"} {
		a, err := i.registrations.APIServices().Get(t.Context(), version+".custom.metrics.k8s.io", metav1.GetOptions{})
		must(t, err)
		if !bytes.Equal(a.Spec.CABundle, secret.Data["ca.crt"]) {
			t.Errorf("%s trusts another authority than the Secret's", version)
		}
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
