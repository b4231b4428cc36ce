package observe

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// queue is the work queue of a controller.
type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// listeners are the work queues that hear of changed pools.
type listeners struct {
	mu     sync.Mutex
	next   int
	queues map[int]queue

	// digests holds what was last announced of each pool.
	digests map[types.NamespacedName]string
}

// Source makes a controller reconcile an EnginePool when its rounded load or that of its ranks, its tokens, the set of its
// fresh ranks or the drained state of one of its pods changed. Changes are coalesced twice: the poller announces a pool a few times an interval at
// most, and the work queue holds a request once. A new queue gets every pool that has samples.
func (s *Store) Source() source.Source {
	return source.Func(func(ctx context.Context, q queue) error {
		remove := s.listeners.add(q)
		context.AfterFunc(ctx, remove)
		for _, pool := range s.poolNames() {
			q.Add(reconcile.Request{NamespacedName: pool})
		}
		return nil
	})
}

func (l *listeners) add(q queue) (remove func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queues == nil {
		l.queues = map[int]queue{}
	}
	id := l.next
	l.next++
	l.queues[id] = q
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.queues, id)
	}
}

// announce tells the listeners which of the pools changed since they were last announced.
func (s *Store) announce(pools []types.NamespacedName) {
	now := s.clock.Now()
	digests := make(map[types.NamespacedName]string, len(pools))
	s.mu.RLock()
	for _, pool := range pools {
		digests[pool] = s.digestLocked(pool, now)
	}
	s.mu.RUnlock()

	l := &s.listeners
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.digests == nil {
		l.digests = map[types.NamespacedName]string{}
	}
	for pool, digest := range digests {
		if l.digests[pool] == digest {
			continue
		}
		if l.digests[pool] = digest; digest == "" {
			delete(l.digests, pool)
		}
		for _, q := range l.queues {
			q.Add(reconcile.Request{NamespacedName: pool})
		}
	}
}

// announced lists the pools of which something was announced, gone ones included.
func (s *Store) announced() []types.NamespacedName {
	s.listeners.mu.Lock()
	defer s.listeners.mu.Unlock()
	pools := make([]types.NamespacedName, 0, len(s.listeners.digests))
	for pool := range s.listeners.digests {
		pools = append(pools, pool)
	}
	return pools
}

// digestLocked is a text that changes when a reader of the pool's samples would see a difference; empty when the pool
// has no pods.
func (s *Store) digestLocked(pool types.NamespacedName, now time.Time) string {
	members := s.pools[pool]
	if len(members) == 0 {
		return ""
	}
	sample := s.poolLocked(pool)
	text := make([]byte, 0, 256)
	for _, p := range sample.Pods {
		text = append(append(text, p.Name...), ' ')
		text = strconv.AppendBool(text, p.Fresh(now, s.freshFor))
		text = strconv.AppendInt(append(text, ' '), int64(len(p.Ranks)), 10)
		if p.Draining {
			text = strconv.AppendInt(append(text, " idle polls "...), int64(len(members[p.Name].run)), 10)
		}
		text = append(text, '\n')
	}
	role := sample.Pods[0].Role
	if load, _ := Load(sample, role, nil, now); load != nil {
		text = appendLoad(text, load)
	}
	ranks, more := RankLoads(sample, role, now)
	for _, r := range ranks {
		text = fmt.Appendf(text, "\n%s/%d %d %d %s %s %s %s", r.Pod, r.DPRank, r.RunningRequests, r.WaitingRequests, r.Utilization, r.TokenUsage, r.CacheHitRate, r.GenThroughput)
	}
	text = strconv.AppendInt(append(text, '\n'), int64(more), 10)
	prompt, generated := sample.Tokens()
	text = strconv.AppendInt(append(text, " tokens "...), prompt, 10)
	text = strconv.AppendInt(append(text, ' '), generated, 10)
	return string(text)
}
