package scheduler

import (
	"errors"

	"github.com/sluice-dev/sluice/engine/request"
)

var errNoSessions = errors.New("this engine has no sessions")

// openSession opens a session.
func (s *Scheduler) openSession(request.Session) error { return errNoSessions }

// closeSession ends a session.
func (s *Scheduler) closeSession(string) error { return errNoSessions }
