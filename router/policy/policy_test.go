package policy

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestPick(t *testing.T) {
	busy, long, free := Candidate{Requests: 3}, Candidate{Requests: 1, Tokens: 5000}, Candidate{}
	for _, tc := range []struct {
		name, reason string
		policy       Policy
		candidates   []Candidate
		turn         uint64
		want         int
	}{
		{"one", "there is no choice", LeastLoad, []Candidate{busy}, 5, 0},
		{"free", "nothing outstanding is least", LeastLoad, []Candidate{busy, free, long}, 0, 1},
		{"tokens", "one long prompt weighs more than three requests without", LeastLoad, []Candidate{long, busy}, 0, 1},
		{"tie", "equal ones take turns", LeastLoad, []Candidate{free, free, free}, 4, 1},
		{"tie with a busy one", "the turn may point at a busy one", LeastLoad, []Candidate{free, busy, free}, 4, 2},
		{"round robin", "loads do not matter", RoundRobin, []Candidate{free, busy, long}, 5, 2},
		{"largest turn", "the turn never overflows the list", RoundRobin, []Candidate{free, busy, long}, 1<<64 - 1, 0},
	} {
		if got := tc.policy(tc.candidates, tc.turn); got != tc.want {
			t.Errorf("%s: picked %d, want %d: %s", tc.name, got, tc.want, tc.reason)
		}
	}
}

// TestLeastLoadIsMinimal compares with the minimum on random input; over all turns each minimal candidate gets its share.
func TestLeastLoadIsMinimal(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 1000 {
		list := make([]Candidate, 1+rng.IntN(8))
		for i := range list {
			list[i] = Candidate{Requests: rng.IntN(3), Tokens: int64(rng.IntN(2)) * requestTokens}
		}
		least := slices.MinFunc(list, func(a, b Candidate) int { return int(a.Cost() - b.Cost()) }).Cost()
		picked := map[int]bool{}
		for turn := range uint64(len(list)) {
			i := LeastLoad(list, turn)
			if list[i].Cost() != least {
				t.Fatalf("picked cost %d of %+v, want %d", list[i].Cost(), list, least)
			}
			picked[i] = true
		}
		for i, c := range list {
			if c.Cost() == least && !picked[i] {
				t.Fatalf("candidate %d of %+v is never picked", i, list)
			}
		}
	}
}

func TestParse(t *testing.T) {
	for name, ok := range map[string]bool{"least-load": true, "round-robin": true, "": false, "LeastLoad": false} {
		if p, err := Parse(name); (err == nil) != ok || (p != nil) != ok {
			t.Errorf("Parse(%q): policy given: %v, error %v", name, p != nil, err)
		}
	}
}
