package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// ReplicaPhase is what the pods of a replica say, apart from whether it is meant to go.
type ReplicaPhase int

const (
	// ReplicaStarting means that every pod waits, is pulled or loads the model; the replica never served.
	ReplicaStarting ReplicaPhase = iota
	// ReplicaReady means that every pod is there and ready; the replica serves.
	ReplicaReady
	// ReplicaUnready means that the replica started, and some pod is not ready now. It may hold requests.
	ReplicaUnready
	// ReplicaFailed means that a pod has ended, or one is missing from a replica that had started. It never serves again.
	ReplicaFailed
)

// String names the phase for reasons and tests.
func (p ReplicaPhase) String() string {
	switch p {
	case ReplicaStarting:
		return "starting"
	case ReplicaReady:
		return "ready"
	case ReplicaUnready:
		return "not ready"
	case ReplicaFailed:
		return "failed"
	default:
		return "ReplicaPhase(" + strconv.Itoa(int(p)) + ")"
	}
}

// Replica is one replica of a pool as it is. Exactly the replicas with at least one pod exist.
type Replica struct {
	Ordinal  int32
	Revision string
	Phase    ReplicaPhase

	// DrainStart is when admission stopped; zero when the replica is not draining.
	DrainStart time.Time
	// Deleting: some pod has a deletion time; there is no way back.
	Deleting bool
	// Remaining counts the pods without a deletion time.
	Remaining int32
	// GoneBy is when the pods of a replica that is being deleted ought to be gone, their grace and lostAfter included;
	// zero while a pod has no deletion time.
	GoneBy time.Time
	// Missing pods, by node rank, of a replica that is starting.
	Missing []int32
	// Waiting says what a pod of a replica that is starting waits for, where Kubernetes says so: a node, a volume, an
	// image. Empty while things take their usual course.
	Waiting string

	// Outstanding requests in the batch and in every queue, when OutstandingKnown.
	Outstanding      int64
	OutstandingKnown bool
	// Drained: nothing was running or queued when last seen, long enough after DrainStart.
	Drained bool

	// Restarts counts failures in a row before this replica's pods were made.
	Restarts int32
	// FailedAt, Ran and Failure tell of a failed replica when it failed, how long it had run, and why. Ended means that
	// all of its pods have ended.
	FailedAt time.Time
	Ran      time.Duration
	Failure  string
	Ended    bool
}

// lostAfter is how long after its grace a pod may still be there before its node counts as lost.
const lostAfter = time.Minute

// Lost says whether the replica ought to be gone: its node does not answer, so its pods stay until somebody removes the
// node or them.
func (r Replica) Lost(now time.Time) bool { return !r.GoneBy.IsZero() && !now.Before(r.GoneBy) }

// Draining says whether the replica takes no new requests but may still be brought back.
func (r Replica) Draining() bool { return !r.DrainStart.IsZero() && !r.Deleting }

// Active says whether the replica is meant to stay.
func (r Replica) Active() bool { return r.DrainStart.IsZero() && !r.Deleting }

// Serving says whether the replica takes new requests now.
func (r Replica) Serving() bool { return r.Active() && r.Phase == ReplicaReady }

// Load is what the newest samples say of the leader of a replica.
type Load struct {
	Outstanding int64
	Known       bool
	Drained     bool
}

// DrainStart reads when admission to a pod stopped; zero when it is not draining. An annotation that is no time counts
// from when the pod was made, so that its deadline is never in the future for ever.
func DrainStart(pod *corev1.Pod) time.Time {
	text, ok := pod.Annotations[v1alpha1.AnnotationDraining]
	if !ok {
		return time.Time{}
	}
	start, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return pod.CreationTimestamp.Time
	}
	return start
}

// Replicas groups the pods of a pool into replicas, ascending by ordinal. How many pods a replica has is said by its pods,
// since one of an older revision may have another number than the pool wants now. load gives the load of a leader pod by its
// name. Pods without a valid replica label are left out.
func Replicas(pods []*corev1.Pod, load func(pod string) Load) []Replica {
	groups := map[int32][]*corev1.Pod{}
	for _, pod := range pods {
		if ordinal, ok := ordinalOf(pod); ok {
			groups[ordinal] = append(groups[ordinal], pod)
		}
	}
	replicas := make([]Replica, 0, len(groups))
	for ordinal, group := range groups {
		replicas = append(replicas, newReplica(ordinal, group, load))
	}
	slices.SortFunc(replicas, func(a, b Replica) int { return cmp.Compare(a.Ordinal, b.Ordinal) })
	return replicas
}

// Ordinals lists the ordinals of the pods, one for each pod that has one.
func Ordinals(pods []*corev1.Pod) []int32 {
	ordinals := make([]int32, 0, len(pods))
	for _, pod := range pods {
		if ordinal, ok := ordinalOf(pod); ok {
			ordinals = append(ordinals, ordinal)
		}
	}
	return ordinals
}

func ordinalOf(pod *corev1.Pod) (ordinal int32, ok bool) {
	n, err := strconv.ParseInt(pod.Labels[v1alpha1.LabelReplica], 10, 32)
	return int32(n), err == nil && n >= 0
}

func newReplica(ordinal int32, pods []*corev1.Pod, load func(string) Load) Replica {
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	replica := Replica{Ordinal: ordinal, Revision: pods[0].Labels[v1alpha1.LabelRevision]}
	present := map[string]bool{}
	nodes := int32(1)
	ready, started, ended := 0, 0, 0
	for _, pod := range pods {
		nodes = max(nodes, LayoutOf(pod).Nodes)
		present[pod.Labels[v1alpha1.LabelNodeRank]] = true
		replica.Restarts = max(replica.Restarts, PodRestarts(pod))
		if start := DrainStart(pod); replica.DrainStart.IsZero() || (!start.IsZero() && start.Before(replica.DrainStart)) {
			replica.DrainStart = start
		}
		if pod.DeletionTimestamp != nil {
			replica.Deleting = true
			// A deletion time is when the grace ends.
			if goneBy := pod.DeletionTimestamp.Add(lostAfter); goneBy.After(replica.GoneBy) {
				replica.GoneBy = goneBy
			}
		} else {
			replica.Remaining++
		}
		if pod.Labels[v1alpha1.LabelNodeRank] == "0" {
			l := load(pod.Name)
			replica.Outstanding, replica.OutstandingKnown, replica.Drained = l.Outstanding, l.Known, l.Drained
		}
		switch {
		case hasEnded(pod):
			ended++
			// The first to end is the cause; the others of the replica follow.
			if at, ran, why := describeEnd(pod); replica.Failure == "" || at.Before(replica.FailedAt) {
				replica.FailedAt, replica.Ran, replica.Failure = at, ran, why
			}
		case isReady(pod):
			ready++
			started++
		case hasStarted(pod):
			started++
		case replica.Waiting == "":
			replica.Waiting = DescribeWait(pod)
		}
	}
	if replica.Remaining > 0 {
		replica.GoneBy = time.Time{}
	}
	for node := range nodes {
		if !present[decimal(node)] {
			replica.Missing = append(replica.Missing, node)
		}
	}
	replica.Ended = ended == len(pods)
	switch {
	case ended > 0:
		replica.Phase = ReplicaFailed
	case len(replica.Missing) > 0 && started > 0:
		replica.Phase = ReplicaFailed
		replica.Failure = fmt.Sprintf("%d of %d pods are gone", len(replica.Missing), nodes)
		replica.FailedAt = pods[0].CreationTimestamp.Time
	case len(replica.Missing) == 0 && ready == len(pods):
		replica.Phase = ReplicaReady
	case started > 0:
		replica.Phase = ReplicaUnready
	default:
		replica.Phase = ReplicaStarting
	}
	if replica.Phase != ReplicaStarting {
		replica.Missing, replica.Waiting = nil, ""
	}
	return replica
}

func isReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// hasStarted says whether the engine's start-up probe has passed: the engine listens, so it may have got requests.
func hasStarted(pod *corev1.Pod) bool {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == EngineContainer {
			return status.Started != nil && *status.Started
		}
	}
	return false
}

func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// DescribeWait tells what a pod that has not started waits for, or nothing.
func DescribeWait(pod *corev1.Pod) string {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return fmt.Sprintf("pod %s has no node: %s", pod.Name, lastLine(condition.Message))
		}
	}
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		wait := status.State.Waiting
		if wait == nil || wait.Reason == "" || wait.Reason == "ContainerCreating" || wait.Reason == "PodInitializing" {
			continue
		}
		text := fmt.Sprintf("container %s of pod %s waits: %s", status.Name, pod.Name, wait.Reason)
		if wait.Message != "" {
			text += ": " + lastLine(wait.Message)
		}
		return text
	}
	return ""
}

// maxCause is how many bytes of somebody else's text go into a message of ours.
const maxCause = 300

// lastLine gives the last line of a text that says something, shortened; a program's last words say why it ended.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	if i := strings.LastIndexByte(text, '\n'); i >= 0 {
		text = text[i+1:]
	}
	if len(text) > maxCause {
		text = strings.ToValidUTF8(text[:maxCause], "") + "…"
	}
	return text
}

// describeEnd tells when a pod ended, how long its engine had run, and why.
func describeEnd(pod *corev1.Pod) (at time.Time, ran time.Duration, why string) {
	at = pod.CreationTimestamp.Time
	why = fmt.Sprintf("pod %s is %s", pod.Name, pod.Status.Phase)
	if pod.Status.Reason != "" {
		why += ": " + pod.Status.Reason
	}
	for _, status := range pod.Status.ContainerStatuses {
		end := status.State.Terminated
		if status.Name != EngineContainer || end == nil {
			continue
		}
		at = end.FinishedAt.Time
		ran = end.FinishedAt.Sub(end.StartedAt.Time)
		why = fmt.Sprintf("engine of pod %s ended with code %d", pod.Name, end.ExitCode)
		if end.Reason != "" {
			why += " (" + end.Reason + ")"
		}
		if end.Message != "" {
			why += ": " + lastLine(end.Message)
		}
	}
	return at, ran, why
}
