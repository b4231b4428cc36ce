package scheduler

import (
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-dev/sluice/engine/request"
)

// input is what a step acts on that does not follow from the scheduler's state. Ranks that take the same inputs decide the
// same.
type input struct {
	messages []message // in the order in which they are applied
	stop     bool      // the leader ends; nothing follows
}

// takeInput gives what has come since the last step, and what the clock decides. In a world of several ranks the leader's
// is every rank's.
func (s *Scheduler) takeInput(stop bool) (input, error) {
	own := input{stop: stop}
	if s.leads() && !stop {
		s.answerLooks()
		// What is decided concerns what lives, so it comes before what may bring the same ids again.
		decided, t := s.decide(), s.inbox.take()
		s.settleIntake(t)
		own.messages = slices.Concat(decided, t.taken)
	}
	return s.share(own)
}

// decide gives what the clock decides: the messages that the leader adds to those of others, such as the aborts of requests
// that took too long, and what became of grammars.
func (s *Scheduler) decide() []message {
	now := s.deps.Clock.Now()
	expired, _, _ := s.expired(now)
	sessions, _, _ := s.expiredSessions(now)
	return slices.Concat(expired, sessions, s.judgeGrammars(now), s.judgeMasks())
}

// shareable refuses what can't be encoded, here and at once, and gives the rest.
func (s *Scheduler) shareable(in input) input {
	kept := in.messages[:0]
	for _, m := range in.messages {
		if m, ok := m.(submitMsg); ok {
			if _, err := encodeRequest(m.req); err != nil {
				s.endUnseen(unseen{m, request.OutcomeInvalid, err.Error()})
				continue
			}
		}
		kept = append(kept, m)
	}
	in.messages = kept
	return in
}

// connect gives messages that came back from sharing the sinks and replies of those that were shared.
func (in input) connect(own input) {
	for i, m := range in.messages {
		switch m := m.(type) {
		case submitMsg:
			m.sink = own.messages[i].(submitMsg).sink
			in.messages[i] = m
		case flushMsg:
			m.reply = own.messages[i].(flushMsg).reply
			in.messages[i] = m
		case controlMsg:
			m.reply = own.messages[i].(controlMsg).reply
			in.messages[i] = m
		case abortMsg, grammarMsg, maskMsg: // nobody waits
		}
	}
}

// answered is a reply on its way to who waits for it.
type answered struct {
	reply chan<- error // has room for it
	err   error
}

// answer gives a reply to who waits for it, on the leader alone, at the next deliver: what was asked for then shows in the load.
func (s *Scheduler) answer(reply chan<- error, err error) {
	if reply != nil {
		s.answered = append(s.answered, answered{reply, err})
	}
}

// apply acts on an input.
func (s *Scheduler) apply(in input) error {
	for _, m := range in.messages {
		switch m := m.(type) {
		case submitMsg:
			s.receive(m)
		case abortMsg:
			s.abort(m)
		case flushMsg:
			err := s.flush()
			s.answer(m.reply, err)
			if err != nil && !errors.Is(err, ErrBusy) {
				return err
			}
		case controlMsg:
			s.answer(m.reply, s.control(m))
		case grammarMsg:
			if err := s.takeVerdict(m); err != nil {
				return err
			}
		case maskMsg:
			if err := s.takeMask(m); err != nil {
				return err
			}
		}
	}
	return nil
}

// flush empties the prefix cache; ErrBusy when something lives. Steps in flight that compute for nobody any more don't
// count.
func (s *Scheduler) flush() error {
	if len(s.live) == 0 {
		if err := s.settle(); err != nil {
			return err
		}
	}
	if tokens, _ := s.heldBySessions(); tokens > 0 {
		return fmt.Errorf("%w: streaming sessions hold %d tokens: close them first", ErrBusy, tokens)
	}
	if len(s.live) > 0 || len(s.held) > 0 {
		return ErrBusy
	}
	if s.tree != nil {
		s.tree.Reset()
	}
	s.recentHits.reset()
	return nil
}

// control does what a controlMsg asks for.
func (s *Scheduler) control(m controlMsg) error {
	switch m.kind {
	case controlPause:
		return s.pause(m.mode)
	case controlContinue:
		return s.resume()
	case controlOpenSession:
		return s.openSession(m.session)
	case controlCloseSession:
		return s.closeSession(m.session.ID)
	default:
		return fmt.Errorf("a control message of kind %d: there is none", m.kind)
	}
}
