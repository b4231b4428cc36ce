package controllers_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
	"github.com/sluice-dev/sluice/plugin/rollout"
)

// images are those of the engine pods of a pool.
func (t *trial) images(pool string) (list []string) {
	t.Helper()
	for _, pod := range t.pods(pool) {
		list = append(list, pod.Spec.Containers[0].Image)
	}
	return list
}

// wantedPools are a service's pools as its spec wants them, by name of the EnginePool.
func wantedPools(service *v1alpha1.InferenceService) map[string]v1alpha1.EnginePoolSpec {
	pools := map[string]v1alpha1.EnginePoolSpec{}
	for _, pool := range plan.EnginePools(service, "") {
		pools[pool.Name] = pool.Spec
	}
	return pools
}

// TestRollOutIsHeldAndUndone: a pause holds what engines are made from and nothing else, a pool remembers what it was, and the
// service goes back to it.
func TestRollOutIsHeldAndUndone(t *testing.T) {
	trial := newTrial(t)
	service := trial.apply(unified)
	trial.untilSettled("uni")

	// Paused: the number of replicas follows, the image does not.
	change(trial, service, func(s *v1alpha1.InferenceService) {
		s.Spec.Rollout.Paused, s.Spec.Engine.Image, s.Spec.Pools[0].Replicas = true, "engine:v2", new(int32(2))
	})
	trial.until("a second replica", func() (bool, string) { return len(trial.pods("main")) == 2, fmt.Sprint(trial.images("main")) })
	trial.untilSettled("uni")
	if diff := cmp.Diff([]string{"engine:v1", "engine:v1"}, trial.images("main")); diff != "" {
		t.Errorf("images while it is paused (-want +got):\n%s", diff)
	}
	pool := trial.pool("uni", "main")
	if history, err := plan.History(pool); err != nil || len(history) != 0 {
		t.Errorf("nothing was replaced, but it remembers %v, %v", history, err)
	}
	status := rollout.NewStatus(service, []*v1alpha1.EnginePool{pool}, wantedPools(service))
	if !status.Held || status.Done {
		t.Errorf("the status does not say that a change is held: %+v", status)
	}

	// It goes on.
	change(trial, service, func(s *v1alpha1.InferenceService) { s.Spec.Rollout.Paused = false })
	rolled := func(image string) {
		t.Helper()
		trial.until("engines of "+image, func() (bool, string) {
			images := trial.images("main")
			return cmp.Equal(images, []string{image, image}), fmt.Sprint(images)
		})
		trial.untilSettled("uni")
	}
	rolled("engine:v2")
	pool = trial.pool("uni", "main")
	history, err := plan.History(pool)
	if err != nil || len(history) != 1 || history[0].Engine.Image != "" || history[0].Until != service.Generation {
		t.Errorf("it remembers %+v, %v; want the operator's image until generation %d", history, err, service.Generation)
	}

	// It is undone.
	if err := trial.Get(t.Context(), client.ObjectKeyFromObject(service), service); err != nil {
		t.Fatal(err)
	}
	did, err := rollout.Undo(service, []*v1alpha1.EnginePool{pool}, wantedPools(service), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(did)
	if err := trial.Update(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	rolled("engine:v1")
}
