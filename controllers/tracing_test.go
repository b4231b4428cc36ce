package controllers_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// TestTraceLevel: another level reaches the running engines, and those that come later; nothing restarts; who does not take it
// is named; each change is told once.
func TestTraceLevel(t *testing.T) {
	trial := newTrial(t)
	service := trial.apply(strings.Replace(unified, "  pools:", "  engine: {tracing: {endpoint: \"collector:4317\"}}\n  pools:", 1))
	trial.untilSettled("uni")
	trial.untilCondition("uni", v1alpha1.ConditionTracingApplied, metav1.ConditionTrue, "LevelApplied")
	before := trial.pods("main")[0]
	setLevel := func(level int32) {
		change(trial, service, func(s *v1alpha1.InferenceService) { s.Spec.Engine.Tracing.Level = &level })
	}
	levels := func() []string { return trial.kubelet.setDeaf(before, false) }

	setLevel(3)
	trial.until("the engine to take the level", func() (bool, string) {
		got := levels()
		return slices.Equal(got, []string{"1", "3"}), fmt.Sprint(got)
	})
	trial.until("the level in the status", func() (bool, string) {
		tracing := trial.pool("uni", "main").Status.Tracing
		return tracing != nil && tracing.Level == 3, fmt.Sprint(tracing)
	})
	if after := trial.pods("main")[0]; after.UID != before.UID {
		t.Error("the engine was replaced for another level")
	}

	trial.kubelet.setDeaf(before, true)
	setLevel(0)
	refused := trial.untilCondition("uni", v1alpha1.ConditionTracingApplied, metav1.ConditionFalse, "LevelRefused")
	want := "pool main: 1 of 1 engines did not take trace level 0: uni-main-0-0: it answers 400: tracing is off"
	if got := meta.FindStatusCondition(refused.Status.Conditions, v1alpha1.ConditionTracingApplied).Message; got != want {
		t.Errorf("the condition says %q, want %q", got, want)
	}
	trial.kubelet.setDeaf(before, false)
	trial.untilCondition("uni", v1alpha1.ConditionTracingApplied, metav1.ConditionTrue, "LevelApplied")
	if diff := cmp.Diff([]string{"1", "3", "0"}, levels()); diff != "" {
		t.Errorf("levels (-want +got):\n%s", diff)
	}

	// A new engine begins with the level, and is told it.
	change(trial, service, func(s *v1alpha1.InferenceService) { s.Spec.Pools[0].Replicas = new(int32(2)) })
	trial.until("a second replica", func() (bool, string) {
		pods := trial.pods("main")
		return len(pods) == 2 && isReady(pods[1]), fmt.Sprint(names(pods))
	})
	second := trial.pods("main")[1]
	trial.until("it to be told", func() (bool, string) {
		got := trial.kubelet.setDeaf(second, false)
		return slices.Equal(got, []string{"0"}), fmt.Sprint(got)
	})

	var got []string
	trial.until("the events", func() (bool, string) {
		var list eventsv1.EventList
		if err := trial.List(t.Context(), &list, client.InNamespace(trial.namespace)); err != nil {
			t.Fatal(err)
		}
		got = nil
		for _, event := range list.Items {
			if event.Action == "Trace" {
				got = append(got, fmt.Sprintf("%s %s: %s", event.Type, event.Reason, event.Note))
			}
		}
		slices.Sort(got)
		return len(got) >= 4, fmt.Sprint(got)
	})
	if diff := cmp.Diff([]string{
		"Normal TraceLevelChanged: every ready engine traces at level 0, before at 3",
		"Normal TraceLevelChanged: every ready engine traces at level 1",
		"Normal TraceLevelChanged: every ready engine traces at level 3, before at 1",
		"Warning LevelRefused: 1 of 1 engines did not take trace level 0: uni-main-0-0: it answers 400: tracing is off",
	}, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}

	trial.until("nothing more to write", func() (bool, string) {
		status := trial.untilSettled("uni").Status.Pools[0]
		return status.Load != nil && status.Load.Ranks == 2 && status.Cost != nil && status.Cost.Devices == 2, fmt.Sprintf("%+v %+v", status.Load, status.Cost)
	})
	trial.operator.stop(t)
	trial.operator = startOperator(t, trial.namespace)
	trial.untilPolled(5)
	if diff := cmp.Diff(map[string]int{}, trial.operator.written()); diff != "" {
		t.Errorf("writes of another operator (-want +got):\n%s", diff)
	}

	// Without tracing the engines are made anew, since whether they trace is a flag of their start.
	change(trial, service, func(s *v1alpha1.InferenceService) { s.Spec.Engine.Tracing = nil })
	trial.until("the condition to go", func() (bool, string) {
		if err := trial.Get(t.Context(), client.ObjectKeyFromObject(service), service); err != nil {
			t.Fatal(err)
		}
		condition := meta.FindStatusCondition(service.Status.Conditions, v1alpha1.ConditionTracingApplied)
		return condition == nil, fmt.Sprint(condition)
	})
}
