// Package report holds what a scheduler tells about itself: typed events and snapshots, plain data.
// The scheduler emits them, engine/metrics listens. It imports the ledger for stage names and nothing else.
package report

import "strconv"

// Kind says what made the scheduler report.
type Kind int

// The kinds.
const (
	Prefill Kind = iota // a prefill batch was computed
	Decode              // decode_log_interval decode steps were computed since the last one
	Idle                // nothing runs any more, or nothing ran for 30 s
)

func (k Kind) String() string {
	switch k {
	case Prefill:
		return "prefill"
	case Decode:
		return "decode"
	case Idle:
		return "idle"
	default:
		return "unknown"
	}
}

// Snapshot is the state of a scheduler at a report. Fields are named after the metric families. Every field is filled at
// every report, with the value that the family keeps when this kind of report does not change it.
type Snapshot struct {
	Kind Kind

	NumRunningReqs      QueueCount // on a prefill engine the size of the batch just computed
	NumQueueReqs        QueueCount // waiting queue alone
	NumGrammarQueueReqs int        // requests whose grammar is being compiled
	NumPausedReqs       int        // requests that keep their place and their KV through a pause

	// KVAvailableTokens + KVEvictableTokens + KVUsedTokens = MaxTotalNumTokens.
	NumUsedTokens     int // of the pool that has the most
	KVAvailableTokens int
	KVEvictableTokens int
	KVUsedTokens      int
	MaxTotalNumTokens int

	// The pool of sliding-window layers, all 0 without such layers. SWAAvailableTokens + SWAEvictableTokens + SWAUsedTokens is
	// its capacity.
	SWAAvailableTokens int
	SWAEvictableTokens int
	SWAUsedTokens      int
	SWAUsage           float64 // used / capacity

	// Streaming sessions, and the tokens that nothing but those without a turn under way keeps: a part of KVUsedTokens.
	NumStreamingSessions       int
	StreamingSessionHeldTokens int

	TokenUsage    float64 // of the fullest pool, rounded to 2 decimals
	FullUsage     float64 // used / capacity of the full pool
	GenThroughput float64 // tokens per second
	Utilization   float64 // -1 on a prefill engine
	CacheHitRate  float64 // of the last prefill report

	DecodeSumSeqLens int     // tokens with KV of the sequences in the batch of the last decode report
	NewTokenRatio    float64 // (0, 1]: the part of the tokens that requests may still generate for which admission keeps room
	FwdOccupancy     float64 // percent of the wall time that the device was busy, at most 100; NaN while unknown

	// Of the last decode report at which every running request had a routing key.
	NumUniqueRunningRoutingKeys int
	RoutingKeyRunningReqCounts  RoutingKeyCounts // keys by their running requests
	RoutingKeyAllReqCounts      RoutingKeyCounts // keys by their running and waiting requests

	NumPrefillBootstrapQueueReqs   QueueCount
	NumPrefillInflightQueueReqs    QueueCount
	NumDecodePreallocQueueReqs     QueueCount
	NumDecodeTransferQueueReqs     QueueCount
	NumDecodeHostReceiveQueueReqs  QueueCount // always 0: no host staging
	NumDecodeDeferredKVReleaseReqs int        // ended requests whose pages a transfer may still touch
	NumRetractedReqs               int        // of the last retraction since the report before
	MaxRunningRequestsUnderSLO     int
	PendingPreallocTokenUsage      float64 // tokens of the prealloc queue / capacity
}

// QueueCount is the length of a queue. Invariant: ByPriority is nil, or its counts sum to Total.
type QueueCount struct {
	Total      int
	ByPriority []PriorityCount // nil unless priorities decide; ascending by Priority, the unset one first, each once
}

// PriorityCount is the number of requests of one priority, more than 0.
type PriorityCount struct {
	Priority Priority
	Count    int
}

// Priority is a request's priority, or the lack of one.
type Priority struct {
	Set   bool
	Value int // 0 when not Set
}

// String is the number, or "none".
func (p Priority) String() string {
	if !p.Set {
		return "none"
	}
	return strconv.Itoa(p.Value)
}

var routingKeyBounds = [...]int{1, 2, 3, 5, 7, 10, 20, 50, 100, 200}

// RoutingKeyBounds gives the bounds of RoutingKeyCounts: element i counts keys with more requests than bound i-1 (0 for the
// first) and at most bound i; the last element those above all bounds.
func RoutingKeyBounds() [len(routingKeyBounds)]int { return routingKeyBounds }

// RoutingKeyCounts is the number of routing keys by how many requests they have.
type RoutingKeyCounts [len(routingKeyBounds) + 1]int

// Add counts a key with so many requests, at least one.
func (c *RoutingKeyCounts) Add(requests int) {
	at := 0
	for at < len(routingKeyBounds) && requests > routingKeyBounds[at] {
		at++
	}
	c[at]++
}
