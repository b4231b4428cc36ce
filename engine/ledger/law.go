package ledger

import "fmt"

// Law is a conservation law: an equation between counts or times that must hold whatever happens. docs/ledger.md explains
// each under its number; whoever keeps the sums checks it while the engine runs.
type Law uint8

// The laws, by number.
const (
	// LawPages is E1: for each pool of KV pages free + evictable + used + reserved = capacity.
	LawPages Law = iota + 1
	// LawPromptTokens is E2: of each request prompt tokens = computed + found in a cache.
	LawPromptTokens
	// LawOutcomes is E3: requests submitted = Σ requests ended, over outcomes + requests in flight.
	LawOutcomes
	// LawStages is E4: of each request Σ stage times = end-to-end time, in whole nanoseconds.
	LawStages
	// LawKVBytes is E5: of each hand-over KV bytes sent = KV bytes received.
	LawKVBytes
	// LawSchedulerTime is E6: Σ scheduler stage times = wall time of the scheduler's loop, in whole nanoseconds.
	LawSchedulerTime

	numLaws
)

// LawInfo is one row of the table of laws.
type LawInfo struct {
	Law      Law
	Name     string // the label `law`
	Equation string
}

var lawTable = [...]LawInfo{
	{LawPages, "kv_pages", "available + evictable + used + reserved = capacity"},
	{LawPromptTokens, "prompt_tokens", "prompt = computed + cached"},
	{LawOutcomes, "outcomes", "submitted = Σ ended by outcome + in flight"},
	{LawStages, "stages", "Σ stages = end to end"},
	{LawKVBytes, "kv_bytes", "sent = received"},
	{LawSchedulerTime, "scheduler_time", "Σ scheduler stages = wall"},
}

// Laws gives the table of laws by number: row i is E(i+1).
func Laws() []LawInfo { return append([]LawInfo(nil), lawTable[:]...) }

// String gives the law's name as exposed.
func (l Law) String() string {
	if l > 0 && l < numLaws {
		return lawTable[l-1].Name
	}
	return fmt.Sprintf("Law(%d)", uint8(l))
}

// Number gives the law's number in docs/ledger.md, such as "E1".
func (l Law) Number() string { return fmt.Sprintf("E%d", uint8(l)) }
