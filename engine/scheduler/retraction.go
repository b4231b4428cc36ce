package scheduler

import (
	"cmp"
	"fmt"
	"slices"
)

// RetractionPolicy is the order in which running requests lose their pages when memory is short.
type RetractionPolicy uint8

// The policies.
const (
	RetractByLength   RetractionPolicy = iota // those first whose answer is short and whose prompt is long
	RetractByPriority                         // the least urgent first, and then by length
)

var retractionPolicyNames = [...]string{RetractByLength: "length", RetractByPriority: "priority"}

func (p RetractionPolicy) String() string {
	if int(p) < len(retractionPolicyNames) {
		return retractionPolicyNames[p]
	}
	return fmt.Sprintf("RetractionPolicy(%d)", uint8(p))
}

// ParseRetractionPolicy gives the policy of a name.
func ParseRetractionPolicy(name string) (RetractionPolicy, error) {
	if i := slices.Index(retractionPolicyNames[:], name); i >= 0 {
		return RetractionPolicy(i), nil
	}
	return 0, fmt.Errorf("retraction policy is %q: use length or priority", name)
}

// compare orders running sequences by who is retracted first: by length the one with the shortest answer, which loses the
// least; of those the one with the longest prompt, which frees the most; of those the youngest. It is a total order.
func (p RetractionPolicy) compare(a, b runner) int {
	if p == RetractByPriority {
		if c := cmp.Compare(a.urgency, b.urgency); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(a.generated, b.generated), cmp.Compare(b.prompt, a.prompt), cmp.Compare(b.arrival, a.arrival))
}
