package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-dev/sluice/hack/devcluster/footprint"
)

// state is what the cluster remembers from one command to the next, in cluster.json in its folder.
type state struct {
	// Address is the node's address and Port the API server's port at it.
	Address net.IP `json:"address"`
	Port    int    `json:"port"`
	// BootID names the boot of the host in which the cluster was last started.
	BootID string `json:"bootID"`
	// Before is what the host had before the cluster came.
	Before footprint.Before `json:"before"`
}

const stateFile = "cluster.json"

// loadState reads the state; found is false if the cluster does not exist.
func (c *Cluster) loadState() (s state, found bool, err error) {
	data, err := os.ReadFile(c.path(stateFile))
	if errors.Is(err, os.ErrNotExist) {
		return state{}, false, nil
	}
	if err != nil {
		return state{}, false, fmt.Errorf("read the cluster's state: %w", err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return state{}, false, fmt.Errorf("read the cluster's state %s: %w; remove the cluster with down --force", c.path(stateFile), err)
	}
	return s, true, nil
}

func (c *Cluster) saveState(s state) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the cluster's state: %w", err)
	}
	if err := replaceFile(c.path(stateFile), data); err != nil {
		return fmt.Errorf("write the cluster's state: %w", err)
	}
	return nil
}

// replaceFile writes a file that appears whole or not at all. Its folder is made if need be.
func replaceFile(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temporary := path + ".tmp"
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// bootID names this boot of the host.
func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot's id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// others returns the names of this host's other clusters.
func (c *Cluster) others() ([]string, error) {
	states, err := filepath.Glob(filepath.Join(filepath.Dir(c.dir), "*", stateFile))
	if err != nil {
		return nil, fmt.Errorf("look for other clusters: %w", err)
	}
	var names []string
	for _, path := range states {
		if folder := filepath.Dir(path); folder != c.dir {
			names = append(names, filepath.Base(folder))
		}
	}
	return names, nil
}
