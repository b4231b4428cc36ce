package ram

import (
	"bufio"
	"bytes"
	"math"
	"os"
	"strconv"
	"strings"
)

// Memory gives the bytes that this process may use in all, and the bytes still free: the machine's, or less where a
// control group says so. Both are 0 where the system tells neither.
func Memory() (totalBytes, freeBytes int64) {
	meminfo, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, 0
	}
	totalBytes, freeBytes = parseMeminfo(meminfo)
	limit, errLimit := os.ReadFile("/sys/fs/cgroup/memory.max")
	usage, errUsage := os.ReadFile("/sys/fs/cgroup/memory.current")
	if errLimit != nil || errUsage != nil {
		return totalBytes, freeBytes
	}
	if limitBytes := parseLimit(limit); limitBytes < totalBytes {
		totalBytes = limitBytes
		freeBytes = min(freeBytes, limitBytes-min(limitBytes, parseLimit(usage)))
	}
	return totalBytes, freeBytes
}

// parseMeminfo reads MemTotal and MemAvailable.
func parseMeminfo(b []byte) (totalBytes, freeBytes int64) {
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		kib, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil || kib > math.MaxInt64/1024 {
			continue
		}
		switch fields[0] {
		case "MemTotal:":
			totalBytes = kib * 1024
		case "MemAvailable:":
			freeBytes = kib * 1024
		}
	}
	return totalBytes, freeBytes
}

// parseLimit reads a control group's number; "max" and anything else is no limit.
func parseLimit(b []byte) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil || n < 0 {
		return math.MaxInt64
	}
	return n
}
