package metrics

import (
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// RankLabels are the labels of every family of one rank.
type RankLabels struct {
	ModelName  string // as served
	EngineType string // prefill, decode, unified or dynamic
	TPRank     int
	PPRank     int
	MoEEPRank  int
	Priority   bool              // priority scheduling is on: the label priority is there, empty on totals
	DPRank     *int              // nil: the replica has no data-parallel ranks
	Extra      map[string]string // --extra-metric-labels; they win over the ones above
}

func (l RankLabels) list() []Label {
	labels := []Label{
		{"model_name", l.ModelName}, {"engine_type", l.EngineType}, {"tp_rank", strconv.Itoa(l.TPRank)},
		{"pp_rank", strconv.Itoa(l.PPRank)}, {"moe_ep_rank", strconv.Itoa(l.MoEEPRank)},
	}
	if l.Priority {
		labels = append(labels, Label{priorityLabel, ""})
	}
	if l.DPRank != nil {
		labels = append(labels, Label{"dp_rank", strconv.Itoa(*l.DPRank)})
	}
	return override(labels, l.Extra)
}

// priorityLabel is empty on totals; the samples of the single priorities repeat what the totals count.
const priorityLabel = "priority"

// override gives labels with extra ones, which replace those of the same name.
func override(labels []Label, extra map[string]string) []Label {
	out := make([]Label, 0, len(labels)+len(extra))
	for _, l := range labels {
		if _, replaced := extra[l.Name]; !replaced {
			out = append(out, l)
		}
	}
	for name, value := range extra {
		out = append(out, Label{name, value})
	}
	return out
}

// Scheduler writes what one scheduler reports. Its methods are for the scheduler's goroutine, allocate nothing once their
// series exist, and never block.
type Scheduler struct {
	backend    Backend
	engineType string
	labels     []Label
	wall       func() int64

	laws
	gauges []snapshotGauge
	queues []queueGauge

	retractedReqs, retractedInput, retractedOutput CounterSeries // nil where the engine type has none
	bootstrapFailed, transferFailed                CounterSeries
	prefillCompute, prefillCache, decode           CounterSeries // made at their first token

	queue                                      HistogramSeries
	stages                                     []HistogramSeries // by ledger.Stage, made at their first sample
	speed, latency, totalMB, bootstrap, allocs HistogramSeries
}

var _ report.Reporter = (*Scheduler)(nil)

// snapshotGauge is a gauge that reports write.
type snapshotGauge struct {
	series  GaugeSeries
	reports Reports
	read    func(report.Snapshot) float64
}

// snapshotGauges says where each gauge finds its value in a snapshot.
var snapshotGauges = []struct {
	family *Family
	read   func(report.Snapshot) float64
}{
	{genThroughput, throughput},
	{cacheHitRate, func(s report.Snapshot) float64 { return s.CacheHitRate }},
	{utilization, func(s report.Snapshot) float64 { return s.Utilization }},
	{tokenUsage, func(s report.Snapshot) float64 { return s.TokenUsage }},
	{fullTokenUsage, func(s report.Snapshot) float64 { return s.FullUsage }},
	{numUsedTokens, func(s report.Snapshot) float64 { return float64(s.NumUsedTokens) }},
	{kvAvailableTokens, func(s report.Snapshot) float64 { return float64(s.KVAvailableTokens) }},
	{kvEvictableTokens, func(s report.Snapshot) float64 { return float64(s.KVEvictableTokens) }},
	{kvUsedTokens, func(s report.Snapshot) float64 { return float64(s.KVUsedTokens) }},
	{maxTotalNumTokens, func(s report.Snapshot) float64 { return float64(s.MaxTotalNumTokens) }},
	{maxRunningSLO, func(s report.Snapshot) float64 { return float64(s.MaxRunningRequestsUnderSLO) }},
	{numGrammarQueueReqs, func(s report.Snapshot) float64 { return float64(s.NumGrammarQueueReqs) }},
	{numPausedReqs, func(s report.Snapshot) float64 { return float64(s.NumPausedReqs) }},
	{numRetractedReqs, func(s report.Snapshot) float64 { return float64(s.NumRetractedReqs) }},
	{decodeDeferredRelease, func(s report.Snapshot) float64 { return float64(s.NumDecodeDeferredKVReleaseReqs) }},
	{pendingPrealloc, func(s report.Snapshot) float64 { return s.PendingPreallocTokenUsage }},
}

// throughput is 0 when idle, whatever the scheduler remembers.
func throughput(s report.Snapshot) float64 {
	if s.Kind == report.Idle {
		return 0
	}
	return s.GenThroughput
}

// NewScheduler makes the series of a rank in the backend: those that its engine type has. clock tells the wall time of
// gauges, which decides which process wrote last.
func NewScheduler(backend Backend, labels RankLabels, clock ledger.Clock) *Scheduler {
	m := &Scheduler{
		backend: backend, engineType: labels.EngineType, labels: labels.list(), laws: newLaws(backend),
		wall:   func() int64 { return clock.Wall(clock.Now()) },
		stages: make([]HistogramSeries, len(ledger.Stages())+1),
	}
	_, overridden := labels.Extra[priorityLabel]
	for _, q := range queueCounts {
		if q.family.Engines.Has(m.engineType) {
			m.queues = append(m.queues, newQueueGauge(m.backend, q.family, m.labels, labels.Priority && !overridden, q.read))
		}
	}
	for _, g := range snapshotGauges {
		if g.family.Engines.Has(m.engineType) {
			m.gauges = append(m.gauges, snapshotGauge{m.backend.Gauge(g.family, m.labels), g.family.Reports, g.read})
		}
	}
	m.retractedReqs, m.retractedInput, m.retractedOutput = m.counter(numRetractedRequests), m.counter(numRetractedInputTokens), m.counter(numRetractedOutputTokens)
	m.bootstrapFailed, m.transferFailed = m.counter(bootstrapFailed), m.counter(transferFailed)
	m.queue = m.histogram(queueTime)
	m.speed, m.latency, m.totalMB = m.histogram(kvTransferSpeed), m.histogram(kvTransferLatency), m.histogram(kvTransferTotal)
	m.bootstrap, m.allocs = m.histogram(kvTransferBootstrap), m.histogram(kvTransferAlloc)
	return m
}

// counter gives the series of a family, or nothing where the engine type has none.
func (m *Scheduler) counter(f *Family, labels ...Label) CounterSeries {
	if !f.Engines.Has(m.engineType) {
		return nothing{}
	}
	return m.backend.Counter(f, append(labels, m.labels...))
}

func (m *Scheduler) histogram(f *Family, labels ...Label) HistogramSeries {
	if !f.Engines.Has(m.engineType) {
		return nothing{}
	}
	return m.backend.Histogram(f, append(labels, m.labels...), nil)
}

// nothing takes updates of families that the engine type does not have.
type nothing struct{}

func (nothing) Add(float64)                     {}
func (nothing) Observe(float64)                 {}
func (nothing) ObserveWeighted(float64, uint64) {}

// Report writes the gauges that a report of this kind owns; the others keep their values.
func (m *Scheduler) Report(s report.Snapshot) {
	var kind Reports
	switch s.Kind {
	case report.Prefill:
		kind = OnPrefillReport
	case report.Decode:
		kind = OnDecodeReport
	case report.Idle:
		kind = OnIdleReport
	default:
		panic(fmt.Sprintf("metrics: report of kind %d", s.Kind))
	}
	if m.engineType == "prefill" {
		s.Utilization = -1
	}
	now := m.wall()
	for i := range m.queues {
		if q := &m.queues[i]; q.family.Reports&kind != 0 {
			q.set(q.read(s), now)
		}
	}
	for i := range m.gauges {
		if g := &m.gauges[i]; g.reports&kind != 0 {
			g.series.Set(g.read(s), now)
		}
	}
}

// QueueTime observes the first wait of a request.
func (m *Scheduler) QueueTime(nanos int64) { m.queue.Observe(seconds(nanos)) }

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

// BootstrapFailed counts a request whose engines did not meet.
func (m *Scheduler) BootstrapFailed() { m.bootstrapFailed.Add(1) }

// TransferFailed counts a request whose KV did not arrive.
func (m *Scheduler) TransferFailed() { m.transferFailed.Add(1) }

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

// seconds turns whole nanoseconds into seconds.
func seconds(nanos int64) float64 { return float64(nanos) / float64(time.Second) }
