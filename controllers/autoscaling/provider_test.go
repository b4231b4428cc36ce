package autoscaling

import (
	"context"
	"errors"
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/metrics/pkg/apis/custom_metrics"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	metricsprovider "sigs.k8s.io/custom-metrics-apiserver/pkg/provider"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/observe"
	"github.com/sluice-dev/sluice/controllers/semantics"
	"github.com/sluice-dev/sluice/engine/loads"
)

const freshFor = 10 * time.Second

// samples holds pods of the one pool, in the order of their names.
type samples []observe.PodSample

func (s samples) Pod(pod types.NamespacedName) (observe.PodSample, bool) {
	for _, p := range s {
		if p.Name == pod.Name && p.Pool.Namespace == pod.Namespace {
			return p, true
		}
	}
	return observe.PodSample{}, false
}

func (s samples) Pool(pool types.NamespacedName) observe.PoolSample {
	sample := observe.PoolSample{Pool: pool, FreshFor: freshFor}
	for _, p := range s {
		if p.Pool == pool {
			sample.Pods = append(sample.Pods, p)
		}
	}
	return sample
}

func (s samples) Select(namespace string, selector labels.Selector) []observe.PodSample {
	var pods []observe.PodSample
	for _, p := range s {
		if p.Pool.Namespace == namespace && selector.Matches(p.Labels) {
			pods = append(pods, p)
		}
	}
	return pods
}

func (s samples) FreshFor() time.Duration { return freshFor }

var poolKey = types.NamespacedName{Namespace: "team-a", Name: "chat-decode"}

// engine is a pod of the pool that is Ready for a minute and was polled a second ago.
func engine(name string, ranks []loads.Load, change ...func(*observe.PodSample)) observe.PodSample {
	p := observe.PodSample{
		Name: name, Pool: poolKey, Role: v1alpha1.RoleDecode, Labels: labels.Set{"pool": "decode"},
		ReadySince: epoch.Add(-time.Minute), Taken: epoch.Add(-time.Second), Ranks: ranks,
	}
	for _, c := range change {
		c(&p)
	}
	return p
}

func rank(utilization, usage float64, running, waiting int) []loads.Load {
	return []loads.Load{{Utilization: utilization, TokenUsage: usage, NumRunningReqs: running, NumWaitingReqs: waiting}}
}

func stale(p *observe.PodSample)       { p.Taken = epoch.Add(-freshFor - 1) }
func never(p *observe.PodSample)       { p.Taken, p.Ranks = time.Time{}, nil }
func starting(p *observe.PodSample)    { never(p); p.ReadySince = time.Time{} }
func draining(p *observe.PodSample)    { p.Draining = true }
func unready(p *observe.PodSample)     { p.ReadySince = time.Time{} }
func noEvents(p *observe.PodSample)    { p.Events = map[string]semantics.Distribution{} }
func justServing(p *observe.PodSample) { p.ReadySince = epoch.Add(-15 * time.Second) }
func justReady(p *observe.PodSample) {
	never(p)
	p.ReadySince = epoch.Add(-3 * time.Second)
}
func restarted(p *observe.PodSample) {
	stale(p)
	p.ReadySince = epoch.Add(-2 * time.Second)
}

func newProvider(t *testing.T, s Samples, pools ...client.Object) *provider {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return &provider{store: s, pools: fake.NewClientBuilder().WithScheme(scheme).WithObjects(pools...).Build(), clock: testingclock.NewFakePassiveClock(epoch)}
}

func podInfo(metric string) metricsprovider.CustomMetricInfo {
	return metricsprovider.CustomMetricInfo{GroupResource: schema.GroupResource{Resource: "pods"}, Namespaced: true, Metric: metric}
}

func poolInfo(metric string) metricsprovider.CustomMetricInfo {
	info := podInfo(metric)
	info.GroupResource = schema.GroupResource{Group: "inference.sluice.dev", Resource: "enginepools"}
	return info
}

// TestBySelector tells what an autoscaler reads of type Pods.
func TestBySelector(t *testing.T) {
	dataParallel := func(p *observe.PodSample) { p.DataRanks = 2 }
	slo := testPool(func(p *v1alpha1.EnginePool) {
		p.Spec.SLO = &v1alpha1.SLOSpec{TTFT: &v1alpha1.LatencyObjective{Threshold: metav1.Duration{Duration: 3 * time.Second}, Objective: resource.MustParse("0.7")}}
	})
	// ttft has so many events up to a second, and from there to three.
	ttft := func(fast, slow float64) func(*observe.PodSample) {
		return func(p *observe.PodSample) {
			p.Events = map[string]semantics.Distribution{semantics.FamilyTTFT: {Bounds: []float64{1, 3}, Counts: []float64{fast, slow, 0}}}
		}
	}
	twoRanks := func(a, b float64) []loads.Load { return []loads.Load{{Utilization: a}, {DPRank: 1, Utilization: b}} }

	for _, tc := range []struct {
		name   string
		reason string
		pods   samples
		pool   *v1alpha1.EnginePool
		metric string
		want   map[string]string
		err    string
	}{
		{
			name: "Numbers", reason: "thousandths, rounded half up",
			pods:   samples{engine("a", rank(0.8125, 0, 0, 0)), engine("b", rank(1.2, 0, 0, 0)), engine("c", rank(0, 0, 0, 0))},
			metric: semantics.MetricUtilization, want: map[string]string{"a": "813m", "b": "1200m", "c": "0"},
		},
		{name: "TokenUsage", reason: "its own column", pods: samples{engine("a", rank(1, 0.25, 2, 3))}, metric: semantics.MetricTokenUsage, want: map[string]string{"a": "250m"}},
		{name: "Running", reason: "its own column", pods: samples{engine("a", rank(1, 0.25, 2, 3))}, metric: semantics.MetricConcurrency, want: map[string]string{"a": "2"}},
		{name: "Queued", reason: "its own column", pods: samples{engine("a", rank(1, 0.25, 2, 3))}, metric: semantics.MetricQueueLength, want: map[string]string{"a": "3"}},
		{
			name: "TTFT", reason: "the quantile of both engines' events over the threshold, the same for each", pool: slo,
			pods:   samples{engine("a", busyRank(1), ttft(40, 10)), engine("b", busyRank(1), ttft(0, 50))},
			metric: semantics.MetricTTFT, want: map[string]string{"a": "667m", "b": "667m"},
		},
		{
			name: "TTFTWhenIdle", reason: "nobody waits", pool: slo, pods: samples{engine("a", busyRank(0), noEvents)}, metric: semantics.MetricTTFT, want: map[string]string{"a": "0"},
		},
		{
			name: "TTFTUnread", reason: "an idle moment of an engine whose histograms cannot be read says nothing", pool: slo,
			pods: samples{engine("a", busyRank(0)), engine("b", busyRank(1), ttft(40, 10))}, metric: semantics.MetricTTFT,
			err: "NoSamples: sluice_ttft_slo_ratio: the latency histograms of a were not read of late",
		},
		{
			name: "TTFTUnreadYet", reason: "one that has just become ready has no events to tell of", pool: slo,
			pods:   samples{engine("a", busyRank(0), justServing), engine("b", busyRank(1), ttft(40, 10))},
			metric: semantics.MetricTTFT, want: map[string]string{"a": "292m", "b": "292m"},
		},
		{
			name: "TTFTOfFew", reason: "one slow event would be the quantile", pool: slo, pods: samples{engine("a", busyRank(1), ttft(4, 1))}, metric: semantics.MetricTTFT,
			err: "FewEvents: sluice_ttft_slo_ratio: requests are under way at a and too few have answered in the last minute for a quantile",
		},
		{
			name: "TTFTWithoutObjective", reason: "nothing to compare with", pods: samples{engine("a", busyRank(1), ttft(40, 10))}, metric: semantics.MetricTTFT,
			err: "UndefinedSignal: sluice_ttft_slo_ratio: the service of a sets no objective for it in spec.slo",
		},
		{
			name: "StaleWithTTFT", reason: "a stale engine is no number for a latency either", pool: slo,
			pods:   samples{engine("a", busyRank(1), ttft(40, 10)), engine("b", busyRank(1), ttft(40, 10), stale)},
			metric: semantics.MetricTTFT, err: "PartialSamples: sluice_ttft_slo_ratio: b are ready and have no fresh sample, other pods have one",
		},
		{
			name: "StartingAndDrainingAreLeftOut", reason: "neither takes requests, and that is no fault",
			pods: samples{engine("a", rank(0.5, 0, 0, 0)), engine("b", nil, starting), engine("c", rank(0.1, 0, 0, 0), draining),
				engine("d", rank(0.9, 0, 0, 0), unready), engine("e", nil, justReady), engine("f", rank(0, 0, 0, 0), restarted)},
			metric: semantics.MetricUtilization, want: map[string]string{"a": "500m"},
		},
		{
			name: "MeanOverRanks", reason: "a replica is one",
			pods: samples{engine("a", twoRanks(0.5, 1), dataParallel)}, metric: semantics.MetricUtilization, want: map[string]string{"a": "750m"},
		},
		{
			name: "TwoLayouts", reason: "while a change of parallelism.data rolls out, each pod must have its own ranks and no more",
			pods:   samples{engine("a", rank(0.5, 0, 0, 0)), engine("b", twoRanks(1, 0.5), dataParallel)},
			metric: semantics.MetricUtilization, want: map[string]string{"a": "500m", "b": "750m"},
		},
		{
			name: "RankMissing", reason: "half of a replica is not a number",
			pods: samples{engine("a", rank(0.5, 0, 0, 0), dataParallel), engine("b", twoRanks(1, 1), dataParallel)}, metric: semantics.MetricUtilization,
			err: "PartialSamples: sluice_utilization: the samples of a lack ranks",
		},
		{
			name: "Sentinel", reason: "-1 is never a number, whatever the others say",
			pods: samples{engine("a", rank(-1, 0, 0, 0)), engine("b", rank(0.5, 0, 0, 0))}, metric: semantics.MetricUtilization,
			err: "SentinelValue: sluice_utilization: a report a value that is not a number (-1 on a prefill engine)",
		},
		{
			name: "SentinelElsewhere", reason: "other metrics of a prefill engine are numbers",
			pods: samples{engine("a", rank(-1, 0, 0, 4))}, metric: semantics.MetricQueueLength, want: map[string]string{"a": "4"},
		},
		{
			name: "NaN", reason: "never a number", pods: samples{engine("a", rank(math.NaN(), 0, 0, 0))}, metric: semantics.MetricUtilization,
			err: "SentinelValue: sluice_utilization: a report a value that is not a number (-1 on a prefill engine)",
		},
		{
			name: "AllStale", reason: "nothing fresh", pods: samples{engine("a", rank(0.5, 0, 0, 0), stale), engine("b", nil, never)}, metric: semantics.MetricUtilization,
			err: "StaleSample: sluice_utilization: the samples of a, b are too old",
		},
		{
			name: "SomeStale", reason: "the others alone would move the mean", metric: semantics.MetricUtilization,
			pods: samples{engine("a", rank(0.5, 0, 0, 0)), engine("b", rank(0.5, 0, 0, 0), stale), engine("c", nil, never)},
			err:  "PartialSamples: sluice_utilization: b, c are ready and have no fresh sample, other pods have one",
		},
		{
			name: "ReadyForLongNeverPolled", reason: "an engine that never answered", pods: samples{engine("a", nil, never)}, metric: semantics.MetricUtilization,
			err: "NoSamples: sluice_utilization: a are ready and gave no sample yet",
		},
		{name: "NoPods", reason: "nothing to read", metric: semantics.MetricUtilization, err: "NoSamples: sluice_utilization: no selected pod is ready and polled"},
		{
			name: "OnlyStarting", reason: "an autoscaler waits for the first engine", pods: samples{engine("a", nil, starting)}, metric: semantics.MetricUtilization,
			err: "NoSamples: sluice_utilization: no selected pod is ready and polled",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pool := tc.pool
			if pool == nil {
				pool = testPool()
			}
			p := newProvider(t, tc.pods, pool)
			list, err := p.GetMetricBySelector(context.Background(), "team-a", labels.SelectorFromSet(labels.Set{"pool": "decode"}), podInfo(tc.metric), labels.Everything())
			if tc.err != "" {
				if err == nil || err.Error() != tc.err {
					t.Fatalf("got error %v, want %q: %s", err, tc.err, tc.reason)
				}
				if code := apierrors.ReasonForError(err); code != metav1.StatusReasonServiceUnavailable {
					t.Errorf("status reason %s, want ServiceUnavailable", code)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, item := range list.Items {
				got[item.DescribedObject.Name] = item.Value.String()
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got), %s:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestWholeValue compares every field of an answer.
func TestWholeValue(t *testing.T) {
	p := newProvider(t, samples{engine("a", rank(0.8, 0, 0, 0))}, testPool())
	want := &custom_metrics.MetricValueList{Items: []custom_metrics.MetricValue{{
		DescribedObject: custom_metrics.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "team-a", Name: "a"},
		Metric:          custom_metrics.MetricIdentifier{Name: semantics.MetricUtilization},
		Timestamp:       metav1.NewTime(epoch.Add(-time.Second)),
		Value:           *resource.NewMilliQuantity(800, resource.DecimalSI),
	}}}
	got, err := p.GetMetricBySelector(context.Background(), "team-a", labels.Everything(), podInfo(semantics.MetricUtilization), labels.Everything())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestByName(t *testing.T) {
	pods := samples{
		engine("a", rank(0.5, 0.2, 3, 1)), engine("b", rank(0.75, 0.4, 4, 2), func(p *observe.PodSample) { p.Taken = epoch.Add(-2 * time.Second) }),
		engine("c", rank(0, 0, 0, 0), draining),
	}
	for _, tc := range []struct {
		name   string
		reason string
		info   metricsprovider.CustomMetricInfo
		object string
		metric labels.Selector
		want   string
		taken  time.Duration
		code   int32
		err    string
	}{
		{name: "Pod", reason: "one pod", info: podInfo(semantics.MetricUtilization), object: "a", want: "500m", taken: -time.Second},
		{name: "PoolMean", reason: "ratios are averaged, and the time is the oldest", info: poolInfo(semantics.MetricUtilization), object: "chat-decode", want: "625m", taken: -2 * time.Second},
		{name: "PoolSum", reason: "requests are summed", info: poolInfo(semantics.MetricConcurrency), object: "chat-decode", want: "7", taken: -2 * time.Second},
		{name: "UnknownPod", reason: "no leader of that name", info: podInfo(semantics.MetricUtilization), object: "x", code: http.StatusNotFound,
			err: "the server could not find the metric sluice_utilization for pods x"},
		{name: "UnknownPool", reason: "no pool of that name", info: poolInfo(semantics.MetricUtilization), object: "x", code: http.StatusNotFound,
			err: "the server could not find the metric sluice_utilization for enginepools.inference.sluice.dev x"},
		{name: "DrainingPod", reason: "it has no number", info: podInfo(semantics.MetricUtilization), object: "c", code: http.StatusServiceUnavailable,
			err: "NoSamples: sluice_utilization: no selected pod is ready and polled"},
		{name: "UnknownMetric", reason: "another adapter's", info: podInfo("http_requests"), object: "a", code: http.StatusNotFound,
			err: "the server could not find the metric http_requests for pods"},
		{name: "OtherResource", reason: "nodes have none", info: metricsprovider.CustomMetricInfo{GroupResource: schema.GroupResource{Resource: "nodes"}, Namespaced: true, Metric: semantics.MetricUtilization},
			object: "a", code: http.StatusNotFound, err: "the server could not find the metric sluice_utilization for nodes"},
		{name: "MetricSelector", reason: "a selector that would be ignored is refused", info: podInfo(semantics.MetricUtilization), object: "a",
			metric: labels.SelectorFromSet(labels.Set{"x": "y"}), code: http.StatusBadRequest, err: "sluice_utilization has no labels of its own; leave metric.selector out"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			selector := tc.metric
			if selector == nil {
				selector = labels.Everything()
			}
			p := newProvider(t, pods, testPool())
			got, err := p.GetMetricByName(context.Background(), types.NamespacedName{Namespace: "team-a", Name: tc.object}, tc.info, selector)
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
			if got.Value.String() != tc.want || !got.Timestamp.Time.Equal(epoch.Add(tc.taken)) {
				t.Errorf("got %s at %s, want %s at %s: %s", got.Value.String(), got.Timestamp, tc.want, epoch.Add(tc.taken), tc.reason)
			}
		})
	}
}

func TestPoolsBySelector(t *testing.T) {
	other := testPool(func(p *v1alpha1.EnginePool) { p.Name, p.Labels = "chat-other", map[string]string{"x": "y"} })
	labelled := testPool(func(p *v1alpha1.EnginePool) { p.Labels = map[string]string{"x": "z"} })
	p := newProvider(t, samples{engine("a", rank(0.5, 0, 0, 0))}, labelled, other)
	list, err := p.GetMetricBySelector(context.Background(), "team-a", labels.SelectorFromSet(labels.Set{"x": "z"}), poolInfo(semantics.MetricUtilization), labels.Everything())
	if err != nil {
		t.Fatal(err)
	}
	want := []custom_metrics.ObjectReference{{APIVersion: "inference.sluice.dev/v1alpha1", Kind: "EnginePool", Namespace: "team-a", Name: "chat-decode"}}
	var got []custom_metrics.ObjectReference
	for _, item := range list.Items {
		got = append(got, item.DescribedObject)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestListAllMetrics(t *testing.T) {
	var got []string
	for _, info := range newProvider(t, samples{}).ListAllMetrics() {
		got = append(got, info.String())
	}
	var want []string
	for _, resource := range []string{"pods", "enginepools.inference.sluice.dev"} {
		for _, metric := range []string{
			"sluice_utilization", "sluice_prefill_delay_seconds", "sluice_queue_length", "sluice_token_usage", "sluice_ttft_slo_ratio",
			"sluice_itl_slo_ratio", "sluice_concurrency",
		} {
			want = append(want, resource+"/"+metric+"(namespaced)")
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
