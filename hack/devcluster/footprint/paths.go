package footprint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Folders at fixed places that programs of the cluster write to.
const (
	cniResults    = "/var/lib/cni/results"
	containerLogs = "/var/log/containers"
)

// sharedPaths returns the folders outside the cluster's own that its programs create. Those that were not there
// before are removed with the cluster; in the others only files that name the cluster are.
func sharedPaths() []string {
	return []string{
		"/var/lib/kubelet",
		"/var/lib/cni",
		containerLogs,
		"/var/log/pods",
		"/run/containerd",
		"/run/netns",
		"/opt/containerd",
		"/opt/cni",
		"/etc/cni/net.d",
		"/usr/libexec/kubernetes",
	}
}

// ownedPaths returns what the cluster has left outside its folder.
func ownedPaths(owner Owner, before Before) []string {
	had := map[string]bool{}
	for _, path := range before.Paths {
		had[path] = true
	}
	var found []string
	for _, path := range existing(sharedPaths()) {
		if !had[path] {
			found = append(found, path)
		}
	}
	if had["/var/lib/cni"] {
		results, _ := filepath.Glob(filepath.Join(cniResults, owner.Network+"-*")) // The pattern is well-formed.
		found = append(found, results...)
	}
	if had[containerLogs] {
		links, _ := filepath.Glob(filepath.Join(containerLogs, "*.log"))
		for _, link := range links {
			if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, owner.Dir+"/") {
				found = append(found, link)
			}
		}
	}
	return found
}

func removePaths(owner Owner, before Before) error {
	var errs []error
	for _, path := range ownedPaths(owner, before) {
		// A shared folder may hold mounts that are not in the cluster's folder; never remove through a mount.
		if err := unmountAll(path); err != nil {
			errs = append(errs, err)
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			errs = append(errs, fmt.Errorf("remove what the cluster left: %w", err))
		}
	}
	return errors.Join(errs...)
}

// existing returns those of paths that exist.
func existing(paths []string) []string {
	var found []string
	for _, path := range paths {
		if _, err := os.Lstat(path); err == nil {
			found = append(found, path)
		}
	}
	return found
}
