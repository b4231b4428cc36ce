package scheduler

import (
	"cmp"
	"fmt"
	"slices"
)

// Policy is the order in which waiting requests are considered.
type Policy uint8

// The policies. With priority scheduling both order the requests of one priority only.
const (
	FCFS Policy = iota // in order of arrival
	LPM                // longest cached prefix first
)

var policyNames = [...]string{FCFS: "fcfs", LPM: "lpm"}

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
	return 0, fmt.Errorf("schedule policy is %q: use fcfs or lpm", name)
}

const (
	// lpmQueueLimit is the length of a queue beyond which LPM orders by arrival: matching every prefix would cost more
	// than it saves.
	lpmQueueLimit = 128

	// sharedPrefix is the tokens that make two waiting prompts alike: of those that begin so and find no more than this in
	// the cache only the first is considered, so that the others find its prefix in the cache.
	sharedPrefix = 32

	// patienceRequests bounds how often LPM lets later requests of the same priority overtake one. It comes first then.
	patienceRequests = 128
)

// waiter is what the order of the queue looks at.
type waiter struct {
	arrival   int64 // of the request, unique
	urgency   urgency
	retracted bool // ran before, and then has part of its answer
	cached    int  // tokens found in the cache
	alike     bool // one that is computed or considered before it begins with the same tokens, and the cache has few of them
	overtaken int  // later requests of the same urgency that were admitted before it
}

// queueOrder compares waiters of a queue; it is a total order. The more urgent come first, of those the ones that ran
// before, and then what the policy prefers. Nobody starves among equals: FCFS lets none overtake, and LPM at most
// patienceRequests.
func queueOrder(p Policy) func(a, b waiter) int {
	return func(a, b waiter) int {
		if c := cmp.Or(cmp.Compare(b.urgency, a.urgency), falseFirst(!a.retracted, !b.retracted)); c != 0 {
			return c
		}
		if p == LPM {
			worn := func(w waiter) bool { return w.overtaken >= patienceRequests }
			if c := falseFirst(!worn(a), !worn(b)); c != 0 {
				return c
			}
			if !worn(a) {
				if c := cmp.Or(falseFirst(a.alike, b.alike), cmp.Compare(b.cached, a.cached)); c != 0 {
					return c
				}
			}
		}
		return cmp.Compare(a.arrival, b.arrival)
	}
}

// active is the policy that a queue of n requests gets.
func (p Policy) active(n int) Policy {
	if p == LPM && n > lpmQueueLimit {
		return FCFS
	}
	return p
}

func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// prompt is what marks waiting prompts as alike.
type prompt struct {
	key    string  // prompts of different keys share nothing
	tokens []int32 // of the prompt and the answer so far
	cached int     // tokens found in the cache
}

// markAlike says for each prompt, in the order in which they are considered, whether an earlier one begins with the same
// sharedPrefix tokens, while the cache has no more than these of it.
func markAlike(prompts []prompt) []bool {
	type begin struct {
		key    string
		tokens [sharedPrefix]int32
	}
	seen := make(map[begin]bool, len(prompts)) // only looked up, never ranged over
	marks := make([]bool, len(prompts))
	for i, p := range prompts {
		if p.cached > sharedPrefix || len(p.tokens) < sharedPrefix {
			continue
		}
		b := begin{key: p.key, tokens: [sharedPrefix]int32(p.tokens)}
		marks[i] = seen[b]
		seen[b] = true
	}
	return marks
}
