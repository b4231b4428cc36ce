package autoscaling

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/metrics/pkg/apis/external_metrics"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsprovider "sigs.k8s.io/custom-metrics-apiserver/pkg/provider"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/observe"
	"github.com/sluice-dev/sluice/controllers/semantics"
	"github.com/sluice-dev/sluice/engine/loads"
)

// prefillPool is the prefill pool of the service whose decode pool testPool is.
func prefillPool(change ...func(*v1alpha1.EnginePool)) *v1alpha1.EnginePool {
	return testPool(append([]func(*v1alpha1.EnginePool){func(p *v1alpha1.EnginePool) {
		p.Name, p.Spec.Pool, p.Spec.Role = "chat-prefill", "prefill", v1alpha1.RolePrefill
	}}, change...)...)
}

// ofPrefill makes an engine one of prefillPool.
func ofPrefill(p *observe.PodSample) {
	p.Pool = types.NamespacedName{Namespace: "team-a", Name: "chat-prefill"}
	p.Role = v1alpha1.RolePrefill
}

// TestExternalMetrics tells what autoscalers of one's own read: one value a pool, picked by its labels.
func TestExternalMetrics(t *testing.T) {
	elsewhere := testPool(func(p *v1alpha1.EnginePool) { p.Namespace = "team-b" })
	decoding := samples{
		engine("d0", rank(0.5, 0.25, 3, 1)),
		engine("d1", rank(1.0, 0.5, 5, 0), func(p *observe.PodSample) { p.Taken = epoch.Add(-2 * time.Second) }),
		engine("d2", rank(9, 9, 9, 9), draining),
	}
	both := append(samples{engine("p0", []loads.Load{{Utilization: -1, NumWaitingReqs: 4, TokenUsage: 0.1, NumWaitingUncached: 500}}, ofPrefill, func(p *observe.PodSample) {
		p.Work = []semantics.Work{{Tokens: 1000, Micros: 1e6}}
	})}, decoding...)
	pools := []client.Object{testPool(), prefillPool(), elsewhere}
	for _, tc := range []struct {
		name      string
		reason    string
		metric    string
		namespace string // team-a when empty
		selector  string
		pods      samples
		want      []string // pool, engine type, value and age, in the order of the answer
		code      int32
		err       string
	}{
		{name: "Mean", reason: "ratios are averaged over replicas, the time is the oldest; a prefill pool has no utilization", metric: semantics.MetricUtilization, pods: both,
			want: []string{"decode decode 750m 2s"}},
		{name: "Sum", reason: "requests are added, and each pool has its own value", metric: semantics.MetricQueueLength, pods: both,
			want: []string{"decode decode 1 2s", "prefill prefill 4 1s"}},
		{name: "Delay", reason: "500 tokens at 1000 a second; a decode pool computes no prompts", metric: semantics.MetricPrefillDelay, pods: both, want: []string{"prefill prefill 500m 1s"}},
		{name: "ByPool", reason: "the metric selector picks by labels of pools", metric: semantics.MetricQueueLength, selector: "pool=prefill", pods: both, want: []string{"prefill prefill 4 1s"}},
		{name: "ByEngineType", reason: "so does the role", metric: semantics.MetricConcurrency, selector: "engine_type!=prefill,inference_service=chat", pods: both, want: []string{"decode decode 8 2s"}},
		{name: "BrokenElsewhere", reason: "a pool that is not picked cannot spoil the answer", metric: semantics.MetricConcurrency, selector: "pool=decode",
			pods: append(samples{engine("p0", rank(0, 0, 1, 1), ofPrefill, stale)}, decoding...), want: []string{"decode decode 8 2s"}},
		{name: "Broken", reason: "a pool that is picked does: an answer without it would be read as less load", metric: semantics.MetricConcurrency,
			pods: append(samples{engine("p0", rank(0, 0, 1, 1), ofPrefill, stale)}, decoding...), code: http.StatusServiceUnavailable,
			err: "StaleSample: sluice_concurrency: the samples of p0 are too old"},
		{name: "OtherNamespace", reason: "pools of one namespace alone are read", metric: semantics.MetricConcurrency, namespace: "team-b", pods: both, code: http.StatusServiceUnavailable,
			err: "NoSamples: sluice_concurrency: no selected pod is ready and polled"},
		{name: "NoPool", reason: "an empty answer would be read as 0", metric: semantics.MetricConcurrency, selector: "pool=other", pods: both, code: http.StatusServiceUnavailable,
			err: "NoSamples: sluice_concurrency: no pool of the namespace has it and these labels"},
		{name: "Unknown", reason: "another adapter's", metric: "http_requests", pods: both, code: http.StatusNotFound, err: `externalmetrics.external.metrics.k8s.io "http_requests" not found`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			selector, err := labels.Parse(tc.selector)
			if err != nil {
				t.Fatal(err)
			}
			namespace := tc.namespace
			if namespace == "" {
				namespace = "team-a"
			}
			p := externalProvider{newProvider(t, tc.pods, pools...)}
			list, err := p.GetExternalMetric(t.Context(), namespace, selector, metricsprovider.ExternalMetricInfo{Metric: tc.metric})
			if tc.err != "" {
				if err == nil || err.Error() != tc.err {
					t.Fatalf("got error %v, want %q: %s", err, tc.err, tc.reason)
				}
				if status := apierrors.APIStatus(nil); !errors.As(err, &status) || status.Status().Code != tc.code {
					t.Errorf("got %v, want code %d", err, tc.code)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, v := range list.Items {
				got = append(got, fmt.Sprintf("%s %s %s %s", v.MetricLabels[LabelPool], v.MetricLabels[LabelEngineType], v.Value.String(), epoch.Sub(v.Timestamp.Time)))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got), %s:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestWholeExternalValue compares every field of an answer, asked without a selector.
func TestWholeExternalValue(t *testing.T) {
	p := externalProvider{newProvider(t, samples{engine("a", rank(0.8, 0, 0, 0))}, testPool())}
	want := &external_metrics.ExternalMetricValueList{Items: []external_metrics.ExternalMetricValue{{
		MetricName:   semantics.MetricUtilization,
		MetricLabels: map[string]string{"inference_service": "chat", "pool": "decode", "engine_type": "decode"},
		Timestamp:    metav1.NewTime(epoch.Add(-time.Second)),
		Value:        *resource.NewMilliQuantity(800, resource.DecimalSI),
	}}}
	got, err := p.GetExternalMetric(t.Context(), "team-a", nil, metricsprovider.ExternalMetricInfo{Metric: semantics.MetricUtilization})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestListAllExternalMetrics(t *testing.T) {
	var got []string
	for _, info := range (externalProvider{newProvider(t, samples{})}).ListAllExternalMetrics() {
		got = append(got, info.Metric)
	}
	want := []string{
		"sluice_utilization", "sluice_prefill_delay_seconds", "sluice_queue_length", "sluice_token_usage", "sluice_ttft_slo_ratio",
		"sluice_itl_slo_ratio", "sluice_concurrency",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
