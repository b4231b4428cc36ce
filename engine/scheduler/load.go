package scheduler

import (
	"time"

	"github.com/sluice-dev/sluice/engine/disagg"
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/loads"
)

// Load is the load at this moment, with all sections: of the step that is being computed, with every request that was
// submitted before the call.
func (s *Scheduler) Load() loads.Load {
	l, reqs, tokens := s.inbox.current()
	now := s.deps.Clock.Now()
	l.Timestamp = float64(s.deps.Clock.Wall(now)) / float64(time.Second)
	l.NumWaitingReqs += reqs
	l.NumTotalTokens += tokens
	queues, pd := *l.Queues, *l.Disaggregation
	switch s.cfg.Role {
	case Unified:
		l.NumWaitingUncached += tokens
		l.NumActiveTokens += tokens
		queues.Waiting += reqs
	case Prefill:
		l.NumWaitingUncached += tokens
		l.NumActiveTokens += tokens
		pd.PrefillBootstrapQueueReqs += reqs
	case Decode:
		pd.DecodePreallocQueueReqs += reqs
	}
	memory := *l.Memory
	l.Queues, l.Disaggregation, l.Memory = &queues, &pd, &memory
	return l
}

// publishLoad makes the state as it is now what Load reads.
func (s *Scheduler) publishLoad(now ledger.Instant) {
	st := s.pool.Stats()
	usage, used := s.usage()
	waiting, bootstrapping := tokensOf(s.in[stateWaiting]), tokensOf(s.in[stateBootstrapping])
	preallocating, transferring := tokensOf(s.in[statePreallocating]), tokensOf(s.in[stateTransferring])
	retracted := tokensOf(s.in[stateRetracted])
	compiling := tokensOf(s.in[stateCompiling])

	l := loads.Load{
		NumRunningReqs: s.running(),
		NumWaitingReqs: len(s.in[stateCompiling]) + len(s.in[stateWaiting]) + len(s.in[stateBootstrapping]) + len(s.in[statePreallocating]) +
			len(s.in[stateTransferring]) + len(s.in[stateRetracted]),
		NumUsedTokens:         used,
		NumTotalTokens:        used,
		MaxTotalNumTokens:     st.Capacity,
		MaxRunningRequests:    s.cfg.MaxRunning,
		TokenUsage:            round(usage, 4),
		GenThroughput:         round(s.steps.throughput, 2),
		CacheHitRate:          round(s.steps.hitRate, 4),
		Utilization:           round(s.utilization(round(usage, 2)), 4),
		TotalPrefillUncached:  s.steps.prefillTokens,
		TotalPrefillBusyMicro: s.steps.prefillNanos / int64(time.Microsecond),
		TotalGenerated:        s.steps.generatedTokens,
		Memory: &loads.Memory{
			WeightGB:      round(float64(s.cfg.WeightBytes)/(1<<30), 3),
			KVCacheGB:     round(float64(s.cfg.KVBytes)/(1<<30), 3),
			TokenCapacity: st.Capacity,
		},
		Disaggregation: &loads.Disaggregation{
			Mode:                      "null",
			PrefillBootstrapQueueReqs: len(s.in[stateBootstrapping]),
			PrefillInflightQueueReqs:  len(s.in[stateInflight]),
			DecodePreallocQueueReqs:   len(s.in[statePreallocating]),
			DecodeTransferQueueReqs:   len(s.in[stateTransferring]),
			DecodeRetractedQueueReqs:  len(s.in[stateRetracted]),
		},
		Queues: &loads.Queues{Waiting: len(s.in[stateWaiting]), Grammar: len(s.in[stateCompiling]), Paused: s.pausedInPlace(), Retracted: s.retracted()},
	}
	if now.Sub(s.steps.lastDecode) > int64(throughputAge) {
		l.GenThroughput = 0
	}
	switch s.cfg.Role {
	case Unified:
		l.NumTotalTokens += compiling + waiting
		l.NumActiveTokens = l.NumTotalTokens
		l.NumWaitingUncached = s.uncached(stateCompiling) + s.uncached(stateWaiting) + s.uncomputed()
	case Prefill:
		l.Disaggregation.Mode = "prefill"
		l.NumTotalTokens += compiling + waiting + bootstrapping
		l.NumActiveTokens = l.NumTotalTokens
		l.NumWaitingUncached = s.uncached(stateCompiling) + s.uncached(stateWaiting) + s.uncached(stateBootstrapping) + s.uncomputed()
	case Decode:
		l.Disaggregation.Mode = "decode"
		l.NumTotalTokens += compiling + preallocating + retracted
		l.NumActiveTokens = max(0, l.NumTotalTokens-compiling-preallocating-transferring)
		for _, q := range s.in[statePreallocating] {
			if q.hand != nil && q.hand.agreed == disagg.WaitingPages {
				l.Queues.PreallocReady++
			}
		}
	}
	if t := s.steps.lastTransfer; t.LatencyNanos > 0 {
		seconds := float64(t.LatencyNanos) / float64(time.Second)
		l.Disaggregation.KVTransferSpeedGBs = round(float64(t.TotalBytes)/(1<<30)/seconds, 2)
		l.Disaggregation.KVTransferLatencyMs = round(seconds*1000, 2)
	}
	s.inbox.publish(l, s.taken, s.takenToks)
	s.taken, s.takenToks = 0, 0
}

// uncached estimates the tokens of waiting sequences that the cache will not have, by what it had of late.
func (s *Scheduler) uncached(st state) int {
	n, rate := 0, s.recentHits.rate()
	for _, q := range s.in[st] {
		n += int(float64(len(q.tokens)) * (1 - rate))
	}
	return n
}

// uncomputed is the prompt tokens of sequences in prefilling that are not computed yet.
func (s *Scheduler) uncomputed() int {
	n := 0
	for _, q := range s.in[statePrefilling] {
		n += len(q.tokens) - q.computed
	}
	return n
}

// retracted counts the sequences that lost their pages and wait to be computed again. On a unified rank they are part of
// the waiting ones.
func (s *Scheduler) retracted() int {
	n := len(s.in[stateRetracted])
	for _, q := range s.in[stateWaiting] {
		if q.retractions > 0 && len(q.pages) == 0 {
			n++
		}
	}
	return n
}

func tokensOf(l list) int {
	n := 0
	for _, q := range l {
		n += len(q.tokens)
	}
	return n
}
