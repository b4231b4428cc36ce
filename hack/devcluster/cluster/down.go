package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-dev/sluice/hack/devcluster/footprint"
)

// Down ends the cluster and removes every trace of it from the host. It goes on after a failure, keeps the
// cluster's folder then so that it can be called again, and says what is left. With force it works without the
// cluster's state, taking every chain of Kubernetes in iptables for the cluster's.
func (c *Cluster) Down(ctx context.Context, force bool) error {
	if err := requireRoot("down"); err != nil {
		return err
	}
	if _, err := os.Stat(c.dir); errors.Is(err, os.ErrNotExist) && !force {
		c.logf("cluster %s does not exist", c.name)
		return nil
	}
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return c.down(ctx, force)
}

// down is Down for a caller that holds the lock.
func (c *Cluster) down(ctx context.Context, force bool) error {
	s, found, err := c.loadState()
	if err != nil && !force {
		return err
	}
	if !found {
		if !force {
			return fmt.Errorf("cluster %s has no record of what the host had before it (%s): remove it with down --force", c.name, c.path(stateFile))
		}
		s.Before = footprint.AssumeNone()
	}
	var errs []error
	for _, name := range components() {
		errs = append(errs, c.stop(ctx, name, stopGrace))
	}
	// Pods are killed, not asked: nothing in them outlives the cluster, and nothing starts them again now.
	errs = append(errs, footprint.EndPods(ctx, c.owner()), footprint.Remove(ctx, c.owner(), s.Before))
	left, err := footprint.Scan(ctx, c.owner(), s.Before)
	errs = append(errs, err)
	if len(left) > 0 {
		errs = append(errs, fmt.Errorf("still there after removal:\n  %s", strings.Join(left, "\n  ")))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove cluster %s: %w", c.name, err)
	}
	if err := os.RemoveAll(c.dir); err != nil {
		return fmt.Errorf("remove the folder of cluster %s: %w", c.name, err)
	}
	if others, err := c.others(); err == nil && len(others) == 0 {
		// The folder of all clusters goes with the last one. Who waits for its lock notices; see lock.
		_ = os.Remove(c.lockPath())
		_ = os.Remove(filepath.Dir(c.dir)) // Fails, rightly, if it holds anything else.
	}
	c.logf("cluster %s is removed", c.name)
	return nil
}
