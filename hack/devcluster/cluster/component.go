package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/hack/devcluster/process"
)

const (
	// stopGrace is how long a program may take to end by itself.
	stopGrace = 10 * time.Second
	// logTailBytes is how much of a program's log goes into an error.
	logTailBytes = 1500
)

// component is one program of the cluster. Its fields decide whether a running one can stay.
type component struct {
	name string
	path string
	args []string
	// inputs are files whose content matters to the program: when one changes, the program is restarted.
	inputs []string
}

// record is what is remembered of a started component, in run/NAME.json.
type record struct {
	process.Identity
	// Hash is the hash of the component that was started.
	Hash string `json:"hash"`
}

// hash names the component with its command line and the content of its inputs.
func (p component) hash() (string, error) {
	sum := sha256.New()
	fmt.Fprintf(sum, "%q %q\n", p.path, p.args)
	for _, input := range p.inputs {
		data, err := os.ReadFile(input)
		if err != nil {
			return "", fmt.Errorf("read an input of %s: %w", p.name, err)
		}
		fmt.Fprintf(sum, "%q %x\n", input, sha256.Sum256(data))
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

func (c *Cluster) recordPath(name string) string { return c.path("run", name+".json") }

func (c *Cluster) logPath(name string) string { return c.path("logs", name+".log") }

// readRecord returns the record of a component, or the zero record, which is of no live process.
func (c *Cluster) readRecord(name string) (record, error) {
	data, err := os.ReadFile(c.recordPath(name))
	if errors.Is(err, os.ErrNotExist) {
		return record{}, nil
	}
	if err != nil {
		return record{}, fmt.Errorf("read the record of %s: %w", name, err)
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return record{}, fmt.Errorf("read the record of %s: %w", name, err)
	}
	return r, nil
}

// ensure starts the component unless the same one runs already; one that runs with another command line or
// other inputs is stopped first.
func (c *Cluster) ensure(ctx context.Context, p component) (started bool, err error) {
	hash, err := p.hash()
	if err != nil {
		return false, err
	}
	running, err := c.readRecord(p.name)
	if err != nil {
		return false, err
	}
	if running.Alive() {
		if running.Hash == hash {
			return false, nil
		}
		if err := running.Stop(ctx, stopGrace); err != nil {
			return false, fmt.Errorf("restart %s: %w", p.name, err)
		}
	}
	if err := os.MkdirAll(c.path("logs"), 0o755); err != nil {
		return false, fmt.Errorf("start %s: %w", p.name, err)
	}
	process, err := process.StartDetached(process.Command{
		Path: p.path, Args: p.args, Dir: c.dir, Log: c.logPath(p.name),
		Env: componentEnv(os.Environ(), filepath.Dir(p.path)),
	})
	if err != nil {
		return false, err
	}
	data, err := json.Marshal(record{Identity: process.Identity, Hash: hash})
	if err == nil {
		err = replaceFile(c.recordPath(p.name), data)
	}
	if err != nil {
		// A program without a record could not be found again.
		return false, errors.Join(fmt.Errorf("record %s: %w", p.name, err), process.Kill(ctx))
	}
	return true, nil
}

// stop ends a component, if it runs, and forgets it.
func (c *Cluster) stop(ctx context.Context, name string, grace time.Duration) error {
	running, err := c.readRecord(name)
	if err != nil {
		return err
	}
	if err := running.Stop(ctx, grace); err != nil {
		return fmt.Errorf("stop %s: %w", name, err)
	}
	if err := os.Remove(c.recordPath(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("forget %s: %w", name, err)
	}
	return nil
}

// died returns an error with the end of the log if the component does not run.
func (c *Cluster) died(name string) error {
	running, err := c.readRecord(name)
	if err != nil || running.Alive() {
		return err
	}
	return fmt.Errorf("%s ended; the end of %s:\n%s", name, c.logPath(name), c.logTail(name))
}

func (c *Cluster) logTail(name string) string {
	data, err := os.ReadFile(c.logPath(name))
	if err != nil {
		return err.Error()
	}
	data = bytes.TrimSpace(data)
	if len(data) > logTailBytes {
		data = data[len(data)-logTailBytes:]
	}
	return string(data)
}

// componentEnv is the environment of the cluster's programs: this program's, without what would lead clients to
// another cluster or through a proxy, and with the folder of the program itself in PATH, where containerd looks
// for its shim.
func componentEnv(environment []string, folder string) []string {
	var kept []string
	path := ""
	for _, variable := range environment {
		name, value, _ := strings.Cut(variable, "=")
		switch strings.ToUpper(name) {
		case "KUBECONFIG", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY":
		case "PATH":
			path = value
		default:
			kept = append(kept, variable)
		}
	}
	return append(kept, "PATH="+folder+":"+path+":/usr/sbin:/sbin")
}
