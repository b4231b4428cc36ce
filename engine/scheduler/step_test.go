package scheduler

// turn is one step of a scheduler that a test steps by hand.
func (s *Scheduler) turn() (worked bool, err error) {
	worked, _, err = s.step(false)
	return worked, err
}
