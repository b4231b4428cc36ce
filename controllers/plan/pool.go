package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

const (
	// DrainSettle is how long routers may take to notice that admission to a pod stopped. Only what is seen later
	// proves that a replica is drained.
	DrainSettle = 3 * time.Second

	// drainPoll is how often a draining pool is looked at.
	drainPoll = time.Second

	// After the first failure in a row, a replica is replaced at once; then the delay doubles from firstBackoff to
	// maxBackoff. A replica that ran for stableAfter starts anew.
	firstBackoff = 10 * time.Second
	maxBackoff   = 5 * time.Minute
	stableAfter  = 10 * time.Minute
)

// PoolState is everything that the plan of a pool depends on.
type PoolState struct {
	Now          time.Time
	Demand       int32
	Allocation   Allocation
	Revision     string // of new pods
	Paused       bool   // no replica is added for a newer revision
	DrainSeconds int32
	Replicas     []Replica // ascending by ordinal
	Reserved     []int32   // ordinals whose names pods of others have: they get no new replica
}

// ActionKind says what to do with a replica.
type ActionKind string

const (
	// CreateReplica makes the missing pods of the replica Ordinal.
	CreateReplica ActionKind = "CreateReplica"
	// UndrainReplica lets the router send requests again.
	UndrainReplica ActionKind = "UndrainReplica"
	// ReplaceReplica deletes the pods of the failed replica Ordinal and makes those of With.
	ReplaceReplica ActionKind = "ReplaceReplica"
	// DrainReplica stops admission: the router sends no new request.
	DrainReplica ActionKind = "DrainReplica"
	// DeleteReplica deletes the replica's pods.
	DeleteReplica ActionKind = "DeleteReplica"
)

// Action is one change of a pool with its reason.
type Action struct {
	Kind     ActionKind
	Ordinal  int32
	With     int32 // ReplaceReplica: the ordinal of the new replica
	Restarts int32 // of the new pods
	Cause    Cause
	Reason   string // with its numbers: "demand 3, allocated 3 (bound: none), 1 active: create replica 1"
}

// Cause is why a pool changes.
type Cause string

const (
	// CauseScaleOut is more demand than replicas.
	CauseScaleOut Cause = "ScaleOut"
	// CauseScaleIn is more replicas than demand.
	CauseScaleIn Cause = "ScaleIn"
	// CauseReplace is a failed replica.
	CauseReplace Cause = "Replace"
	// CauseRollOut is a new revision.
	CauseRollOut Cause = "RollOut"
	// CauseUndrain is demand that came back during a scale-in.
	CauseUndrain Cause = "Undrain"
)

// PoolPlan is what to do with a pool now.
type PoolPlan struct {
	// Actions in the order in which they are to be done: what adds capacity comes before what takes it away.
	Actions []Action
	// Counts of the replicas after the actions. UpdatedReplicas are those of the newest revision that are to stay.
	Counts v1alpha1.ReplicaCounts
	// Before are the counts without the actions.
	Before v1alpha1.ReplicaCounts
	// Progressing: the replicas are not yet as allocated, or not of the newest revision. Progress says what is waited for.
	Progressing bool
	Progress    string
	// After is when to plan again though nothing changes; 0 is never.
	After time.Duration
}

// PlanPool decides what to do with the replicas of a pool. Its bounds, at every step:
//   - a serving replica is never deleted: it is drained first, and deleted when it is empty or its deadline is over;
//   - neither scale-in nor roll-out drains a serving replica unless at least Allocation.Replicas others serve;
//   - a roll-out that is paused adds no replica;
//   - a roll-out adds a replica only when no more than Allocation.Replicas exist, so at most one more exists. A replica
//     that ought to be gone and is not, because its node is lost, does not count.
func PlanPool(state PoolState) PoolPlan {
	p := newPlanner(state)
	// 1. Bring back what drains and is wanted again.
	p.undrain()
	// 2. Finish what leaves.
	p.finishDrains()
	// 3. Deal with the dead.
	p.replaceFailed()
	// 4. Complete replicas of which only some pods were made.
	p.complete()
	// 5. Add what the demand lacks.
	p.scaleOut()
	// 6. Add one of the newest revision for one of an older.
	p.surge()
	// 7. Drain what is too much.
	p.drainExcess()
	return p.finish()
}

type planner struct {
	PoolState
	plan    PoolPlan
	active  []Replica      // meant to stay after the actions so far
	back    map[int32]bool // draining replicas that are brought back
	free    int32          // lowest ordinal to try next
	taken   map[int32]bool // ordinals that have pods or get some
	created int32          // replicas added by the actions so far
	ready   int32          // of active, serving
}

func newPlanner(state PoolState) *planner {
	p := &planner{PoolState: state, taken: map[int32]bool{}, back: map[int32]bool{}}
	for _, replica := range state.Replicas {
		p.taken[replica.Ordinal] = true
		if replica.Active() {
			p.active = append(p.active, replica)
		}
		if replica.Serving() {
			p.ready++
		}
	}
	for _, ordinal := range state.Reserved {
		p.taken[ordinal] = true
	}
	p.plan.Before = p.counts()
	return p
}

func (p *planner) undrain() {
	lacking := int(p.Allocation.Replicas) - len(p.active)
	if lacking <= 0 {
		return
	}
	draining := slices.DeleteFunc(slices.Clone(p.Replicas), func(r Replica) bool {
		return !r.Draining() || r.Revision != p.Revision || r.Phase == ReplicaFailed || r.Phase == ReplicaStarting
	})
	// The one with the most work is the farthest from its end.
	slices.SortStableFunc(draining, func(a, b Replica) int { return cmp.Compare(b.Outstanding, a.Outstanding) })
	for _, replica := range draining[:min(lacking, len(draining))] {
		p.act(Action{Kind: UndrainReplica, Ordinal: replica.Ordinal, Cause: CauseUndrain,
			Reason: fmt.Sprintf("%s, %d active: bring back replica %d with %s outstanding", p.numbers(), len(p.active), replica.Ordinal, replica.outstanding())})
		replica.DrainStart = time.Time{}
		p.back[replica.Ordinal] = true
		p.stay(replica)
	}
}

func (p *planner) finishDrains() {
	deadline := time.Duration(p.DrainSeconds) * time.Second
	for _, replica := range p.Replicas {
		if replica.Deleting && replica.Remaining > 0 {
			p.act(Action{Kind: DeleteReplica, Ordinal: replica.Ordinal, Cause: p.leaveCause(replica),
				Reason: fmt.Sprintf("pods of a replica end together, %d have not been told: delete replica %d", replica.Remaining, replica.Ordinal)})
			continue
		}
		if !replica.Draining() || p.back[replica.Ordinal] {
			continue
		}
		since := p.Now.Sub(replica.DrainStart)
		var why string
		switch {
		case replica.Phase == ReplicaFailed:
			why = replica.Failure
		case replica.Phase == ReplicaStarting:
			why = "it never served"
		case replica.Drained:
			why = fmt.Sprintf("no request is running or queued, %s after admission stopped", since.Round(time.Second))
		case since >= deadline:
			why = fmt.Sprintf("drain deadline of %s is over with %s outstanding", deadline, replica.outstanding())
		default:
			p.again(min(drainPoll, deadline-since))
			continue
		}
		p.act(Action{Kind: DeleteReplica, Ordinal: replica.Ordinal, Cause: p.leaveCause(replica),
			Reason: fmt.Sprintf("%s: delete replica %d", why, replica.Ordinal)})
	}
}

func (p *planner) replaceFailed() {
	for _, replica := range slices.Clone(p.active) {
		if replica.Phase != ReplicaFailed {
			continue
		}
		if replica.Revision != p.Revision || len(p.active) > int(p.Allocation.Replicas) {
			p.leave(replica)
			p.act(Action{Kind: DeleteReplica, Ordinal: replica.Ordinal, Cause: CauseReplace,
				Reason: fmt.Sprintf("%s: delete replica %d", replica.Failure, replica.Ordinal)})
			continue
		}
		restarts := replica.Restarts
		if replica.Ran >= stableAfter {
			restarts = 0
		}
		wait := backoff(restarts) - p.Now.Sub(replica.FailedAt)
		if wait > 0 {
			p.again(wait)
			continue
		}
		with := replica.Ordinal
		if !replica.Ended {
			with = p.nextOrdinal()
			p.created++
		}
		p.act(Action{Kind: ReplaceReplica, Ordinal: replica.Ordinal, With: with, Restarts: restarts + 1, Cause: CauseReplace,
			Reason: fmt.Sprintf("%s, failure %d in a row: replace replica %d by %d", replica.Failure, restarts+1, replica.Ordinal, with)})
	}
}

func (p *planner) complete() {
	for _, replica := range p.active {
		if len(replica.Missing) > 0 && replica.Revision == p.Revision {
			p.act(Action{Kind: CreateReplica, Ordinal: replica.Ordinal, Restarts: replica.Restarts, Cause: CauseScaleOut,
				Reason: fmt.Sprintf("it lacks %s: complete replica %d", amount(int64(len(replica.Missing)), "pod"), replica.Ordinal)})
		}
	}
}

func (p *planner) scaleOut() {
	for range int(p.Allocation.Replicas) - len(p.active) {
		p.create(CauseScaleOut, fmt.Sprintf("%s, %d active", p.numbers(), len(p.active)))
	}
}

func (p *planner) surge() {
	old := p.count(func(r Replica) bool { return r.Revision != p.Revision })
	if p.Paused || old == 0 || len(p.active) > int(p.Allocation.Replicas) || p.held() > int(p.Allocation.Replicas) {
		return
	}
	p.create(CauseRollOut, fmt.Sprintf("%d of %d replicas are older than revision %s", old, len(p.active), p.Revision))
}

// held counts the replicas whose devices are taken, and asks to be called when one of them counts as lost.
func (p *planner) held() int {
	held := int(p.created)
	for _, replica := range p.Replicas {
		if replica.Lost(p.Now) {
			continue
		}
		if !replica.GoneBy.IsZero() {
			p.again(replica.GoneBy.Sub(p.Now))
		}
		held++
	}
	return held
}

func (p *planner) drainExcess() {
	excess := len(p.active) - int(p.Allocation.Replicas)
	if excess <= 0 {
		return
	}
	candidates := slices.Clone(p.active)
	slices.SortFunc(candidates, p.compareLeaving)
	old := p.count(func(r Replica) bool { return r.Revision != p.Revision })
	for _, replica := range candidates {
		if excess == 0 {
			return
		}
		isOld := replica.Revision != p.Revision
		if !isOld && excess <= old {
			// The place of one of the newest revision is taken from an older one, later.
			continue
		}
		if replica.Serving() && p.ready-1 < p.Allocation.Replicas {
			continue
		}
		cause := CauseScaleIn
		numbers := fmt.Sprintf("%s, %d active", p.numbers(), len(p.active))
		if isOld && int(p.Allocation.Replicas) == len(p.active)-1 && len(p.active) > old {
			cause = CauseRollOut
			numbers = fmt.Sprintf("%d of %d replicas are older than revision %s, %d ready", old, len(p.active), p.Revision, p.ready)
		}
		action := Action{Kind: DrainReplica, Ordinal: replica.Ordinal, Cause: cause,
			Reason: fmt.Sprintf("%s: drain replica %d (%s, %s outstanding)", numbers, replica.Ordinal, replica.Phase, replica.outstanding())}
		if replica.Phase == ReplicaStarting || replica.Phase == ReplicaFailed {
			action.Kind = DeleteReplica
			action.Reason = fmt.Sprintf("%s: delete replica %d, which is %s", numbers, replica.Ordinal, replica.Phase)
		}
		p.leave(replica)
		p.act(action)
		if isOld {
			old--
		}
		excess--
	}
}

// compareLeaving orders the replicas by how little is lost when they go: of an older revision, not serving, with the
// least outstanding requests (unknown last), with the highest ordinal.
func (p *planner) compareLeaving(a, b Replica) int {
	class := func(r Replica) int {
		switch r.Phase {
		case ReplicaFailed:
			return 0
		case ReplicaStarting:
			return 1
		case ReplicaUnready:
			return 2
		default:
			return 3
		}
	}
	boolean := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(boolean(a.Revision == p.Revision), boolean(b.Revision == p.Revision)),
		cmp.Compare(class(a), class(b)),
		cmp.Compare(boolean(!a.OutstandingKnown), boolean(!b.OutstandingKnown)),
		cmp.Compare(a.Outstanding, b.Outstanding),
		cmp.Compare(b.Ordinal, a.Ordinal),
	)
}

func (p *planner) finish() PoolPlan {
	p.plan.Counts = p.counts()
	old, starting := 0, 0
	for _, replica := range p.active {
		if replica.Revision != p.Revision {
			old++
		}
		if replica.Phase == ReplicaStarting || replica.Phase == ReplicaFailed {
			starting++
		}
	}
	var waits []string
	if starting > 0 {
		waits = append(waits, fmt.Sprintf("%d starting", starting))
	}
	if old > 0 {
		text := fmt.Sprintf("%d of an older revision", old)
		if p.Paused {
			text += ", the roll-out is paused"
		}
		waits = append(waits, text)
	}
	if leaving := p.plan.Counts.DrainingReplicas; leaving > 0 {
		waits = append(waits, fmt.Sprintf("%d leaving", leaving))
	}
	p.plan.Progressing = len(waits) > 0 || len(p.active) != int(p.Allocation.Replicas)
	p.plan.Progress = fmt.Sprintf("%s, %d allocated", amount(int64(p.plan.Counts.Replicas), "replica"), p.plan.Counts.Allocated)
	if len(waits) > 0 {
		p.plan.Progress += ": " + strings.Join(waits, ", ")
	}
	slices.SortStableFunc(p.plan.Actions, func(a, b Action) int { return cmp.Compare(order(a.Kind), order(b.Kind)) })
	return p.plan
}

// counts are those after the actions so far, so that status need not be written again when they are seen.
func (p *planner) counts() v1alpha1.ReplicaCounts {
	counts := v1alpha1.ReplicaCounts{
		Replicas:      int32(len(p.Replicas)) + p.created,
		ReadyReplicas: p.ready,
		Allocated:     p.Allocation.Replicas,
	}
	counts.DrainingReplicas = counts.Replicas - int32(len(p.active))
	for _, replica := range p.active {
		if replica.Revision == p.Revision {
			counts.UpdatedReplicas++
		}
	}
	return counts
}

func order(kind ActionKind) int {
	return slices.Index([]ActionKind{UndrainReplica, CreateReplica, ReplaceReplica, DrainReplica, DeleteReplica}, kind)
}

func (p *planner) act(action Action) { p.plan.Actions = append(p.plan.Actions, action) }

func (p *planner) create(cause Cause, numbers string) {
	ordinal := p.nextOrdinal()
	p.act(Action{Kind: CreateReplica, Ordinal: ordinal, Cause: cause, Reason: fmt.Sprintf("%s: create replica %d", numbers, ordinal)})
	p.created++
	p.stay(Replica{Ordinal: ordinal, Revision: p.Revision, Phase: ReplicaStarting})
}

// nextOrdinal takes the lowest ordinal that no pod has.
func (p *planner) nextOrdinal() int32 {
	for p.taken[p.free] {
		p.free++
	}
	p.taken[p.free] = true
	return p.free
}

func (p *planner) stay(replica Replica) {
	p.active = append(p.active, replica)
	if replica.Serving() {
		p.ready++
	}
}

func (p *planner) leave(replica Replica) {
	p.active = slices.DeleteFunc(p.active, func(r Replica) bool { return r.Ordinal == replica.Ordinal })
	if replica.Serving() {
		p.ready--
	}
}

func (p *planner) count(is func(Replica) bool) int {
	n := 0
	for _, replica := range p.active {
		if is(replica) {
			n++
		}
	}
	return n
}

func (p *planner) leaveCause(replica Replica) Cause {
	if replica.Revision != p.Revision {
		return CauseRollOut
	}
	return CauseScaleIn
}

// again asks to be called after d at the latest.
func (p *planner) again(d time.Duration) {
	d = max(d, time.Millisecond)
	if p.plan.After == 0 || d < p.plan.After {
		p.plan.After = d
	}
}

func (p *planner) numbers() string {
	return fmt.Sprintf("demand %d, allocated %d (bound: %s)", p.Demand, p.Allocation.Replicas, p.Allocation.Bound)
}

func (r Replica) outstanding() string {
	if !r.OutstandingKnown {
		return "an unknown number of requests"
	}
	return amount(r.Outstanding, "request")
}

// amount gives "1 pod" or "2 pods".
func amount(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func backoff(restarts int32) time.Duration {
	if restarts == 0 {
		return 0
	}
	return min(maxBackoff, firstBackoff<<min(restarts-1, 10))
}
