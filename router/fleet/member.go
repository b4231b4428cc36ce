package fleet

import (
	"time"

	"github.com/sluice-dev/sluice/router/discovery"
	"github.com/sluice-dev/sluice/router/policy"
)

// member is an engine and what this router knows of it. Guarded by Fleet.mu.
type member struct {
	engine discovery.Engine
	epoch  uint64 // how often it became ready
	gone   bool   // discovery has dropped it

	requests int   // outstanding, >= 0
	tokens   int64 // estimated prompt tokens of those, >= 0

	// failures in a row; 0 means healthy. Until `until` nobody may use the engine, then one trial at a time.
	failures int
	until    time.Time
	trial    bool // invariant: trial → failures > 0
}

// maxDoublings bounds the quarantine at 2^maxDoublings times its first length.
const maxDoublings = 5

// usable reports whether a request may go there now.
func (m *member) usable(now time.Time) bool {
	return !m.gone && m.engine.State == discovery.StateReady && m.engine.URL != "" &&
		(m.failures == 0 || (!m.trial && !now.Before(m.until)))
}

// quarantined reports whether only its past keeps the engine from getting requests.
func (m *member) quarantined() bool {
	return !m.gone && m.engine.State == discovery.StateReady && m.failures > 0
}

func (m *member) candidate() policy.Candidate {
	return policy.Candidate{Requests: m.requests, Tokens: m.tokens}
}

// failed notes one more failure in a row.
func (m *member) failed(now time.Time, first time.Duration) {
	m.failures++
	m.until = now.Add(first << min(m.failures-1, maxDoublings))
}

// succeeded forgets all failures.
func (m *member) succeeded() { m.failures, m.trial = 0, false }

// Result is how a use of an engine ended.
type Result uint8

const (
	// Succeeded means: the engine answered as a living engine does, whatever the answer was.
	Succeeded Result = iota
	// Unknown means: the use ended before the engine could show anything, for example because the client went.
	Unknown
	// Failed means: the engine could not be reached, broke off, or said that it cannot serve. It is quarantined.
	Failed
)

// Use is one request at one engine, from Acquire to Done.
type Use struct {
	Engine discovery.Engine

	fleet  *Fleet
	member *member
	epoch  uint64
	tokens int64
	trial  bool
	done   bool // guarded by Fleet.mu
}

// Done ends the use; only the first call counts.
func (u *Use) Done(r Result) {
	f := u.fleet
	f.mu.Lock()
	if u.done {
		f.mu.Unlock()
		return
	}
	u.done = true
	m := u.member
	m.requests--
	m.tokens -= u.tokens
	if u.trial {
		m.trial = false
	}
	quarantined := false
	switch {
	case u.epoch != m.epoch: // about a former life of the engine
	case r == Succeeded:
		m.succeeded()
	case r == Failed:
		m.failed(f.cfg.Now(), f.cfg.Quarantine)
		quarantined = true
	}
	f.changedLocked()
	f.mu.Unlock()
	if quarantined {
		f.cfg.Listener.Quarantined(u.Engine)
	}
}
