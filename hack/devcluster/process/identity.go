package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Identity names one process for good. A process id alone is reused by the kernel; together with the time when
// the process started and the boot in which it did, it is unique.
type Identity struct {
	PID int `json:"pid"`
	// StartTicks is the start time since boot in clock ticks, field 22 of /proc/PID/stat.
	StartTicks uint64 `json:"startTicks"`
	// BootID is /proc/sys/kernel/random/boot_id.
	BootID string `json:"bootID"`
}

// errGone says that no live process has the id.
var errGone = errors.New("process is gone")

// Of returns the identity of the live process with the given id.
func Of(pid int) (Identity, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return Identity{}, fmt.Errorf("identify process %d: %w", pid, errGone)
	}
	if err != nil {
		return Identity{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	state, ticks, err := parseStat(stat)
	if err != nil {
		return Identity{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	if state == 'Z' || state == 'X' {
		return Identity{}, fmt.Errorf("identify process %d: %w", pid, errGone)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Identity{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	return Identity{PID: pid, StartTicks: ticks, BootID: strings.TrimSpace(string(boot))}, nil
}

// Alive reports whether exactly this process still runs. A process that has ended but was not yet waited for
// is not alive.
func (id Identity) Alive() (alive bool) {
	if id.PID <= 0 {
		return false
	}
	now, err := Of(id.PID)
	return err == nil && now == id
}

// parseStat reads the state letter and the start time, in clock ticks since boot, from /proc/PID/stat. The
// second field, the program's name in parentheses, may itself hold spaces and parentheses.
func parseStat(stat []byte) (state byte, startTicks uint64, err error) {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return 0, 0, errors.New("stat line has no program name")
	}
	// Field 3, the state, is the first one after the name; field 22 is the start time.
	fields := bytes.Fields(stat[end+1:])
	const stateIndex, startIndex = 0, 22 - 3
	if len(fields) <= startIndex || len(fields[stateIndex]) != 1 {
		return 0, 0, fmt.Errorf("stat line has %d fields after the program name, want at least %d", len(fields), startIndex+1)
	}
	startTicks, err = strconv.ParseUint(string(fields[startIndex]), 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("parse the start time: %w", err)
	}
	return fields[stateIndex][0], startTicks, nil
}
