package plan

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

func TestRecordHistory(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	pool := newPool(v1alpha1.RoleDecode, func(s *v1alpha1.EnginePoolSpec) { s.Engine.Image = "engine:v0" })
	change := func(generation int64, edit func(*v1alpha1.EnginePoolSpec)) {
		t.Helper()
		before := pool.Spec.DeepCopy()
		edit(&pool.Spec)
		if err := RecordHistory(pool, before, generation, now); err != nil {
			t.Fatal(err)
		}
	}
	images := func() (list []string) {
		t.Helper()
		history, err := History(pool)
		if err != nil {
			t.Fatal(err)
		}
		for _, past := range history {
			list = append(list, past.Engine.Image)
		}
		return list
	}
	change(2, func(s *v1alpha1.EnginePoolSpec) { s.Replicas = new(int32(7)) })
	if got := images(); got != nil {
		t.Errorf("replicas are no revision, but it remembers %v", got)
	}
	change(3, func(s *v1alpha1.EnginePoolSpec) { s.Engine.Image = "engine:v1" })
	change(5, func(s *v1alpha1.EnginePoolSpec) { s.KVCache.PageSize = new(int32(64)) })
	if diff := cmp.Diff([]string{"engine:v0", "engine:v1"}, images()); diff != "" {
		t.Errorf("what was before (-want +got):\n%s", diff)
	}
	history, _ := History(pool)
	if last := history[1]; last.Until != 5 || last.Time != "2026-11-30T12:00:00Z" || last.Shape.KVCache.PageSize != nil || !history[1].Equal(&v1alpha1.EnginePoolSpec{Model: last.Model, Engine: last.Engine, EngineShape: last.Shape}) {
		t.Errorf("the newest is %+v", last)
	}
	for generation := int64(6); generation < 40; generation++ {
		change(generation, func(s *v1alpha1.EnginePoolSpec) {
			s.Engine.Image = strings.Repeat("x", 30<<10) + time.Duration(generation).String()
		})
	}
	history, _ = History(pool)
	if n := len(pool.Annotations[v1alpha1.AnnotationHistory]); n > maxHistoryBytes || len(history) == 0 || history[len(history)-1].Until != 39 {
		t.Errorf("%d bytes with %d notes, at most %d", n, len(history), maxHistoryBytes)
	}
	pool.Annotations[v1alpha1.AnnotationHistory] = "{"
	if _, err := History(pool); err == nil || !strings.Contains(err.Error(), v1alpha1.AnnotationHistory) {
		t.Errorf("a history that is none: %v", err)
	}
	change(40, func(s *v1alpha1.EnginePoolSpec) { s.Engine.Image = "engine:v9" })
	if got := images(); len(got) != 1 {
		t.Errorf("it begins anew, but remembers %v", got)
	}
}

// TestPausedPool: what engines are made from is held, the rest is not.
func TestPausedPool(t *testing.T) {
	live := newPool(v1alpha1.RoleDecode, func(s *v1alpha1.EnginePoolSpec) { s.Engine.Image = "engine:v1" })
	want := newPool(v1alpha1.RoleDecode, func(s *v1alpha1.EnginePoolSpec) {
		s.Engine.Image, s.Replicas, s.Rollout.Paused, s.Model.URI, s.KVCache.PageSize = "engine:v2", new(int32(3)), true, "pvc://models/other", new(int32(64))
	})
	if !UpdatePool(live, want) {
		t.Error("nothing changed")
	}
	held := newPool(v1alpha1.RoleDecode, func(s *v1alpha1.EnginePoolSpec) {
		s.Engine.Image, s.Replicas, s.Rollout.Paused = "engine:v1", new(int32(3)), true
	})
	if diff := cmp.Diff(held.Spec, live.Spec); diff != "" {
		t.Errorf("while it is paused (-want +got):\n%s", diff)
	}
	want.Spec.Rollout.Paused = false
	if !UpdatePool(live, want) || live.Spec.Engine.Image != "engine:v2" {
		t.Errorf("when it goes on: %+v", live.Spec)
	}
}

// TestToldWhilePaused: the level of tracing reaches running engines, so a pause does not hold it and no history has it.
func TestToldWhilePaused(t *testing.T) {
	traced := func(endpoint string, level int32) *v1alpha1.TracingSpec {
		return &v1alpha1.TracingSpec{Endpoint: endpoint, Level: &level}
	}
	for _, tc := range []struct {
		name, reason     string
		from, to, during *v1alpha1.TracingSpec
		noted            bool
	}{
		{"level", "running engines are told", traced("a:1", 1), traced("a:1", 3), traced("a:1", 3), false},
		{"endpoint", "that needs other engines", traced("a:1", 1), traced("b:1", 3), traced("a:1", 1), true},
		{"on", "that needs other engines", nil, traced("a:1", 1), nil, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			live := newPool(v1alpha1.RoleDecode, func(s *v1alpha1.EnginePoolSpec) { s.Engine.Tracing = tc.from })
			want := newPool(v1alpha1.RoleDecode, func(s *v1alpha1.EnginePoolSpec) { s.Engine.Tracing, s.Rollout.Paused = tc.to, true })
			UpdatePool(live, want)
			if diff := cmp.Diff(tc.during, live.Spec.Engine.Tracing); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			before := newPool(v1alpha1.RoleDecode, func(s *v1alpha1.EnginePoolSpec) { s.Engine.Tracing = tc.from }).Spec
			want.Spec.Rollout.Paused = false
			UpdatePool(live, want)
			if err := RecordHistory(live, &before, 2, time.Time{}); err != nil {
				t.Fatal(err)
			}
			if history, err := History(live); err != nil || len(history) > 0 != tc.noted {
				t.Errorf("%s: it remembers %v, %v", tc.reason, history, err)
			}
		})
	}
}

// TestPausedRollOut: no replica comes for a newer revision, and none that serves goes.
func TestPausedRollOut(t *testing.T) {
	state := PoolState{Paused: true, Demand: 2, Allocation: Allocation{Replicas: 2, Bound: "none"}, Revision: "new", Replicas: []Replica{
		{Ordinal: 0, Revision: "old", Phase: ReplicaReady}, {Ordinal: 1, Revision: "old", Phase: ReplicaReady},
	}}
	plan := PlanPool(state)
	if len(plan.Actions) != 0 || !plan.Progressing || !strings.Contains(plan.Progress, "2 of an older revision, the roll-out is paused") {
		t.Errorf("paused: %+v", plan)
	}
	state.Replicas[1].Phase, state.Replicas[1].Failure = ReplicaFailed, "it ended"
	if plan := PlanPool(state); len(plan.Actions) != 2 || plan.Actions[0].Kind != CreateReplica || plan.Actions[1].Kind != DeleteReplica {
		t.Errorf("a failed replica is made anew: %+v", plan.Actions)
	}
	state.Replicas, state.Demand, state.Allocation.Replicas = state.Replicas[:1], 1, 1
	state.Paused = false
	if plan := PlanPool(state); len(plan.Actions) != 1 || plan.Actions[0].Cause != CauseRollOut {
		t.Errorf("going on: %+v", plan.Actions)
	}
}
