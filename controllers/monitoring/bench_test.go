package monitoring_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/config/crd"
	"github.com/sluice-dev/sluice/controllers/monitoring"
	"github.com/sluice-dev/sluice/controllers/monitoring/rules"
	"github.com/sluice-dev/sluice/hack/devcluster/apiserver"
)

// BenchmarkAppliedRules applies the rules of 500 services and tells what the process holds for them afterwards, its watch
// included: heap-bytes/service. docs/bench/operator.md has the numbers.
func BenchmarkAppliedRules(b *testing.B) {
	const services = 500
	server, err := apiserver.Start(b.Context(), apiserver.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = server.Stop() }()
	if _, err := kubernetes.NewForConfigOrDie(server.Config).CoreV1().Namespaces().Create(b.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}}, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	if err := crd.Create(b.Context(), server.Config, apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "prometheusrules.monitoring.coreos.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "monitoring.coreos.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: "PrometheusRule", ListKind: "PrometheusRuleList", Plural: "prometheusrules"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}},
			}},
		},
	}); err != nil {
		b.Fatal(err)
	}
	config := rest.CopyConfig(server.Config)
	config.QPS = -1
	heap := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	service := func(i int) *v1alpha1.InferenceService {
		objective := &v1alpha1.LatencyObjective{Threshold: metav1.Duration{Duration: time.Second}}
		objective.Objective.SetMilli(990)
		return &v1alpha1.InferenceService{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: fmt.Sprint("chat-", i), UID: types.UID(fmt.Sprint("uid-", i))},
			Spec: v1alpha1.InferenceServiceSpec{
				Pools: []v1alpha1.PoolSpec{{Name: "prefill", Role: v1alpha1.RolePrefill}, {Name: "decode", Role: v1alpha1.RoleDecode}},
				SLO:   &v1alpha1.SLOSpec{TTFT: objective, ITL: objective},
			},
		}
	}
	for b.Loop() {
		applier, err := monitoring.NewApplierForConfig(config, monitoring.ApplierConfig{Resources: []monitoring.Resource{monitoring.PrometheusRules}, Clock: clock.RealClock{}, Log: logr.Discard()})
		if err != nil {
			b.Fatal(err)
		}
		before := heap()
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan error, 1)
		go func() { done <- applier.Start(ctx) }()
		for i := range services {
			rule, err := rules.Build(service(i), rules.Options{})
			if err != nil {
				b.Fatal(err)
			}
			if change, err := applier.Apply(ctx, rule); err != nil || change.Outcome == monitoring.CRDMissing {
				b.Fatalf("service %d: %v, %v", i, change, err)
			}
		}
		// A second round reads what the watch said meanwhile.
		for i := range services {
			if !applier.Settled(monitoring.PrometheusRules, types.NamespacedName{Namespace: "team-a", Name: fmt.Sprint("chat-", i)}) {
				b.Logf("service %d is not settled", i)
			}
		}
		b.ReportMetric((heap()-before)/services, "heap-bytes/service")
		cancel()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
}
