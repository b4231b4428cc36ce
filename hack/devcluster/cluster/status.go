package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-dev/sluice/hack/devcluster/controlplane"
	"github.com/sluice-dev/sluice/hack/devcluster/footprint"
)

// Status is what a cluster is doing.
type Status struct {
	// Exists is false if there is no such cluster; all other fields are then empty.
	Exists bool
	// Programs says of each program whether it runs, in the order in which they are stopped.
	Programs []ProgramStatus
	// Unready says why the cluster cannot be used, or is nil if it can.
	Unready error
}

// ProgramStatus is the state of one program.
type ProgramStatus struct {
	Name string
	// PID is its process, 0 if it does not run.
	PID int
	// Log is the path of its log.
	Log string
}

// Status looks at the cluster. It changes nothing.
func (c *Cluster) Status(ctx context.Context) (Status, error) {
	s, found, err := c.loadState()
	if err != nil || !found {
		return Status{}, err
	}
	status := Status{Exists: true}
	for _, name := range components() {
		running, err := c.readRecord(name)
		if err != nil {
			return Status{}, err
		}
		program := ProgramStatus{Name: name, Log: c.logPath(name)}
		if running.Alive() {
			program.PID = running.PID
		}
		status.Programs = append(status.Programs, program)
	}
	status.Unready = c.unready(ctx, s, status.Programs)
	return status, nil
}

// unready returns why the cluster cannot be used, or nil.
func (c *Cluster) unready(ctx context.Context, s state, programs []ProgramStatus) error {
	for _, program := range programs {
		if program.PID == 0 {
			return fmt.Errorf("%s does not run", program.Name)
		}
	}
	client, err := adminClient(controlplane.Config{Dir: c.dir, Address: s.Address, Port: s.Port})
	if err != nil {
		return err
	}
	if err := controlplane.Ready(ctx, client); err != nil {
		return err
	}
	return nodeReady(ctx, client, c.nodeName(), time.Time{})
}

// Leaks lists every trace of the cluster on the host, its folder apart. A cluster that was removed has none.
func (c *Cluster) Leaks(ctx context.Context) ([]string, error) {
	if err := requireRoot("status --leaks"); err != nil {
		return nil, err
	}
	s, found, err := c.loadState()
	if err != nil {
		return nil, err
	}
	if !found {
		s.Before = footprint.AssumeNone()
	}
	return footprint.Scan(ctx, c.owner(), s.Before)
}
