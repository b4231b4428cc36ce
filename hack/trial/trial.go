package trial

import (
	"context"
	"fmt"
	"io"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// FieldOwner is the name under which this package applies objects.
const FieldOwner = "sluice-trial"

// Trial is one cluster with the product on it.
type Trial struct {
	Root       string // the checkout
	Kubeconfig string // path
	Config     *rest.Config
	Client     client.Client
	Images     map[string]string // program -> image reference

	log io.Writer
}

// Open connects to the cluster of a kubeconfig file.
func Open(root, kubeconfig string, log io.Writer) (*Trial, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", kubeconfig, err)
	}
	config.QPS, config.Burst = 50, 100
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, v1alpha1.AddToScheme, apiextensionsv1.AddToScheme, appsv1.AddToScheme, autoscalingv2.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster of %s: %w", kubeconfig, err)
	}
	return &Trial{Root: root, Kubeconfig: kubeconfig, Config: config, Client: c, log: log, Images: map[string]string{
		"sluice-engine":   "sluice.dev/sluice-engine:dev",
		"sluice-router":   "sluice.dev/sluice-router:dev",
		"sluice-operator": "sluice.dev/sluice-operator:dev",
	}}, nil
}

func (t *Trial) logf(format string, args ...any) { fmt.Fprintf(t.log, format+"\n", args...) }

// ownLabel marks the namespaces that a trial made; others are neither used nor removed.
const ownLabel = "app.kubernetes.io/created-by"

// EnsureNamespace makes a namespace if it is not there. One that somebody else made is refused: it would be removed later.
func (t *Trial) EnsureNamespace(ctx context.Context, name string) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{ownLabel: FieldOwner}}}
	err := t.Client.Create(ctx, ns)
	if apierrors.IsAlreadyExists(err) {
		if err = t.Client.Get(ctx, client.ObjectKeyFromObject(ns), ns); err == nil && ns.Labels[ownLabel] != FieldOwner {
			return fmt.Errorf("namespace %s exists and is somebody else's: use another cluster, or remove the namespace", name)
		}
	}
	if err != nil {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	return nil
}

// Apply applies the objects of a YAML text by server-side apply. The namespace is set on those that name none.
func (t *Trial) Apply(ctx context.Context, namespace, text string) error {
	for doc := range strings.SplitSeq(text, "\n---\n") {
		if strings.TrimSpace(doc) == "" {
			continue
		}
		obj, err := parse(doc)
		if err != nil {
			return err
		}
		if obj.GetNamespace() == "" {
			obj.SetNamespace(namespace)
		}
		if err := t.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(obj), client.FieldOwner(FieldOwner), client.ForceOwnership); err != nil {
			return fmt.Errorf("apply %s %s: %w", obj.GetKind(), obj.GetName(), err)
		}
	}
	return nil
}

// parse reads one object.
func parse(text string) (*unstructured.Unstructured, error) {
	obj := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &obj.Object); err != nil {
		return nil, fmt.Errorf("parse the manifest: %w", err)
	}
	return obj, nil
}

// Service reads an InferenceService.
func (t *Trial) Service(ctx context.Context, namespace, name string) (*v1alpha1.InferenceService, error) {
	var svc v1alpha1.InferenceService
	if err := t.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &svc); err != nil {
		return nil, err
	}
	return &svc, nil
}

// Pool reads the EnginePool of a service's pool.
func (t *Trial) Pool(ctx context.Context, namespace, service, pool string) (*v1alpha1.EnginePool, error) {
	var obj v1alpha1.EnginePool
	if err := t.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: service + "-" + pool}, &obj); err != nil {
		return nil, err
	}
	return &obj, nil
}

// EnginePods lists the engine pods of a service, of one pool or, when pool is empty, of all.
func (t *Trial) EnginePods(ctx context.Context, namespace, service, pool string) ([]corev1.Pod, error) {
	labels := client.MatchingLabels{v1alpha1.LabelService: service, v1alpha1.LabelComponent: v1alpha1.ComponentEngine}
	if pool != "" {
		labels[v1alpha1.LabelPool] = pool
	}
	var pods corev1.PodList
	if err := t.Client.List(ctx, &pods, client.InNamespace(namespace), labels); err != nil {
		return nil, err
	}
	return pods.Items, nil
}
