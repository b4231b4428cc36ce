package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"

	"github.com/sluice-dev/sluice/hack/devcluster/controlplane"
	"github.com/sluice-dev/sluice/hack/devcluster/footprint"
	"github.com/sluice-dev/sluice/hack/devcluster/node"
)

const (
	// DefaultName is the name of the cluster that is meant where none is given.
	DefaultName = "dev"
	// DefaultBase is the folder of all clusters' folders.
	DefaultBase = "/var/lib/sluice-devcluster"
)

// Networks of the cluster.
var (
	podRange     = net.IPNet{IP: net.IPv4(10, 244, 0, 0).To4(), Mask: net.CIDRMask(24, 32)}
	serviceRange = net.IPNet{IP: net.IPv4(10, 96, 0, 0).To4(), Mask: net.CIDRMask(16, 32)}
)

// Options of a cluster.
type Options struct {
	// Name is the cluster's name; empty means DefaultName.
	Name string
	// Base is the folder of all clusters' folders; empty means DefaultBase.
	Base string
	// Log gets progress lines; nil means silence.
	Log io.Writer
}

// Cluster is one development cluster, running or not.
type Cluster struct {
	name string
	dir  string
	log  io.Writer
}

var validName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,19}$`)

// New returns the cluster of the given name. It touches nothing.
func New(options Options) (*Cluster, error) {
	name, base, log := options.Name, options.Base, options.Log
	if name == "" {
		name = DefaultName
	}
	if base == "" {
		base = DefaultBase
	}
	if log == nil {
		log = io.Discard
	}
	if !validName.MatchString(name) {
		return nil, fmt.Errorf("name %q: use at most 20 lower-case letters, digits and hyphens, a letter first", name)
	}
	base, err := filepath.Abs(base)
	if err != nil {
		return nil, fmt.Errorf("resolve the folder %s: %w", base, err)
	}
	return &Cluster{name: name, dir: filepath.Join(base, name), log: log}, nil
}

// Dir is the folder that holds everything of the cluster.
func (c *Cluster) Dir() string { return c.dir }

// KubeconfigPath is the path of the administrator's kubeconfig, which exists while the cluster is up.
func (c *Cluster) KubeconfigPath() string {
	return controlplane.Config{Dir: c.dir}.KubeconfigPath(controlplane.UserAdmin)
}

func (c *Cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.dir}, elements...)...)
}

// owner returns the marks by which the cluster's traces on the host are known.
func (c *Cluster) owner() footprint.Owner {
	return footprint.Owner{Dir: c.dir, CgroupRoot: c.cgroupRoot(), Pods: podRange, Services: serviceRange, Network: node.Network}
}

func (c *Cluster) cgroupRoot() string { return "/sluice-devcluster-" + c.name }

// nodeName is the name of the cluster's node.
func (c *Cluster) nodeName() string { return c.name + "-node" }

func (c *Cluster) logf(format string, args ...any) { fmt.Fprintf(c.log, format+"\n", args...) }

func (c *Cluster) lockPath() string { return filepath.Join(filepath.Dir(c.dir), ".lock") }

// lock keeps two commands from changing clusters of this host at the same time.
func (c *Cluster) lock(ctx context.Context) (unlock func(), err error) {
	var held *os.File
	told := false
	err = poll(ctx, func() (bool, error) {
		if err := os.MkdirAll(filepath.Dir(c.dir), 0o755); err != nil {
			return false, err
		}
		held, err = tryLock(c.lockPath())
		if held == nil && err == nil && !told {
			c.logf("waiting for another command on this host's clusters")
			told = true
		}
		return held != nil, err
	})
	if err != nil {
		return nil, fmt.Errorf("lock the clusters' folder: %w", err)
	}
	return func() { _ = held.Close() }, nil
}

// tryLock takes the lock at path, or returns nil if another process has it. The command that removes the last
// cluster removes the lock's file too; a lock on a file that is no longer there guards nothing and is given up.
func tryLock(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return nil, file.Close()
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	mine, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	if current, err := os.Stat(path); err != nil || !os.SameFile(mine, current) {
		return nil, file.Close()
	}
	return file, nil
}
