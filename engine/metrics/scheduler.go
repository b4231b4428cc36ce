package metrics

import (
	"slices"
	"strconv"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// RankLabels are the labels of every family of one rank, and what decides which families it has.
type RankLabels struct {
	ModelName  string // as served
	EngineType string // prefill, decode, unified or dynamic
	TPRank     int
	PPRank     int
	MoEEPRank  int
	Priority   bool              // priority scheduling is on: the label priority is there, empty on totals
	DPRank     *int              // nil: the replica has no data-parallel ranks
	Extra      map[string]string // --extra-metric-labels; they win over the ones above
	MaxValues  int               // --metrics-max-label-values: priorities; 0: DefaultLabelValues

	Features        Features  // besides what the engine type has
	EvictionBuckets []float64 // SGLANG_BUCKET_EVICTION_DURATION; nil: the built-in ones
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

// cache gives the labels of the prefix cache: always with a DP rank, and without the model's.
func (l RankLabels) cache() []Label {
	dpRank := 0
	if l.DPRank != nil {
		dpRank = *l.DPRank
	}
	kind := "RadixCache"
	if l.Features.Has(WithSlidingWindow) {
		kind = "SWARadixCache"
	}
	return override([]Label{
		{"cache_type", kind}, {"tp_rank", strconv.Itoa(l.TPRank)}, {"pp_rank", strconv.Itoa(l.PPRank)}, {"dp_rank", strconv.Itoa(dpRank)},
	}, l.Extra)
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
	features   Features
	labels     []Label
	wall       func() int64
	budget     *budget

	laws
	moves
	said      report.Snapshot // the last one, from which the gauges read
	gauges    []snapshotGauge
	queues    []queueGauge
	routing   []routingGauge
	constants []constantGauge
	loop      loopCounters

	retractedReqs, retractedInput, retractedOutput CounterSeries
	bootstrapFailed, transferFailed                CounterSeries
	prefillRetries                                 CounterSeries
	rejected                                       []CounterSeries // by report.Rejection
	prefillCompute, prefillCache, decode           CounterSeries   // made at their first token
	effectiveInput, effectiveHit                   CounterSeries
	forward                                        []CounterSeries // by report.ForwardMode, made at their first step
	flops, readBytes, writeBytes                   CounterSeries
	evicted                                        CounterSeries
	released                                       []CounterSeries // by report.ReleaseOutcome

	grammarTotal, grammarHits, grammarAborted, grammarTimeouts CounterSeries
	grammarCompile, grammarSchemas, grammarSize                HistogramSeries
	maskMean, maskMax                                          HistogramSeries

	queue                                      HistogramSeries
	queueOf                                    priorities[HistogramSeries]
	stages                                     []HistogramSeries // by ledger.Stage, made at their first sample
	speed, latency, totalMB, bootstrap, allocs HistogramSeries
	releases, eviction                         HistogramSeries
}

var _ report.Reporter = (*Scheduler)(nil)

// NewScheduler makes the series of a rank in the backend: those that its engine type and features have. clock tells the
// wall time of gauges, which decides which process wrote last.
func NewScheduler(backend Backend, labels RankLabels, clock ledger.Clock) *Scheduler {
	m := &Scheduler{
		backend: backend, engineType: labels.EngineType, features: labels.Features, labels: labels.list(), laws: newLaws(backend),
		moves:   newMoves(backend, labels.EngineType),
		wall:    func() int64 { return clock.Wall(clock.Now()) },
		budget:  newBudget(backend, labels.MaxValues),
		stages:  make([]HistogramSeries, len(ledger.Stages())+1),
		forward: make([]CounterSeries, len(report.ForwardModes())),
	}
	_, overridden := labels.Extra[priorityLabel]
	m.makeGauges(labels.Priority && !overridden)
	m.loop = newLoopCounters(m)

	m.retractedReqs, m.retractedInput, m.retractedOutput = m.counter(numRetractedRequests), m.counter(numRetractedInputTokens), m.counter(numRetractedOutputTokens)
	m.bootstrapFailed, m.transferFailed, m.prefillRetries = m.counter(bootstrapFailed), m.counter(transferFailed), m.counter(prefillRetries)
	for _, r := range report.Rejections() {
		m.rejected = append(m.rejected, m.counter(rejectedRequests, Label{"reason", r.String()}))
	}
	for _, o := range report.ReleaseOutcomes() {
		m.released = append(m.released, m.counter(deferredReleases, Label{"outcome", o.String()}))
	}
	effective := func(mode string) CounterSeries { return m.counter(prefillEffective, Label{"mode", mode}) }
	m.effectiveInput, m.effectiveHit = effective("input"), effective("device_hit")
	effective("host_hit") // there is no cache but the device's
	effective("storage_hit")
	m.flops, m.readBytes, m.writeBytes = m.counter(estimatedFlops), m.counter(estimatedRead), m.counter(estimatedWrite)

	m.grammarTotal, m.grammarHits = m.counter(grammarTotal), m.counter(grammarCacheHit)
	m.grammarAborted, m.grammarTimeouts = m.counter(grammarAborted), m.counter(grammarTimeout)
	m.grammarCompile, m.grammarSchemas, m.grammarSize = m.histogram(grammarCompile), m.histogram(grammarSchemaCount), m.histogram(grammarSize)
	m.maskMean, m.maskMax = m.histogram(grammarMaskMean), m.histogram(grammarMaskMax)

	m.queue = m.histogram(queueTime)
	if labels.Priority && !overridden {
		m.budget.watch(queueTime)
		m.queueOf = priorities[HistogramSeries]{budget: m.budget, family: queueTime, create: func(priority string) HistogramSeries {
			return backend.Histogram(queueTime, relabelled(m.labels, priorityLabel, priority), nil)
		}}
	}
	m.speed, m.latency, m.totalMB = m.histogram(kvTransferSpeed), m.histogram(kvTransferLatency), m.histogram(kvTransferTotal)
	m.bootstrap, m.allocs, m.releases = m.histogram(kvTransferBootstrap), m.histogram(kvTransferAlloc), m.histogram(deferredRelease)
	m.evicted, m.eviction = nothing{}, nothing{}
	if m.has(evictedTokens) {
		m.evicted = backend.Counter(evictedTokens, labels.cache())
		m.eviction = backend.Histogram(evictionDuration, labels.cache(), labels.EvictionBuckets)
	}
	return m
}

// has reports whether this rank has a family.
func (m *Scheduler) has(f *Family) bool {
	return f.Engines.Has(m.engineType) && m.features.Has(f.Needs)
}

// counter gives the series of a family, or one that forgets where the rank has none.
func (m *Scheduler) counter(f *Family, labels ...Label) CounterSeries {
	if !m.has(f) {
		return nothing{}
	}
	return m.backend.Counter(f, append(labels, m.labels...))
}

func (m *Scheduler) histogram(f *Family, labels ...Label) HistogramSeries {
	if !m.has(f) {
		return nothing{}
	}
	return m.backend.Histogram(f, append(labels, m.labels...), nil)
}

// nothing takes updates of families that the rank does not have.
type nothing struct{}

func (nothing) Add(float64)                     {}
func (nothing) Observe(float64)                 {}
func (nothing) ObserveWeighted(float64, uint64) {}

// relabelled gives labels with another value of one.
func relabelled(labels []Label, name, value string) []Label {
	own := slices.Clone(labels)
	for i := range own {
		if own[i].Name == name {
			own[i].Value = value
		}
	}
	return own
}
