package rollout

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// life is a service whose changes reach its pools as the operator brings them there.
type life struct {
	service *v1alpha1.InferenceService
	pools   []*v1alpha1.EnginePool
}

func newLife() *life {
	l := &life{service: &v1alpha1.InferenceService{}}
	l.service.Name, l.service.Generation = "chat", 1
	l.service.Spec.Model.URI = "pvc://models/one"
	l.service.Spec.Engine.Image = "engine:v1"
	l.service.Spec.Pools = []v1alpha1.PoolSpec{{Name: "prefill", Role: v1alpha1.RolePrefill}, {Name: "decode", Role: v1alpha1.RoleDecode}}
	l.pools = plan.EnginePools(l.service, "")
	return l
}

// change edits the service, and the operator takes the change over where it does.
func (l *life) change(t *testing.T, applied bool, edit func(*v1alpha1.InferenceServiceSpec)) *life {
	t.Helper()
	edit(&l.service.Spec)
	l.service.Generation++
	if !applied {
		return l
	}
	for i, want := range plan.EnginePools(l.service, "") {
		before := l.pools[i].Spec.DeepCopy()
		if plan.UpdatePool(l.pools[i], want) {
			if err := plan.RecordHistory(l.pools[i], before, l.service.Generation, time.Date(2026, 11, 30, 12, 0, int(l.service.Generation), 0, time.UTC)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return l
}

func (l *life) wanted() map[string]v1alpha1.EnginePoolSpec {
	wanted := map[string]v1alpha1.EnginePoolSpec{}
	for _, pool := range plan.EnginePools(l.service, "") {
		wanted[pool.Name] = pool.Spec
	}
	return wanted
}

func image(name string) func(*v1alpha1.InferenceServiceSpec) {
	return func(s *v1alpha1.InferenceServiceSpec) { s.Engine.Image = name }
}

func page(pool int, size int32) func(*v1alpha1.InferenceServiceSpec) {
	return func(s *v1alpha1.InferenceServiceSpec) { s.Pools[pool].KVCache.PageSize = &size }
}

func paused(p bool) func(*v1alpha1.InferenceServiceSpec) {
	return func(s *v1alpha1.InferenceServiceSpec) { s.Rollout.Paused = p }
}

// shape is what an undo may change, as a line.
func (l *life) shape() string {
	size := func(i int) string {
		if p := l.service.Spec.Pools[i].KVCache.PageSize; p != nil {
			return string('0' + *p)
		}
		return "-"
	}
	text := l.service.Spec.Engine.Image + " " + size(0) + size(1)
	if l.service.Spec.Rollout.Paused {
		text += " paused"
	}
	return text
}

func TestUndo(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		life         func(*testing.T) *life
		revision     int64
		want, err    string
	}{
		{"nothing", "no change, nothing to undo", func(*testing.T) *life { return newLife() }, 0, "", "nothing to go back to"},
		{"image", "both pools go back", func(t *testing.T) *life { return newLife().change(t, true, image("engine:v2")) }, 0, "engine:v1 --", ""},
		{"one pool", "the other's older change stays", func(t *testing.T) *life {
			return newLife().change(t, true, page(0, 4)).change(t, true, page(1, 8))
		}, 0, "engine:v1 4-", ""},
		{"further", "all changes after the revision are undone, of each pool the first", func(t *testing.T) *life {
			return newLife().change(t, true, image("engine:v2")).change(t, true, page(0, 4)).change(t, true, image("engine:v3")).change(t, true, page(0, 8))
		}, 2, "engine:v2 --", ""},
		{"to the beginning", "", func(t *testing.T) *life {
			return newLife().change(t, true, page(1, 4)).change(t, true, image("engine:v3")).change(t, true, page(1, 8))
		}, 1, "engine:v1 --", ""},
		{"no such revision", "the known ones are named", func(t *testing.T) *life { return newLife().change(t, true, image("engine:v2")) }, 7, "", "has no revision 7: it remembers 1"},
		{"undone twice", "an undo is a change that can be undone", func(t *testing.T) *life {
			return newLife().change(t, true, image("engine:v2")).change(t, true, image("engine:v1"))
		}, 0, "engine:v2 --", ""},
		{"paused before the change", "the pools never had it: it is dropped, and the pause stays", func(t *testing.T) *life {
			return newLife().change(t, true, paused(true)).change(t, true, image("engine:v2"))
		}, 0, "engine:v1 -- paused", ""},
		{"paused after the change", "a pause would hold the way back", func(t *testing.T) *life {
			return newLife().change(t, true, image("engine:v2")).change(t, true, paused(true))
		}, 0, "engine:v1 --", ""},
		{"not taken over yet", "the operator is behind: what the pools have is what was before", func(t *testing.T) *life {
			return newLife().change(t, true, image("engine:v2")).change(t, false, image("engine:v3"))
		}, 0, "engine:v2 --", ""},
		{"replicas alone", "they are no revision", func(t *testing.T) *life {
			return newLife().change(t, true, func(s *v1alpha1.InferenceServiceSpec) { s.Pools[0].Replicas = new(int32(5)) })
		}, 0, "", "nothing to go back to"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := tc.life(t)
			did, err := Undo(l.service, l.pools, l.wanted(), tc.revision)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%s: %q, %v; want %q", tc.reason, did, err, tc.err)
				}
				return
			}
			if err != nil || l.shape() != tc.want || did == "" {
				t.Errorf("%s: it is %q (%s, %v), want %q", tc.reason, l.shape(), did, err, tc.want)
			}
		})
	}
}

func TestHistoryText(t *testing.T) {
	l := newLife().change(t, true, image("engine:v2")).change(t, true, page(0, 4))
	h, err := NewHistory(l.service, l.pools)
	if err != nil {
		t.Fatal(err)
	}
	want := `REVISION  REPLACED              CHANGED POOLS   MODEL BEFORE      IMAGE BEFORE
2         2026-11-30T12:00:03Z  prefill         pvc://models/one  engine:v2
1         2026-11-30T12:00:02Z  prefill,decode  pvc://models/one  engine:v1
`
	if diff := cmp.Diff(want, h.Text()); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
}

func TestStatus(t *testing.T) {
	l := newLife()
	for _, pool := range l.pools {
		pool.Status = v1alpha1.EnginePoolStatus{Revision: "aa", ReplicaCounts: v1alpha1.ReplicaCounts{Replicas: 1, ReadyReplicas: 1, UpdatedReplicas: 1, Allocated: 1}}
	}
	l.service.Status.ObservedGeneration = 1
	if s := NewStatus(l.service, l.pools, l.wanted()); !s.Done {
		t.Errorf("it is not done: %+v", s)
	}
	l.pools[0].Status.UpdatedReplicas, l.pools[0].Status.DrainingReplicas, l.pools[0].Status.Replicas = 1, 1, 3
	l.change(t, true, paused(true)).change(t, true, image("engine:v2"))
	s := NewStatus(l.service, l.pools, l.wanted())
	want := `the roll-out of chat is paused, and changes of the service are held: kubectl sluice rollout resume chat
POOL     REVISION  UPDATED  READY  ALLOCATED  DRAINING  WAITS FOR
prefill  aa        1        1      1          1         1 of 2 replicas are of an older revision
decode   aa        1        1      1          0         -
`
	if diff := cmp.Diff(want, s.Text()); diff != "" || s.Done || !s.Held {
		t.Errorf("status %+v (-want +got):\n%s", s, diff)
	}
}
