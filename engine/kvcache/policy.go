package kvcache

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Policy says which cached pages go first. Pages that others build on never go before those.
type Policy uint8

// The policies.
const (
	LRU      Policy = iota // what was not used for the longest time
	LFU                    // what was used the fewest times, of that the least recent
	FIFO                   // what was cached first
	MRU                    // what was used last
	FILO                   // what was cached last
	Priority               // what the requests of the lowest priority used, of that the least recent
	SLRU                   // what was used once before what was used again, of each the least recent
)

var policyNames = [...]string{LRU: "lru", LFU: "lfu", FIFO: "fifo", MRU: "mru", FILO: "filo", Priority: "priority", SLRU: "slru"}

func (p Policy) String() string {
	if int(p) < len(policyNames) {
		return policyNames[p]
	}
	return fmt.Sprintf("Policy(%d)", uint8(p))
}

// ParsePolicy gives the policy of a name.
func ParsePolicy(name string) (Policy, error) {
	if i := slices.Index(policyNames[:], name); i >= 0 {
		return Policy(i), nil
	}
	return 0, fmt.Errorf("eviction policy is %q: use one of %s", name, strings.Join(policyNames[:], ", "))
}

// age is what the policies look at. Times are ticks of the tree's own clock, which every access advances, so that ranks
// that make the same calls evict the same pages.
type age struct {
	used     uint64 // the last access
	created  uint64
	hits     uint64 // accesses, the first included
	priority int    // the highest of the requests that used it
}

// compare orders ages: what goes first is less. Two nodes that nobody builds on never have equal ages, because the nodes of
// one access lie on one path.
func (p Policy) compare(a, b age) int {
	switch p {
	case LFU:
		return cmp.Or(cmp.Compare(a.hits, b.hits), cmp.Compare(a.used, b.used))
	case FIFO:
		return cmp.Compare(a.created, b.created)
	case MRU:
		return cmp.Compare(b.used, a.used)
	case FILO:
		return cmp.Compare(b.created, a.created)
	case Priority:
		return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.used, b.used))
	case SLRU:
		return cmp.Or(cmp.Compare(min(a.hits, 2), min(b.hits, 2)), cmp.Compare(a.used, b.used))
	default:
		return cmp.Compare(a.used, b.used)
	}
}
