package policy

import "fmt"

// Candidate is what a policy may know of an engine.
type Candidate struct {
	Requests int   // outstanding requests of this router there, >= 0
	Tokens   int64 // estimate of their prompt tokens, >= 0
}

// requestTokens is what a request weighs beside its prompt: a request of few tokens still takes a place in the batch.
const requestTokens = 256

// Cost is the work that waits at a candidate, in tokens.
func (c Candidate) Cost() int64 { return int64(c.Requests)*requestTokens + c.Tokens }

// Policy picks one of candidates, at least one; turn counts the picks so far. It gives an index.
type Policy func(candidates []Candidate, turn uint64) int

// LeastLoad picks the lowest cost. Equal ones take turns, so that several routers that know nothing of each other do not
// all begin with the same engine.
func LeastLoad(candidates []Candidate, turn uint64) int {
	n := len(candidates)
	start := int(turn % uint64(n))
	best := start
	for i := 1; i < n; i++ {
		if j := (start + i) % n; candidates[j].Cost() < candidates[best].Cost() {
			best = j
		}
	}
	return best
}

// RoundRobin takes the candidates in turn.
func RoundRobin(candidates []Candidate, turn uint64) int {
	return int(turn % uint64(len(candidates)))
}

// Parse gives the policy of a --policy flag.
func Parse(name string) (Policy, error) {
	switch name {
	case "least-load":
		return LeastLoad, nil
	case "round-robin":
		return RoundRobin, nil
	}
	return nil, fmt.Errorf("policy %q: want least-load or round-robin", name)
}
