package scheduler

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-dev/sluice/engine/kvcache"
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
)

// session is a conversation whose turns go on from each other: the prompt of a turn follows the tokens of an earlier one.
//
// The KV of a streaming session stays where it is between turns: its whole pages are in the prefix cache, and the session
// locks them until its next turn has ended, it is closed, or it has been idle for too long. Others that can't run for lack
// of memory make it give them up, in the order of yieldSession; its next turn computes again what is gone by then. What its
// window layers keep it gives up as soon as its next turn runs, whose claim covers no more than that turn's own.
type session struct {
	request.Session
	turns []turn    // oldest first; see forget
	busy  *sequence // the turn that is under way

	tokens   int // of turns together
	reserved int // that the turn under way may leave, 0 without one

	held  kvcache.Handle // streaming: of the newest turn
	moved int64          // order of the last open or end of a turn, unique
	idle  int64          // when that was, in unpaused nanoseconds of this rank's clock: the leader's decides
}

// turn is an ended turn.
type turn struct {
	rid    string
	prompt int     // of tokens, the session's earlier ones included
	tokens []int32 // the prompt, then the answer
}

// Bounds of what clients can leave behind.
const (
	maxSessions = 4096 // open
	maxTurns    = 1024 // that one session remembers
	// maxTurnContexts bounds the tokens of the turns that one session remembers, each of which has those before it too:
	// so many times the longest sequence there can be.
	maxTurnContexts = 16
	// What all sessions remember together is bounded by Config.SessionTokens:
	//
	//	remembered = the sum of tokens + reserved of all sessions
	//	remembered <= SessionTokens, unless that is 0
)

// openSession opens a session.
func (s *Scheduler) openSession(o request.Session) error {
	switch {
	case s.cfg.Role != Unified:
		return fmt.Errorf("a %s engine has no sessions: use a unified one", s.cfg.Role)
	case o.ID == "":
		return errors.New("the session has no id: give one")
	case s.sessions[o.ID] != nil:
		return fmt.Errorf("session %q is open: choose another id, or close it first", o.ID)
	case len(s.sessions) >= maxSessions:
		return fmt.Errorf("%d sessions are open: close some, or wait until they time out", maxSessions)
	case o.Streaming && !s.cfg.StreamingSessions:
		return errors.New("streaming sessions are off: start the engine with --enable-streaming-session, or open a session that is not streaming")
	case o.Streaming && s.tree == nil:
		return errors.New("a streaming session needs the prefix cache, which is off: start the engine without --disable-radix-cache")
	}
	if o.CapacityTokens <= 0 {
		o.CapacityTokens = s.limit
	}
	x := &session{Session: o}
	s.touchSession(x)
	s.sessions[o.ID] = x
	return nil
}

// closeSession ends a session, with the turn that is under way.
func (s *Scheduler) closeSession(id string) error {
	x := s.sessions[id]
	if x == nil {
		return fmt.Errorf("session %q is not open: it was closed, or it timed out", id)
	}
	if x.busy != nil {
		s.finish(x.busy, aborted(request.OutcomeAbortedOperator, "the session was closed"))
	}
	s.unlock(&x.held)
	s.remembered -= x.tokens
	delete(s.sessions, id)
	return nil
}

func (s *Scheduler) touchSession(x *session) {
	s.sessionMoves++
	x.moved, x.idle = s.sessionMoves, s.watch.read(int64(s.deps.Clock.Now()))
}

// beginTurn puts the session's tokens before the prompt of a new request; else it gives the outcome and what is wrong, for the
// client.
func (s *Scheduler) beginTurn(q *sequence) (outcome request.Outcome, message string) {
	if fault := s.goOn(q); fault != "" {
		return request.OutcomeInvalid, fault
	}
	need := s.mayLeave(q)
	if most := s.cfg.SessionTokens; most > 0 && !s.reclaim(most-need, q.session) {
		q.session = nil
		return request.OutcomeRefused, fmt.Sprintf("sessions remember %d tokens, and this turn may leave %d more: together more than the %d of --max-session-tokens; "+
			"try again later, close sessions, or send the turn without session_params", s.remembered, need, most)
	}
	return "", ""
}

// mayLeave is the most tokens that a turn has at its end.
func (s *Scheduler) mayLeave(q *sequence) int {
	return min(q.prompt+max(q.req.Sampling.MaxNewTokens, 1), s.limit)
}

// occupy makes q the turn under way of its session.
func (s *Scheduler) occupy(q *sequence) {
	x := q.session
	x.busy, x.reserved = q, s.mayLeave(q)
	s.remembered += x.reserved
}

// reclaim makes sessions other than spare that have no turn under way forget all turns but their newest, those that have been
// idle for longest first, until no more than most tokens are remembered. It forgets nothing when that is not enough, and gives
// false.
func (s *Scheduler) reclaim(most int, spare *session) bool {
	if s.remembered <= most {
		return true
	}
	var idle []*session
	rest := s.remembered
	for _, x := range s.sessions {
		if n := len(x.turns); x != spare && x.busy == nil && n > 1 {
			idle = append(idle, x)
			rest -= x.tokens - len(x.turns[n-1].tokens)
		}
	}
	if rest > most {
		return false
	}
	slices.SortFunc(idle, func(a, b *session) int { return cmp.Compare(a.moved, b.moved) })
	for _, x := range idle {
		if s.remembered <= most {
			break
		}
		s.remembered -= x.forget(0)
	}
	return true
}

// goOn puts the session's tokens before the prompt of a new request; it gives what is wrong with the turn, for the client.
func (s *Scheduler) goOn(q *sequence) (fault string) {
	t := q.req.Session
	x := s.sessions[t.SessionID]
	switch {
	case x == nil:
		return fmt.Sprintf("session_params.id is %q: no such session is open; open it with /open_session, it may have timed out", t.SessionID)
	case x.busy != nil:
		return fmt.Sprintf("session %q has a turn under way: wait for its end", x.ID)
	}
	at := len(x.turns) - 1
	if t.RID != "" {
		if at = slices.IndexFunc(x.turns, func(y turn) bool { return y.rid == t.RID }); at < 0 {
			return fmt.Sprintf("session_params.rid is %q: session %q has no such turn, or has forgotten it for newer ones: go on from a newer turn", t.RID, x.ID)
		}
	}
	if x.Streaming && (at != len(x.turns)-1 || t.Offset != nil || t.Replace || t.DropPreviousOutput) {
		return fmt.Sprintf("session %q is streaming and goes on from its newest turn alone: leave rid, offset, replace and drop_previous_output out", x.ID)
	}
	var before []int32
	if at >= 0 {
		before = x.turns[at].tokens
		if t.DropPreviousOutput {
			before = before[:x.turns[at].prompt]
		}
	}
	if t.Offset != nil {
		if *t.Offset < 0 || *t.Offset > len(before) {
			return fmt.Sprintf("session_params.offset is %d: session %q has %d tokens there", *t.Offset, x.ID, len(before))
		}
		before = before[:*t.Offset]
	}
	if n := len(before) + len(q.req.PromptIDs); n > x.CapacityTokens {
		return fmt.Sprintf("the turn makes session %q %d tokens long, but it was opened for %d: open a larger one", x.ID, n, x.CapacityTokens)
	}
	q.tokens = slices.Concat(before, q.req.PromptIDs)
	q.prompt = len(q.tokens)
	q.logprobs = newLogprobs(behind(q.req.Logprobs, len(before)))
	q.session, q.follows = x, at
	return ""
}

// endTurn notes what an ended turn leaves behind. One that was aborted leaves the session as it was.
func (s *Scheduler) endTurn(q *sequence, f request.Finish) {
	x := q.session
	if x == nil || x.busy != q {
		return
	}
	s.remembered -= x.tokens + x.reserved
	defer func() { s.remembered += x.tokens }()
	x.busy, x.reserved = nil, 0
	s.touchSession(x)
	if f.Type == request.FinishAbort {
		return
	}
	if q.req.Session.Replace {
		for _, gone := range x.turns[q.follows+1:] {
			x.tokens -= len(gone.tokens)
		}
		x.turns = slices.Delete(x.turns, q.follows+1, len(x.turns))
	}
	x.turns = append(x.turns, turn{rid: q.req.RID, prompt: q.prompt, tokens: slices.Clone(q.tokens)})
	x.tokens += len(q.tokens)
	if x.Streaming {
		x.forget(0)
		s.store(q)
		held := s.tree.Lock(q.prefix.Prefix())
		s.tree.Unlock(&x.held)
		x.held = held
	}
	x.forget(maxTurnContexts * s.limit)
}

// forget drops the oldest turns, but never the newest one, until len(turns) <= maxTurns and the turns have at most most
// tokens together. It gives the number of tokens that are forgotten.
func (x *session) forget(most int) (tokens int) {
	from := len(x.turns) - 1
	left := most - len(x.turns[from].tokens)
	for from > max(0, len(x.turns)-maxTurns) && len(x.turns[from-1].tokens) <= left {
		from--
		left -= len(x.turns[from].tokens)
	}
	for _, gone := range x.turns[:from] {
		tokens += len(gone.tokens)
	}
	x.turns = slices.Delete(x.turns, 0, from)
	x.tokens -= tokens
	return tokens
}

// checkSessions verifies the bound of what sessions remember.
func (s *Scheduler) checkSessions() error {
	sum := 0
	for _, x := range s.sessions {
		n := 0
		for _, y := range x.turns {
			n += len(y.tokens)
		}
		if n != x.tokens || x.busy == nil && x.reserved != 0 || x.busy != nil && len(x.busy.tokens) > x.reserved {
			return fmt.Errorf("scheduler: session %s has turns of %d tokens, counts %d and has reserved %d", x.ID, n, x.tokens, x.reserved)
		}
		sum += x.tokens + x.reserved
	}
	if most := s.cfg.SessionTokens; sum != s.remembered || most > 0 && sum > most {
		return fmt.Errorf("scheduler: sessions remember %d tokens, %d are counted, at most %d may be", sum, s.remembered, most)
	}
	return nil
}

// yieldSession makes a streaming session give up its KV: one without a turn under way before one whose turn waits before
// one whose turn has pages, and of these the one that has been idle for longest. False when none holds any.
func (s *Scheduler) yieldSession() bool {
	var first *session
	for _, x := range s.sessions {
		if x.held.Pages() > 0 && (first == nil || cmp.Or(cmp.Compare(x.claimed(), first.claimed()), cmp.Compare(x.moved, first.moved)) < 0) {
			first = x
		}
	}
	if first == nil {
		return false
	}
	s.deps.Log.Info("a session gives up its KV for lack of memory", "session", first.ID, "tokens", first.held.Pages()*s.cfg.PageSize)
	s.tree.Unlock(&first.held)
	return true
}

// claimed says how near the session is to needing what it holds: 0 between turns, 1 when its turn waits, 2 when that has
// pages.
func (x *session) claimed() int {
	switch {
	case x.busy == nil:
		return 0
	case len(x.busy.pages) == 0:
		return 1
	default:
		return 2
	}
}

// heldWindow is the window pages that q's session keeps until q runs.
func (s *Scheduler) heldWindow(q *sequence) int {
	if !s.windowed() || q.session == nil || q.session.busy != q {
		return 0
	}
	return q.session.held.WindowPages()
}

// heldBySessions is the tokens that nothing but streaming sessions without a turn under way keeps, and the number of streaming
// sessions. What several sessions share counts once, what a request uses too does not count.
func (s *Scheduler) heldBySessions() (tokens, streaming int) {
	var handles []kvcache.Handle
	for _, x := range s.sessions {
		if x.Streaming {
			streaming++
		}
		if x.busy == nil && x.held.Pages() > 0 {
			handles = append(handles, x.held)
		}
	}
	if len(handles) == 0 {
		return 0, streaming
	}
	return s.tree.Alone(handles...) * s.cfg.PageSize, streaming
}

// expiredSessions gives the ends of sessions that have been idle for too long, oldest first, and the time until the next
// one will be; ok is false when none will. Only the rank that leads asks.
func (s *Scheduler) expiredSessions(now ledger.Instant) (ends []message, next int64, ok bool) {
	if s.paused {
		return nil, 0, false
	}
	unpaused := s.watch.read(int64(now))
	var late []*session
	for _, x := range s.sessions {
		timeout := cmp.Or(x.TimeoutNanos, s.cfg.SessionTimeoutNanos)
		if timeout == 0 || x.busy != nil {
			continue
		}
		left := timeout - (unpaused - x.idle)
		switch {
		case left <= 0:
			late = append(late, x)
		case !ok || left < next:
			next, ok = left, true
		}
	}
	slices.SortFunc(late, func(a, b *session) int { return cmp.Compare(a.moved, b.moved) })
	for _, x := range late {
		ends = append(ends, controlMsg{kind: controlCloseSession, session: request.Session{ID: x.ID}})
	}
	return ends, next, ok
}
