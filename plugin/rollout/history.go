package rollout

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
	"github.com/sluice-dev/sluice/plugin/view"
)

// History is the document of `rollout history`.
type History struct {
	Kind      string     `json:"kind"` // "RolloutHistory"
	Time      string     `json:"time"`
	Namespace string     `json:"namespace"`
	Service   string     `json:"service"`
	Revisions []Revision `json:"revisions"` // newest first, without the one in force
}

// Revision is what engines were made from until a change of the service.
type Revision struct {
	Revision int64    `json:"revision"` // generation of the service at which it was in force last
	Replaced string   `json:"replaced"` // when, RFC 3339
	Pools    []string `json:"pools"`    // that the change was about
	Model    string   `json:"model"`    // URI, before the change
	Image    string   `json:"image"`    // of the engine, before the change; "" is the operator's
}

// NewHistory lists the revisions that the pools of a service remember.
func NewHistory(service *v1alpha1.InferenceService, pools []*v1alpha1.EnginePool) (History, error) {
	h := History{Kind: "RolloutHistory", Namespace: service.Namespace, Service: service.Name, Revisions: []Revision{}}
	byGeneration := map[int64]*Revision{}
	for _, pool := range pools {
		history, err := plan.History(pool)
		if err != nil {
			return h, err
		}
		for _, past := range history {
			r := byGeneration[past.Until]
			if r == nil {
				r = &Revision{Revision: past.Until - 1, Replaced: past.Time, Model: past.Model.URI, Image: past.Engine.Image}
				byGeneration[past.Until] = r
			}
			r.Pools = append(r.Pools, pool.Spec.Pool)
		}
	}
	for _, generation := range slices.Backward(slices.Sorted(maps.Keys(byGeneration))) {
		h.Revisions = append(h.Revisions, *byGeneration[generation])
	}
	return h, nil
}

// Text shows the history.
func (h *History) Text() string {
	if len(h.Revisions) == 0 {
		return fmt.Sprintf("%s was not changed since its pools were made, or they do not remember it.\n", h.Service)
	}
	var t view.Table
	t.Row("REVISION", "REPLACED", "CHANGED POOLS", "MODEL BEFORE", "IMAGE BEFORE")
	for _, r := range h.Revisions {
		image := r.Image
		if image == "" {
			image = "-"
		}
		t.Row(fmt.Sprint(r.Revision), r.Replaced, strings.Join(r.Pools, ","), view.Plain(r.Model), view.Plain(image))
	}
	return t.String()
}

// ErrNothing says that there is nothing to go back to.
var ErrNothing = errors.New("there is nothing to go back to")

// Undo makes the service what it was: before its newest change when revision is 0, else at that revision. Changes that the pools
// have not taken over, since roll-outs are paused, are dropped first, and nothing else then. It tells what it did; the service
// then also goes on when it was paused in the middle of a roll-out, since a pause would hold the way back too.
func Undo(service *v1alpha1.InferenceService, pools []*v1alpha1.EnginePool, wanted map[string]v1alpha1.EnginePoolSpec, revision int64) (did string, err error) {
	if revision == 0 {
		held := false
		for _, pool := range pools {
			if want, listed := wanted[pool.Name]; listed && !madeAs(pool, want) {
				held = true
				restore(service, pool.Spec.Pool, pool.Spec.Model, pool.Spec.Engine, pool.Spec.EngineShape)
			}
		}
		if held {
			return "the changes that the pools have not taken over are dropped", nil
		}
	}
	h, err := NewHistory(service, pools)
	if err != nil {
		return "", err
	}
	if len(h.Revisions) == 0 {
		return "", fmt.Errorf("%w: the pools of %s remember no change", ErrNothing, service.Name)
	}
	if revision == 0 {
		revision = h.Revisions[0].Revision
	}
	i := slices.IndexFunc(h.Revisions, func(r Revision) bool { return r.Revision == revision })
	if i < 0 {
		var known []string
		for _, r := range h.Revisions {
			known = append(known, fmt.Sprint(r.Revision))
		}
		return "", fmt.Errorf("%s has no revision %d: it remembers %s", service.Name, revision, strings.Join(known, ", "))
	}
	var restored []string
	for _, pool := range pools {
		history, err := plan.History(pool)
		if err != nil {
			return "", err
		}
		// What was replaced first at that generation or later is what the pool had then.
		j := slices.IndexFunc(history, func(past plan.Past) bool { return past.Until > revision })
		if j < 0 {
			continue
		}
		if restore(service, pool.Spec.Pool, history[j].Model, history[j].Engine, history[j].Shape) {
			restored = append(restored, pool.Spec.Pool)
		}
	}
	if len(restored) == 0 {
		return "", fmt.Errorf("%w: the pools that revision %d is about are not listed in spec.pools any more", ErrNothing, revision)
	}
	did = fmt.Sprintf("it is as at revision %d again, pools %s", revision, strings.Join(restored, ", "))
	if service.Spec.Rollout.Paused {
		service.Spec.Rollout.Paused = false
		did += "; the roll-out, which was paused, goes on"
	}
	return did, nil
}

// restore puts a pool's past into the service; false when the service does not list the pool.
func restore(service *v1alpha1.InferenceService, name string, model v1alpha1.ModelSpec, engine v1alpha1.EngineSpec, shape v1alpha1.EngineShape) bool {
	for i := range service.Spec.Pools {
		if service.Spec.Pools[i].Name == name {
			service.Spec.Model, service.Spec.Engine = model, plan.WithToldOf(engine, service.Spec.Engine)
			service.Spec.Pools[i].EngineShape = *shape.DeepCopy()
			return true
		}
	}
	return false
}

// madeAs says whether the engines of a pool are made from what a spec wants.
func madeAs(pool *v1alpha1.EnginePool, want v1alpha1.EnginePoolSpec) bool {
	past := plan.Past{Model: want.Model, Engine: want.Engine, Shape: want.EngineShape}
	return past.Equal(&pool.Spec)
}
