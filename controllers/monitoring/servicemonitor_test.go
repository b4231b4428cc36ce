package monitoring

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
)

func testPool(change ...func(*v1alpha1.EnginePool)) *v1alpha1.EnginePool {
	pool := &v1alpha1.EnginePool{
		ObjectMeta: metav1.ObjectMeta{Name: "chat-decode", Namespace: "team-a", UID: "pool-uid"},
		Spec: v1alpha1.EnginePoolSpec{
			Service: "chat", Pool: "decode", Role: v1alpha1.RoleDecode, Tenant: "acme", Model: v1alpha1.ModelSpec{Name: "tiny"},
		},
	}
	for _, c := range change {
		c(pool)
	}
	return pool
}

func TestBuildServiceMonitor(t *testing.T) {
	got := BuildServiceMonitor(testPool(), Options{Labels: map[string]string{"release": "prometheus"}, Interval: "5s"})

	wantLabels := plan.PoolLabels(testPool().Spec)
	wantLabels["release"] = "prometheus"
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
  interval: 5s
  honorLabels: true
  followRedirects: false
  relabelings:
  - {action: replace, sourceLabels: [__meta_kubernetes_pod_label_inference_sluice_dev_replica], regex: (.+), targetLabel: replica, replacement: $1}
  - {action: replace, sourceLabels: [__meta_kubernetes_pod_label_inference_sluice_dev_node_rank], regex: (.+), targetLabel: node_rank, replacement: $1}
  - {action: replace, sourceLabels: [__meta_kubernetes_pod_label_inference_sluice_dev_revision], regex: (.+), targetLabel: revision, replacement: $1}
  - {action: replace, sourceLabels: [__meta_kubernetes_pod_label_inference_sluice_dev_engine_type], regex: (.+), targetLabel: engine_type, replacement: $1}
  - {action: replace, sourceLabels: [__meta_kubernetes_pod_label_inference_sluice_dev_tp_rank], regex: (.+), targetLabel: tp_rank, replacement: $1}
  - {action: replace, sourceLabels: [__meta_kubernetes_pod_label_inference_sluice_dev_pp_rank], regex: (.+), targetLabel: pp_rank, replacement: $1}
  - {action: replace, sourceLabels: [__meta_kubernetes_pod_label_inference_sluice_dev_moe_ep_rank], regex: (.+), targetLabel: moe_ep_rank, replacement: $1}
  - {action: replace, targetLabel: namespace, replacement: team-a}
  - {action: replace, targetLabel: tenant, replacement: acme}
  - {action: replace, targetLabel: inference_service, replacement: chat}
  - {action: replace, targetLabel: pool, replacement: decode}
  metricRelabelings:
  - {action: replace, targetLabel: namespace, replacement: team-a}
  - {action: replace, targetLabel: tenant, replacement: acme}
  - {action: replace, targetLabel: inference_service, replacement: chat}
  - {action: replace, targetLabel: pool, replacement: decode}
namespaceSelector: {matchNames: [team-a]}
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
}

// rules turns relabelings into Prometheus' own configuration, by the names that its file has.
func rules(t *testing.T, configs []monitoringv1.RelabelConfig) []*relabel.Config {
	t.Helper()
	var out []*relabel.Config
	for _, c := range configs {
		rule := relabel.DefaultRelabelConfig
		rule.Action = relabel.Action(c.Action)
		rule.TargetLabel = c.TargetLabel
		for _, l := range c.SourceLabels {
			rule.SourceLabels = append(rule.SourceLabels, model.LabelName(l))
		}
		if c.Separator != nil {
			rule.Separator = *c.Separator
		}
		if c.Regex != "" {
			rule.Regex = relabel.MustNewRegexp(c.Regex)
		}
		if c.Replacement != nil {
			rule.Replacement = *c.Replacement
		}
		if err := rule.Validate(); err != nil {
			t.Fatalf("rule for %s: %v", c.TargetLabel, err)
		}
		out = append(out, &rule)
	}
	return out
}

// scrape does what Prometheus does with a target and one of its samples: relabel the target, drop its meta labels, merge
// with the sample's labels, of which honoured ones win, and relabel the sample. It also gives the labels of up.
func scrape(t *testing.T, monitor *monitoringv1.ServiceMonitor, meta, exposed map[string]string) (sample, up map[string]string) {
	t.Helper()
	endpoint := monitor.Spec.Endpoints[0]
	target, keep := relabel.Process(labels.FromMap(meta), rules(t, endpoint.RelabelConfigs)...)
	if !keep {
		t.Fatal("the target was dropped")
	}
	up = map[string]string{}
	merged := labels.NewBuilder(labels.FromMap(exposed))
	target.Range(func(l labels.Label) {
		if len(l.Name) > 2 && l.Name[:2] == "__" {
			return
		}
		up[l.Name] = l.Value
		if _, exported := exposed[l.Name]; exported && endpoint.HonorLabels {
			return
		}
		merged.Set(l.Name, l.Value)
	})
	final, keep := relabel.Process(merged.Labels(), rules(t, endpoint.MetricRelabelConfigs)...)
	if !keep {
		t.Fatal("the sample was dropped")
	}
	return final.Map(), up
}

func TestRelabelling(t *testing.T) {
	// What prometheus-operator has put on the target before the monitor's own rules, and discovery's meta labels.
	discovered := func(change map[string]string) map[string]string {
		m := map[string]string{
			"namespace": "team-a", "pod": "chat-decode-1-0", "service": "chat-decode", "container": "engine", "job": "chat-decode", "endpoint": "http",
			"instance":    "10.0.0.1:30000",
			"__address__": "10.0.0.1:30000",
			"__scheme__":  "http",
			"__meta_kubernetes_pod_label_inference_sluice_dev_replica":     "1",
			"__meta_kubernetes_pod_label_inference_sluice_dev_node_rank":   "0",
			"__meta_kubernetes_pod_label_inference_sluice_dev_revision":    "abc12",
			"__meta_kubernetes_pod_label_inference_sluice_dev_engine_type": "decode",
			"__meta_kubernetes_pod_label_inference_sluice_dev_tp_rank":     "0",
			"__meta_kubernetes_pod_label_inference_sluice_dev_pp_rank":     "0",
			"__meta_kubernetes_pod_label_inference_sluice_dev_moe_ep_rank": "0",
			"__meta_kubernetes_pod_label_inference_sluice_dev_tenant":      "acme",
		}
		for name, value := range change {
			m[name] = value
		}
		return m
	}
	// base is on every series of the target.
	base := func(change map[string]string) map[string]string {
		m := map[string]string{
			"namespace": "team-a", "pod": "chat-decode-1-0", "service": "chat-decode", "container": "engine", "job": "chat-decode", "endpoint": "http",
			"instance": "10.0.0.1:30000",
			"tenant":   "acme", "inference_service": "chat", "pool": "decode", "replica": "1", "node_rank": "0", "revision": "abc12",
			"engine_type": "decode", "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0",
		}
		for name, value := range change {
			if m[name] = value; value == "" {
				delete(m, name)
			}
		}
		return m
	}

	for _, tc := range []struct {
		name    string
		reason  string
		pool    *v1alpha1.EnginePool
		meta    map[string]string
		exposed map[string]string
		want    map[string]string
		up      map[string]string
	}{
		{
			name: "EngineLabelsStay", reason: "the rank that a series is of is the engine's to say",
			meta:    discovered(nil),
			exposed: map[string]string{"__name__": "sglang:token_usage", "model_name": "tiny", "engine_type": "decode", "tp_rank": "3", "pp_rank": "1", "moe_ep_rank": "2"},
			want:    base(map[string]string{"__name__": "sglang:token_usage", "model_name": "tiny", "tp_rank": "3", "pp_rank": "1", "moe_ep_rank": "2"}),
			up:      base(nil),
		},
		{
			name: "PodLabelsElsewhere", reason: "go_* and process_* name no rank",
			meta: discovered(nil), exposed: map[string]string{"__name__": "go_goroutines"},
			want: base(map[string]string{"__name__": "go_goroutines"}), up: base(nil),
		},
		{
			name: "PodWithSeveralRanks", reason: "such a pod names no rank, so the series of its process do not either",
			meta: discovered(map[string]string{
				"__meta_kubernetes_pod_label_inference_sluice_dev_tp_rank": "", "__meta_kubernetes_pod_label_inference_sluice_dev_pp_rank": "",
				"__meta_kubernetes_pod_label_inference_sluice_dev_moe_ep_rank": "",
			}),
			exposed: map[string]string{"__name__": "process_cpu_seconds_total"},
			want:    base(map[string]string{"__name__": "process_cpu_seconds_total", "tp_rank": "", "pp_rank": "", "moe_ep_rank": ""}),
			up:      base(map[string]string{"tp_rank": "", "pp_rank": "", "moe_ep_rank": ""}),
		},
		{
			name: "AnotherTenantClaimed", reason: "an engine cannot put its series into another tenant's",
			meta:    discovered(map[string]string{"__meta_kubernetes_pod_label_inference_sluice_dev_tenant": "victim"}),
			exposed: map[string]string{"__name__": "sglang:num_running_reqs", "tenant": "victim", "namespace": "victim", "inference_service": "victim", "pool": "victim"},
			want:    base(map[string]string{"__name__": "sglang:num_running_reqs"}),
			up:      base(nil),
		},
		{
			name: "DollarSigns", reason: "a constant is no reference to a group",
			pool: testPool(func(p *v1alpha1.EnginePool) { p.Spec.Tenant = "a$1${2}$$" }),
			meta: discovered(nil), exposed: map[string]string{"__name__": "up_like"},
			want: base(map[string]string{"__name__": "up_like", "tenant": "a$1${2}$$"}), up: base(map[string]string{"tenant": "a$1${2}$$"}),
		},
		{
			name: "NoTenant", reason: "an empty constant would remove the label", pool: testPool(func(p *v1alpha1.EnginePool) { p.Spec.Tenant = "" }),
			meta: discovered(nil), exposed: map[string]string{"__name__": "x", "tenant": "victim"},
			want: base(map[string]string{"__name__": "x", "tenant": "team-a"}), up: base(map[string]string{"tenant": "team-a"}),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pool := tc.pool
			if pool == nil {
				pool = testPool()
			}
			sample, up := scrape(t, BuildServiceMonitor(pool, Options{}), tc.meta, tc.exposed)
			if diff := cmp.Diff(tc.want, sample); diff != "" {
				t.Errorf("sample (-want +got), %s:\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.up, up); diff != "" {
				t.Errorf("up (-want +got), %s:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestProvisioned(t *testing.T) {
	refused := errString("apply ServiceMonitor team-a/chat-decode: forbidden")
	for _, tc := range []struct {
		name    string
		reason  string
		results []Result
		want    metav1.Condition
	}{
		{
			"All", "every pool has one", []Result{{Pool: "decode", Outcome: Applied}, {Pool: "prefill", Outcome: Unchanged}},
			metav1.Condition{Status: metav1.ConditionTrue, Reason: "Provisioned", Message: "2 of 2 pools have a ServiceMonitor"},
		},
		{
			"NoResource", "a cluster without the resource is no fault", []Result{{Pool: "decode", Outcome: CRDMissing}},
			metav1.Condition{Status: metav1.ConditionUnknown, Reason: "CRDMissing", Message: "the cluster has no resource servicemonitors.monitoring.coreos.com; metrics are served and not scraped by it"},
		},
		{
			"Refused", "one refusal is named, whatever the others", []Result{{Pool: "prefill", Outcome: CRDMissing}, {Pool: "decode", Outcome: Failed, Err: refused}},
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
