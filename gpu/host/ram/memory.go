package ram

import (
	"bufio"
	"bytes"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// Memory gives the bytes that this process may use in all, and the bytes still free: the machine's, or less where a
// control group says so. What the kernel can take back at once, such as the page cache of files that were read, is free.
// Both are 0 where the system tells neither.
func Memory() (totalBytes, freeBytes int64) { return memory(os.DirFS("/")) }

// memory is Memory of the machine whose files are below root.
func memory(root fs.FS) (totalBytes, freeBytes int64) {
	meminfo, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return 0, 0
	}
	totalBytes, freeBytes = parseMeminfo(meminfo)
	machineBytes := totalBytes
	self, _ := fs.ReadFile(root, "proc/self/cgroup") // without it, the mounts' own groups
	for _, v := range []version{versionOne, versionTwo} {
		for _, dir := range v.groups(self) {
			limitBytes, usedBytes, ok := v.read(root, dir)
			if !ok || limitBytes >= machineBytes { // no limit
				continue
			}
			totalBytes = min(totalBytes, limitBytes)
			freeBytes = min(freeBytes, limitBytes-min(limitBytes, usedBytes))
		}
	}
	return totalBytes, freeBytes
}

// version is one of the two interfaces of control groups. A machine may have both; one of them knows memory.
type version struct {
	mount        string // where the groups are, below the root
	controllers  string // the second field of /proc/self/cgroup; one of several with commas between them
	limit, usage string // files
	// inactiveFile is the field of memory.stat that holds the page cache that goes first, which is not in the way of anybody.
	inactiveFile string
}

var (
	versionOne = version{"sys/fs/cgroup/memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}
	versionTwo = version{"sys/fs/cgroup", "", "memory.max", "memory.current", "inactive_file"}
)

// groups gives the directories of the group that self, the text of /proc/self/cgroup, names, and of those around it, whose
// limits hold too. In a container some may not exist: the mount is its own group then.
func (v version) groups(self []byte) []string {
	dirs := []string{v.mount}
	for line := range strings.Lines(string(self)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) < 3 || !strings.Contains(","+fields[1]+",", ","+v.controllers+",") {
			continue
		}
		for group := path.Clean("/" + fields[2]); group != "/"; group = path.Dir(group) {
			dirs = append(dirs, path.Join(v.mount, group))
		}
	}
	return dirs
}

// read gives a group's limit and its working set: what it uses without the page cache that goes first. ok is false where
// the directory is no group with a limit.
func (v version) read(root fs.FS, dir string) (limitBytes, usedBytes int64, ok bool) {
	limit, errLimit := fs.ReadFile(root, path.Join(dir, v.limit))
	usage, errUsage := fs.ReadFile(root, path.Join(dir, v.usage))
	if errLimit != nil || errUsage != nil {
		return 0, 0, false
	}
	stat, _ := fs.ReadFile(root, path.Join(dir, "memory.stat")) // without it nothing is known to be cache
	usedBytes = parseLimit(usage)
	return parseLimit(limit), usedBytes - min(usedBytes, parseStat(stat, v.inactiveFile)), true
}

// parseStat reads a field of memory.stat, in bytes; 0 when it is not there.
func parseStat(b []byte, field string) int64 {
	for line := range strings.Lines(string(b)) {
		if name, number, _ := strings.Cut(strings.TrimSpace(line), " "); name == field {
			n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
			if err != nil || n < 0 {
				return 0
			}
			return n
		}
	}
	return 0
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
