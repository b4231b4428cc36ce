package node

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/sluice-dev/sluice/internal/peer"
)

// Config is the same on all nodes but for Rank.
type Config struct {
	Nodes   int    // > 1
	Rank    int    // 0 <= Rank < Nodes; 0 leads
	Address string // of node 0, host:port
	Secret  []byte // empty is allowed on loopback only
	// Shape is what must be the same on all nodes, in words.
	Shape string

	JoinTimeout time.Duration // until all nodes are there; 0: 300 s
	Silence     time.Duration // of a node, until it counts as dead; 0: 5 s
}

// errNoSecret says what to do.
var errNoSecret = errors.New("there is no secret: name the same file on all nodes with --dist-secret-file, or set SLUICE_DIST_SECRET")

// Validate gives c with defaults, or what is wrong with it.
func (c Config) Validate() (Config, error) {
	if c.Nodes < 2 {
		return c, fmt.Errorf("--nnodes is %d: several nodes are 2 or more", c.Nodes)
	}
	if c.Rank < 0 || c.Rank >= c.Nodes {
		return c, fmt.Errorf("--node-rank is %d: give 0 to %d, --nnodes is %d", c.Rank, c.Nodes-1, c.Nodes)
	}
	host, port, err := net.SplitHostPort(c.Address)
	if err != nil || host == "" || port == "" {
		return c, fmt.Errorf("--dist-init-addr is %q: give host:port of node 0, the same on all nodes", c.Address)
	}
	if len(c.Secret) == 0 && !peer.Loopback(host) {
		return c, fmt.Errorf("--dist-init-addr %s is not a loopback address and %w", c.Address, errNoSecret)
	}
	if c.JoinTimeout <= 0 {
		c.JoinTimeout = 300 * time.Second
	}
	if c.Silence <= 0 {
		c.Silence = 5 * time.Second
	}
	return c, nil
}

// Host is the host of node 0.
func (c Config) Host() string {
	host, _, _ := net.SplitHostPort(c.Address) // Validate has looked at it
	return host
}
