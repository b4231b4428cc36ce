package trial

import "syscall"

// parentDeathSignal makes a child end when this process does, also when it is killed.
func parentDeathSignal() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
}
