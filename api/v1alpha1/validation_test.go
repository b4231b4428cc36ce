package v1alpha1_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/config/crd"
	"github.com/sluice-dev/sluice/hack/devcluster/apiserver"
)

var api client.Client

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	server, err := apiserver.Start(ctx, apiserver.Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer server.Stop()
	if err := crd.Install(ctx, server.Config); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	api, err = client.New(server.Config, client.Options{Scheme: scheme})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// minimal is what the tables below change: it is accepted.
const minimal = `
apiVersion: inference.sluice.dev/v1alpha1
kind: InferenceService
metadata: {name: chat, namespace: default}
spec:
  model: {name: tiny, uri: "pvc://models/tiny"}
  pools:
  - {name: prefill, role: Prefill}
  - {name: decode, role: Decode}
`

// object decodes minimal into a tree and lets edit change it.
func object(t *testing.T, edit func(spec map[string]any, metadata map[string]any)) *unstructured.Unstructured {
	t.Helper()
	tree := map[string]any{}
	if err := yaml.Unmarshal([]byte(minimal), &tree); err != nil {
		t.Fatal(err)
	}
	if edit != nil {
		edit(tree["spec"].(map[string]any), tree["metadata"].(map[string]any))
	}
	return &unstructured.Unstructured{Object: tree}
}

func pool(spec map[string]any, index int) map[string]any {
	return spec["pools"].([]any)[index].(map[string]any)
}

func TestServiceRefused(t *testing.T) {
	scaling := func(fields map[string]any) map[string]any {
		all := map[string]any{"maxReplicas": int64(4), "metrics": []any{map[string]any{"type": "Utilization", "target": "0.8"}}}
		for key, value := range fields {
			all[key] = value
		}
		return all
	}
	on := func(at int, kind, target string) func(spec, metadata map[string]any) {
		return func(s, _ map[string]any) {
			pool(s, at)["autoscaling"] = scaling(map[string]any{"metrics": []any{map[string]any{"type": kind, "target": target}}})
		}
	}
	tests := []struct {
		name string
		edit func(spec, metadata map[string]any)
		want string
	}{
		{"long name", func(_, m map[string]any) { m["name"] = strings.Repeat("a", 35) },
			"metadata.name may have at most 34 characters, so that names of pods stay DNS labels; choose a shorter name"},
		{"dotted name", func(_, m map[string]any) { m["name"] = "chat.v2" },
			"metadata.name must be a DNS label: lower-case letters, digits and '-', starting with a letter, for example chat"},
		{"name with a leading digit", func(_, m map[string]any) { m["name"] = "7b-chat" },
			"metadata.name must be a DNS label: lower-case letters, digits and '-', starting with a letter, for example chat"},
		{"decode without prefill", func(s, _ map[string]any) { s["pools"] = s["pools"].([]any)[1:] },
			"spec.pools needs either a pool with role Unified, or at least one with role Prefill and one with role Decode"},
		{"unified beside decode", func(s, _ map[string]any) { pool(s, 0)["role"] = "Unified" },
			"spec.pools mixes role Unified with Prefill or Decode; make two InferenceServices instead"},
		{"unknown role", func(s, _ map[string]any) { pool(s, 0)["role"] = "Encode" },
			`spec.pools[0].role: Unsupported value: "Encode": supported values: "Prefill", "Decode", "Unified"`},
		{"a role that changes", func(s, _ map[string]any) { pool(s, 0)["role"] = "Dynamic" },
			"role Dynamic is not served: an engine has the role that it is started with, and cannot change it while it holds requests. Make a Prefill and a Decode pool, each with autoscaling, or a Unified pool"},
		{"pool name with capitals", func(s, _ map[string]any) { pool(s, 0)["name"] = "Prefill" },
			"pools[].name must be a DNS label: lower-case letters, digits and '-', starting with a letter, for example decode"},
		{"pool called router", func(s, _ map[string]any) { pool(s, 0)["name"] = "router" },
			"pools[].name router is taken by the service's router; choose another, for example decode"},
		{"long pool name", func(s, _ map[string]any) { pool(s, 0)["name"] = strings.Repeat("p", 21) },
			"spec.pools[0].name: Too long: may not be more than 20 bytes"},
		{"two pools of one name", func(s, _ map[string]any) { pool(s, 0)["name"] = "decode" },
			`spec.pools[1]: Duplicate value: {"name":"decode"}`},
		{"no pools", func(s, _ map[string]any) { s["pools"] = []any{} },
			"spec.pools: Invalid value: 0: spec.pools in body should have at least 1 items"},
		{"too large a world", func(s, _ map[string]any) {
			pool(s, 1)["parallelism"] = map[string]any{"tensor": int64(64), "pipeline": int64(5)}
		}, "parallelism.tensor times parallelism.pipeline may be at most 256: so many ranks share a copy of the model"},
		{"too many copies", func(s, _ map[string]any) { pool(s, 1)["parallelism"] = map[string]any{"data": int64(65)} },
			"spec.pools[1].parallelism.data in body should be less than or equal to 64"},
		{"expert parallelism", func(s, _ map[string]any) { pool(s, 1)["parallelism"] = map[string]any{"expert": int64(4)} },
			"parallelism.expert must be 1: the engine has no expert parallelism"},
		{"more ranks a pod than there are", func(s, _ map[string]any) { pool(s, 1)["ranksPerPod"] = int64(8) },
			"ranksPerPod must divide tensor × pipeline × data and be a multiple of data"},
		{"copies on different pods", func(s, _ map[string]any) {
			pool(s, 1)["parallelism"], pool(s, 1)["ranksPerPod"] = map[string]any{"data": int64(2)}, int64(1)
		}, "ranksPerPod must divide tensor × pipeline × data and be a multiple of data"},
		{"too many pods", func(s, _ map[string]any) {
			pool(s, 1)["parallelism"], pool(s, 1)["ranksPerPod"] = map[string]any{"tensor": int64(64), "pipeline": int64(2)}, int64(1)
		}, "ranksPerPod is too small: a replica has at most 100 pods"},
		{"size in engine.args", func(s, _ map[string]any) { s["engine"] = map[string]any{"args": []any{"--tp", "2"}} },
			"engine.args may not set --tp-size, --pp-size, --dp-size, --nnodes, --node-rank, --dist-init-addr or --dist-secret-file, by none of their names: the operator does; use pools[].parallelism and pools[].ranksPerPod"},
		{"size in pools[].args", func(s, _ map[string]any) { pool(s, 1)["args"] = []any{"--data-parallel-size=2"} },
			"pools[].args may not set --tp-size, --pp-size, --dp-size, --nnodes, --node-rank, --dist-init-addr or --dist-secret-file, by none of their names: the operator does; use pools[].parallelism and pools[].ranksPerPod"},
		{"model name with a blank", func(s, _ map[string]any) { s["model"].(map[string]any)["name"] = "my model" },
			"model.name may hold letters, digits, '.', '_', '/' and '-' and starts with a letter or digit, for example llama-3-8b"},
		{"model from the hub", func(s, _ map[string]any) { s["model"].(map[string]any)["uri"] = "hf://org/model" },
			"model.uri must be pvc://CLAIM/PATH or hostpath:///ABSOLUTE/PATH, for example pvc://models/tiny"},
		{"model path upwards", func(s, _ map[string]any) { s["model"].(map[string]any)["uri"] = "pvc://models/../x" },
			"model.uri may not contain '..'; write the path without it"},
		{"relative host path", func(s, _ map[string]any) { s["model"].(map[string]any)["uri"] = "hostpath://models" },
			"model.uri must be pvc://CLAIM/PATH or hostpath:///ABSOLUTE/PATH, for example pvc://models/tiny"},
		{"no model", func(s, _ map[string]any) { delete(s, "model") },
			"spec.model: Required value"},
		{"tenant that is no label", func(s, _ map[string]any) { s["tenant"] = "team a" },
			"tenant must be a label value: letters, digits, '-', '_' and '.', starting and ending with a letter or digit, for example team-a"},
		{"utilization on prefill", func(s, _ map[string]any) { pool(s, 0)["autoscaling"] = scaling(nil) },
			"a Prefill pool reports no utilization (-1); scale it on type PrefillDelay or QueueLength instead"},
		{"minimum above maximum", func(s, _ map[string]any) {
			pool(s, 1)["autoscaling"] = scaling(map[string]any{"minReplicas": int64(5)})
		},
			"autoscaling.minReplicas must not exceed autoscaling.maxReplicas"},
		{"no maximum", func(s, _ map[string]any) {
			fields := scaling(nil)
			delete(fields, "maxReplicas")
			pool(s, 1)["autoscaling"] = fields
		}, "spec.pools[1].autoscaling.maxReplicas: Required value"},
		{"no scaling metric", func(s, _ map[string]any) { pool(s, 1)["autoscaling"] = scaling(map[string]any{"metrics": []any{}}) },
			"spec.pools[1].autoscaling.metrics in body should have at least 1 items"},
		{"target zero", func(s, _ map[string]any) {
			pool(s, 1)["autoscaling"] = scaling(map[string]any{"metrics": []any{map[string]any{"type": "QueueLength", "target": int64(0)}}})
		}, `autoscaling.metrics[].target must be above 0, for example "0.8"`},
		{"utilization in per cent", func(s, _ map[string]any) {
			pool(s, 1)["autoscaling"] = scaling(map[string]any{"metrics": []any{map[string]any{"type": "Utilization", "target": int64(80)}}})
		}, `autoscaling.metrics[].target of types Utilization and TokenUsage is a ratio and at most 1; write "0.8" for 80 %`},
		{"token usage in per cent", on(0, "TokenUsage", "80"), `autoscaling.metrics[].target of types Utilization and TokenUsage is a ratio and at most 1; write "0.8" for 80 %`},
		{"TTFT above its threshold", on(1, "TTFT", "1500m"), "autoscaling.metrics[].target of types TTFT and ITL is the share of the threshold in spec.slo and at most 1"},
		{"first tokens of prefill", on(0, "TTFT", "0.8"), "a Prefill pool sends no tokens to clients, so it has no TTFT and no ITL; scale it on type PrefillDelay, and the Decode pool on TTFT or ITL"},
		{"tokens of prefill", on(0, "ITL", "0.8"), "a Prefill pool sends no tokens to clients, so it has no TTFT and no ITL; scale it on type PrefillDelay, and the Decode pool on TTFT or ITL"},
		{"prompts of decode", on(1, "PrefillDelay", "2"), "a Decode pool computes no prompts, so it has no PrefillDelay; scale it on type Utilization, TokenUsage or ITL, and the Prefill pool on PrefillDelay"},
		{"TTFT without an objective", on(1, "TTFT", "0.8"), `autoscaling.metrics type TTFT is measured against spec.slo.ttft, which is not set; add for example slo: {ttft: {threshold: 500ms, objective: "0.99"}}`},
		{"ITL with the other objective", func(s, m map[string]any) {
			on(1, "ITL", "0.8")(s, m)
			s["slo"] = map[string]any{"ttft": map[string]any{"threshold": "1s"}}
		}, `autoscaling.metrics type ITL is measured against spec.slo.itl, which is not set; add for example slo: {itl: {threshold: 50ms, objective: "0.99"}}`},
		{"old name", on(1, "QueuedRequests", "4"), `Unsupported value: "QueuedRequests": supported values: "Utilization", "PrefillDelay", "QueueLength", "TokenUsage", "TTFT", "ITL", "Concurrency"`},
		{"prefill delay from Prometheus", func(s, m map[string]any) {
			on(0, "PrefillDelay", "2")(s, m)
			pool(s, 0)["autoscaling"].(map[string]any)["provider"] = "KEDA"
		}, "autoscaling.metrics type PrefillDelay is the prompt tokens that wait uncached over the rate of computing prompts: engines tell both in /v1/loads alone, and Prometheus has neither; use autoscaling.provider MetricsAPI, or type QueueLength"},
		{"idle time without zero", func(s, _ map[string]any) {
			pool(s, 1)["autoscaling"] = scaling(map[string]any{"scaleToZeroAfterSeconds": int64(60)})
		}, "autoscaling.scaleToZeroAfterSeconds has an effect with minReplicas 0 alone; set autoscaling.minReplicas to 0 or leave it out"},
		{"behaviour without end", func(s, _ map[string]any) {
			pool(s, 1)["autoscaling"] = scaling(map[string]any{"behavior": map[string]any{"scaleDown": map[string]any{"stabilizationWindowSeconds": int64(3601)}}})
		}, "autoscaling.behavior stabilizationWindowSeconds may be 0 to 3600"},
		{"target that is no number", func(s, _ map[string]any) {
			pool(s, 1)["autoscaling"] = scaling(map[string]any{"metrics": []any{map[string]any{"type": "Utilization", "target": "80%"}}})
		}, `spec.pools[1].autoscaling.metrics[0].target: Invalid value: "80%"`},
		{"operator's flag in engine.args", func(s, _ map[string]any) { s["engine"] = map[string]any{"args": []any{"--port=1"}} },
			"engine.args may not set --host, --port, --model-path, --served-model-name, --enable-metrics, --disaggregation-mode, --disaggregation-bootstrap-port, --disaggregation-secret-file or --drain-timeout: the operator does; use the fields of the resource"},
		{"trace flag in engine.args", func(s, _ map[string]any) { s["engine"] = map[string]any{"args": []any{"--enable-trace"}} },
			"engine.args may not set --enable-trace, --otlp-traces-endpoint or --trace-modules: the operator does; use engine.tracing"},
		{"trace flag in pools[].args", func(s, _ map[string]any) { pool(s, 0)["args"] = []any{"--trace-modules=request"} },
			"pools[].args may not set --enable-trace, --otlp-traces-endpoint or --trace-modules: the operator does; use engine.tracing"},
		{"collector without a port", func(s, _ map[string]any) {
			s["engine"] = map[string]any{"tracing": map[string]any{"endpoint": "collector"}}
		}, "engine.tracing.endpoint must be host:port, or a URL"},
		{"collector with a password", func(s, _ map[string]any) {
			s["engine"] = map[string]any{"tracing": map[string]any{"endpoint": "https://me:secret@collector:4317"}}
		}, "engine.tracing.endpoint must be host:port, or a URL"},
		{"trace level", func(s, _ map[string]any) {
			s["engine"] = map[string]any{"tracing": map[string]any{"endpoint": "collector:4317", "level": int64(5)}}
		}, "spec.engine.tracing.level in body should be less than or equal to 4"},
		{"trace module", func(s, _ map[string]any) {
			s["engine"] = map[string]any{"tracing": map[string]any{"endpoint": "collector:4317", "modules": []any{"all"}}}
		}, `spec.engine.tracing.modules[0]: Unsupported value: "all": supported values: "request", "mooncake"`},
		{"key in engine.args", func(s, _ map[string]any) { s["engine"] = map[string]any{"args": []any{"--api-key", "x"}} },
			"engine.args may not set --api-key: the operator reads the engines' load without one; check keys in front of the router"},
		{"key in pools[].args", func(s, _ map[string]any) { pool(s, 0)["args"] = []any{"--api-key=x"} },
			"pools[].args may not set --api-key: the operator reads the engines' load without one; check keys in front of the router"},
		{"operator's flag in pools[].args", func(s, _ map[string]any) { pool(s, 0)["args"] = []any{"--host", "::"} },
			"pools[].args may not set --host, --port, --model-path, --served-model-name, --enable-metrics, --disaggregation-mode, --disaggregation-bootstrap-port, --disaggregation-secret-file or --drain-timeout: the operator does; use the fields of the resource"},
		{"less than a page", func(s, _ map[string]any) { pool(s, 0)["kvCache"] = map[string]any{"maxTotalTokens": int64(8)} },
			"kvCache.maxTotalTokens must be at least kvCache.pageSize: a pool holds whole pages"},
		{"SLO cap above the maximum", func(s, _ map[string]any) {
			pool(s, 0)["scheduler"] = map[string]any{"maxRunningRequests": int64(8), "maxRunningRequestsUnderSLO": int64(9)}
		}, "scheduler.maxRunningRequestsUnderSLO must not exceed scheduler.maxRunningRequests"},
		{"unknown pull policy", func(s, _ map[string]any) { s["engine"] = map[string]any{"imagePullPolicy": "Sometimes"} },
			`spec.engine.imagePullPolicy: Unsupported value: "Sometimes": supported values: "Always", "IfNotPresent", "Never"`},
		{"unknown policy", func(s, _ map[string]any) { s["router"] = map[string]any{"policy": "Random"} },
			`spec.router.policy: Unsupported value: "Random": supported values: "LeastLoad", "RoundRobin"`},
		{"no router replica", func(s, _ map[string]any) { s["router"] = map[string]any{"replicas": int64(0)} },
			"spec.router.replicas in body should be greater than or equal to 1"},
		{"SLO of no time", func(s, _ map[string]any) { s["slo"] = map[string]any{"ttft": map[string]any{"threshold": "0s"}} },
			"slo threshold must be a time above 0, for example 500ms or 2s"},
		{"SLO of a negative time", func(s, _ map[string]any) { s["slo"] = map[string]any{"itl": map[string]any{"threshold": "-5ms"}} },
			"slo threshold must be a time above 0, for example 500ms or 2s"},
		{"SLO without a unit", func(s, _ map[string]any) { s["slo"] = map[string]any{"itl": map[string]any{"threshold": "5"}} },
			"slo threshold must be a time above 0, for example 500ms or 2s"},
		{"SLO without a threshold", func(s, _ map[string]any) { s["slo"] = map[string]any{"itl": map[string]any{"objective": "0.9"}} },
			"spec.slo.itl.threshold: Required value"},
		{"SLO of everything", func(s, _ map[string]any) {
			s["slo"] = map[string]any{"ttft": map[string]any{"threshold": "1s", "objective": int64(1)}}
		}, `slo objective is a share between 0 and 1, for example "0.99" for 99 %`},
		{"SLO of nothing", func(s, _ map[string]any) {
			s["slo"] = map[string]any{"ttft": map[string]any{"threshold": "1s", "objective": "0"}}
		}, `slo objective is a share between 0 and 1, for example "0.99" for 99 %`},
		{"negative replicas", func(s, _ map[string]any) { pool(s, 0)["replicas"] = int64(-1) },
			"spec.pools[0].replicas in body should be greater than or equal to 0"},
		{"unknown monitor", func(s, _ map[string]any) { s["observability"] = map[string]any{"monitor": "ScrapeConfig"} },
			`spec.observability.monitor: Unsupported value: "ScrapeConfig": supported values: "ServiceMonitor", "PodMonitor", "None"`},
		{"interval of an hour", func(s, _ map[string]any) { s["observability"] = map[string]any{"interval": "1h"} },
			"observability.interval must be from 1s to 5m, for example 15s"},
		{"interval without a unit", func(s, _ map[string]any) { s["observability"] = map[string]any{"interval": "15"} },
			"spec.observability.interval: Invalid value"},
		{"long label", func(s, _ map[string]any) {
			s["observability"] = map[string]any{"labels": map[string]any{"release": strings.Repeat("x", 64)}}
		}, "observability.labels must be label keys and values: a value has at most 63 characters"},
		{"long label of rules", func(s, _ map[string]any) {
			s["observability"] = map[string]any{"rules": map[string]any{"labels": map[string]any{"release": strings.Repeat("x", 64)}}}
		}, "observability.rules.labels must be label keys and values: a value has at most 63 characters"},
		{"folder of folders", func(s, _ map[string]any) {
			s["observability"] = map[string]any{"dashboards": map[string]any{"folder": "a/b"}}
		}, "observability.dashboards.folder is the title of one folder: without '/', for example Team A"},
		{"folder above the others", func(s, _ map[string]any) {
			s["observability"] = map[string]any{"dashboards": map[string]any{"folder": ".."}}
		}, "observability.dashboards.folder is the title of one folder: without '/', for example Team A"},
		{"limit below a rank", func(s, _ map[string]any) { s["observability"] = map[string]any{"sampleLimit": int64(100)} },
			"spec.observability.sampleLimit in body should be greater than or equal to 500"},
		{"unknown policy for frozen replicas", func(s, _ map[string]any) { s["observability"] = map[string]any{"frozenPolicy": "Delete"} },
			`spec.observability.frozenPolicy: Unsupported value: "Delete": supported values: "Report", "RestartReplica"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := api.Create(t.Context(), object(t, test.edit), client.DryRunAll)
			if err == nil {
				t.Fatal("the API server accepted it")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("refused with\n%v\nwant it to hold\n%s", err, test.want)
			}
		})
	}
}

// TestEndpointsAreAccepted: what the engine takes for a collector the API server takes too.
func TestEndpointsAreAccepted(t *testing.T) {
	for _, endpoint := range []string{"collector:4317", "10.0.0.1:4317", "[fd00::1]:4317", "http://collector.obs.svc:4318/v1/traces", "https://collector", "https://[fd00::1]:4317/"} {
		service := object(t, func(spec, _ map[string]any) {
			spec["engine"] = map[string]any{"tracing": map[string]any{"endpoint": endpoint}}
		})
		if err := api.Create(t.Context(), service, client.DryRunAll); err != nil {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
}

// TestParallelismIsAccepted: what plan.NewLayout takes the API server takes too.
func TestParallelismIsAccepted(t *testing.T) {
	for _, edit := range []func(pool map[string]any){
		func(p map[string]any) { p["parallelism"] = map[string]any{"tensor": int64(2), "data": int64(2)} },
		func(p map[string]any) {
			p["parallelism"], p["ranksPerPod"] = map[string]any{"tensor": int64(4), "pipeline": int64(2)}, int64(2)
		},
		func(p map[string]any) {
			p["parallelism"], p["ranksPerPod"] = map[string]any{"tensor": int64(2), "data": int64(4)}, int64(4)
		},
		func(p map[string]any) { p["ranksPerPod"] = int64(1) },
	} {
		service := object(t, func(spec, _ map[string]any) { edit(pool(spec, 1)) })
		if err := api.Create(t.Context(), service, client.DryRunAll); err != nil {
			t.Errorf("%v: %v", service.Object["spec"], err)
		}
	}
}

func TestRoleIsImmutable(t *testing.T) {
	service := object(t, func(spec, metadata map[string]any) { metadata["name"] = "immutable" })
	if err := api.Create(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Delete(context.Background(), service) })
	spec := service.Object["spec"].(map[string]any)
	pool(spec, 0)["role"], pool(spec, 1)["role"] = "Decode", "Prefill"
	err := api.Update(t.Context(), service)
	want := "pools[].role is immutable; add a pool with another name and remove this one"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("refused with %v, want it to hold %s", err, want)
	}
}

func TestDefaults(t *testing.T) {
	created := object(t, nil)
	if err := api.Create(t.Context(), created, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	var service v1alpha1.InferenceService
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(created.Object, &service); err != nil {
		t.Fatal(err)
	}
	shape := v1alpha1.EngineShape{
		Parallelism:  v1alpha1.Parallelism{Tensor: 1, Pipeline: 1, Data: 1, Expert: 1},
		KVCache:      v1alpha1.KVCacheSpec{PageSize: new(int32(16))},
		DrainSeconds: new(int32(300)),
	}
	want := v1alpha1.InferenceServiceSpec{
		Model: v1alpha1.ModelSpec{Name: "tiny", URI: "pvc://models/tiny"},
		Router: v1alpha1.RouterSpec{
			Replicas: new(int32(1)),
			Policy:   v1alpha1.PolicyLeastLoad,
			Service:  v1alpha1.RouterServiceSpec{Type: corev1.ServiceTypeClusterIP, Port: 8000},
		},
		Observability: v1alpha1.ObservabilitySpec{
			MonitorSpec: v1alpha1.MonitorSpec{Monitor: v1alpha1.MonitorService, FrozenPolicy: v1alpha1.FrozenReport},
			Rules:       v1alpha1.RulesSpec{Enabled: new(true)},
			Dashboards:  v1alpha1.DashboardsSpec{Enabled: new(true)},
		},
		Pools: []v1alpha1.PoolSpec{
			{Name: "prefill", Role: v1alpha1.RolePrefill, Replicas: new(int32(1)), EngineShape: shape},
			{Name: "decode", Role: v1alpha1.RoleDecode, Replicas: new(int32(1)), EngineShape: shape},
		},
	}
	if diff := cmp.Diff(want, service.Spec); diff != "" {
		t.Errorf("defaulted spec (-want +got):\n%s", diff)
	}
}

// TestSLO asks for objectives that are fine and reads them back.
func TestSLO(t *testing.T) {
	created := object(t, func(spec, _ map[string]any) {
		spec["slo"] = map[string]any{
			"ttft": map[string]any{"threshold": "1m0.5s"},
			"itl":  map[string]any{"threshold": "50ms", "objective": "0.999"},
		}
	})
	if err := api.Create(t.Context(), created, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	var service v1alpha1.InferenceService
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(created.Object, &service); err != nil {
		t.Fatal(err)
	}
	want := &v1alpha1.SLOSpec{
		TTFT: &v1alpha1.LatencyObjective{Threshold: metav1.Duration{Duration: 60500 * time.Millisecond}, Objective: resource.MustParse("0.99")},
		ITL:  &v1alpha1.LatencyObjective{Threshold: metav1.Duration{Duration: 50 * time.Millisecond}, Objective: resource.MustParse("0.999")},
	}
	if diff := cmp.Diff(want, service.Spec.SLO); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPoolIdentityIsImmutable(t *testing.T) {
	pool := &v1alpha1.EnginePool{
		ObjectMeta: metav1.ObjectMeta{Name: "chat-decode", Namespace: "default"},
		Spec: v1alpha1.EnginePoolSpec{Service: "chat", Pool: "decode", Role: v1alpha1.RoleDecode, Tenant: "default",
			Model: v1alpha1.ModelSpec{Name: "tiny", URI: "pvc://models/tiny"}},
	}
	if err := api.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Delete(context.Background(), pool) })
	tests := []struct {
		name string
		edit func(*v1alpha1.EnginePoolSpec)
		want string
	}{
		{"role", func(s *v1alpha1.EnginePoolSpec) { s.Role = v1alpha1.RolePrefill }, "spec.role is immutable; make another pool"},
		{"service", func(s *v1alpha1.EnginePoolSpec) { s.Service = "other" }, "spec.service and spec.pool are immutable; make another pool"},
		{"pool", func(s *v1alpha1.EnginePoolSpec) { s.Pool = "other" }, "spec.service and spec.pool are immutable; make another pool"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			changed := pool.DeepCopy()
			test.edit(&changed.Spec)
			err := api.Update(t.Context(), changed)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("refused with %v, want it to hold %s", err, test.want)
			}
		})
	}
}

func TestSamplesAreAccepted(t *testing.T) {
	files, err := filepath.Glob("../../config/samples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("found samples %v: %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for document := range strings.SplitSeq(string(text), "\n---\n") {
				tree := map[string]any{}
				if err := yaml.Unmarshal([]byte(document), &tree); err != nil {
					t.Fatal(err)
				}
				sample := &unstructured.Unstructured{Object: tree}
				sample.SetNamespace("default")
				if err := api.Create(t.Context(), sample, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
