package footprint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/sluice-dev/sluice/hack/devcluster/process"
)

// owned is a live process of the cluster.
type owned struct {
	process.Identity
	command string
}

// ownedProcesses returns every process that is in the cluster's cgroup or has a path in its folder among its
// arguments, this process and its ancestors apart.
func ownedProcesses(owner Owner) ([]owned, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	spared := ancestors(os.Getpid())
	var found []owned
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || spared[pid] {
			continue
		}
		// The identity is taken first: if the id is reused afterwards, the identity no longer fits and nobody
		// is harmed.
		id, err := process.Of(pid)
		if err != nil {
			continue // It ended meanwhile, or is a zombie.
		}
		arguments, err := readProc(pid, "cmdline")
		if err != nil {
			return nil, err
		}
		cgroups, err := readProc(pid, "cgroup")
		if err != nil {
			return nil, err
		}
		if mentions(arguments, owner.Dir) || inCgroup(cgroups, owner.CgroupRoot) {
			command := strings.TrimSpace(strings.ReplaceAll(arguments, "\x00", " "))
			found = append(found, owned{Identity: id, command: command})
		}
	}
	return found, nil
}

// readProc reads a file of a process; one that has ended has empty files.
func readProc(pid int, file string) (string, error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), file))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read %s of process %d: %w", file, pid, err)
	}
	return string(data), nil
}

// publicParts are the parts of the cluster's folder that its users name to programs of their own: the
// administrator's kubeconfig and logs.
var publicParts = []string{"kubeconfig/admin.yaml", "logs/"}

// mentions reports whether an argument holds a path inside dir, alone or after an equals sign or a scheme. The
// folder itself is not enough, nor are its public parts: a person may name those to another program.
func mentions(cmdline, dir string) (mentioned bool) {
	for _, argument := range strings.Split(cmdline, "\x00") {
		before, inside, found := strings.Cut(argument, dir+"/")
		if found && (before == "" || strings.HasSuffix(before, "=") || strings.HasSuffix(before, "://")) && !public(inside) {
			return true
		}
	}
	return false
}

func public(path string) (public bool) {
	for _, part := range publicParts {
		if strings.HasPrefix(path, part) {
			return true
		}
	}
	return false
}

// inCgroup reports whether one of the lines of /proc/PID/cgroup, "id:controllers:path", lies in root.
func inCgroup(lines, root string) (inside bool) {
	for _, line := range strings.Split(lines, "\n") {
		parts := strings.SplitN(line, ":", 3)
		if len(parts) == 3 && (parts[2] == root || strings.HasPrefix(parts[2], root+"/")) {
			return true
		}
	}
	return false
}

// ancestors returns the process and its parents: "kubectl --kubeconfig DIR/..." in a shell that runs "down" is
// the cluster's by its arguments and must survive all the same.
func ancestors(pid int) map[int]bool {
	found := map[int]bool{}
	for pid > 0 && !found[pid] {
		found[pid] = true
		status, err := readProc(pid, "status")
		if err != nil {
			return found
		}
		pid = 0
		for _, line := range strings.Split(status, "\n") {
			if parent, ok := strings.CutPrefix(line, "PPid:"); ok {
				pid, _ = strconv.Atoi(strings.TrimSpace(parent))
			}
		}
	}
	return found
}
