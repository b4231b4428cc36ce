package dp

import (
	"fmt"
	"strings"

	"github.com/sluice-dev/sluice/engine/rank"
)

// Method is how the controller chooses the DP rank of a request that names none.
type Method string

// The methods.
const (
	Auto                Method = "auto"           // FollowBootstrapRoom on a prefill engine, else RoundRobin
	RoundRobin          Method = "round_robin"    // one after the other
	FollowBootstrapRoom Method = rank.FollowRoom  // bootstrap_room modulo the number of DP ranks, so that the PD peer knows it
	TotalRequests       Method = "total_requests" // the fewest requests that live
	TotalTokens         Method = "total_tokens"   // the fewest tokens, prompts and answers so far, of requests that live
)

// shortestQueue is the older name of TotalRequests.
const shortestQueue = "shortest_queue"

// Methods are the names that ParseMethod takes.
func Methods() []string {
	return []string{string(Auto), string(RoundRobin), string(FollowBootstrapRoom), string(TotalRequests), shortestQueue, string(TotalTokens)}
}

// ParseMethod reads the name of a method; empty is Auto.
func ParseMethod(name string) (Method, error) {
	switch m := Method(name); m {
	case "":
		return Auto, nil
	case Auto, RoundRobin, FollowBootstrapRoom, TotalRequests, TotalTokens:
		return m, nil
	case shortestQueue:
		return TotalRequests, nil
	default:
		return "", fmt.Errorf("%q is no method: use one of %s", name, strings.Join(Methods(), ", "))
	}
}

// Resolve gives what Auto means on an engine of this mode.
func (m Method) Resolve(mode rank.Mode) Method {
	switch {
	case m != Auto && m != "":
		return m
	case mode == rank.ModePrefill:
		return FollowBootstrapRoom
	default:
		return RoundRobin
	}
}

// load is what one DP rank has to do at the moment of a choice.
type load struct {
	requests int // that live
	tokens   int // of their prompts, and of their answers so far
}

// choose gives the DP rank for the next request: a function of its arguments alone. first is the DP rank whose turn it
// is; the search begins there, so that equals take turns. 0 <= first < len(loads).
func choose(m Method, loads []load, first int, room int64) int {
	switch m {
	case FollowBootstrapRoom:
		n := int64(len(loads))
		return int((room%n + n) % n)
	case TotalRequests:
		return least(loads, first, func(a, b load) bool { return a.requests < b.requests })
	case TotalTokens:
		return least(loads, first, func(a, b load) bool {
			return a.tokens < b.tokens || a.tokens == b.tokens && a.requests < b.requests
		})
	default:
		return first
	}
}

// least gives the first of the smallest loads, counted from first on and around.
func least(loads []load, first int, less func(a, b load) bool) int {
	best := first
	for i := 1; i < len(loads); i++ {
		if at := (first + i) % len(loads); less(loads[at], loads[best]) {
			best = at
		}
	}
	return best
}
