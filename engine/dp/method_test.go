package dp

import (
	"math/rand/v2"
	"testing"

	"github.com/sluice-dev/sluice/engine/rank"
)

func TestParseMethod(t *testing.T) {
	for _, c := range []struct {
		name, reason string
		want         Method
		bad          bool
	}{
		{name: "", reason: "nothing is the default", want: Auto},
		{name: "auto", reason: "its own name", want: Auto},
		{name: "round_robin", reason: "its own name", want: RoundRobin},
		{name: "follow_bootstrap_room", reason: "its own name", want: FollowBootstrapRoom},
		{name: "total_requests", reason: "its own name", want: TotalRequests},
		{name: "shortest_queue", reason: "the older name", want: TotalRequests},
		{name: "total_tokens", reason: "its own name", want: TotalTokens},
		{name: "ROUND_ROBIN", reason: "names are lower case", bad: true},
		{name: "random", reason: "no such method", bad: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseMethod(c.name)
			if got != c.want || (err != nil) != c.bad {
				t.Errorf("ParseMethod(%q) gives %q, %v; want %q: %s", c.name, got, err, c.want, c.reason)
			}
		})
	}
}

func TestResolve(t *testing.T) {
	for _, c := range []struct {
		method Method
		mode   rank.Mode
		want   Method
		reason string
	}{
		{Auto, rank.ModeUnified, RoundRobin, "nothing better is known"},
		{Auto, rank.ModeDecode, RoundRobin, "the prefill engine doesn't ask for a decode DP rank"},
		{Auto, rank.ModePrefill, FollowBootstrapRoom, "the decode engine must know where the room is"},
		{TotalTokens, rank.ModePrefill, TotalTokens, "what was asked for stays"},
	} {
		if got := c.method.Resolve(c.mode); got != c.want {
			t.Errorf("%s on a %s engine is %s, want %s: %s", c.method, c.mode.EngineType(), got, c.want, c.reason)
		}
	}
}

// naive chooses by looking at every DP rank for a smaller one, several times over.
func naive(m Method, loads []load, first int, room int64) int {
	n := len(loads)
	switch m {
	case FollowBootstrapRoom:
		at := 0
		for range room {
			at = (at + 1) % n
		}
		return at
	case RoundRobin:
		return first
	}
	worse := func(a, b load) bool { // a has more to do than b
		if m == TotalTokens && a.tokens != b.tokens {
			return a.tokens > b.tokens
		}
		return a.requests > b.requests
	}
	for turn := range n {
		at, best := (first+turn)%n, true
		for _, other := range loads {
			best = best && !worse(loads[at], other)
		}
		if best {
			return at
		}
	}
	panic("no DP rank is the least")
}

func TestChooseAsNaively(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	methods := []Method{RoundRobin, FollowBootstrapRoom, TotalRequests, TotalTokens}
	for range 5000 {
		loads := make([]load, 1+random.IntN(5))
		for i := range loads {
			loads[i] = load{requests: random.IntN(3), tokens: random.IntN(3)}
		}
		m, first, room := methods[random.IntN(len(methods))], random.IntN(len(loads)), random.Int64N(1000)
		if got, want := choose(m, loads, first, room), naive(m, loads, first, room); got != want {
			t.Fatalf("%s over %+v from %d with room %d gives %d, want %d", m, loads, first, room, got, want)
		}
	}
}
