package autoscaling

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// Reason is a reason of the condition ScalingActive.
type Reason string

const (
	// ReasonValidMetric (True): the autoscaler reads a number.
	ReasonValidMetric Reason = "ValidMetric"
	// ReasonSentinelValue (False): an engine reports -1, NaN or an infinity.
	ReasonSentinelValue Reason = "SentinelValue"
	// ReasonStaleSample (False): no ready engine answered within the time for which a sample counts.
	ReasonStaleSample Reason = "StaleSample"
	// ReasonPartialSamples (False): some ready engines or ranks have a fresh sample and others do not.
	ReasonPartialSamples Reason = "PartialSamples"
	// ReasonNoSamples (False): no engine has given a sample yet.
	ReasonNoSamples Reason = "NoSamples"
	// ReasonRateUnknown (False): prompts wait, and no engine of the pool has computed one yet, so that the delay is unknown.
	ReasonRateUnknown Reason = "RateUnknown"
	// ReasonFewEvents (False): requests are under way, and fewer have answered in the window than a quantile needs.
	ReasonFewEvents Reason = "FewEvents"
	// ReasonUndefinedSignal (False): the role of the pool, or the service without an objective, has no such signal.
	ReasonUndefinedSignal Reason = "UndefinedSignal"
	// ReasonMetricsAPIUnavailable (False): the autoscaler does not reach this operator's custom metrics API: it is not
	// registered, not ready, or another adapter is registered in its place.
	ReasonMetricsAPIUnavailable Reason = "MetricsAPIUnavailable"
	// ReasonAsleep (True): the pool has no replica, as it may, and wakes with the next request.
	ReasonAsleep Reason = "Asleep"
	// ReasonScalingDisabled (False): the pool is scaled to zero by hand, which stops autoscaling.
	ReasonScalingDisabled Reason = "ScalingDisabled"
	// ReasonHPAError (False): the HorizontalPodAutoscaler says something else; the message is its own.
	ReasonHPAError Reason = "HPAError"
	// ReasonScaledObject (True): KEDA scales the pool by its ScaledObject, and its autoscaler reads a number.
	ReasonScaledObject Reason = "ScaledObject"
	// ReasonKEDAMissing (False): the cluster has no ScaledObject resource; the object is made when KEDA is installed.
	ReasonKEDAMissing Reason = "KEDAMissing"
	// ReasonNoScaledObject (False): the ScaledObject could not be made; the message says why.
	ReasonNoScaledObject Reason = "NoScaledObject"
	// ReasonPending (Unknown): the HorizontalPodAutoscaler has not been evaluated yet.
	ReasonPending Reason = "Pending"
)

// sampleReasons are those that the custom metrics API gives; each stands in its errors as "REASON: ".
func sampleReasons() []Reason {
	return []Reason{
		ReasonSentinelValue, ReasonStaleSample, ReasonPartialSamples, ReasonNoSamples, ReasonRateUnknown, ReasonFewEvents, ReasonUndefinedSignal,
	}
}

// Unavailable is why a custom metric is not a number now. It becomes a status 503, whose message the
// HorizontalPodAutoscaler copies into its condition. The text holds no ages, so that it stays the same while the cause
// does.
type Unavailable struct {
	Reason Reason
	Detail string
}

// Error gives "REASON: detail".
func (u *Unavailable) Error() string { return string(u.Reason) + ": " + u.Detail }

// status is the error as the API server tells it.
func (u *Unavailable) status() *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusServiceUnavailable,
		Reason:  metav1.StatusReasonServiceUnavailable,
		Message: u.Error(),
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseType(u.Reason), Message: u.Detail}}},
	}}
}

// namedPods is how many pods a text names.
const namedPods = 3

// unavailable writes the pods into the format, which has one %s when there are any.
func unavailable(reason Reason, metric, format string, pods []string) *Unavailable {
	detail := format
	if len(pods) > 0 {
		slices.Sort(pods)
		list := strings.Join(pods[:min(len(pods), namedPods)], ", ")
		if more := len(pods) - namedPods; more > 0 {
			list += fmt.Sprintf(" and %d more", more)
		}
		detail = fmt.Sprintf(format, list)
	}
	return &Unavailable{Reason: reason, Detail: metric + ": " + detail}
}

// ScalingActive gives the condition of a pool from its HorizontalPodAutoscaler, which may be nil when it is not there
// yet. It is nil for a pool without autoscaling. The caller sets the transition time.
func ScalingActive(pool *v1alpha1.EnginePool, hpa *autoscalingv2.HorizontalPodAutoscaler) *metav1.Condition {
	if pool.Spec.Autoscaling == nil {
		return nil
	}
	status, reason, message := scalingActive(hpa)
	if reason == ReasonScalingDisabled && pool.Spec.Replicas != nil && *pool.Spec.Replicas > 0 {
		status, reason, message = metav1.ConditionUnknown, ReasonPending, "the HorizontalPodAutoscaler was not evaluated since the pool has demand again"
	}
	if Asleep(pool) {
		status, reason, message = metav1.ConditionTrue, ReasonAsleep, "the pool has no replica; the next request makes one"
	}
	return &metav1.Condition{
		Type:               v1alpha1.ConditionScalingActive,
		Status:             status,
		Reason:             string(reason),
		Message:            message,
		ObservedGeneration: pool.Generation,
	}
}

// ScaledByKEDA gives the condition of a pool with provider KEDA from the autoscaler that KEDA made, which may be nil when there
// is none yet. missing says that the cluster has no ScaledObject resource, err why the object could not be made.
func ScaledByKEDA(pool *v1alpha1.EnginePool, hpa *autoscalingv2.HorizontalPodAutoscaler, missing bool, err error) *metav1.Condition {
	status, reason, message := scalingActive(hpa)
	switch {
	case hpa == nil:
		message = "KEDA has made no HorizontalPodAutoscaler for the ScaledObject of the pool's name yet; where that lasts, its conditions say why"
	case status == metav1.ConditionTrue:
		reason, message = ReasonScaledObject, "KEDA scales the pool by the ScaledObject of its name, and reads a number"
	}
	condition := &metav1.Condition{
		Type: v1alpha1.ConditionScalingActive, Status: status, Reason: string(reason), Message: message, ObservedGeneration: pool.Generation,
	}
	no := func(reason Reason, message string) {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, string(reason), message
	}
	switch {
	case Asleep(pool):
		condition.Status, condition.Reason, condition.Message = metav1.ConditionTrue, string(ReasonAsleep), "the pool has no replica; the next request makes one"
	case err != nil:
		no(ReasonNoScaledObject, err.Error())
	case missing:
		no(ReasonKEDAMissing, "autoscaling.provider is KEDA and the cluster has no ScaledObject resource: install KEDA, or use provider MetricsAPI")
	}
	return condition
}

// Asleep says whether a pool has no replica because nobody needs one: minReplicas is 0, and the next request wakes it.
func Asleep(pool *v1alpha1.EnginePool) bool {
	return mayBeZero(pool) && pool.Spec.Replicas != nil && *pool.Spec.Replicas == 0
}

func scalingActive(hpa *autoscalingv2.HorizontalPodAutoscaler) (metav1.ConditionStatus, Reason, string) {
	if hpa == nil {
		return metav1.ConditionUnknown, ReasonPending, "the HorizontalPodAutoscaler does not exist yet"
	}
	var active, able *autoscalingv2.HorizontalPodAutoscalerCondition
	for i := range hpa.Status.Conditions {
		switch c := &hpa.Status.Conditions[i]; c.Type {
		case autoscalingv2.ScalingActive:
			active = c
		case autoscalingv2.AbleToScale:
			able = c
		}
	}
	switch {
	case able != nil && able.Status == corev1.ConditionFalse:
		return metav1.ConditionFalse, ReasonHPAError, able.Reason + ": " + able.Message
	case active == nil:
		return metav1.ConditionUnknown, ReasonPending, "the HorizontalPodAutoscaler was not evaluated yet"
	case active.Status == corev1.ConditionTrue:
		// The autoscaler's own message names the metric that won, which changes back and forth where there are several.
		return metav1.ConditionTrue, ReasonValidMetric, "the autoscaler reads a number"
	case active.Reason == "ScalingDisabled":
		return metav1.ConditionFalse, ReasonScalingDisabled, active.Message
	}
	for _, reason := range sampleReasons() {
		if at := strings.Index(active.Message, string(reason)+": "); at >= 0 {
			return metav1.ConditionFalse, reason, active.Message[at+len(reason)+2:]
		}
	}
	for _, text := range apiUnavailableTexts() {
		if strings.Contains(active.Message, text) {
			return metav1.ConditionFalse, ReasonMetricsAPIUnavailable, active.Message
		}
	}
	return metav1.ConditionFalse, ReasonHPAError, active.Reason + ": " + active.Message
}

// apiUnavailableTexts are parts of the messages that an autoscaler gives when custom.metrics.k8s.io is not registered,
// its server does not answer, or a server answers that does not know the metric.
func apiUnavailableTexts() []string {
	return []string{
		"no custom metrics API (custom.metrics.k8s.io) registered",
		"the server is currently unable to handle the request",
		"the server could not find the metric",
		"no metrics returned from custom metrics API",
	}
}
