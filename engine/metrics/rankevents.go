package metrics

import (
	"time"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// QueueTime observes the first wait of a request, and where priorities decide once more under its own.
func (m *Scheduler) QueueTime(nanos int64, priority report.Priority) {
	m.queue.Observe(seconds(nanos))
	if m.queueOf.create != nil {
		m.queueOf.get(priority).Observe(seconds(nanos))
	}
}

// StageTime observes a stage that ended.
func (m *Scheduler) StageTime(stage ledger.Stage, nanos int64) {
	if m.stages[stage] == nil {
		m.stages[stage] = m.histogram(stageTime, Label{"stage", stage.String()})
	}
	m.stages[stage].Observe(seconds(nanos))
}

const (
	mib           = 1 << 20
	mibPerGiB     = 1024
	nanosPerMilli = float64(time.Millisecond)
)

// KVTransfer observes a transfer: on a prefill engine one that has ended, on a decode engine, where only the waits are
// known, one that got its pages. A transfer without time has no speed, and without bytes no size.
func (m *Scheduler) KVTransfer(t report.KVTransfer) {
	if t.TotalBytes > 0 && t.LatencyNanos > 0 {
		size := float64(t.TotalBytes) / mib
		m.totalMB.Observe(size)
		m.speed.Observe(size / mibPerGiB / seconds(t.LatencyNanos))
		m.latency.Observe(float64(t.LatencyNanos) / nanosPerMilli)
	}
	m.bootstrap.Observe(float64(max(0, t.BootstrapNanos)) / nanosPerMilli)
	m.allocs.Observe(float64(max(0, t.AllocNanos)) / nanosPerMilli)
}

// KVReleased counts and observes pages that were kept for a transfer.
func (m *Scheduler) KVReleased(outcome report.ReleaseOutcome, nanos int64) {
	m.released[outcome].Add(1)
	m.releases.Observe(seconds(nanos))
}

// BootstrapFailed counts a request whose engines did not meet.
func (m *Scheduler) BootstrapFailed() { m.bootstrapFailed.Add(1) }

// TransferFailed counts a request whose KV did not arrive.
func (m *Scheduler) TransferFailed() { m.transferFailed.Add(1) }

// PrefillRetried counts a prompt that is computed again.
func (m *Scheduler) PrefillRetried() { m.prefillRetries.Add(1) }

// Rejected counts a request that got no place.
func (m *Scheduler) Rejected(reason report.Rejection) { m.rejected[reason].Add(1) }

// Retracted counts one retraction of reqs > 0 requests.
func (m *Scheduler) Retracted(reqs, inputTokens, outputTokens int) {
	if reqs <= 0 {
		return
	}
	m.retractedReqs.Add(float64(reqs))
	m.retractedInput.Add(float64(inputTokens))
	m.retractedOutput.Add(float64(outputTokens))
}

// RealtimeTokens counts the tokens of a step. A mode has a series from its first token on.
func (m *Scheduler) RealtimeTokens(prefillCompute, prefillCache, decode int) {
	m.realtime(&m.prefillCompute, "prefill_compute", prefillCompute)
	m.realtime(&m.prefillCache, "prefill_cache", prefillCache)
	m.realtime(&m.decode, "decode", decode)
}

func (m *Scheduler) realtime(series *CounterSeries, mode string, n int) {
	if n <= 0 {
		return
	}
	if *series == nil {
		*series = m.counter(realTokens, Label{"mode", mode})
	}
	(*series).Add(float64(n))
}

// PrefillTokens counts prompt tokens that were computed or found for the first time.
func (m *Scheduler) PrefillTokens(computed, cached int) {
	m.effectiveInput.Add(float64(computed))
	m.effectiveHit.Add(float64(cached))
}

// Forward counts the device's busy time. A mode has a series from its first step on.
func (m *Scheduler) Forward(mode report.ForwardMode, busyNanos int64) {
	if m.forward[mode] == nil {
		m.forward[mode] = m.counter(forwardExecution, Label{"category", mode.String()})
	}
	m.forward[mode].Add(seconds(busyNanos))
}

// Estimated counts the cost of a step.
func (m *Scheduler) Estimated(c report.Cost) {
	m.flops.Add(c.Flops)
	m.readBytes.Add(c.ReadBytes)
	m.writeBytes.Add(c.WriteBytes)
}

// Evicted counts and observes an eviction.
func (m *Scheduler) Evicted(tokens int, nanos int64) {
	m.evicted.Add(float64(tokens))
	m.eviction.Observe(seconds(nanos))
}

// Grammar counts a request with a grammar.
func (m *Scheduler) Grammar(g report.Grammar) {
	m.grammarTotal.Add(1)
	switch g.Outcome {
	case report.GrammarAborted:
		m.grammarAborted.Add(1)
		return
	case report.GrammarTimedOut:
		m.grammarTimeouts.Add(1)
		return
	case report.GrammarReady:
	}
	if g.CacheHit {
		m.grammarHits.Add(1)
	} else {
		m.grammarCompile.Observe(seconds(g.CompileNanos))
	}
	if g.Schemas > 0 {
		m.grammarSchemas.Observe(float64(g.Schemas))
	}
	m.grammarSize.Observe(float64(g.Size))
}

// GrammarMasks observes how long the masks of a request took.
func (m *Scheduler) GrammarMasks(meanNanos, maxNanos int64) {
	m.maskMean.Observe(seconds(meanNanos))
	m.maskMax.Observe(seconds(maxNanos))
}

// seconds turns whole nanoseconds into seconds.
func seconds(nanos int64) float64 { return float64(nanos) / float64(time.Second) }
