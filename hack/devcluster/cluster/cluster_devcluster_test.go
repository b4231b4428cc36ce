//go:build devcluster

// These tests run a real cluster on this host and need root:
//
//	go test -tags devcluster ./hack/devcluster/cluster
package cluster_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"github.com/sluice-dev/sluice/hack/devcluster/cluster"
	"github.com/sluice-dev/sluice/hack/images/image"
	"github.com/sluice-dev/sluice/internal/buildcache"
)

const (
	namespace = "devcluster-test"
	name      = "hello"
	// patience bounds each wait; on an idle machine all of them together take some 20 s.
	patience = 3 * time.Minute
)

// TestCluster runs every feature of the cluster that Sluice needs. A cluster that runs before the test is used
// and left running; otherwise the test also proves that its removal leaves nothing.
func TestCluster(t *testing.T) {
	ctx := t.Context()
	c, err := cluster.New(cluster.Options{Log: testLog{t}, Name: os.Getenv("SLUICE_DEVCLUSTER_NAME")})
	if err != nil {
		t.Fatal(err)
	}
	before, err := c.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !before.Exists {
		t.Cleanup(func() { checkRemoval(t, c) })
	}
	if err := c.Up(ctx); err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, c)
	if before.Exists {
		t.Cleanup(f.removeNamespace)
	}
	f.deploy(ctx)

	for _, check := range []struct {
		name, reason string
		run          func(context.Context) error
	}{
		{"service from the host", "demo and tests call Services from the host", f.serviceFromHost},
		{"service from a pod", "routers call engines through Services", f.serviceFromPod},
		{"name of a service", "engines and routers find each other by name", f.serviceByName},
		{"API server from a pod", "the operator runs in a pod", f.apiServerFromPod},
		{"logs", "a person who debugs reads them", f.logs},
		{"exec", "a person who debugs runs things", f.exec},
		{"aggregated API", "the operator serves custom metrics that way", f.aggregatedAPI},
		{"autoscaler", "pools scale through it", f.autoscaler},
		{"garbage collection", "deleting an owner must delete what it owns", f.garbageCollection},
	} {
		t.Run(check.name, func(t *testing.T) {
			eventually(t, check.reason, check.run)
		})
	}
	t.Run("second up", func(t *testing.T) {
		status, err := c.Status(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Up(ctx); err != nil {
			t.Fatal(err)
		}
		again, err := c.Status(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(status.Programs) != fmt.Sprint(again.Programs) {
			t.Errorf("up restarted programs of a cluster that is well:\nbefore %v\nafter  %v", status.Programs, again.Programs)
		}
	})
}

// checkRemoval removes the cluster while pods run in it and looks for traces.
func checkRemoval(t *testing.T, c *cluster.Cluster) {
	ctx := context.Background()
	if err := c.Down(ctx, false); err != nil {
		t.Fatalf("down: %v", err)
	}
	left, err := c.Leaks(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, trace := range left {
		t.Errorf("left behind: %s", trace)
	}
	if _, err := os.Stat(c.Dir()); !os.IsNotExist(err) {
		t.Errorf("folder %s is still there: %v", c.Dir(), err)
	}
}

// fixture is a Deployment of two pods with a Service in a namespace of its own.
type fixture struct {
	t         *testing.T
	kubectl   string
	path      string // Of the kubeconfig.
	client    kubernetes.Interface
	aggregate aggregator.Interface
	address   string // Of the Service.
	pods      []corev1.Pod
}

func newFixture(t *testing.T, c *cluster.Cluster) *fixture {
	t.Helper()
	ctx := t.Context()
	root, err := buildcache.FindRoot(".")
	if err != nil {
		t.Fatal(err)
	}
	hello, err := image.Build(ctx, root, helloImage(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.LoadImage(ctx, hello.Path); err != nil {
		t.Fatal(err)
	}
	cache, err := buildcache.Open(os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	kubectl, err := cache.Path(ctx, "kubectl")
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.KubeconfigPath())
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{
		t: t, kubectl: kubectl, path: c.KubeconfigPath(),
		client: kubernetes.NewForConfigOrDie(config), aggregate: aggregator.NewForConfigOrDie(config),
	}
}

func helloImage() image.Spec { return image.Spec{Name: name, Package: "./hack/devcluster/hello"} }

// deploy starts two pods that are ready once their probe has passed.
func (f *fixture) deploy(ctx context.Context) {
	f.t.Helper()
	f.removeNamespace()
	meta := metav1.ObjectMeta{Name: name, Namespace: namespace}
	labels := map[string]string{"app": name}
	replicas := int32(2)
	_, err := f.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	_, err = f.client.AppsV1().Deployments(namespace).Create(ctx, &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas,
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: name, Image: helloImage().Reference(), Args: []string{"serve"}, ImagePullPolicy: corev1.PullNever,
				ReadinessProbe: &corev1.Probe{
					ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}},
					PeriodSeconds: 1,
				},
			}},
		}},
	}}, metav1.CreateOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	service, err := f.client.CoreV1().Services(namespace).Create(ctx, &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
		Selector: labels,
		Ports: []corev1.ServicePort{
			{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)},
			{Name: "https", Port: 443, TargetPort: intstr.FromInt32(8443)},
		},
	}}, metav1.CreateOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	f.address = service.Spec.ClusterIP
	eventually(f.t, "both pods become ready", func(ctx context.Context) error {
		deployment, err := f.client.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil && deployment.Status.ReadyReplicas != replicas {
			err = fmt.Errorf("%d of %d pods are ready", deployment.Status.ReadyReplicas, replicas)
		}
		return err
	})
	pods, err := f.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	f.pods = pods.Items
}

func (f *fixture) removeNamespace() {
	f.t.Helper()
	background := context.Background()
	zero := int64(0)
	_ = f.aggregate.ApiregistrationV1().APIServices().Delete(background, "v1.hello.sluice.dev", metav1.DeleteOptions{})
	_ = f.client.CoreV1().Namespaces().Delete(background, namespace, metav1.DeleteOptions{GracePeriodSeconds: &zero})
	eventually(f.t, "the namespace goes", func(ctx context.Context) error {
		list, err := f.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + namespace})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("namespace %s is still there", namespace)
		}
		return err
	})
}

func (f *fixture) podNames() string {
	var names []string
	for _, pod := range f.pods {
		names = append(names, pod.Name)
	}
	return strings.Join(names, " ")
}

// answersByPod checks that an answer is the name of one of the pods.
func (f *fixture) answersByPod(answer string) error {
	if answer == "" || !strings.Contains(f.podNames(), answer) {
		return fmt.Errorf("answer %q is not by one of %s", answer, f.podNames())
	}
	return nil
}

func (f *fixture) serviceFromHost(ctx context.Context) error {
	answer, err := get(ctx, "http://"+f.address+"/name")
	if err != nil {
		return err
	}
	return f.answersByPod(answer)
}

func (f *fixture) serviceFromPod(ctx context.Context) error {
	seen := map[string]bool{}
	// Both pods must be reached, from a pod: a pod may well reach others and not itself.
	for range 40 {
		answer, err := get(ctx, "http://"+f.pods[0].Status.PodIP+":8080/fetch?url=http://"+f.address+"/name")
		if err != nil {
			return err
		}
		if err := f.answersByPod(answer); err != nil {
			return err
		}
		seen[answer] = true
	}
	if len(seen) != len(f.pods) {
		return fmt.Errorf("only %v of %s answer", seen, f.podNames())
	}
	return nil
}

// serviceByName resolves the short name, which needs the pod's search path, and the full one.
func (f *fixture) serviceByName(ctx context.Context) error {
	for _, host := range []string{name, name + "." + namespace + ".svc.cluster.local"} {
		answer, err := get(ctx, "http://"+f.pods[0].Status.PodIP+":8080/fetch?url=http://"+host+"/name")
		if err != nil {
			return err
		}
		if err := f.answersByPod(answer); err != nil {
			return err
		}
	}
	return nil
}

// apiServerFromPod expects the API server's own refusal of a plain request to its TLS port.
func (f *fixture) apiServerFromPod(ctx context.Context) error {
	answer, err := get(ctx, "http://"+f.pods[0].Status.PodIP+":8080/fetch?url=http://kubernetes.default.svc:443/")
	if err == nil {
		return fmt.Errorf("got %q, want a refusal", answer)
	}
	if !strings.Contains(err.Error(), "HTTP request to an HTTPS server") {
		return fmt.Errorf("another refusal: %w", err)
	}
	return nil
}

func (f *fixture) logs(ctx context.Context) error {
	return f.runKubectl(ctx, "hello is serving", "logs", f.pods[0].Name)
}

func (f *fixture) exec(ctx context.Context) error {
	return f.runKubectl(ctx, "spoken", "exec", f.pods[0].Name, "--", "/usr/local/bin/hello", "say", "spoken")
}

func (f *fixture) runKubectl(ctx context.Context, want string, args ...string) error {
	cmd := exec.CommandContext(ctx, f.kubectl, append([]string{"--kubeconfig=" + f.path, "--namespace=" + namespace}, args...)...)
	output, err := cmd.CombinedOutput()
	if err == nil && !bytes.Contains(output, []byte(want)) {
		err = fmt.Errorf("no %q in its output", want)
	}
	if err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, output)
	}
	return nil
}

func (f *fixture) aggregatedAPI(ctx context.Context) error {
	services := f.aggregate.ApiregistrationV1().APIServices()
	port := int32(443)
	object := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.hello.sluice.dev"}, Spec: apiregistrationv1.APIServiceSpec{
		Group: "hello.sluice.dev", Version: "v1", GroupPriorityMinimum: 100, VersionPriority: 100, InsecureSkipTLSVerify: true,
		Service: &apiregistrationv1.ServiceReference{Namespace: namespace, Name: name, Port: &port},
	}}
	found, err := services.Get(ctx, object.Name, metav1.GetOptions{})
	if err != nil {
		_, err := services.Create(ctx, object, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		return fmt.Errorf("just created")
	}
	for _, condition := range found.Status.Conditions {
		if condition.Type == apiregistrationv1.Available && condition.Status != apiregistrationv1.ConditionTrue {
			return fmt.Errorf("not available: %s", condition.Message)
		}
	}
	answer, err := f.client.Discovery().RESTClient().Get().AbsPath("/apis/hello.sluice.dev/v1/greetings").DoRaw(ctx)
	if err == nil && !bytes.Contains(answer, []byte(`"user":"sluice-admin"`)) {
		err = fmt.Errorf("the aggregated API was not told who asks: %s", answer)
	}
	return err
}

// autoscaler expects the controller to take notice of an autoscaler within its period.
func (f *fixture) autoscaler(ctx context.Context) error {
	scalers := f.client.AutoscalingV2().HorizontalPodAutoscalers(namespace)
	found, err := scalers.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		target := int32(50)
		_, err := scalers.Create(ctx, &autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
				MaxReplicas:    3,
				Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
					Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &target},
				}}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		return fmt.Errorf("just created")
	}
	for _, condition := range found.Status.Conditions {
		if condition.Type == autoscalingv2.AbleToScale && condition.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("conditions are %v", found.Status.Conditions)
}

func (f *fixture) garbageCollection(ctx context.Context) error {
	maps := f.client.CoreV1().ConfigMaps(namespace)
	if _, err := maps.Get(ctx, "owned", metav1.GetOptions{}); err == nil {
		return fmt.Errorf("what was owned by the deleted owner is still there")
	}
	if _, err := maps.Get(ctx, "owner-was-deleted", metav1.GetOptions{}); err == nil {
		return nil
	}
	owner, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	reference := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}
	if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owned", OwnerReferences: []metav1.OwnerReference{reference}}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner-was-deleted"}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := maps.Delete(ctx, owner.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return fmt.Errorf("just deleted")
}

// get returns the body of a page; a status other than 200 is an error with the body.
func get(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, response.Status, body)
	}
	return string(body), err
}

// eventually calls check until it returns nil.
func eventually(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waited too long (%s): %v", what, err)
		case <-ticker.C:
		}
	}
}

// testLog writes a cluster's progress into the test's log.
type testLog struct{ t *testing.T }

func (l testLog) Write(line []byte) (int, error) {
	l.t.Logf("%s", bytes.TrimSpace(line))
	return len(line), nil
}
