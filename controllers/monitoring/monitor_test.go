package monitoring

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
)

func testPool(change ...func(*v1alpha1.EnginePool)) *v1alpha1.EnginePool {
	pool := &v1alpha1.EnginePool{
		ObjectMeta: metav1.ObjectMeta{Name: "chat-decode", Namespace: "team-a", UID: "pool-uid"},
		Spec: v1alpha1.EnginePoolSpec{
			Service: "chat", Pool: "decode", Role: v1alpha1.RoleDecode, Tenant: "acme", Model: v1alpha1.ModelSpec{Name: "tiny", URI: "pvc://models/tiny"},
		},
	}
	for _, c := range change {
		c(pool)
	}
	return pool
}

// testService gives a service of team-a with one prefill and one decode pool, or with pools of its own.
func testService(name string, pools ...v1alpha1.PoolSpec) *v1alpha1.InferenceService {
	if len(pools) == 0 {
		pools = []v1alpha1.PoolSpec{{Name: "prefill", Role: v1alpha1.RolePrefill}, {Name: "decode", Role: v1alpha1.RoleDecode}}
	}
	return &v1alpha1.InferenceService{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team-a", UID: "service-uid"},
		Spec:       v1alpha1.InferenceServiceSpec{Tenant: "acme", Model: v1alpha1.ModelSpec{Name: "tiny", URI: "pvc://models/tiny"}, Pools: pools},
	}
}

func TestPoolMonitor(t *testing.T) {
	pool := testPool(func(p *v1alpha1.EnginePool) {
		p.Spec.Observability = v1alpha1.MonitorSpec{
			Interval: &metav1.Duration{Duration: 90 * time.Second}, SampleLimit: new(int32(4000)),
			Labels: map[string]string{"release": "mine", "team": "x", "app.kubernetes.io/managed-by": "me"},
		}
	})
	got := PoolMonitor(pool, Options{Labels: map[string]string{"release": "prometheus", "zone": "a"}, Interval: "5s"}).Object.(*monitoringv1.ServiceMonitor)

	wantLabels := plan.PoolLabels(testPool().Spec)
	wantLabels["release"], wantLabels["zone"], wantLabels["team"] = "mine", "a", "x"
	wantMeta := metav1.ObjectMeta{
		Name: "chat-decode", Namespace: "team-a", Labels: wantLabels,
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "inference.sluice.dev/v1alpha1", Kind: "EnginePool", Name: "chat-decode", UID: "pool-uid",
			Controller: new(true), BlockOwnerDeletion: new(true),
		}},
	}
	if diff := cmp.Diff(wantMeta, got.ObjectMeta); diff != "" {
		t.Errorf("metadata (-want +got):\n%s", diff)
	}
	want := `
endpoints:
- port: http
  path: /metrics
  scheme: http
  interval: 1m30s
  honorLabels: true
  followRedirects: false
  relabelings:
  - {action: keep, sourceLabels: [__meta_kubernetes_pod_phase], regex: Running}
  - {action: keep, sourceLabels: [__meta_kubernetes_pod_container_name], regex: engine}
  - {action: replace, sourceLabels: [__meta_kubernetes_pod_label_inference_sluice_dev_replica], regex: (.+), targetLabel: replica, replacement: $1}
  - {action: replace, sourceLabels: [__meta_kubernetes_pod_label_inference_sluice_dev_node_rank], regex: (.+), targetLabel: node_rank, replacement: $1}
  - {action: replace, sourceLabels: [__meta_kubernetes_pod_label_inference_sluice_dev_revision], regex: (.+), targetLabel: revision, replacement: $1}
  - {action: replace, targetLabel: tp_rank, replacement: all}
  - {action: replace, sourceLabels: [__meta_kubernetes_pod_label_inference_sluice_dev_tp_rank], regex: (.+), targetLabel: tp_rank, replacement: $1}
  - {action: replace, targetLabel: pp_rank, replacement: all}
  - {action: replace, sourceLabels: [__meta_kubernetes_pod_label_inference_sluice_dev_pp_rank], regex: (.+), targetLabel: pp_rank, replacement: $1}
  - {action: replace, targetLabel: dp_rank, replacement: all}
  - {action: replace, sourceLabels: [__meta_kubernetes_pod_label_inference_sluice_dev_dp_rank], regex: (.+), targetLabel: dp_rank, replacement: $1}
  - {action: replace, targetLabel: moe_ep_rank, replacement: all}
  - {action: replace, sourceLabels: [__meta_kubernetes_pod_label_inference_sluice_dev_moe_ep_rank], regex: (.+), targetLabel: moe_ep_rank, replacement: $1}
  - {action: replace, targetLabel: engine_type, replacement: decode}
  - {action: replace, targetLabel: namespace, replacement: team-a}
  - {action: replace, targetLabel: tenant, replacement: acme}
  - {action: replace, targetLabel: inference_service, replacement: chat}
  - {action: replace, targetLabel: pool, replacement: decode}
  - {action: replace, targetLabel: job, replacement: chat-decode}
  metricRelabelings:
  - {action: keep, sourceLabels: [__name__], regex: "(sglang:|sluice_|go_|process_|promhttp_).*"}
  - {action: drop, sourceLabels: [__name__], regex: "(sglang:http_responses_total)(_bucket|_sum|_count)?"}
  - {action: replace, targetLabel: namespace, replacement: team-a}
  - {action: replace, targetLabel: tenant, replacement: acme}
  - {action: replace, targetLabel: inference_service, replacement: chat}
  - {action: replace, targetLabel: pool, replacement: decode}
  - {action: replace, targetLabel: job, replacement: chat-decode}
namespaceSelector: {matchNames: [team-a]}
sampleLimit: 4000
selector:
  matchLabels:
    inference.sluice.dev/component: engine
    inference.sluice.dev/pool: decode
    inference.sluice.dev/service: chat
`
	var wantSpec monitoringv1.ServiceMonitorSpec
	if err := yaml.UnmarshalStrict([]byte(want), &wantSpec); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wantSpec, got.Spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}

	pool.Spec.Observability.Monitor = v1alpha1.MonitorPod
	pods := PoolMonitor(pool, Options{}).Object.(*monitoringv1.PodMonitor)
	endpoint := pods.Spec.PodMetricsEndpoints[0]
	if diff := cmp.Diff(wantSpec.Endpoints[0].RelabelConfigs, endpoint.RelabelConfigs); diff != "" {
		t.Errorf("relabelings of a PodMonitor (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantSpec.Endpoints[0].MetricRelabelConfigs, endpoint.MetricRelabelConfigs); diff != "" {
		t.Errorf("metricRelabelings of a PodMonitor (-want +got):\n%s", diff)
	}
	if *endpoint.FollowRedirects || !endpoint.HonorLabels || *endpoint.Port != "http" || *pods.Spec.SampleLimit != 4000 {
		t.Errorf("the endpoint of a PodMonitor is %+v", endpoint)
	}
	pool.Spec.Observability.Monitor = v1alpha1.MonitorNone
	if none := PoolMonitor(pool, Options{}); none.Object != nil || len(none.Unwanted()) != 2 {
		t.Errorf("with None there is %v, and %v are unwanted", none.Object, none.Unwanted())
	}
}

// kinds runs a test for both kinds of monitors.
func kinds(t *testing.T, test func(t *testing.T, kind v1alpha1.MonitorKind)) {
	for _, kind := range []v1alpha1.MonitorKind{v1alpha1.MonitorService, v1alpha1.MonitorPod} {
		t.Run(string(kind), func(t *testing.T) { test(t, kind) })
	}
}

// world is pods with the Services in front of them, as the operator makes them.
type world struct {
	monitors map[string]Monitor // by what they are of: SERVICE/POOL
	pods     map[string][]*corev1.Pod
	services map[string]*corev1.Service
}

func newWorld(t *testing.T, kind v1alpha1.MonitorKind, of ...*v1alpha1.InferenceService) world {
	t.Helper()
	w := world{map[string]Monitor{}, map[string][]*corev1.Pod{}, map[string]*corev1.Service{}}
	for _, service := range of {
		service.Spec.Observability.Monitor = kind
		for _, pool := range plan.EnginePools(service, "hash") {
			key := service.Name + "/" + pool.Spec.Pool
			w.monitors[key], w.services[key] = PoolMonitor(pool, Options{}), plan.HeadlessService(pool)
			layout, err := plan.NewLayout(pool.Spec.EngineShape)
			must(t, err)
			for node := range layout.Nodes {
				pod, err := plan.Pod(pool, plan.EngineDefaults{Image: "engine"}, 1, node, 0)
				must(t, err)
				pod.Labels[v1alpha1.LabelRevision] = "rev1"
				pod.Status.Phase = corev1.PodRunning
				w.pods[key] = append(w.pods[key], pod)
			}
		}
		key := service.Name + "/" + PoolRouter
		router := plan.NewRouter(service, plan.RouterDefaults{Image: "router"})
		template := router.Deployment.Spec.Template
		pod := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: template.Spec}
		pod.Name, pod.Namespace, pod.Labels["pod-template-hash"] = router.Deployment.Name+"-rev1-x2x2x", service.Namespace, "rev1"
		pod.Status.Phase = corev1.PodRunning
		w.monitors[key], w.services[key], w.pods[key] = RouterMonitor(service, Options{}), router.Service, []*corev1.Pod{pod}
	}
	return w
}

// ups gives the labels of up of every target that the monitor takes, of all pods of the world.
func (w world) ups(t *testing.T, of string) (ups []map[string]string) {
	t.Helper()
	j := newJob(t, w.monitors[of].Object)
	for _, key := range slices.Sorted(maps.Keys(w.pods)) {
		for _, pod := range w.pods[key] {
			for _, meta := range discover(j.role, pod, w.services[key]) {
				if up, keep := j.up(meta); keep {
					ups = append(ups, up)
				}
			}
		}
	}
	return ups
}

// TestTargets: a pool's monitor takes each pod of the pool once, on its metrics, whoever else there is.
func TestTargets(t *testing.T) {
	kinds(t, func(t *testing.T, kind v1alpha1.MonitorKind) {
		w := newWorld(t, kind,
			testService("chat"), testService("chat-2"),
			testService("chat-prefill", v1alpha1.PoolSpec{Name: "main", Role: v1alpha1.RoleUnified}),
			testService("prefill", v1alpha1.PoolSpec{Name: "chat", Role: v1alpha1.RoleUnified}),
		)
		for of := range w.monitors {
			ups := w.ups(t, of)
			if len(ups) != len(w.pods[of]) {
				t.Errorf("%s: %d targets, want the %d pods: %v", of, len(ups), len(w.pods[of]), ups)
				continue
			}
			for i, pod := range w.pods[of] {
				port := map[bool]string{true: "10.0.0.1:8000", false: "10.0.0.1:30000"}[w.monitors[of].Of == PoolRouter]
				if ups[i]["pod"] != pod.Name || ups[i]["instance"] != port {
					t.Errorf("%s: the target is %v, want pod %s on %s", of, ups[i], pod.Name, port)
				}
			}
		}
	})
}

// TestPhases: what has no engine that listens is no target, so that a healthy service has none that is down.
func TestPhases(t *testing.T) {
	kinds(t, func(t *testing.T, kind v1alpha1.MonitorKind) {
		w := newWorld(t, kind, testService("chat"))
		for phase, want := range map[corev1.PodPhase]int{corev1.PodPending: 0, corev1.PodRunning: 1, corev1.PodSucceeded: 0, corev1.PodFailed: 0, corev1.PodUnknown: 0} {
			for _, of := range []string{"chat/decode", "chat/prefill", "chat/router"} {
				w.pods[of][0].Status.Phase = phase
				if got := len(w.ups(t, of)); got != want {
					t.Errorf("%s, %s: %d targets, want %d", of, phase, got, want)
				}
				w.pods[of][0].Status.Phase = corev1.PodRunning
			}
		}
	})
}

// TestLabels runs targets and samples through the rules and compares all of their labels.
func TestLabels(t *testing.T) {
	kinds(t, func(t *testing.T, kind v1alpha1.MonitorKind) {
		w := newWorld(t, kind, testService("chat"))
		// several hosts two ranks, as a pod does that has none of the rank's labels.
		several := w.pods["chat/decode"][0].DeepCopy()
		for _, l := range rankLabels() {
			delete(several.Labels, l.pod)
		}
		several.Name = "chat-decode-1-1"
		several.Labels[v1alpha1.LabelNodeRank] = "1"
		w.pods["chat/decode"] = append(w.pods["chat/decode"], several)

		base := func(pool, pod string, change map[string]string) map[string]string {
			m := map[string]string{
				"namespace": "team-a", "pod": pod, "container": "engine", "job": "chat-" + pool, "endpoint": "http", "instance": "10.0.0.1:30000",
				"tenant": "acme", "inference_service": "chat", "pool": pool, "replica": "1", "node_rank": "0", "revision": "rev1",
				"engine_type": pool, "tp_rank": "0", "pp_rank": "0", "dp_rank": "0", "moe_ep_rank": "0",
			}
			if kind == v1alpha1.MonitorService {
				m["service"] = "chat-" + pool
			}
			for name, value := range change {
				if m[name] = value; value == "" {
					delete(m, name)
				}
			}
			return m
		}
		all := map[string]string{"node_rank": "1", "tp_rank": "all", "pp_rank": "all", "dp_rank": "all", "moe_ep_rank": "all"}
		with := func(a, b map[string]string) map[string]string {
			a = maps.Clone(a)
			maps.Copy(a, b)
			return a
		}
		router := base("router", "chat-router-rev1-x2x2x", map[string]string{
			"container": "router", "instance": "10.0.0.1:8000", "replica": "chat-router-rev1-x2x2x",
			"tp_rank": "all", "pp_rank": "all", "dp_rank": "all", "moe_ep_rank": "all",
		})
		for _, tc := range []struct {
			name    string
			reason  string
			of      string
			target  int
			exposed map[string]string
			up      map[string]string
			want    map[string]string // what differs from up; nil: the sample is dropped
		}{
			{
				name: "Rank", reason: "the rank that a series is of is the engine's to say", of: "chat/decode",
				exposed: map[string]string{"__name__": "sglang:token_usage", "model_name": "tiny", "engine_type": "decode", "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"},
				up:      base("decode", "chat-decode-1-0", nil), want: map[string]string{"__name__": "sglang:token_usage", "model_name": "tiny"},
			},
			{
				name: "Prefill", reason: "the same of another role", of: "chat/prefill",
				exposed: map[string]string{"__name__": "sglang:num_prefill_inflight_queue_reqs", "model_name": "tiny", "engine_type": "prefill", "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"},
				up:      base("prefill", "chat-prefill-1-0", nil), want: map[string]string{"__name__": "sglang:num_prefill_inflight_queue_reqs", "model_name": "tiny"},
			},
			{
				name: "Cache", reason: "the cache names no engine type", of: "chat/prefill",
				exposed: map[string]string{"__name__": "sglang:evicted_tokens_total", "cache_type": "RadixCache", "tp_rank": "0", "pp_rank": "0", "dp_rank": "0"},
				up:      base("prefill", "chat-prefill-1-0", nil), want: map[string]string{"__name__": "sglang:evicted_tokens_total", "cache_type": "RadixCache"},
			},
			{
				name: "HTTP", reason: "nothing names a rank", of: "chat/decode",
				exposed: map[string]string{"__name__": "sglang:http_requests_total", "endpoint": "/v1/completions", "method": "POST"},
				up:      base("decode", "chat-decode-1-0", nil), want: map[string]string{"__name__": "sglang:http_requests_total", "endpoint": "/v1/completions", "method": "POST"},
			},
			{
				name: "Process", reason: "go_* and process_* are the pod's one rank's", of: "chat/decode",
				exposed: map[string]string{"__name__": "go_goroutines"},
				up:      base("decode", "chat-decode-1-0", nil), want: map[string]string{"__name__": "go_goroutines"},
			},
			{
				name: "SeveralRanks", reason: "the engine's own labels, not the pod's", of: "chat/decode", target: 1,
				exposed: map[string]string{"__name__": "sglang:token_usage", "model_name": "tiny", "engine_type": "decode", "tp_rank": "3", "pp_rank": "1", "dp_rank": "2", "moe_ep_rank": "0"},
				up:      base("decode", "chat-decode-1-1", all),
				want:    map[string]string{"__name__": "sglang:token_usage", "model_name": "tiny", "tp_rank": "3", "pp_rank": "1", "dp_rank": "2", "moe_ep_rank": "0"},
			},
			{
				name: "SeveralRanksProcess", reason: "a process that serves several ranks says so", of: "chat/decode", target: 1,
				exposed: map[string]string{"__name__": "process_cpu_seconds_total"},
				up:      base("decode", "chat-decode-1-1", all), want: map[string]string{"__name__": "process_cpu_seconds_total"},
			},
			{
				name: "Router", reason: "a router has the labels of an engine", of: "chat/router",
				exposed: map[string]string{"__name__": "sluice_router_picks_total", "role": "decode"},
				up:      router, want: map[string]string{"__name__": "sluice_router_picks_total", "role": "decode"},
			},
			{
				name: "AnotherTenantClaimed", reason: "an engine cannot put its series into another tenant's, or another job's", of: "chat/decode",
				exposed: map[string]string{"__name__": "sglang:num_running_reqs", "tenant": "victim", "namespace": "victim", "inference_service": "victim", "pool": "victim", "job": "apiserver"},
				up:      base("decode", "chat-decode-1-0", nil), want: map[string]string{"__name__": "sglang:num_running_reqs"},
			},
			{
				name: "AnotherTenantByRouter", reason: "neither can a router's image", of: "chat/router",
				exposed: map[string]string{"__name__": "sluice_router_engines", "tenant": "victim", "namespace": "victim", "inference_service": "victim", "pool": "victim", "job": "apiserver"},
				up:      router, want: map[string]string{"__name__": "sluice_router_engines"},
			},
			{
				name: "EmptyClaim", reason: "an empty label is no way to lose one", of: "chat/decode",
				exposed: map[string]string{"__name__": "sglang:num_running_reqs", "tenant": "", "namespace": ""},
				up:      base("decode", "chat-decode-1-0", nil), want: map[string]string{"__name__": "sglang:num_running_reqs"},
			},
			{
				name: "OthersNames", reason: "an engine cannot tell that a target is up, or that an alert fires", of: "chat/decode",
				exposed: map[string]string{"__name__": "ALERTS", "alertname": "x"}, up: base("decode", "chat-decode-1-0", nil),
			},
		} {
			t.Run(tc.name, func(t *testing.T) {
				up := w.ups(t, tc.of)[tc.target]
				if diff := cmp.Diff(tc.up, up); diff != "" {
					t.Errorf("up (-want +got), %s:\n%s", tc.reason, diff)
				}
				sample, keep := newJob(t, w.monitors[tc.of].Object).store(up, tc.exposed)
				if keep != (tc.want != nil) {
					t.Fatalf("the sample is kept: %t; %s", keep, tc.reason)
				}
				if !keep {
					return
				}
				if diff := cmp.Diff(with(up, tc.want), sample); diff != "" {
					t.Errorf("sample (-want +got), %s:\n%s", tc.reason, diff)
				}
			})
		}
	})
}

// TestLabelKeys: every target of a service has the same keys, so that series of all roles can be matched.
func TestLabelKeys(t *testing.T) {
	kinds(t, func(t *testing.T, kind v1alpha1.MonitorKind) {
		w := newWorld(t, kind, testService("chat"), testService("uni", v1alpha1.PoolSpec{Name: "main", Role: v1alpha1.RoleUnified}))
		want := slices.Sorted(maps.Keys(w.ups(t, "chat/decode")[0]))
		for of := range w.monitors {
			for _, up := range w.ups(t, of) {
				if diff := cmp.Diff(want, slices.Sorted(maps.Keys(up))); diff != "" {
					t.Errorf("%s (-decode +this):\n%s", of, diff)
				}
			}
		}
	})
}

// TestConstants: what a tenant writes is never a reference to a group, and never nothing.
func TestConstants(t *testing.T) {
	for tenant, want := range map[string]string{"a$1${2}$$": "a$1${2}$$", "": "team-a"} {
		monitor := PoolMonitor(testPool(func(p *v1alpha1.EnginePool) { p.Spec.Tenant = tenant }), Options{})
		j := newJob(t, monitor.Object)
		sample, keep := j.store(map[string]string{"tenant": "x"}, map[string]string{"__name__": "go_goroutines", "tenant": "victim"})
		if !keep || sample["tenant"] != want {
			t.Errorf("tenant %q: the sample has %q, want %q", tenant, sample["tenant"], want)
		}
	}
}

func TestProvisioned(t *testing.T) {
	refused := errString("apply ServiceMonitor team-a/chat-decode: forbidden")
	result := func(of string, kind v1alpha1.MonitorKind, outcome Outcome, err error) Result {
		return Result{Monitor: Monitor{Of: of, Kind: kind}, Change: Change{Outcome: outcome}, Err: err}
	}
	const service, pod, none = v1alpha1.MonitorService, v1alpha1.MonitorPod, v1alpha1.MonitorNone
	for _, tc := range []struct {
		name    string
		reason  string
		results []Result
		want    metav1.Condition
	}{
		{
			"All", "every pool and the router has one", []Result{result("decode", service, Applied, nil), result("router", service, Unchanged, nil)},
			metav1.Condition{Status: metav1.ConditionTrue, Reason: "Provisioned", Message: "2 of 2 monitors exist: of each pool and of the router"},
		},
		{
			"NoResource", "a cluster without the resource is no fault", []Result{result("decode", pod, CRDMissing, nil), result("router", pod, CRDMissing, nil)},
			metav1.Condition{Status: metav1.ConditionUnknown, Reason: "CRDMissing", Message: "the cluster has no resource podmonitors.monitoring.coreos.com; metrics are served and not scraped by it"},
		},
		{
			"None", "nobody asked for one", []Result{result("decode", none, Unchanged, nil)},
			metav1.Condition{Status: metav1.ConditionTrue, Reason: "NotWanted", Message: "observability.monitor is None: something else scrapes"},
		},
		{
			"Refused", "one refusal is named, whatever the others", []Result{result("prefill", service, CRDMissing, nil), result("decode", service, Failed, refused)},
			metav1.Condition{Status: metav1.ConditionFalse, Reason: "ApplyFailed", Message: "decode: apply ServiceMonitor team-a/chat-decode: forbidden"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.want.Type, tc.want.ObservedGeneration = v1alpha1.ConditionMonitoringProvisioned, 7
			if diff := cmp.Diff(tc.want, Provisioned(tc.results, 7)); diff != "" {
				t.Errorf("(-want +got), %s:\n%s", tc.reason, diff)
			}
		})
	}
}

type errString string

func (e errString) Error() string { return string(e) }
