package view

import (
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// Who told the load of a pool.
const (
	fromEngines = "engines"
	fromStatus  = "status"
)

// Seen is what was read of a service beside its objects.
type Seen struct {
	Routers    []*corev1.Pod
	Answers    map[string]Answer // by name of the pod that leads a replica
	Notes      []string          // what could not be read, and why
	PodsHidden bool              // the user may not list pods
}

// PoolObjects are a pool and its pods.
type PoolObjects struct {
	Pool *v1alpha1.EnginePool
	Pods []*corev1.Pod
}

// NewService shows a service.
func NewService(service *v1alpha1.InferenceService, pools []PoolObjects, seen Seen) Service {
	s := Service{
		Namespace: service.Namespace, Name: service.Name, Model: service.Spec.Model.Name, Tenant: plan.Tenant(service), URL: service.Status.URL,
		Ready:      meta.IsStatusConditionTrue(service.Status.Conditions, v1alpha1.ConditionReady),
		Paused:     service.Spec.Rollout.Paused,
		Conditions: []Condition{}, Router: Router{Replicas: len(seen.Routers), hidden: seen.PodsHidden}, Pools: []Pool{}, Notes: append([]string{}, seen.Notes...),
	}
	for _, c := range service.Status.Conditions {
		s.Conditions = append(s.Conditions, Condition{
			Type: c.Type, Status: string(c.Status), Reason: c.Reason, Message: c.Message,
			Since: c.LastTransitionTime.UTC().Format(time.RFC3339), Words: words(c.Type, c.Status),
		})
	}
	slices.SortFunc(s.Conditions, func(a, b Condition) int { return rankOf(a.Type) - rankOf(b.Type) })
	for _, pod := range seen.Routers {
		if podReady(pod) {
			s.Router.Ready++
		}
	}
	for _, objects := range pools {
		s.Pools = append(s.Pools, newPool(objects, seen))
	}
	return s
}

func newPool(objects PoolObjects, seen Seen) Pool {
	pool := objects.Pool
	p := Pool{
		Name: pool.Spec.Pool, Role: string(pool.Spec.Role), Revision: pool.Status.Revision, Demand: 1, Allocated: pool.Status.Allocated,
		Replicas: pool.Status.Replicas, Ready: pool.Status.ReadyReplicas, Updated: pool.Status.UpdatedReplicas,
		Draining: pool.Status.DrainingReplicas, Members: []Replica{},
	}
	if pool.Spec.Replicas != nil {
		p.Demand = *pool.Spec.Replicas
	}
	var groups []*Load
	expected, forbidden := 0, seen.PodsHidden
	for _, replica := range plan.Replicas(objects.Pods, func(string) plan.Load { return plan.Load{} }) {
		r := Replica{
			Ordinal: replica.Ordinal, State: stateOf(replica), Detail: replica.Waiting, Revision: replica.Revision,
			Updated: replica.Revision == p.Revision, Pods: []Pod{}, Ranks: []Rank{},
		}
		if replica.Failure != "" {
			r.Detail = replica.Failure
		}
		var layout plan.Layout // of this replica, which may be older than the pool's shape
		names := map[int32]string{}
		for _, pod := range objects.Pods {
			if pod.Labels[v1alpha1.LabelReplica] != strconv.Itoa(int(replica.Ordinal)) {
				continue
			}
			node := decimal(pod.Labels[v1alpha1.LabelNodeRank])
			names[node] = pod.Name
			layout = plan.LayoutOf(pod)
			r.Pods = append(r.Pods, Pod{Name: pod.Name, NodeRank: node, Node: pod.Spec.NodeName, IP: pod.Status.PodIP, Restarts: plan.PodRestarts(pod)})
		}
		answer, asked := seen.Answers[names[0]]
		forbidden = forbidden || answer.Forbidden
		if !asked {
			answer.Note = "not asked"
		}
		r.Note = answer.Note
		r.Ranks = ranks(layout, names, answer)
		for _, rank := range r.Ranks {
			if rank.Leader {
				expected++
				groups = append(groups, rank.Load)
			}
		}
		p.Members = append(p.Members, r)
	}
	p.Load = sum(groups, expected)
	switch told := pool.Status.Load; {
	case p.Load.Ranks > 0:
		p.LoadSource = fromEngines
	case forbidden && told != nil:
		p.Load, p.LoadSource = statusLoad(told), fromStatus
		if told.SampleTime != nil {
			p.LoadAsOf = told.SampleTime.UTC().Format(time.RFC3339)
		}
	}
	return p
}

// ranks gives the ranks of the plan with the load of their groups, and after them the groups that only the engine knows.
func ranks(layout plan.Layout, pods map[int32]string, answer Answer) []Rank {
	byDP := map[int32]*Load{}
	for _, l := range answer.Loads {
		byDP[int32(l.DPRank)] = newLoad(l)
	}
	list := []Rank{}
	seen := map[int32]bool{}
	for _, r := range layout.Ranks {
		list = append(list, Rank{Rank: new(r.Rank), TP: r.TP, PP: r.PP, DP: r.DP, MoEEP: r.MoEEP, Pod: pods[r.NodeRank], Load: byDP[r.DP], Leader: !seen[r.DP]})
		seen[r.DP] = true
	}
	for _, l := range answer.Loads {
		if dp := int32(l.DPRank); !seen[dp] {
			seen[dp] = true
			list = append(list, Rank{DP: dp, Pod: pods[0], Load: byDP[dp], Leader: true})
		}
	}
	return list
}

// stateOf names the state of a replica in a word or two.
func stateOf(r plan.Replica) string {
	switch {
	case r.Deleting:
		return "ending"
	case r.Draining():
		return "draining"
	default:
		return r.Phase.String()
	}
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func decimal(text string) int32 {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return -1
	}
	return int32(n)
}
