package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// brief is what a table compares of an action.
type brief struct {
	Kind    ActionKind
	Ordinal int32
	Reason  string
}

func TestPlanPool(t *testing.T) {
	ready := func(ordinal int32, outstanding int64) Replica {
		return Replica{Ordinal: ordinal, Revision: "new", Phase: ReplicaReady, Remaining: 1, Outstanding: outstanding, OutstandingKnown: true}
	}
	old := func(ordinal int32, outstanding int64) Replica {
		replica := ready(ordinal, outstanding)
		replica.Revision = "old"
		return replica
	}
	with := func(replica Replica, edit func(*Replica)) Replica {
		edit(&replica)
		return replica
	}
	starting := func(r *Replica) { r.Phase, r.OutstandingKnown = ReplicaStarting, false }
	unready := func(r *Replica) { r.Phase, r.OutstandingKnown = ReplicaUnready, false }
	draining := func(ago time.Duration) func(*Replica) { return func(r *Replica) { r.DrainStart = now.Add(-ago) } }
	failed := func(restarts int32, ago time.Duration) func(*Replica) {
		return func(r *Replica) {
			r.Phase, r.Ended, r.Restarts, r.FailedAt, r.Failure = ReplicaFailed, true, restarts, now.Add(-ago), "engine of pod p ended with code 1"
		}
	}

	tests := []struct {
		name     string
		reason   string
		demand   int32
		replicas []Replica
		want     []brief
		counts   v1alpha1.ReplicaCounts
		progress string // empty: not progressing
		after    time.Duration
	}{
		{
			name: "nothing yet", reason: "all of the demand is made at once", demand: 2,
			want: []brief{
				{CreateReplica, 0, "demand 2, allocated 2 (bound: none), 0 active: create replica 0"},
				{CreateReplica, 1, "demand 2, allocated 2 (bound: none), 1 active: create replica 1"},
			},
			counts:   v1alpha1.ReplicaCounts{Replicas: 2, UpdatedReplicas: 2, Allocated: 2},
			progress: "2 replicas, 2 allocated: 2 starting",
		},
		{
			name: "as allocated", reason: "an idle pool has no actions", demand: 2,
			replicas: []Replica{ready(0, 1), ready(1, 0)},
			counts:   v1alpha1.ReplicaCounts{Replicas: 2, ReadyReplicas: 2, UpdatedReplicas: 2, Allocated: 2},
		},
		{
			name: "scale-in", reason: "the replica with the least work goes", demand: 2,
			replicas: []Replica{ready(0, 3), ready(1, 1), ready(2, 2)},
			want:     []brief{{DrainReplica, 1, "demand 2, allocated 2 (bound: none), 3 active: drain replica 1 (ready, 1 request outstanding)"}},
			counts:   v1alpha1.ReplicaCounts{Replicas: 3, ReadyReplicas: 2, UpdatedReplicas: 2, Allocated: 2, DrainingReplicas: 1},
			progress: "3 replicas, 2 allocated: 1 leaving",
		},
		{
			name: "scale-in of equals", reason: "the highest ordinal goes", demand: 1,
			replicas: []Replica{ready(0, 0), ready(1, 0)},
			want:     []brief{{DrainReplica, 1, "demand 1, allocated 1 (bound: none), 2 active: drain replica 1 (ready, 0 requests outstanding)"}},
			counts:   v1alpha1.ReplicaCounts{Replicas: 2, ReadyReplicas: 1, UpdatedReplicas: 1, Allocated: 1, DrainingReplicas: 1},
			progress: "2 replicas, 1 allocated: 1 leaving",
		},
		{
			name: "scale-in with an unknown", reason: "what is known to be idle goes before what is not known", demand: 1,
			replicas: []Replica{ready(0, 5), with(ready(1, 0), func(r *Replica) { r.OutstandingKnown = false })},
			want:     []brief{{DrainReplica, 0, "demand 1, allocated 1 (bound: none), 2 active: drain replica 0 (ready, 5 requests outstanding)"}},
			counts:   v1alpha1.ReplicaCounts{Replicas: 2, ReadyReplicas: 1, UpdatedReplicas: 1, Allocated: 1, DrainingReplicas: 1},
			progress: "2 replicas, 1 allocated: 1 leaving",
		},
		{
			name: "scale-in while one starts", reason: "one that never served goes at once and first", demand: 1,
			replicas: []Replica{ready(0, 5), with(ready(1, 0), starting)},
			want:     []brief{{DeleteReplica, 1, "demand 1, allocated 1 (bound: none), 2 active: delete replica 1, which is starting"}},
			counts:   v1alpha1.ReplicaCounts{Replicas: 2, ReadyReplicas: 1, UpdatedReplicas: 1, Allocated: 1, DrainingReplicas: 1},
			progress: "2 replicas, 1 allocated: 1 leaving",
		},
		{
			name: "draining with work", reason: "it is looked at again soon", demand: 1,
			replicas: []Replica{ready(0, 0), with(ready(1, 2), draining(4*time.Second))},
			counts:   v1alpha1.ReplicaCounts{Replicas: 2, ReadyReplicas: 1, UpdatedReplicas: 1, Allocated: 1, DrainingReplicas: 1},
			progress: "2 replicas, 1 allocated: 1 leaving", after: time.Second,
		},
		{
			name: "drained", reason: "an empty replica is deleted", demand: 1,
			replicas: []Replica{ready(0, 0), with(ready(1, 0), func(r *Replica) { draining(5 * time.Second)(r); r.Drained = true })},
			want:     []brief{{DeleteReplica, 1, "no request is running or queued, 5s after admission stopped: delete replica 1"}},
			counts:   v1alpha1.ReplicaCounts{Replicas: 2, ReadyReplicas: 1, UpdatedReplicas: 1, Allocated: 1, DrainingReplicas: 1},
			progress: "2 replicas, 1 allocated: 1 leaving",
		},
		{
			name: "drain deadline", reason: "a replica does not hold the pool up for ever", demand: 1,
			replicas: []Replica{ready(0, 0), with(ready(1, 2), draining(100*time.Second))},
			want:     []brief{{DeleteReplica, 1, "drain deadline of 1m40s is over with 2 requests outstanding: delete replica 1"}},
			counts:   v1alpha1.ReplicaCounts{Replicas: 2, ReadyReplicas: 1, UpdatedReplicas: 1, Allocated: 1, DrainingReplicas: 1},
			progress: "2 replicas, 1 allocated: 1 leaving",
		},
		{
			name: "just before the deadline", reason: "the next look is at the deadline", demand: 1,
			replicas: []Replica{ready(0, 0), with(ready(1, 2), draining(100*time.Second-200*time.Millisecond))},
			counts:   v1alpha1.ReplicaCounts{Replicas: 2, ReadyReplicas: 1, UpdatedReplicas: 1, Allocated: 1, DrainingReplicas: 1},
			progress: "2 replicas, 1 allocated: 1 leaving", after: 200 * time.Millisecond,
		},
		{
			name: "demand comes back", reason: "the busiest draining replica is brought back, even a drained one rather than a new one", demand: 3,
			replicas: []Replica{
				ready(0, 0),
				with(ready(1, 0), func(r *Replica) { draining(5 * time.Second)(r); r.Drained = true }),
				with(ready(2, 4), draining(5*time.Second)),
			},
			want: []brief{
				{UndrainReplica, 2, "demand 3, allocated 3 (bound: none), 1 active: bring back replica 2 with 4 requests outstanding"},
				{UndrainReplica, 1, "demand 3, allocated 3 (bound: none), 2 active: bring back replica 1 with 0 requests outstanding"},
			},
			counts: v1alpha1.ReplicaCounts{Replicas: 3, ReadyReplicas: 3, UpdatedReplicas: 3, Allocated: 3},
		},
		{
			name: "demand comes back too late", reason: "what is being deleted is gone", demand: 2,
			replicas: []Replica{ready(0, 0), with(ready(1, 0), func(r *Replica) { r.Deleting, r.Remaining = true, 0 })},
			want:     []brief{{CreateReplica, 2, "demand 2, allocated 2 (bound: none), 1 active: create replica 2"}},
			counts:   v1alpha1.ReplicaCounts{Replicas: 3, ReadyReplicas: 1, UpdatedReplicas: 2, Allocated: 2, DrainingReplicas: 1},
			progress: "3 replicas, 2 allocated: 1 starting, 1 leaving",
		},
		{
			name: "first failure", reason: "it is replaced at once, in its place", demand: 1,
			replicas: []Replica{with(ready(0, 0), failed(0, 0))},
			want:     []brief{{ReplaceReplica, 0, "engine of pod p ended with code 1, failure 1 in a row: replace replica 0 by 0"}},
			counts:   v1alpha1.ReplicaCounts{Replicas: 1, UpdatedReplicas: 1, Allocated: 1},
			progress: "1 replica, 1 allocated: 1 starting",
		},
		{
			name: "third failure", reason: "the delay is 20 s by now", demand: 1,
			replicas: []Replica{with(ready(0, 0), failed(2, 5*time.Second))},
			counts:   v1alpha1.ReplicaCounts{Replicas: 1, UpdatedReplicas: 1, Allocated: 1},
			progress: "1 replica, 1 allocated: 1 starting", after: 15 * time.Second,
		},
		{
			name: "failure of a stable replica", reason: "after ten good minutes the count starts anew", demand: 1,
			replicas: []Replica{with(ready(0, 0), func(r *Replica) { failed(5, 0)(r); r.Ran = 11 * time.Minute })},
			want:     []brief{{ReplaceReplica, 0, "engine of pod p ended with code 1, failure 1 in a row: replace replica 0 by 0"}},
			counts:   v1alpha1.ReplicaCounts{Replicas: 1, UpdatedReplicas: 1, Allocated: 1},
			progress: "1 replica, 1 allocated: 1 starting",
		},
		{
			name: "one pod of several failed", reason: "the others still end, so another ordinal is taken", demand: 1,
			replicas: []Replica{with(ready(0, 0), func(r *Replica) { failed(0, 0)(r); r.Ended = false })},
			want:     []brief{{ReplaceReplica, 0, "engine of pod p ended with code 1, failure 1 in a row: replace replica 0 by 1"}},
			counts:   v1alpha1.ReplicaCounts{Replicas: 2, UpdatedReplicas: 1, Allocated: 1, DrainingReplicas: 1},
			progress: "2 replicas, 1 allocated: 1 starting, 1 leaving",
		},
		{
			name: "a failed one too many", reason: "it is not replaced", demand: 1,
			replicas: []Replica{ready(0, 0), with(ready(1, 0), failed(0, 0))},
			want:     []brief{{DeleteReplica, 1, "engine of pod p ended with code 1: delete replica 1"}},
			counts:   v1alpha1.ReplicaCounts{Replicas: 2, ReadyReplicas: 1, UpdatedReplicas: 1, Allocated: 1, DrainingReplicas: 1},
			progress: "2 replicas, 1 allocated: 1 leaving",
		},
		{
			name: "a replica in part", reason: "its missing pods are made", demand: 1,
			replicas: []Replica{with(ready(0, 0), func(r *Replica) { starting(r); r.Missing = []int32{1} })},
			want:     []brief{{CreateReplica, 0, "it lacks 1 pod: complete replica 0"}},
			counts:   v1alpha1.ReplicaCounts{Replicas: 1, UpdatedReplicas: 1, Allocated: 1},
			progress: "1 replica, 1 allocated: 1 starting",
		},
		{
			name: "a replica ends in part", reason: "pods of a replica end together", demand: 0,
			replicas: []Replica{with(ready(0, 0), func(r *Replica) { r.Deleting = true })},
			want:     []brief{{DeleteReplica, 0, "pods of a replica end together, 1 have not been told: delete replica 0"}},
			counts:   v1alpha1.ReplicaCounts{Replicas: 1, DrainingReplicas: 1},
			progress: "1 replica, 0 allocated: 1 leaving",
		},
		{
			name: "roll-out starts", reason: "one more of the new revision, nobody leaves yet", demand: 2,
			replicas: []Replica{old(0, 0), old(1, 0)},
			want:     []brief{{CreateReplica, 2, "2 of 2 replicas are older than revision new: create replica 2"}},
			counts:   v1alpha1.ReplicaCounts{Replicas: 3, ReadyReplicas: 2, UpdatedReplicas: 1, Allocated: 2},
			progress: "3 replicas, 2 allocated: 1 starting, 2 of an older revision",
		},
		{
			name: "roll-out waits for the new one", reason: "ready replicas stay while the new one starts", demand: 2,
			replicas: []Replica{old(0, 0), old(1, 0), with(ready(2, 0), starting)},
			counts:   v1alpha1.ReplicaCounts{Replicas: 3, ReadyReplicas: 2, UpdatedReplicas: 1, Allocated: 2},
			progress: "3 replicas, 2 allocated: 1 starting, 2 of an older revision",
		},
		{
			name: "roll-out goes on", reason: "the new one is ready, so an old one drains: the one with the least work", demand: 2,
			replicas: []Replica{old(0, 1), old(1, 2), ready(2, 0)},
			want:     []brief{{DrainReplica, 0, "2 of 3 replicas are older than revision new, 3 ready: drain replica 0 (ready, 1 request outstanding)"}},
			counts:   v1alpha1.ReplicaCounts{Replicas: 3, ReadyReplicas: 2, UpdatedReplicas: 1, Allocated: 2, DrainingReplicas: 1},
			progress: "3 replicas, 2 allocated: 1 of an older revision, 1 leaving",
		},
		{
			name: "roll-out beside a lost replica", reason: "a replica that ends on a lost node may never go, and holds no roll-out up", demand: 1,
			replicas: []Replica{old(0, 1), with(ready(1, 0), func(r *Replica) { r.Deleting, r.GoneBy, r.Remaining = true, now, 0 })},
			want:     []brief{{CreateReplica, 2, "1 of 1 replicas are older than revision new: create replica 2"}},
			counts:   v1alpha1.ReplicaCounts{Replicas: 3, ReadyReplicas: 1, UpdatedReplicas: 1, Allocated: 1, DrainingReplicas: 1},
			progress: "3 replicas, 1 allocated: 1 starting, 1 of an older revision, 1 leaving",
		},
		{
			name: "roll-out beside one that ends", reason: "its devices are taken until it is gone", demand: 1,
			replicas: []Replica{old(0, 1), with(ready(1, 0), func(r *Replica) { r.Deleting, r.GoneBy, r.Remaining = true, now.Add(time.Minute), 0 })},
			counts:   v1alpha1.ReplicaCounts{Replicas: 2, ReadyReplicas: 1, Allocated: 1, DrainingReplicas: 1},
			progress: "2 replicas, 1 allocated: 1 of an older revision, 1 leaving", after: time.Minute,
		},
		{
			name: "roll-out waits for the drain", reason: "no more than one over the allocation exists", demand: 2,
			replicas: []Replica{with(old(0, 1), draining(time.Second)), old(1, 2), ready(2, 0)},
			counts:   v1alpha1.ReplicaCounts{Replicas: 3, ReadyReplicas: 2, UpdatedReplicas: 1, Allocated: 2, DrainingReplicas: 1},
			progress: "3 replicas, 2 allocated: 1 of an older revision, 1 leaving", after: time.Second,
		},
		{
			name: "roll-out of a broken revision", reason: "an old one that is not ready goes first, the ready ones stay", demand: 2,
			replicas: []Replica{old(0, 0), with(old(1, 0), unready), with(ready(2, 0), starting)},
			want:     []brief{{DrainReplica, 1, "2 of 3 replicas are older than revision new, 1 ready: drain replica 1 (not ready, an unknown number of requests outstanding)"}},
			counts:   v1alpha1.ReplicaCounts{Replicas: 3, ReadyReplicas: 1, UpdatedReplicas: 1, Allocated: 2, DrainingReplicas: 1},
			progress: "3 replicas, 2 allocated: 1 starting, 1 of an older revision, 1 leaving",
		},
		{
			name: "a failed one of the old revision", reason: "its replacement is of the new revision, without a delay", demand: 1,
			replicas: []Replica{with(old(0, 0), failed(4, 0))},
			want: []brief{
				{CreateReplica, 1, "demand 1, allocated 1 (bound: none), 0 active: create replica 1"},
				{DeleteReplica, 0, "engine of pod p ended with code 1: delete replica 0"},
			},
			counts:   v1alpha1.ReplicaCounts{Replicas: 2, UpdatedReplicas: 1, Allocated: 1, DrainingReplicas: 1},
			progress: "2 replicas, 1 allocated: 1 starting, 1 leaving",
		},
		{
			name: "scale to zero", reason: "everything drains", demand: 0,
			replicas: []Replica{ready(0, 1), ready(1, 0)},
			want: []brief{
				{DrainReplica, 1, "demand 0, allocated 0 (bound: none), 2 active: drain replica 1 (ready, 0 requests outstanding)"},
				{DrainReplica, 0, "demand 0, allocated 0 (bound: none), 1 active: drain replica 0 (ready, 1 request outstanding)"},
			},
			counts:   v1alpha1.ReplicaCounts{Replicas: 2, DrainingReplicas: 2},
			progress: "2 replicas, 0 allocated: 2 leaving",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := PlanPool(PoolState{
				Now: now, Demand: test.demand, Revision: "new", DrainSeconds: 100, Replicas: test.replicas,
				Allocation: Allocate([]PoolDemand{{Replicas: test.demand}}, Bounds{})[0],
			})
			var actions []brief
			for _, action := range got.Actions {
				actions = append(actions, brief{action.Kind, action.Ordinal, action.Reason})
			}
			if diff := cmp.Diff(test.want, actions); diff != "" {
				t.Errorf("%s: actions (-want +got):\n%s", test.reason, diff)
			}
			if diff := cmp.Diff(test.counts, got.Counts); diff != "" {
				t.Errorf("counts (-want +got):\n%s", diff)
			}
			progress := ""
			if got.Progressing {
				progress = got.Progress
			}
			if diff := cmp.Diff(test.progress, progress); diff != "" {
				t.Errorf("progress (-want +got):\n%s", diff)
			}
			if got.After != test.after {
				t.Errorf("%s: plan again after %s, want %s", test.reason, got.After, test.after)
			}
		})
	}
}

func TestBackoff(t *testing.T) {
	want := []time.Duration{0, 10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 5 * time.Minute, 5 * time.Minute}
	for restarts, delay := range want {
		if got := backoff(int32(restarts)); got != delay {
			t.Errorf("backoff(%d) = %s, want %s", restarts, got, delay)
		}
	}
	if got := backoff(1 << 30); got != maxBackoff {
		t.Errorf("backoff(2^30) = %s, want %s", got, maxBackoff)
	}
}
