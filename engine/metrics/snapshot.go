package metrics

import (
	"fmt"
	"strconv"

	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// snapshotGauge is a gauge that reports write.
type snapshotGauge struct {
	series  GaugeSeries
	reports Reports
	read    func(*report.Snapshot) float64
}

// snapshotGauges says where each gauge finds its value in a snapshot.
var snapshotGauges = []struct {
	family *Family
	read   func(*report.Snapshot) float64
}{
	{genThroughput, throughput},
	{cacheHitRate, func(s *report.Snapshot) float64 { return s.CacheHitRate }},
	{sumSeqLens, func(s *report.Snapshot) float64 { return float64(s.DecodeSumSeqLens) }},
	{utilization, func(s *report.Snapshot) float64 { return s.Utilization }},
	{fwdOccupancy, func(s *report.Snapshot) float64 { return s.FwdOccupancy }},
	{newTokenRatio, func(s *report.Snapshot) float64 { return s.NewTokenRatio }},
	{tokenUsage, func(s *report.Snapshot) float64 { return s.TokenUsage }},
	{fullTokenUsage, func(s *report.Snapshot) float64 { return s.FullUsage }},
	{swaTokenUsage, func(s *report.Snapshot) float64 { return s.SWAUsage }},
	{numUsedTokens, func(s *report.Snapshot) float64 { return float64(s.NumUsedTokens) }},
	{kvAvailableTokens, func(s *report.Snapshot) float64 { return float64(s.KVAvailableTokens) }},
	{kvEvictableTokens, func(s *report.Snapshot) float64 { return float64(s.KVEvictableTokens) }},
	{kvUsedTokens, func(s *report.Snapshot) float64 { return float64(s.KVUsedTokens) }},
	{swaAvailable, func(s *report.Snapshot) float64 { return float64(s.SWAAvailableTokens) }},
	{swaEvictable, func(s *report.Snapshot) float64 { return float64(s.SWAEvictableTokens) }},
	{swaUsed, func(s *report.Snapshot) float64 { return float64(s.SWAUsedTokens) }},
	{streamingSessions, func(s *report.Snapshot) float64 { return float64(s.NumStreamingSessions) }},
	{sessionHeldTokens, func(s *report.Snapshot) float64 { return float64(s.StreamingSessionHeldTokens) }},
	{uniqueRoutingKeys, func(s *report.Snapshot) float64 { return float64(s.NumUniqueRunningRoutingKeys) }},
	{numGrammarQueueReqs, func(s *report.Snapshot) float64 { return float64(s.NumGrammarQueueReqs) }},
	{numPausedReqs, func(s *report.Snapshot) float64 { return float64(s.NumPausedReqs) }},
	{numRetractedReqs, func(s *report.Snapshot) float64 { return float64(s.NumRetractedReqs) }},
	{decodeDeferredRelease, func(s *report.Snapshot) float64 { return float64(s.NumDecodeDeferredKVReleaseReqs) }},
	{pendingPrealloc, func(s *report.Snapshot) float64 { return s.PendingPreallocTokenUsage }},
}

// throughput is 0 when idle, whatever the scheduler remembers.
func throughput(s *report.Snapshot) float64 {
	if s.Kind == report.Idle {
		return 0
	}
	return s.GenThroughput
}

// constantGauge is a gauge that is written once.
type constantGauge struct {
	series GaugeSeries
	read   func(*report.Constants) float64
}

const gib = 1 << 30

// constantGauges says where each constant is.
var constantGauges = []struct {
	family *Family
	read   func(*report.Constants) float64
}{
	{maxTotalNumTokens, func(c *report.Constants) float64 { return float64(c.MaxTotalNumTokens) }},
	{maxTotalNumTokensSWA, func(c *report.Constants) float64 { return float64(c.MaxTotalNumTokensSWA) }},
	{maxRunningSLO, func(c *report.Constants) float64 { return float64(c.MaxRunningRequestsUnderSLO) }},
	{pageSize, func(c *report.Constants) float64 { return float64(c.PageSize) }},
	{numPages, func(c *report.Constants) float64 { return float64(c.NumPages) }},
	{contextLen, func(c *report.Constants) float64 { return float64(c.ContextLen) }},
	{weightMemory, func(c *report.Constants) float64 { return float64(c.WeightBytes) / gib }},
	{kvCacheMemory, func(c *report.Constants) float64 { return float64(c.KVBytes) / gib }},
	{startupAvailable, func(c *report.Constants) float64 { return float64(c.AvailableBytes) / gib }},
}

// routingGauge is one bucket of the routing keys by their requests. All buckets are written at once; they don't add up as
// those of a histogram do.
type routingGauge struct {
	series  GaugeSeries
	reports Reports
	counts  func(*report.Snapshot) *report.RoutingKeyCounts
	bucket  int
}

var routingGauges = []struct {
	family *Family
	counts func(*report.Snapshot) *report.RoutingKeyCounts
}{
	{routingKeysRunning, func(s *report.Snapshot) *report.RoutingKeyCounts { return &s.RoutingKeyRunningReqCounts }},
	{routingKeysAll, func(s *report.Snapshot) *report.RoutingKeyCounts { return &s.RoutingKeyAllReqCounts }},
}

// makeGauges makes the gauges of all that this rank has.
func (m *Scheduler) makeGauges(byPriority bool) {
	for _, q := range queueCounts {
		if m.has(q.family) {
			m.queues = append(m.queues, newQueueGauge(m.backend, q.family, m.labels, byPriority, m.budget, q.read))
		}
	}
	for _, g := range snapshotGauges {
		if m.has(g.family) {
			m.gauges = append(m.gauges, snapshotGauge{m.backend.Gauge(g.family, m.labels), g.family.Reports, g.read})
		}
	}
	for _, g := range constantGauges {
		if m.has(g.family) {
			m.constants = append(m.constants, constantGauge{m.backend.Gauge(g.family, m.labels), g.read})
		}
	}
	bounds := report.RoutingKeyBounds()
	for _, g := range routingGauges {
		if !m.has(g.family) {
			continue
		}
		for i := range len(bounds) + 1 {
			gt, le := "0", "+Inf"
			if i > 0 {
				gt = strconv.Itoa(bounds[i-1])
			}
			if i < len(bounds) {
				le = strconv.Itoa(bounds[i])
			}
			series := m.backend.Gauge(g.family, append([]Label{{"gt", gt}, {"le", le}}, m.labels...))
			m.routing = append(m.routing, routingGauge{series, g.family.Reports, g.counts, i})
		}
	}
}

// Started writes the constants.
func (m *Scheduler) Started(c report.Constants) {
	now := m.wall()
	for _, g := range m.constants {
		g.series.Set(g.read(&c), now)
	}
}

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
	m.said = s
	if m.engineType == "prefill" {
		m.said.Utilization = -1
	}
	now := m.wall()
	for i := range m.queues {
		if q := &m.queues[i]; q.family.Reports&kind != 0 {
			q.set(q.read(&m.said), now)
		}
	}
	for i := range m.gauges {
		if g := &m.gauges[i]; g.reports&kind != 0 {
			g.series.Set(g.read(&m.said), now)
		}
	}
	for i := range m.routing {
		if g := &m.routing[i]; g.reports&kind != 0 {
			g.series.Set(float64(g.counts(&m.said)[g.bucket]), now)
		}
	}
}
