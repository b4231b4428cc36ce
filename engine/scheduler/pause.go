package scheduler

import (
	"errors"

	"github.com/sluice-dev/sluice/engine/request"
)

var errNoPause = errors.New("this engine can't pause")

// pause stops computing.
func (s *Scheduler) pause(request.PauseMode) error { return errNoPause }

// resume ends a pause.
func (s *Scheduler) resume() error { return errNoPause }
