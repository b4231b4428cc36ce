package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// cgroupMount is where Linux distributions mount cgroups.
const cgroupMount = "/sys/fs/cgroup"

// CgroupHierarchies returns the mount points of the cgroup hierarchies: one on a host with cgroup v2, and one
// for each controller on a host with v1.
func CgroupHierarchies() []string {
	if unified() {
		return []string{cgroupMount}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	return v1Hierarchies(string(mounts))
}

// unified reports whether the host has cgroup v2 alone.
func unified() (unified bool) {
	var stat unix.Statfs_t
	return unix.Statfs(cgroupMount, &stat) == nil && stat.Type == unix.CGROUP2_SUPER_MAGIC
}

// v1Hierarchies reads the mount points of type cgroup from /proc/self/mountinfo, sorted.
func v1Hierarchies(mountinfo string) []string {
	var found []string
	for _, line := range strings.Split(mountinfo, "\n") {
		mount, filesystem, ok := strings.Cut(line, " - ")
		fields := strings.Fields(mount)
		if ok && len(fields) >= 5 && strings.HasPrefix(filesystem, "cgroup ") {
			found = append(found, fields[4])
		}
	}
	sort.Strings(found)
	return found
}

// MakeCgroup makes the cgroup of the node's pods in every hierarchy, with the controllers that a kubelet needs.
func MakeCgroup(root string) error {
	hierarchies := CgroupHierarchies()
	if len(hierarchies) == 0 {
		return fmt.Errorf("no cgroups are mounted at %s: mount them first", cgroupMount)
	}
	for _, hierarchy := range hierarchies {
		folder := filepath.Join(hierarchy, root)
		if err := os.Mkdir(folder, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("make the cgroup of pods: %w", err)
		}
		var err error
		if unified() {
			err = delegate(hierarchy, folder)
		} else {
			err = inheritCPUSet(hierarchy, folder)
		}
		if err != nil {
			return fmt.Errorf("prepare the cgroup of pods: %w", err)
		}
	}
	return nil
}

// delegate enables, on cgroup v2, all of the host's controllers for the group and for the groups inside it.
func delegate(hierarchy, folder string) error {
	data, err := os.ReadFile(filepath.Join(hierarchy, "cgroup.controllers"))
	if err != nil {
		return err
	}
	var missing []string
	enabled := map[string]bool{}
	for _, controller := range strings.Fields(string(data)) {
		// One at a time: a controller that cannot be enabled must not keep the others from it.
		for _, at := range []string{hierarchy, folder} {
			if err := os.WriteFile(filepath.Join(at, "cgroup.subtree_control"), []byte("+"+controller), 0o644); err != nil {
				break
			}
			enabled[controller] = at == folder
		}
	}
	for _, needed := range []string{"cpu", "cpuset", "memory", "pids"} {
		if !enabled[needed] {
			missing = append(missing, needed)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the controllers %v cannot be enabled below %s: run this outside a container, or with its cgroups delegated", missing, hierarchy)
	}
	return nil
}

// inheritCPUSet gives, on cgroup v1, the group the processors and memory nodes of its parent; a group without
// them holds no process.
func inheritCPUSet(hierarchy, folder string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		data, err := os.ReadFile(filepath.Join(hierarchy, file))
		if errors.Is(err, os.ErrNotExist) {
			return nil // Not the hierarchy of cpuset.
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, file), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
