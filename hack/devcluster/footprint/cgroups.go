package footprint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/sluice-dev/sluice/hack/devcluster/node"
)

// cgroupWait is how long the kernel may take to let go of cgroups whose last process has just ended.
const cgroupWait = 10 * time.Second

// ownedCgroups returns the folders of the cluster's cgroup, one a hierarchy.
func ownedCgroups(root string) []string {
	var folders []string
	for _, hierarchy := range node.CgroupHierarchies() {
		folders = append(folders, filepath.Join(hierarchy, root))
	}
	return existing(folders)
}

// removeCgroups removes the cluster's cgroup from every hierarchy, the innermost groups first.
func removeCgroups(ctx context.Context, root string) error {
	ctx, cancel := context.WithTimeout(ctx, cgroupWait)
	defer cancel()
	var errs []error
	for _, folder := range ownedCgroups(root) {
		var groups []string
		err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				groups = append(groups, path)
			}
			return nil // A group that went away meanwhile is what is wanted.
		})
		if err != nil {
			errs = append(errs, err)
		}
		for i := len(groups) - 1; i >= 0; i-- {
			errs = append(errs, removeCgroup(ctx, groups[i]))
		}
	}
	return errors.Join(errs...)
}

// removeCgroup removes one group, which stays busy for a moment after its last process has ended.
func removeCgroup(ctx context.Context, group string) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := os.Remove(group)
		if err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove a cgroup: %w", err)
		case <-ticker.C:
		}
	}
}
