package observe

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// MissingReason says why an expected rank has no fresh sample.
type MissingReason string

const (
	// MissingNoSample means that the pod was not polled yet, or does not exist.
	MissingNoSample MissingReason = "NoSample"
	// MissingDown means that the newest poll of the pod failed, and that it has no sample, or one too old to be a number.
	MissingDown MissingReason = MissingReason(CauseTargetDown)
	// MissingStale means that the newest sample of the pod is too old to be a number although no poll failed: the operator
	// is behind.
	MissingStale MissingReason = "Stale"
	// MissingRank means that the pod's sample is fresh and does not hold the rank.
	MissingRank MissingReason = "RankAbsent"
)

// Missing is one expected rank without a fresh sample.
type Missing struct {
	Rank
	Reason MissingReason
	// Err is the newest poll's error; nil when there was none.
	Err error
}

// String gives "POD/rank (Reason)", with the newest poll's error where that is the reason. It may stand in a condition.
func (m Missing) String() string {
	if m.Reason == MissingDown && m.Err != nil {
		return fmt.Sprintf("%s/%d (%s: %s)", m.Pod, m.Rank.Rank, m.Reason, clipped(m.Err.Error()))
	}
	return fmt.Sprintf("%s/%d (%s)", m.Pod, m.Rank.Rank, m.Reason)
}

// Load aggregates a pool's fresh samples at now and lists the expected ranks that have none. The load is nil when no
// sample is fresh.
//
// Requests, queues and throughput are sums over all pods, draining ones included, since their requests are real. The
// spreads and Ranks leave draining pods out, which take no new requests. Utilization leaves out the ranks that report
// no number, and is absent when all do, as on a prefill pool. PD queues are present by role.
func Load(sample PoolSample, role v1alpha1.Role, expected []Rank, now time.Time) (*v1alpha1.PoolLoad, []Missing) {
	missing := missingRanks(sample, expected, now)

	var (
		load             = &v1alpha1.PoolLoad{ExpectedRanks: int32(len(expected))}
		utilization      spread
		tokenUsage       spread
		hitRate          spread
		speeds           speeds
		busiest          busiest
		throughput       fixed
		bootstrap        int64
		inflight         int64
		prealloc         int64
		transfer         int64
		retracted        int64
		oldest           time.Time
		anything, pdSeen bool
	)
	for _, pod := range sample.Pods {
		if !pod.Fresh(now, sample.FreshFor) {
			continue
		}
		anything = true
		if oldest.IsZero() || pod.Taken.Before(oldest) {
			oldest = pod.Taken
		}
		for _, r := range pod.Ranks {
			load.RunningRequests += int64(r.NumRunningReqs)
			load.WaitingRequests += int64(waiting(r))
			if q := r.Queues; q != nil {
				load.GrammarRequests += int64(q.Grammar)
				load.PausedRequests += int64(q.Paused)
				if role == v1alpha1.RoleUnified {
					load.RetractedRequests += int64(q.Retracted)
				}
			}
			if n, ok := number(r.GenThroughput); ok {
				throughput += n
			}
			if d := r.Disaggregation; d != nil {
				pdSeen = true
				bootstrap += int64(d.PrefillBootstrapQueueReqs)
				inflight += int64(d.PrefillInflightQueueReqs)
				prealloc += int64(d.DecodePreallocQueueReqs)
				transfer += int64(d.DecodeTransferQueueReqs)
				retracted += int64(d.DecodeRetractedQueueReqs)
			}
			if pod.Draining {
				continue
			}
			load.Ranks++
			at := Rank{Pod: pod.Name, Rank: r.DPRank}
			utilization.add(r.Utilization, at)
			tokenUsage.add(r.TokenUsage, at)
			hitRate.add(r.CacheHitRate, at)
			speeds.add(r, at)
			busiest.add(r, at)
		}
	}
	if !anything {
		return nil, missing
	}

	if role != v1alpha1.RolePrefill {
		load.Utilization = utilization.api()
		load.Slowest = speeds.api()
	}
	if role != v1alpha1.RoleDecode {
		load.CacheHitRate = hitRate.api()
	}
	load.MostLoaded = busiest.api()
	load.TokenUsage = tokenUsage.api()
	load.GenThroughput = throughput.text(1)
	switch {
	case role == v1alpha1.RolePrefill && pdSeen:
		load.PrefillBootstrapQueue, load.PrefillInflightQueue = &bootstrap, &inflight
	case role == v1alpha1.RoleDecode && pdSeen:
		load.DecodePreallocQueue, load.DecodeTransferQueue, load.DecodeRetractedQueue = &prealloc, &transfer, &retracted
	}
	taken := metav1.NewTime(oldest)
	load.SampleTime = &taken
	return load, missing
}

// SameLoad says whether two loads differ in nothing but the time of their samples, so that writing the second would
// tell a reader nothing. Nil equals nil alone.
func SameLoad(a, b *v1alpha1.PoolLoad) bool {
	if a == nil || b == nil {
		return a == b
	}
	return bytes.Equal(appendLoad(nil, a), appendLoad(nil, b))
}

// appendLoad writes everything but the time of the samples, each field with an end, so that equal texts are equal loads.
func appendLoad(text []byte, l *v1alpha1.PoolLoad) []byte {
	spread := func(s *v1alpha1.Spread) {
		if s != nil {
			for _, value := range []string{s.Min, s.Mean, s.Max, s.MaxAt} {
				text = append(append(text, value...), ' ')
			}
		}
		text = append(text, ';')
	}
	spread(l.Utilization)
	spread(l.TokenUsage)
	spread(l.CacheHitRate)
	if l.Slowest != nil {
		text = fmt.Appendf(text, "%s %s %s", l.Slowest.At, l.Slowest.TokensPerSecond, l.Slowest.Mean)
	}
	text = append(append(append(text, ';'), l.MostLoaded...), ';')
	for _, queue := range []*int64{l.PrefillBootstrapQueue, l.PrefillInflightQueue, l.DecodePreallocQueue, l.DecodeTransferQueue, l.DecodeRetractedQueue} {
		if queue != nil {
			text = strconv.AppendInt(text, *queue, 10)
		}
		text = append(text, ';')
	}
	for _, count := range []int64{l.RunningRequests, l.WaitingRequests, int64(l.Ranks), int64(l.ExpectedRanks), l.GrammarRequests, l.PausedRequests, l.RetractedRequests} {
		text = append(strconv.AppendInt(text, count, 10), ';')
	}
	return append(text, l.GenThroughput...)
}

// missingRanks keeps the order of expected.
func missingRanks(sample PoolSample, expected []Rank, now time.Time) []Missing {
	pods := make(map[string]PodSample, len(sample.Pods))
	for _, pod := range sample.Pods {
		pods[pod.Name] = pod
	}
	var missing []Missing
	for _, want := range expected {
		pod := pods[want.Pod]
		switch {
		case pod.Err != nil && !pod.Fresh(now, sample.FreshFor):
			missing = append(missing, Missing{Rank: want, Reason: MissingDown, Err: pod.Err})
		case pod.Taken.IsZero():
			missing = append(missing, Missing{Rank: want, Reason: MissingNoSample})
		case !pod.Fresh(now, sample.FreshFor):
			missing = append(missing, Missing{Rank: want, Reason: MissingStale})
		case !hasRank(pod, want.Rank):
			missing = append(missing, Missing{Rank: want, Reason: MissingRank, Err: pod.Err})
		}
	}
	return missing
}

func hasRank(pod PodSample, rank int) bool {
	for _, r := range pod.Ranks {
		if r.DPRank == rank {
			return true
		}
	}
	return false
}

// spread collects a value over ranks. min <= max and count*min <= sum <= count*max while count > 0.
type spread struct {
	count         int
	sum, min, max fixed
	at            Rank
}

// add takes a rank's value; what is never a number is left out. Of equal maxima the first rank is named.
func (s *spread) add(x float64, at Rank) {
	n, ok := number(x)
	if !ok {
		return
	}
	if s.count == 0 || n < s.min {
		s.min = n
	}
	if s.count == 0 || n > s.max {
		s.max, s.at = n, at
	}
	s.sum += n
	s.count++
}

func (s *spread) api() *v1alpha1.Spread {
	if s.count == 0 {
		return nil
	}
	return &v1alpha1.Spread{
		Min:   s.min.text(2),
		Mean:  mean(s.sum, s.count).text(2),
		Max:   s.max.text(2),
		MaxAt: s.at.text(),
	}
}
