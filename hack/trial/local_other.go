//go:build !linux

package trial

import "syscall"

// parentDeathSignal does nothing where the system has no such signal.
func parentDeathSignal() *syscall.SysProcAttr { return nil }
