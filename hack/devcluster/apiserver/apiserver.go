package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"

	"github.com/sluice-dev/sluice/hack/devcluster/controlplane"
	"github.com/sluice-dev/sluice/hack/devcluster/process"
	"github.com/sluice-dev/sluice/internal/buildcache"
)

const (
	// startTimeout bounds a start with programs that are built; on an idle machine it takes under 3 s.
	startTimeout = 2 * time.Minute
	// stopGrace is how long each program may take to end by itself. There is nothing to save.
	stopGrace = 5 * time.Second
	// logTail is how much of a program's log goes into an error.
	logTail = 2048
)

// Options of a server. The zero value is a good one.
type Options struct {
	// ExtraArgs are appended to kube-apiserver's command line.
	ExtraArgs []string
	// Log gets progress lines while programs are built. Nil means standard error.
	Log io.Writer
	// KeepLogs names a folder that etcd's and kube-apiserver's logs are left in. Empty means that they go.
	KeepLogs string
}

// Server is a running API server.
type Server struct {
	// Config makes clients that may do everything. Its rate limits are off.
	Config *rest.Config
	// KubeconfigPath is a kubeconfig for the same, valid until Stop.
	KubeconfigPath string

	dir       string
	keepLogs  string
	processes []*process.Running // In the order of their start.
	port      reservation
}

// Start runs etcd and kube-apiserver and returns when the API answers. Programs that the cache lacks are built
// first, which takes minutes the first time on a machine. When ctx ends before that, everything is stopped;
// afterwards ctx has no effect. The programs die with this process even if Stop is never called.
func Start(ctx context.Context, options Options) (*Server, error) {
	log := options.Log
	if log == nil {
		log = os.Stderr
	}
	cache, err := buildcache.Open(log)
	if err != nil {
		return nil, fmt.Errorf("start an API server: %w", err)
	}
	programs, err := cache.Paths(ctx, "etcd", "kube-apiserver")
	if err != nil {
		return nil, fmt.Errorf("start an API server: %w", err)
	}
	dir, err := os.MkdirTemp("", "sluice-apiserver-")
	if err != nil {
		return nil, fmt.Errorf("start an API server: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	server := &Server{dir: dir, keepLogs: options.KeepLogs, port: reservation{fd: -1}}
	if err := server.start(ctx, programs, options.ExtraArgs); err != nil {
		return nil, errors.Join(fmt.Errorf("start an API server: %w", err), server.Stop())
	}
	return server, nil
}

func (s *Server) start(ctx context.Context, programs map[string]string, extraArgs []string) error {
	address := net.IPv4(127, 0, 0, 1)
	var err error
	if s.port, err = reserve(address); err != nil {
		return err
	}
	plane := controlplane.Config{
		Dir:          s.dir,
		Address:      address,
		Port:         s.port.port,
		ServiceRange: net.IPNet{IP: net.IPv4(10, 96, 0, 0).To4(), Mask: net.CIDRMask(16, 32)},
	}
	if err := plane.EnsureCredentials(time.Now()); err != nil {
		return err
	}
	s.KubeconfigPath = plane.KubeconfigPath(controlplane.UserAdmin)
	if s.Config, err = plane.RESTConfig(controlplane.UserAdmin); err != nil {
		return err
	}
	s.Config.QPS = -1

	lost := make(chan error, 2)
	for _, program := range []struct {
		name string
		args []string
	}{
		{"etcd", plane.EtcdArgs()},
		{"kube-apiserver", append(plane.APIServerArgs(), extraArgs...)},
	} {
		log := filepath.Join(s.dir, program.name+".log")
		running, err := process.StartTied(process.Command{Path: programs[program.name], Args: program.args, Dir: s.dir, Log: log})
		if err != nil {
			return err
		}
		s.processes = append(s.processes, running)
		go func() {
			<-running.Exited()
			result := running.Err()
			if result == nil {
				result = errors.New("with status 0")
			}
			lost <- fmt.Errorf("%s ended: %w; the end of its log:\n%s", program.name, result, tail(log))
		}()
	}
	return controlplane.WaitReady(ctx, s.Config, lost)
}

// Stop ends the server and removes all its files. It is safe to call it twice.
func (s *Server) Stop() error {
	var errs []error
	for i := len(s.processes) - 1; i >= 0; i-- {
		errs = append(errs, s.processes[i].Stop(context.Background(), stopGrace))
		<-s.processes[i].Exited()
	}
	s.processes = nil
	if s.port.fd >= 0 {
		errs = append(errs, s.port.release())
		s.port.fd = -1
	}
	errs = append(errs, s.saveLogs(), os.RemoveAll(s.dir))
	return errors.Join(errs...)
}

func (s *Server) saveLogs() error {
	if s.keepLogs == "" {
		return nil
	}
	logs, err := filepath.Glob(filepath.Join(s.dir, "*.log"))
	if err != nil {
		return err
	}
	for _, log := range logs {
		data, err := os.ReadFile(log)
		if err != nil {
			return fmt.Errorf("keep logs: %w", err)
		}
		if err := os.WriteFile(filepath.Join(s.keepLogs, filepath.Base(log)), data, 0o600); err != nil {
			return fmt.Errorf("keep logs: %w", err)
		}
	}
	return nil
}

// tail returns the last bytes of a log, or why it cannot be read.
func tail(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	data = bytes.TrimSpace(data)
	if len(data) > logTail {
		data = data[len(data)-logTail:]
	}
	return string(data)
}
