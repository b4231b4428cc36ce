package autoscaling

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/semantics"
)

func TestScalingActive(t *testing.T) {
	hpa := func(conditions ...autoscalingv2.HorizontalPodAutoscalerCondition) *autoscalingv2.HorizontalPodAutoscaler {
		return &autoscalingv2.HorizontalPodAutoscaler{Status: autoscalingv2.HorizontalPodAutoscalerStatus{Conditions: conditions}}
	}
	able := autoscalingv2.HorizontalPodAutoscalerCondition{Type: autoscalingv2.AbleToScale, Status: corev1.ConditionTrue, Reason: "ReadyForNewScale"}
	inactive := func(reason, message string) autoscalingv2.HorizontalPodAutoscalerCondition {
		return autoscalingv2.HorizontalPodAutoscalerCondition{Type: autoscalingv2.ScalingActive, Status: corev1.ConditionFalse, Reason: reason, Message: message}
	}
	fromAPI := "the HPA was unable to compute the replica count: unable to get metric sluice_utilization: unable to fetch metrics from custom metrics API: "

	for _, tc := range []struct {
		name    string
		reason  string
		hpa     *autoscalingv2.HorizontalPodAutoscaler
		status  metav1.ConditionStatus
		why     Reason
		message string
	}{
		{"NoHPA", "it is about to be made", nil, metav1.ConditionUnknown, ReasonPending, "the HorizontalPodAutoscaler does not exist yet"},
		{"NotEvaluated", "its controller has not looked yet", hpa(), metav1.ConditionUnknown, ReasonPending, "the HorizontalPodAutoscaler was not evaluated yet"},
		{"Active", "it reads a number",
			hpa(able, autoscalingv2.HorizontalPodAutoscalerCondition{Type: autoscalingv2.ScalingActive, Status: corev1.ConditionTrue, Reason: "ValidMetricFound", Message: "the HPA was able to successfully calculate a replica count from pods metric sluice_utilization"}),
			metav1.ConditionTrue, ReasonValidMetric, "the autoscaler reads a number"},
		{"NoScale", "the scale of the pool cannot be read",
			hpa(autoscalingv2.HorizontalPodAutoscalerCondition{Type: autoscalingv2.AbleToScale, Status: corev1.ConditionFalse, Reason: "FailedGetScale", Message: "not found"}),
			metav1.ConditionFalse, ReasonHPAError, "FailedGetScale: not found"},
		{"Zero", "a person scaled to zero", hpa(able, inactive("ScalingDisabled", "scaling is disabled since the replica count of the target is zero")),
			metav1.ConditionFalse, ReasonScalingDisabled, "scaling is disabled since the replica count of the target is zero"},
		{"Sentinel", "a prefill pool is scaled on utilization", hpa(able, inactive("FailedGetPodsMetric", fromAPI+"SentinelValue: sluice_utilization: a-0-0 report a value")),
			metav1.ConditionFalse, ReasonSentinelValue, "sluice_utilization: a-0-0 report a value"},
		{"Stale", "engines do not answer", hpa(able, inactive("FailedGetPodsMetric", fromAPI+"StaleSample: x")), metav1.ConditionFalse, ReasonStaleSample, "x"},
		{"Partial", "some engines do not answer", hpa(able, inactive("FailedGetPodsMetric", fromAPI+"PartialSamples: x")), metav1.ConditionFalse, ReasonPartialSamples, "x"},
		{"None", "no engine is ready", hpa(able, inactive("FailedGetPodsMetric", fromAPI+"NoSamples: x")), metav1.ConditionFalse, ReasonNoSamples, "x"},
		{"NoAPI", "the APIService is not there", hpa(able, inactive("FailedGetPodsMetric", fromAPI+"no custom metrics API (custom.metrics.k8s.io) registered")),
			metav1.ConditionFalse, ReasonMetricsAPIUnavailable, fromAPI + "no custom metrics API (custom.metrics.k8s.io) registered"},
		{"APIDown", "the operator does not answer", hpa(able, inactive("FailedGetPodsMetric", fromAPI+"the server is currently unable to handle the request (get pods.custom.metrics.k8s.io *)")),
			metav1.ConditionFalse, ReasonMetricsAPIUnavailable, fromAPI + "the server is currently unable to handle the request (get pods.custom.metrics.k8s.io *)"},
		{"OtherAdapter", "another adapter does not know the metric", hpa(able, inactive("FailedGetPodsMetric", fromAPI+"the server could not find the metric sluice_utilization for pods")),
			metav1.ConditionFalse, ReasonMetricsAPIUnavailable, fromAPI + "the server could not find the metric sluice_utilization for pods"},
		{"Other", "whatever else it says is shown", hpa(able, inactive("InvalidSelector", "the HPA target's scale is missing a selector")),
			metav1.ConditionFalse, ReasonHPAError, "InvalidSelector: the HPA target's scale is missing a selector"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := &metav1.Condition{Type: v1alpha1.ConditionScalingActive, Status: tc.status, Reason: string(tc.why), Message: tc.message, ObservedGeneration: 3}
			if diff := cmp.Diff(want, ScalingActive(testPool(), tc.hpa)); diff != "" {
				t.Errorf("(-want +got), %s:\n%s", tc.reason, diff)
			}
		})
	}
	woken := ScalingActive(testPool(func(p *v1alpha1.EnginePool) { p.Spec.Replicas = new(int32(1)) }), hpa(able, inactive("ScalingDisabled", "scaling is disabled since the replica count of the target is zero")))
	if woken.Status != metav1.ConditionUnknown || woken.Reason != string(ReasonPending) {
		t.Errorf("a pool that has just woken is told to be scaled to zero: %+v", woken)
	}
	if got := ScalingActive(testPool(func(p *v1alpha1.EnginePool) { p.Spec.Autoscaling = nil }), nil); got != nil {
		t.Errorf("a pool without autoscaling has the condition %+v", got)
	}
}

// TestScaledByKEDA tells what becomes of KEDA's state, and of what is missing.
func TestScaledByKEDA(t *testing.T) {
	hpa := func(status corev1.ConditionStatus, reason, message string) *autoscalingv2.HorizontalPodAutoscaler {
		return &autoscalingv2.HorizontalPodAutoscaler{Status: autoscalingv2.HorizontalPodAutoscalerStatus{Conditions: []autoscalingv2.HorizontalPodAutoscalerCondition{
			{Type: autoscalingv2.ScalingActive, Status: status, Reason: reason, Message: message},
		}}}
	}
	reads := hpa(corev1.ConditionTrue, "ValidMetricFound", "found")
	for _, tc := range []struct {
		name    string
		reason  string
		pool    *v1alpha1.EnginePool
		hpa     *autoscalingv2.HorizontalPodAutoscaler
		missing bool
		err     error
		status  metav1.ConditionStatus
		why     Reason
		message string
	}{
		{"Reads", "as its autoscaler says", testPool(), reads, false, nil, metav1.ConditionTrue, ReasonScaledObject, "KEDA scales the pool by the ScaledObject of its name, and reads a number"},
		{"Empty", "an answer without a series is no number", testPool(), hpa(corev1.ConditionFalse, "FailedGetExternalMetric", "the result is empty"), false, nil,
			metav1.ConditionFalse, ReasonHPAError, "FailedGetExternalMetric: the result is empty"},
		{"NoAutoscaler", "KEDA may not run", testPool(), nil, false, nil, metav1.ConditionUnknown, ReasonPending,
			"KEDA has made no HorizontalPodAutoscaler for the ScaledObject of the pool's name yet; where that lasts, its conditions say why"},
		{"Missing", "no resource to make", testPool(), nil, true, nil, metav1.ConditionFalse, ReasonKEDAMissing,
			"autoscaling.provider is KEDA and the cluster has no ScaledObject resource: install KEDA, or use provider MetricsAPI"},
		{"NotMade", "whatever stands against it", testPool(), nil, false, errors.New("no Prometheus"), metav1.ConditionFalse, ReasonNoScaledObject, "no Prometheus"},
		{"Asleep", "it has no ScaledObject then", testPool(func(p *v1alpha1.EnginePool) {
			p.Spec.Autoscaling.MinReplicas, p.Spec.Replicas = new(int32(0)), new(int32(0))
		}), nil, false, nil,
			metav1.ConditionTrue, ReasonAsleep, "the pool has no replica; the next request makes one"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := &metav1.Condition{Type: v1alpha1.ConditionScalingActive, Status: tc.status, Reason: string(tc.why), Message: tc.message, ObservedGeneration: 3}
			if diff := cmp.Diff(want, ScaledByKEDA(tc.pool, tc.hpa, tc.missing, tc.err)); diff != "" {
				t.Errorf("(-want +got), %s:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestPoolOfKEDA tells KEDA's autoscalers of pools from others.
func TestPoolOfKEDA(t *testing.T) {
	of := func(owner metav1.OwnerReference, target autoscalingv2.CrossVersionObjectReference) *autoscalingv2.HorizontalPodAutoscaler {
		owner.Controller = new(true)
		return &autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{owner}}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{ScaleTargetRef: target},
		}
	}
	scaled := metav1.OwnerReference{APIVersion: "keda.sh/v1alpha1", Kind: "ScaledObject", Name: "chat-decode"}
	pool := autoscalingv2.CrossVersionObjectReference{APIVersion: "inference.sluice.dev/v1alpha1", Kind: "EnginePool", Name: "chat-decode"}
	for _, tc := range []struct {
		name, reason string
		hpa          *autoscalingv2.HorizontalPodAutoscaler
		ok           bool
	}{
		{"Its", "the ScaledObject has the pool's name", of(scaled, pool), true},
		{"OwnHPA", "the operator's is controlled by the pool", BuildHPA(testPool()), false},
		{"Orphan", "nobody's", &autoscalingv2.HorizontalPodAutoscaler{}, false},
		{"Deployment", "it scales something else", of(scaled, autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "chat-decode"}), false},
		{"OtherName", "a ScaledObject that somebody else made for the pool", of(scaled, autoscalingv2.CrossVersionObjectReference{APIVersion: pool.APIVersion, Kind: pool.Kind, Name: "chat-prefill"}), false},
		{"OtherGroup", "a kind of that name in another group", of(metav1.OwnerReference{APIVersion: "other.sh/v1", Kind: "ScaledObject", Name: "chat-decode"}, pool), false},
	} {
		if name, ok := PoolOfKEDA(tc.hpa); ok != tc.ok || ok && name != "chat-decode" {
			t.Errorf("%s: got %q, %t; want %t: %s", tc.name, name, ok, tc.ok, tc.reason)
		}
	}
}

// TestReasonsSurviveTheRoundTrip puts every error of the API into an autoscaler's message and reads it back.
func TestReasonsSurviveTheRoundTrip(t *testing.T) {
	for _, reason := range sampleReasons() {
		u := unavailable(reason, semantics.MetricUtilization, "pods %s", []string{"d", "b", "c", "a"})
		if want := string(reason) + ": sluice_utilization: pods a, b, c and 1 more"; u.Error() != want {
			t.Errorf("got %q, want %q", u.Error(), want)
		}
		message := "the HPA was unable to compute the replica count: " + u.status().Error()
		status, got, detail := scalingActive(&autoscalingv2.HorizontalPodAutoscaler{Status: autoscalingv2.HorizontalPodAutoscalerStatus{
			Conditions: []autoscalingv2.HorizontalPodAutoscalerCondition{{Type: autoscalingv2.ScalingActive, Status: corev1.ConditionFalse, Message: message}},
		}})
		if status != metav1.ConditionFalse || got != reason || detail != u.Detail {
			t.Errorf("%s came back as %s %s %q", reason, status, got, detail)
		}
		if strings.ContainsAny(string(reason), " :") {
			t.Errorf("%q is no reason of a condition", reason)
		}
	}
}
