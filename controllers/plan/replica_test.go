package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

func TestReplicas(t *testing.T) {
	pod := func(replica, node string, edits ...func(*corev1.Pod)) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: "p-" + replica + "-" + node, CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)),
			Labels: map[string]string{v1alpha1.LabelReplica: replica, v1alpha1.LabelNodeRank: node, v1alpha1.LabelRevision: "r"},
		}}
		for _, edit := range edits {
			edit(pod)
		}
		return pod
	}
	ready := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	deleting := func(graceEnds time.Time) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.NewTime(graceEnds)) }
	}
	ended := func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Evicted" }
	unscheduled := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/1 nodes are available: 1 Insufficient cpu."}}
	}
	waiting := func(reason, message string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: EngineContainer, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
		}
	}
	exitedAt := func(code int32, message string, at time.Time) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodFailed
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: EngineContainer, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: code, Message: message, StartedAt: metav1.NewTime(at.Add(-time.Minute)), FinishedAt: metav1.NewTime(at),
			}}}}
		}
	}
	exited := func(message string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodFailed
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: EngineContainer, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: 1, Reason: "Error", Message: message, StartedAt: metav1.NewTime(now.Add(-time.Minute)), FinishedAt: metav1.NewTime(now),
			}}}}
		}
	}

	tests := []struct {
		name   string
		reason string
		nodes  int32
		pods   []*corev1.Pod
		want   []Replica
		lost   bool // the first replica
	}{
		{
			name: "by ordinal", reason: "a pod whose label is no ordinal belongs to no replica", nodes: 1,
			pods: []*corev1.Pod{pod("10", "0", ready), pod("2", "0"), pod("-1", "0"), pod("x", "0")},
			want: []Replica{{Ordinal: 2, Revision: "r", Remaining: 1}, {Ordinal: 10, Revision: "r", Phase: ReplicaReady, Remaining: 1}},
		},
		{
			name: "evicted", reason: "why it ended is told", nodes: 1,
			pods: []*corev1.Pod{pod("0", "0", ended)},
			want: []Replica{{Revision: "r", Phase: ReplicaFailed, Remaining: 1, Ended: true, FailedAt: now.Add(-time.Hour), Failure: "pod p-0-0 is Failed: Evicted"}},
		},
		{
			name: "last words", reason: "the last line of what the engine said goes into why it ended", nodes: 1,
			pods: []*corev1.Pod{pod("0", "0", exited("time=1 level=INFO msg=listening\nsluice-engine: read /models/x/config.json: no such file\n"))},
			want: []Replica{{Revision: "r", Phase: ReplicaFailed, Remaining: 1, Ended: true, FailedAt: now, Ran: time.Minute,
				Failure: "engine of pod p-0-0 ended with code 1 (Error): sluice-engine: read /models/x/config.json: no such file"}},
		},
		{
			name: "one after the other", reason: "the pod that ended first says why the replica did", nodes: 2,
			pods: []*corev1.Pod{pod("0", "0", exitedAt(1, "node 1 is gone", now)), pod("0", "1", exitedAt(137, "", now.Add(-time.Second)))},
			want: []Replica{{Revision: "r", Phase: ReplicaFailed, Remaining: 2, Ended: true, FailedAt: now.Add(-time.Second), Ran: time.Minute,
				Failure: "engine of pod p-0-1 ended with code 137"}},
		},
		{
			name: "no node", reason: "what the scheduler says is told", nodes: 1,
			pods: []*corev1.Pod{pod("0", "0", unscheduled)},
			want: []Replica{{Revision: "r", Remaining: 1, Waiting: "pod p-0-0 has no node: 0/1 nodes are available: 1 Insufficient cpu."}},
		},
		{
			name: "no image", reason: "what the kubelet waits for is told", nodes: 1,
			pods: []*corev1.Pod{pod("0", "0", waiting("ErrImageNeverPull", "the image is not there"))},
			want: []Replica{{Revision: "r", Remaining: 1, Waiting: "container engine of pod p-0-0 waits: ErrImageNeverPull: the image is not there"}},
		},
		{
			name: "usual course", reason: "a container that is being made waits for nothing worth telling", nodes: 1,
			pods: []*corev1.Pod{pod("0", "0", waiting("ContainerCreating", ""))},
			want: []Replica{{Revision: "r", Remaining: 1}},
		},
		{
			name: "partly made", reason: "what is missing can still be made", nodes: 2,
			pods: []*corev1.Pod{pod("0", "1")},
			want: []Replica{{Revision: "r", Remaining: 1, Missing: []int32{0}}},
		},
		{
			name: "partly gone", reason: "pods of a replica end together", nodes: 2,
			pods: []*corev1.Pod{pod("0", "1", ready)},
			want: []Replica{{Revision: "r", Phase: ReplicaFailed, Remaining: 1, FailedAt: now.Add(-time.Hour), Failure: "1 of 2 pods are gone"}},
		},
		{
			name: "ending", reason: "the slowest pod says when the replica ought to be gone", nodes: 2,
			pods: []*corev1.Pod{pod("0", "0", ready, deleting(now.Add(time.Second))), pod("0", "1", ready, deleting(now))},
			want: []Replica{{Revision: "r", Phase: ReplicaReady, Deleting: true, GoneBy: now.Add(time.Second + lostAfter)}},
		},
		{
			name: "half told", reason: "a pod that was not told to end is not lost", nodes: 2,
			pods: []*corev1.Pod{pod("0", "0", ready, deleting(now.Add(-time.Hour))), pod("0", "1", ready)},
			want: []Replica{{Revision: "r", Phase: ReplicaReady, Deleting: true, Remaining: 1}},
		},
		{
			name: "lost", reason: "its grace is over for long", nodes: 1,
			pods: []*corev1.Pod{pod("0", "0", ready, deleting(now.Add(-lostAfter)))},
			want: []Replica{{Revision: "r", Phase: ReplicaReady, Deleting: true, GoneBy: now}}, lost: true,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for _, pod := range test.pods {
				metav1.SetMetaDataAnnotation(&pod.ObjectMeta, v1alpha1.AnnotationLayout, newLayout(test.nodes, 1, 1, test.nodes).text())
			}
			got := Replicas(test.pods, func(string) Load { return Load{} })
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.reason, diff)
			}
			if lost := got[0].Lost(now); lost != test.lost {
				t.Errorf("%s: lost is %t, want %t", test.reason, lost, test.lost)
			}
		})
	}
}
