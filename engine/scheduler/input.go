package scheduler

import "fmt"

// input is what a step acts on that does not follow from the scheduler's state. Ranks that take the same inputs decide the
// same.
type input struct {
	messages []message // in the order in which they are applied
}

// takeInput gives what has come since the last step, and what the clock decides.
func (s *Scheduler) takeInput() input {
	return input{messages: append(s.inbox.drain(), s.decide()...)}
}

// decide gives what the clock decides: the messages that it adds to those of others, such as the aborts of requests that
// took too long.
func (s *Scheduler) decide() []message {
	expired, _, _ := s.expired(s.deps.Clock.Now())
	return expired
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
			if err := s.flush(m); err != nil {
				return err
			}
		case controlMsg:
			m.reply <- s.control(m)
		}
	}
	return nil
}

// flush empties the prefix cache when nothing lives. Steps in flight that compute for nobody any more don't count.
func (s *Scheduler) flush(m flushMsg) error {
	if len(s.live) == 0 {
		if err := s.settle(); err != nil {
			m.reply <- err
			return err
		}
	}
	if len(s.live) > 0 || len(s.held) > 0 {
		m.reply <- ErrBusy
		return nil
	}
	m.reply <- nil
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
		panic(fmt.Sprintf("scheduler: a control message of kind %d", m.kind))
	}
}
