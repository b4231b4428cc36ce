package scheduler

import (
	"math"
	"time"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

const (
	// idleReportAge is the age of the last report at which an idle scheduler reports again.
	idleReportAge = 30 * time.Second
	// throughputAge is the age at which the throughput of the last decode report reads 0.
	throughputAge = 30 * time.Second
	// usageTarget is the share of the pool at which utilization reads 1.
	usageTarget = 0.9
	// noUtilization is the utilization of a prefill rank.
	noUtilization = -1
)

// reported is what the last report said, as far as it decides whether an idle one is due.
type reported struct {
	grammar, running, queued, bootstrap, inflight, prealloc, transfer, held, used, evictable int
	windowUsed, windowEvictable, sessions, sessionTokens                                     int

	generating bool // the throughput was not 0
}

// enter moves a sequence's timeline and tells what ended. Entering the stage that it is in does nothing.
func (s *Scheduler) enter(q *sequence, to ledger.Stage) {
	if q.timeline.Stage() == to {
		return
	}
	slice := q.timeline.Move(to)
	if q.spans != nil {
		q.spans.Slice(slice, to)
	}
	if !q.req.LogMetrics {
		return
	}
	if slice.Observed {
		s.deps.Reporter.StageTime(slice.Stage, slice.Nanos())
	}
	if wait, ok := q.timeline.FirstWait(); ok && !q.waited && to != ledger.StageDone {
		q.waited = true
		s.deps.Reporter.QueueTime(wait, s.priorityOf(q))
	}
}

// lap ends a part of the stage that the sequence is in.
func (s *Scheduler) lap(q *sequence, lap ledger.Stage) {
	slice := q.timeline.Lap(lap)
	if q.spans != nil {
		q.spans.Slice(slice, q.timeline.Stage())
	}
	if slice.Observed && q.req.LogMetrics {
		s.deps.Reporter.StageTime(slice.Stage, slice.Nanos())
	}
}

// lapChunk ends a chunk. What a decode rank recomputes is part of decoding and has no chunks.
func (s *Scheduler) lapChunk(q *sequence) {
	if s.cfg.Role != Decode {
		s.lap(q, ledger.StageChunkedPrefill)
	}
}

// observeEnd tells what a request's end means besides its stages.
func (s *Scheduler) observeEnd(q *sequence, outcome request.Outcome) {
	if !q.req.LogMetrics {
		return
	}
	switch outcome {
	case request.OutcomeBootstrapFailed:
		s.deps.Reporter.BootstrapFailed()
	case request.OutcomeTransferFailed:
		s.deps.Reporter.TransferFailed()
	case request.OutcomePreempted:
		s.observeRejection(q, report.RejectedPreempted)
	case request.OutcomeTimeout:
		if q.state == stateWaiting && (q.hand == nil || q.hand.failed == nil) { // else it is the other engine that rejected it
			s.observeRejection(q, report.RejectedTimeout)
		}
	}
	if q.compilation != nil {
		g := report.Grammar{Outcome: report.GrammarAborted}
		if outcome == request.OutcomeTimeout {
			g.Outcome = report.GrammarTimedOut
		}
		s.deps.Reporter.Grammar(g)
	}
	if n := q.masks.count; n > 0 {
		s.deps.Reporter.GrammarMasks(q.masks.total/n, q.masks.most)
	}
}

// observeRejection tells of a request that got no place in a batch.
func (s *Scheduler) observeRejection(q *sequence, reason report.Rejection) {
	if q.req.LogMetrics {
		s.deps.Reporter.Rejected(reason)
	}
}

// evict makes room in a pool by a function that gives how many pages it freed, and tells how long that took.
func (s *Scheduler) evict(pages int, free func(pages int) int) {
	if pages <= 0 {
		return
	}
	began := s.deps.Clock.Now()
	if freed := free(pages); freed > 0 {
		s.deps.Reporter.Evicted(freed*s.cfg.PageSize, s.deps.Clock.Now().Sub(began))
	}
}

// forwardModes says under which mode the device's time in a batch is told.
var forwardModes = map[batchKind]report.ForwardMode{
	prefillBatch: report.ForwardExtend, decodeBatch: report.ForwardDecode, mixedBatch: report.ForwardMixed,
}

// observeDevice tells how long the device was busy with a step.
func (s *Scheduler) observeDevice(st *launched) {
	if s.deps.Busy == nil {
		return
	}
	s.deps.Reporter.Forward(forwardModes[st.kind], st.busy)
	s.steps.occupancy.add(st.ended, st.busy, s.cfg.DecodeInterval)
}

// report tells what a step did: after every batch with chunks, and after every DecodeInterval batches with decodes.
func (s *Scheduler) report(st *launched) {
	s.deps.Reporter.RealtimeTokens(promptTokens(st.items), st.found.hit, st.decoded)
	s.observeDevice(st)
	if s.deps.Cost != nil {
		s.deps.Reporter.Estimated(s.deps.Cost(st.rows))
	}
	if st.kind.prefills() {
		f := st.found
		s.deps.Reporter.PrefillTokens(f.input-f.reprocessedInput, f.hit-f.reprocessedHit)
		if st.ended.Sub(s.steps.lastDecode) > int64(throughputAge) {
			s.steps.throughput = 0
		}
		snap := s.snapshot(report.Prefill)
		if s.cfg.Role == Prefill {
			snap.NumRunningReqs = s.countItems(st.items)
		}
		s.say(snap, st.ended)
	}
	if st.kind.decodes() && s.steps.decodeSteps%s.cfg.DecodeInterval == 0 {
		if gap := st.ended.Sub(s.steps.lastDecode); gap > 0 {
			s.steps.throughput = float64(s.steps.decodedSince) / (float64(gap) / float64(time.Second))
		}
		s.steps.decodedSince = 0
		s.steps.lastDecode = st.ended
		s.steps.sumSeqLens = sumSeqLens(st)
		s.countRoutingKeys()
		s.say(s.snapshot(report.Decode), st.ended)
	}
}

// reportIdle tells that nothing is computed, when that is news or old.
func (s *Scheduler) reportIdle(now ledger.Instant) {
	s.steps.throughput = 0
	occupied := s.steps.occupancy.known()
	s.steps.occupancy.reset()
	snap := s.snapshot(report.Idle)
	if !occupied && summarize(snap) == s.said && now.Sub(s.steps.lastReport) <= int64(idleReportAge) {
		return
	}
	s.say(snap, now)
}

func (s *Scheduler) say(snap report.Snapshot, now ledger.Instant) {
	s.audit()
	s.said = summarize(snap)
	s.steps.lastReport = now
	if snap.Kind != report.Idle {
		s.steps.retractedReqs = 0
	}
	s.deps.Reporter.Report(snap)
}

func summarize(snap report.Snapshot) reported {
	return reported{
		grammar: snap.NumGrammarQueueReqs, running: snap.NumRunningReqs.Total, queued: snap.NumQueueReqs.Total,
		bootstrap: snap.NumPrefillBootstrapQueueReqs.Total, inflight: snap.NumPrefillInflightQueueReqs.Total,
		prealloc: snap.NumDecodePreallocQueueReqs.Total, transfer: snap.NumDecodeTransferQueueReqs.Total,
		windowUsed: snap.SWAUsedTokens, windowEvictable: snap.SWAEvictableTokens,
		sessions: snap.NumStreamingSessions, sessionTokens: snap.StreamingSessionHeldTokens,
		held: snap.NumDecodeDeferredKVReleaseReqs, used: snap.NumUsedTokens, evictable: snap.KVEvictableTokens, generating: snap.GenThroughput != 0,
	}
}

// sumSeqLens is the tokens with KV of the sequences that a step decoded.
func sumSeqLens(st *launched) (tokens int) {
	for at, i := range st.items {
		if i.decode {
			tokens += st.rows[at].Start + i.n
		}
	}
	return tokens
}

// running counts the sequences that run or compute their prompt.
func (s *Scheduler) running() int { return len(s.in[stateRunning]) + len(s.in[statePrefilling]) }

// constants gives what never changes.
func (s *Scheduler) constants() report.Constants {
	st := s.pool.Stats()
	c := report.Constants{
		PageSize: s.cfg.PageSize, NumPages: st.Capacity / s.cfg.PageSize, MaxTotalNumTokens: st.Capacity, ContextLen: s.cfg.ContextLength,
		MaxRunningRequestsUnderSLO: s.cfg.MaxRunningUnderSLO,
		WeightBytes:                s.cfg.WeightBytes, KVBytes: s.cfg.KVBytes, AvailableBytes: s.cfg.AvailableBytes,
	}
	if s.windowed() {
		c.MaxTotalNumTokensSWA = s.window.Stats().Capacity
	}
	return c
}

// snapshot reads the state.
func (s *Scheduler) snapshot(kind report.Kind) report.Snapshot {
	st := s.pool.Stats()
	snap := report.Snapshot{
		Kind:                kind,
		NumRunningReqs:      s.count(stateRunning, statePrefilling),
		NumQueueReqs:        s.count(stateWaiting),
		NumGrammarQueueReqs: len(s.in[stateCompiling]),
		NumPausedReqs:       s.pausedInPlace(),
		KVAvailableTokens:   st.Available,
		KVEvictableTokens:   st.Evictable,
		KVUsedTokens:        st.Unavailable(),
		MaxTotalNumTokens:   st.Capacity,
		GenThroughput:       s.steps.throughput,
		CacheHitRate:        s.steps.hitRate,

		NumPrefillBootstrapQueueReqs: s.count(stateBootstrapping),
		NumPrefillInflightQueueReqs:  s.count(stateInflight),
		NumDecodePreallocQueueReqs:   s.count(statePreallocating),
		NumDecodeTransferQueueReqs:   s.count(stateTransferring),
		NumRetractedReqs:             s.steps.retractedReqs,
		MaxRunningRequestsUnderSLO:   s.cfg.MaxRunningUnderSLO,

		DecodeSumSeqLens:            s.steps.sumSeqLens,
		NewTokenRatio:               float64(s.reserve.ratio) / million,
		FwdOccupancy:                s.steps.occupancy.percent,
		NumUniqueRunningRoutingKeys: s.steps.routing.unique,
		RoutingKeyRunningReqCounts:  s.steps.routing.running,
		RoutingKeyAllReqCounts:      s.steps.routing.all,
	}
	if s.cfg.Role == Decode {
		for _, h := range s.held {
			if h.hand != nil && !s.settledHand(h.hand) {
				snap.NumDecodeDeferredKVReleaseReqs++
			}
		}
	}
	snap.FullUsage, _ = usageOf(st)
	share, used := s.usage()
	snap.TokenUsage, snap.NumUsedTokens = round(share, 2), used
	if s.windowed() {
		w := s.window.Stats()
		snap.SWAAvailableTokens, snap.SWAEvictableTokens, snap.SWAUsedTokens = w.Available, w.Evictable, w.Unavailable()
		snap.SWAUsage, _ = usageOf(w)
	}
	snap.StreamingSessionHeldTokens, snap.NumStreamingSessions = s.heldBySessions()
	snap.Utilization = s.utilization(snap.TokenUsage)
	pending := 0
	for _, q := range s.in[statePreallocating] {
		pending += q.prompt
	}
	snap.PendingPreallocTokenUsage = float64(pending) / float64(st.Capacity)
	return snap
}

// utilization is the fuller of running places and KV memory, noUtilization on a prefill rank. It can exceed 1.
func (s *Scheduler) utilization(tokenUsage float64) float64 {
	if s.cfg.Role == Prefill {
		return noUtilization
	}
	return max(float64(s.running())/float64(s.cfg.MaxRunningUnderSLO), tokenUsage/usageTarget)
}

// round gives v with so many decimals.
func round(v float64, decimals int) float64 {
	scale := math.Pow10(decimals)
	return math.Round(v*scale) / scale
}
