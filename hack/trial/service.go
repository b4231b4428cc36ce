package trial

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// RouterName is the name of the router's Service and Deployment.
func RouterName(service string) string { return service + "-router" }

// UntilReady waits until a service's condition Ready is True for its present generation.
func (t *Trial) UntilReady(ctx context.Context, namespace, name string, limit time.Duration) error {
	return t.Until(ctx, limit, "InferenceService "+name+" to be ready", func(ctx context.Context) (string, bool, error) {
		svc, err := t.Service(ctx, namespace, name)
		if err != nil {
			return "", false, err
		}
		ready := apimeta.FindStatusCondition(svc.Status.Conditions, v1alpha1.ConditionReady)
		if ready == nil {
			return "no condition yet", false, nil
		}
		return fmt.Sprintf("%s: %s", ready.Reason, ready.Message), ready.Status == "True" && ready.ObservedGeneration == svc.Generation, nil
	})
}

// UntilCurrent waits until every pod of a service runs the installed images: after an upgrade the status is that of the
// operator before, until the new one leads.
func (t *Trial) UntilCurrent(ctx context.Context, namespace, name string, limit time.Duration) error {
	return t.Until(ctx, limit, "InferenceService "+name+" to run the installed images", func(ctx context.Context) (string, bool, error) {
		var pods corev1.PodList
		if err := t.Client.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelService: name}); err != nil {
			return "", false, err
		}
		old := 0
		for _, pod := range pods.Items {
			for _, c := range pod.Spec.Containers {
				if c.Image != t.Images["sluice-engine"] && c.Image != t.Images["sluice-router"] {
					old++
				}
			}
		}
		return fmt.Sprintf("containers of older images: %d", old), old == 0, nil
	})
}

// UntilSettled waits until a service's replicas are as allocated, of the newest revision.
func (t *Trial) UntilSettled(ctx context.Context, namespace, name string, limit time.Duration) error {
	return t.Until(ctx, limit, "InferenceService "+name+" to settle", func(ctx context.Context) (string, bool, error) {
		svc, err := t.Service(ctx, namespace, name)
		if err != nil {
			return "", false, err
		}
		progressing := apimeta.FindStatusCondition(svc.Status.Conditions, v1alpha1.ConditionProgressing)
		if progressing == nil {
			return "no condition yet", false, nil
		}
		return progressing.Message, progressing.Status == "False" && progressing.ObservedGeneration == svc.Generation, nil
	})
}

// Scrape reads /metrics of every running engine of a service, in the order prefill, decode, unified and by name.
func (t *Trial) Scrape(ctx context.Context, namespace, service string) ([]Exposition, error) {
	pods, err := t.EnginePods(ctx, namespace, service, "")
	if err != nil {
		return nil, err
	}
	var expositions []Exposition
	for _, engineType := range []string{"prefill", "decode", "unified"} {
		for _, pod := range pods {
			if pod.Labels[v1alpha1.LabelEngineType] != engineType || !podReady(&pod) {
				continue
			}
			text, err := t.PodGet(ctx, &pod, "metrics")
			if err != nil {
				if gone := t.Client.Get(ctx, client.ObjectKeyFromObject(&pod), &pod); client.IgnoreNotFound(gone) == nil && gone != nil {
					continue
				}
				return nil, fmt.Errorf("read the metrics of %s: %w", pod.Name, err)
			}
			e, err := ParseExposition(pod.Name, text)
			if err != nil {
				return nil, err
			}
			expositions = append(expositions, e)
		}
	}
	return expositions, nil
}

func podReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil
		}
	}
	return false
}

// Excerpt gives a line for every series of the named families: gauges as they are, counters unless they are zero, and
// histograms with samples as count and mean.
func Excerpt(expositions []Exposition, names ...string) []string {
	var lines []string
	for _, name := range names {
		for _, e := range expositions {
			family := e.Families[name]
			if family == nil {
				continue
			}
			for _, m := range family.Metric {
				var value string
				switch {
				case m.Counter != nil && m.Counter.GetValue() > 0:
					value = number(m.Counter.GetValue())
				case m.Gauge != nil:
					value = number(m.Gauge.GetValue())
				case m.Histogram != nil && m.Histogram.GetSampleCount() > 0:
					value = fmt.Sprintf("count %d, mean %s", m.Histogram.GetSampleCount(), number(m.Histogram.GetSampleSum()/float64(m.Histogram.GetSampleCount())))
				default:
					continue
				}
				var labels []string
				for _, pair := range m.GetLabel() {
					labels = append(labels, fmt.Sprintf("%s=%q", pair.GetName(), pair.GetValue()))
				}
				lines = append(lines, fmt.Sprintf("%s{%s} %s", name, strings.Join(labels, ","), value))
			}
		}
	}
	return lines
}

// number writes whole numbers in full and others with four digits.
func number(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1e15 {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
