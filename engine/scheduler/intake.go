package scheduler

import (
	"slices"
	"strings"

	"github.com/sluice-dev/sluice/engine/request"
)

// bound is how much of what was submitted one step takes. Every rank waits while requests are encoded, sent to all and
// received, so a burst of them is spread over steps.
type bound struct {
	requests int // > 0
	bytes    int // of requests, one of any size excepted
}

// stepBound is far more than a step computes, and takes no more than a few milliseconds to share.
var stepBound = bound{requests: 128, bytes: 512 << 10}

// intake is what becomes of the messages that wait, in their order. Submissions are taken up to a bound and the rest is left.
// Other messages are taken too: nobody who aborts or controls waits for a burst. What they have to do with submissions that
// are left is settled as if those had been taken before.
//
//	abort, pause that aborts   ends those that it names, unseen
//	flush                      is busy
//	session opened, closed     is left where a turn of that session is left before it
//	pause, continue            overtakes: requests wait either way
//
// Invariant: each message is in exactly one of the lists.
type intake struct {
	taken []message
	ended []unseen // submissions that nobody but the leader saw
	busy  []flushMsg
	backlog
}

// backlog is what an intake leaves for the next.
type backlog struct {
	left     []message // submissions, and controls of sessions
	sessions int       // how many of these there are
}

// unseen is a submission that ends before it is received.
type unseen struct {
	submitMsg
	reason  request.Outcome
	message string // for the client
}

// take gives the intake of what an earlier one left and of what has come since, as divide does. It uses the backlog up. While nothing
// comes that concerns the backlog this takes as long as what is taken and what has come, however much is left.
func (b bound) take(before backlog, fresh []message) intake {
	left := before.left
	cut := b.cut(left)
	if cut == len(left) || before.sessions > 0 || slices.ContainsFunc(fresh, concernsEarlier) {
		return b.divide(slices.Concat(left, fresh))
	}
	t := intake{taken: slices.Clone(left[:cut])}
	clear(left[:cut]) // they may be large
	t.left = left[cut:]
	for _, m := range fresh {
		switch m := m.(type) {
		case submitMsg:
			t.left = append(t.left, m)
		case flushMsg:
			t.busy = append(t.busy, m)
		default:
			t.taken = append(t.taken, m)
		}
	}
	return t
}

// concernsEarlier reports whether what becomes of a message depends on submissions before it, or theirs on it. That a flush is busy
// behind what is left goes without looking.
func concernsEarlier(m message) bool {
	switch m := m.(type) {
	case abortMsg:
		return true
	case controlMsg:
		return m.ofSession() || m.abortsAll()
	default:
		return false
	}
}

// divide gives the intake of the messages that wait.
func (b bound) divide(waiting []message) intake {
	cut := b.cut(waiting)
	t := intake{taken: waiting[:cut:cut]}
	ends := endsOf(waiting[cut:])
	sessions := map[string]bool{} // that something left concerns
	for i, m := range waiting[cut:] {
		switch m := m.(type) {
		case submitMsg:
			if end := ends[i]; end != nil {
				t.ended = append(t.ended, *end)
				continue
			}
			t.left = append(t.left, m)
			if m.req.Session != nil {
				sessions[m.req.Session.SessionID] = true
			}
		case flushMsg:
			if len(t.left) > 0 {
				t.busy = append(t.busy, m)
				continue
			}
			t.taken = append(t.taken, m)
		case controlMsg:
			if sessions[m.session.ID] && m.ofSession() {
				t.left = append(t.left, m)
				t.sessions++
				continue
			}
			t.taken = append(t.taken, m)
		case abortMsg, grammarMsg:
			t.taken = append(t.taken, m)
		}
	}
	return t
}

// cut gives the place of the first submission that is past the bound; all that comes before is taken.
func (b bound) cut(waiting []message) int {
	requests, bytes := 0, 0
	for i, m := range waiting {
		m, ok := m.(submitMsg)
		if !ok {
			continue
		}
		requests, bytes = requests+1, bytes+sizeOf(m.req)
		if requests > b.requests || requests > 1 && bytes > b.bytes {
			return i
		}
	}
	return len(waiting)
}

// endsOf gives for each message, nil for most, how it ends if it is a submission that a later message ends.
func endsOf(waiting []message) []*unseen {
	ends := make([]*unseen, len(waiting))
	byRID := map[string]abortMsg{} // of the messages after the current one
	var byPrefix []abortMsg
	paused := false
	for i, m := range slices.Backward(waiting) {
		switch m := m.(type) {
		case submitMsg:
			rid := m.req.RID
			abort, found := byRID[rid]
			if at := slices.IndexFunc(byPrefix, func(a abortMsg) bool { return strings.HasPrefix(rid, a.rid) }); at >= 0 && !found {
				abort, found = byPrefix[at], true
			}
			switch {
			case found:
				ends[i] = &unseen{m, abort.reason, abortMessage(abort.reason)}
			case paused:
				ends[i] = &unseen{m, request.OutcomeAbortedOperator, pauseMessage}
			}
		case abortMsg:
			switch {
			case !m.prefix:
				byRID[m.rid] = m
			case !slices.Contains(byPrefix, m):
				byPrefix = append(byPrefix, m)
			}
		case controlMsg:
			paused = paused || m.abortsAll()
		case flushMsg, grammarMsg: // they end nothing
		}
	}
	return ends
}

// sizeOf is about how many bytes a request is when it is shared.
func sizeOf(r *request.Request) int {
	size := 4*len(r.PromptIDs) + 16*len(r.Sampling.LogitBias) + 4*len(r.Sampling.StopTokenIDs)
	for _, stop := range r.Sampling.Stop {
		size += len(stop)
	}
	if r.Grammar != nil {
		size += len(r.Grammar.Source)
	}
	if r.Logprobs != nil {
		size += 4 * len(r.Logprobs.TokenIDs)
	}
	return size
}

// settleIntake answers what an intake does not take, on the leader.
func (s *Scheduler) settleIntake(t intake) {
	for _, u := range t.ended {
		s.endUnseen(u)
	}
	for _, m := range t.busy {
		s.answer(m.reply, ErrBusy)
	}
}

// endUnseen ends a submission that nobody received.
func (s *Scheduler) endUnseen(u unseen) {
	s.taken++
	s.takenToks += len(u.req.PromptIDs)
	f := aborted(u.reason, u.message)
	s.told = append(s.told, told{u.sink, request.Output{RID: u.req.RID, PromptTokens: len(u.req.PromptIDs), Finish: &f}})
	s.forgoTransfer(u.req, f)
}
