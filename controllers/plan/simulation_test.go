package plan

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// world is a pool whose replicas start, serve, fail, drain and end as they like.
type world struct {
	t        *testing.T
	random   *rand.Rand
	now      time.Time
	demand   int32
	revision string
	replicas []Replica
	trace    []string
}

const (
	simulatedDrainSeconds = 60
	simulatedSeeds        = 100
	simulatedSteps        = 200
)

func TestSimulation(t *testing.T) {
	for range simulatedSeeds {
		simulate(t, rand.Uint64())
	}
}

func FuzzSimulation(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { simulate(t, seed) })
}

func simulate(t *testing.T, seed uint64) {
	t.Helper()
	w := &world{t: t, random: rand.New(rand.NewPCG(seed, 0)), now: now, demand: 1, revision: "0"}
	defer func() {
		if t.Failed() {
			t.Logf("seed %d; the last steps:", seed)
			for _, line := range w.trace[max(0, len(w.trace)-12):] {
				t.Log(line)
			}
			t.FailNow()
		}
	}()
	for range simulatedSteps {
		w.event()
		w.reconcile()
		if t.Failed() {
			return
		}
	}
	w.settle()
}

// event lets one thing happen.
func (w *world) event() {
	w.now = w.now.Add(time.Duration(w.random.IntN(8000)) * time.Millisecond)
	switch w.random.IntN(12) {
	case 0:
		w.demand = int32(w.random.IntN(7))
	case 1:
		if w.random.IntN(4) == 0 {
			w.revision = string(rune('0' + w.random.IntN(5)))
		}
	}
	if len(w.replicas) == 0 {
		return
	}
	r := &w.replicas[w.random.IntN(len(w.replicas))]
	switch w.random.IntN(8) {
	case 0, 1, 2:
		w.advance(r)
	case 3:
		r.Outstanding, r.OutstandingKnown = int64(w.random.IntN(5)), w.random.IntN(5) > 0
		r.Drained = false
	case 4:
		if r.Draining() && w.now.Sub(r.DrainStart) > DrainSettle {
			r.Drained, r.Outstanding, r.OutstandingKnown = true, 0, true
		}
	case 5:
		if w.random.IntN(3) == 0 && r.Phase != ReplicaFailed {
			r.Phase, r.Ended, r.FailedAt, r.Failure = ReplicaFailed, w.random.IntN(2) == 0, w.now, "it broke"
			r.Ran = time.Duration(w.random.IntN(20)) * time.Minute
			r.Missing = nil
		}
	case 6:
		switch r.Phase {
		case ReplicaReady:
			r.Phase = ReplicaUnready
		case ReplicaUnready:
			r.Phase = ReplicaReady
		case ReplicaStarting, ReplicaFailed:
		}
	case 7:
		// Somebody deletes a pod.
		if w.random.IntN(4) == 0 {
			r.Deleting, r.Remaining = true, int32(w.random.IntN(2))
		}
	}
}

// advance brings a replica closer to its end: serving, or gone.
func (w *world) advance(r *Replica) {
	switch {
	case r.Deleting && r.Remaining == 0:
		ordinal := r.Ordinal
		w.replicas = slices.DeleteFunc(w.replicas, func(r Replica) bool { return r.Ordinal == ordinal })
	case r.Phase == ReplicaStarting && len(r.Missing) == 0, r.Phase == ReplicaUnready:
		r.Phase = ReplicaReady
	}
}

// reconcile plans, checks the plan against the bounds and does it.
func (w *world) reconcile() PoolPlan {
	w.t.Helper()
	allocation := Allocate([]PoolDemand{{Replicas: w.demand, Held: int32(len(w.replicas))}}, Bounds{})[0]
	state := PoolState{Now: w.now, Demand: w.demand, Allocation: allocation, Revision: w.revision, DrainSeconds: simulatedDrainSeconds, Replicas: slices.Clone(w.replicas)}
	got := PlanPool(state)
	servingBefore, activeBefore := w.serving(), w.active()
	surged := false
	for _, action := range got.Actions {
		w.trace = append(w.trace, action.Reason)
		surged = surged || action.Kind == CreateReplica && action.Cause == CauseRollOut
		w.do(action)
	}
	if serving := w.serving(); serving < min(servingBefore, int(allocation.Replicas)) {
		w.t.Errorf("%d replicas served, %d do after the actions, %d are allocated", servingBefore, serving, allocation.Replicas)
	}
	if active := w.active(); active < int(allocation.Replicas) || active > max(activeBefore, int(allocation.Replicas)+1) {
		w.t.Errorf("%d replicas were active, %d are after the actions, %d are allocated", activeBefore, active, allocation.Replicas)
	}
	if exist := len(w.replicas); surged && exist > int(allocation.Replicas)+1 {
		w.t.Errorf("%d replicas exist after a roll-out added one, %d are allocated", exist, allocation.Replicas)
	}
	if got.Counts.ReadyReplicas != int32(w.serving()) {
		w.t.Errorf("the plan counts %d ready replicas, %d are", got.Counts.ReadyReplicas, w.serving())
	}
	if got.Counts.Replicas-got.Counts.DrainingReplicas != int32(w.active()) {
		w.t.Errorf("the plan counts %d replicas, %d of them leaving, but %d are active", got.Counts.Replicas, got.Counts.DrainingReplicas, w.active())
	}
	return got
}

// do applies an action, which must be allowed.
func (w *world) do(action Action) {
	w.t.Helper()
	at := slices.IndexFunc(w.replicas, func(r Replica) bool { return r.Ordinal == action.Ordinal })
	if at < 0 && action.Kind != CreateReplica {
		w.t.Errorf("%s %d: there is no such replica", action.Kind, action.Ordinal)
		return
	}
	switch action.Kind {
	case CreateReplica:
		if at >= 0 {
			if len(w.replicas[at].Missing) == 0 {
				w.t.Errorf("create replica %d, which exists", action.Ordinal)
			}
			w.replicas[at].Missing = nil
			return
		}
		w.create(action.Ordinal, action.Restarts)
	case ReplaceReplica:
		if w.replicas[at].Phase != ReplicaFailed {
			w.t.Errorf("replace replica %d, which is %s", action.Ordinal, w.replicas[at].Phase)
		}
		if w.replicas[at].Ended {
			w.replicas = slices.Delete(w.replicas, at, at+1)
		} else {
			w.replicas[at].Deleting, w.replicas[at].Remaining = true, 0
		}
		w.create(action.With, action.Restarts)
	case DrainReplica:
		if !w.replicas[at].Active() {
			w.t.Errorf("drain replica %d, which leaves already", action.Ordinal)
		}
		w.replicas[at].DrainStart = w.now
	case UndrainReplica:
		if !w.replicas[at].Draining() {
			w.t.Errorf("bring back replica %d, which does not drain", action.Ordinal)
		}
		w.replicas[at].DrainStart, w.replicas[at].Drained = time.Time{}, false
	case DeleteReplica:
		r := &w.replicas[at]
		inTime := r.Draining() && !r.Drained && w.now.Sub(r.DrainStart) < simulatedDrainSeconds*time.Second
		if r.Serving() || (inTime && (r.Phase == ReplicaReady || r.Phase == ReplicaUnready)) || (r.Active() && r.Phase == ReplicaUnready) {
			w.t.Errorf("delete replica %d, which may hold requests: %+v", action.Ordinal, *r)
		}
		r.Deleting, r.Remaining = true, 0
	}
}

func (w *world) create(ordinal, restarts int32) {
	if slices.ContainsFunc(w.replicas, func(r Replica) bool { return r.Ordinal == ordinal }) {
		w.t.Errorf("create replica %d, whose pods exist", ordinal)
	}
	replica := Replica{Ordinal: ordinal, Revision: w.revision, Remaining: 1, Restarts: restarts}
	if w.random.IntN(4) == 0 {
		replica.Missing = []int32{1} // the API server refused the second pod
	}
	w.replicas = append(w.replicas, replica)
	slices.SortFunc(w.replicas, func(a, b Replica) int { return int(a.Ordinal - b.Ordinal) })
}

// settle lets everything go well from now on, until nothing happens any more.
func (w *world) settle() {
	w.t.Helper()
	for range 2000 {
		w.now = w.now.Add(time.Second)
		changed := false
		for i := range w.replicas {
			r := &w.replicas[i]
			if r.Draining() && !r.Drained && w.now.Sub(r.DrainStart) > DrainSettle {
				r.Drained, r.Outstanding, r.OutstandingKnown, changed = true, 0, true, true
			}
		}
		for _, replica := range slices.Clone(w.replicas) {
			at := slices.IndexFunc(w.replicas, func(r Replica) bool { return r.Ordinal == replica.Ordinal })
			before := len(w.replicas)
			phase := w.replicas[at].Phase
			w.advance(&w.replicas[at])
			changed = changed || len(w.replicas) != before || w.replicas[min(at, len(w.replicas)-1)].Phase != phase
		}
		got := w.reconcile()
		if w.t.Failed() {
			return
		}
		if changed || len(got.Actions) > 0 || got.After > 0 {
			continue
		}
		if got.Progressing || len(w.replicas) != int(w.demand) || w.serving() != int(w.demand) {
			w.t.Errorf("the fixed point has %d replicas, %d of them serving, demand %d: %s", len(w.replicas), w.serving(), w.demand, got.Progress)
		}
		for _, replica := range w.replicas {
			if replica.Revision != w.revision {
				w.t.Errorf("at the fixed point replica %d has revision %s, want %s", replica.Ordinal, replica.Revision, w.revision)
			}
		}
		return
	}
	w.t.Errorf("no fixed point: %d replicas, demand %d", len(w.replicas), w.demand)
}

func (w *world) serving() int {
	n := 0
	for _, replica := range w.replicas {
		if replica.Serving() {
			n++
		}
	}
	return n
}

func (w *world) active() int {
	n := 0
	for _, replica := range w.replicas {
		if replica.Active() {
			n++
		}
	}
	return n
}
