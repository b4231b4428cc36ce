package trial

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Local is a service of one prefill engine, one decode engine and a router as processes of this machine, without a cluster.
type Local struct {
	Router  string            // base URL
	Engines map[string]string // engine type -> base URL

	dir   string
	procs []*process
}

// StartLocal builds the programs, makes a model in a temporary folder and starts the three processes on loopback. Stop
// must be called, also after an error of the context.
func StartLocal(ctx context.Context, root string, log io.Writer) (*Local, error) {
	dir, err := os.MkdirTemp("", "sluice-local-")
	if err != nil {
		return nil, err
	}
	l := &Local{dir: dir, Engines: map[string]string{}}
	if err := l.start(ctx, root, log); err != nil {
		return nil, errors.Join(err, l.Stop())
	}
	return l, nil
}

func (l *Local) start(ctx context.Context, root string, log io.Writer) error {
	engine, router, model := filepath.Join(l.dir, "sluice-engine"), filepath.Join(l.dir, "sluice-router"), filepath.Join(l.dir, "tiny")
	for out, pkg := range map[string]string{engine: "./cmd/engine", router: "./cmd/router"} {
		fmt.Fprintf(log, "  build %s\n", pkg)
		if err := run(ctx, root, log, "go", "build", "-o", out, pkg); err != nil {
			return err
		}
	}
	if _, err := output(ctx, l.dir, engine, "init-model", "--arch", "llama", "--out", model); err != nil {
		return err
	}
	ports, err := freePorts(4)
	if err != nil {
		return err
	}
	prefill, decode, bootstrap, front := ports[0], ports[1], ports[2], ports[3]
	secret := filepath.Join(l.dir, "secret")
	if err := os.WriteFile(secret, []byte("0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0"), 0o600); err != nil {
		return err
	}
	serve := func(mode string, port int, more ...string) error {
		args := append([]string{
			"serve", "--model-path", model, "--served-model-name", "tiny", "--port", strconv.Itoa(port),
			"--disaggregation-mode", mode, "--disaggregation-secret-file", secret, "--enable-metrics",
		}, more...)
		l.Engines[mode] = fmt.Sprintf("http://127.0.0.1:%d", port)
		return l.spawn(mode, engine, args...)
	}
	if err := serve("prefill", prefill, "--disaggregation-bootstrap-port", strconv.Itoa(bootstrap)); err != nil {
		return err
	}
	if err := serve("decode", decode); err != nil {
		return err
	}
	l.Router = fmt.Sprintf("http://127.0.0.1:%d", front)
	if err := l.spawn("router", router, "--host", "127.0.0.1", "--port", strconv.Itoa(front),
		"--prefill", fmt.Sprintf("http://127.0.0.1:%d,%d", prefill, bootstrap),
		"--decode", fmt.Sprintf("http://127.0.0.1:%d", decode)); err != nil {
		return err
	}
	for name, base := range map[string]string{"prefill": l.Engines["prefill"], "decode": l.Engines["decode"], "router": l.Router} {
		if err := l.healthy(ctx, name, base); err != nil {
			return err
		}
	}
	return nil
}

// healthy waits for GET /health to answer 200, or for a process to end.
func (l *Local) healthy(ctx context.Context, name, base string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ticker := time.NewTicker(pollPeriod)
	defer ticker.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/health", nil)
		if err != nil {
			return err
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		for _, p := range l.procs {
			select {
			case <-p.ended:
				return fmt.Errorf("%s ended while starting: %w\n%s", p.name, p.err, p.tail())
			default:
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s did not become healthy at %s within a minute", name, base)
		case <-ticker.C:
		}
	}
}

// Stop ends the processes, in the order router, engines, and removes the folder.
func (l *Local) Stop() error {
	var errs []error
	for i := len(l.procs) - 1; i >= 0; i-- {
		errs = append(errs, l.procs[i].stop())
	}
	return errors.Join(append(errs, os.RemoveAll(l.dir))...)
}

// process is a child with its output in a file.
type process struct {
	name  string
	cmd   *exec.Cmd
	log   string
	ended chan struct{}
	err   error // valid once ended is closed
}

func (l *Local) spawn(name, program string, args ...string) error {
	p := &process{name: name, cmd: exec.Command(program, args...), log: filepath.Join(l.dir, name+".log"), ended: make(chan struct{})}
	file, err := os.Create(p.log)
	if err != nil {
		return err
	}
	defer file.Close()
	p.cmd.Stdout, p.cmd.Stderr = file, file
	p.cmd.SysProcAttr = parentDeathSignal()
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	l.procs = append(l.procs, p)
	return nil
}

// stop asks the process to end and kills it when it has not after ten seconds.
func (p *process) stop() error {
	select {
	case <-p.ended:
		return nil
	default:
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("kill %s: %w", p.name, err)
		}
		<-p.ended
	}
	return nil
}

func (p *process) tail() string {
	raw, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-10):], []byte("\n")))
}

// freePorts gives n different loopback ports that nothing listens on.
func freePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // all stay open until the end, so that no port comes twice
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}
