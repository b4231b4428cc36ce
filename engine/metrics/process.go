package metrics

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// processStart gives when a process started, in clock ticks since boot. ok is false when it doesn't exist or has ended
// and only waits for its parent. A process id together with its start is unique until the next boot.
func processStart(pid int) (ticks uint64, ok bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// pid (name) state ppid …: the name may hold anything, so count from its closing bracket.
	i := bytes.LastIndexByte(data, ')')
	if i < 0 {
		return 0, false
	}
	fields := bytes.Fields(data[i+1:])
	const state, start = 0, 19 // fields 3 and 22 of the line
	if len(fields) <= start || string(fields[state]) == "Z" || string(fields[state]) == "X" {
		return 0, false
	}
	ticks, err = strconv.ParseUint(string(fields[start]), 10, 64)
	return ticks, err == nil
}

// processSpace names the namespace that this process's ids are of: two containers may have processes of equal ids.
func processSpace() (inode uint64, err error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return 0, err
	}
	return st.Ino, nil
}
