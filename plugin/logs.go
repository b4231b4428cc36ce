package plugin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/plugin/cluster"
)

// LogOptions choose what `logs` shows.
type LogOptions struct {
	Follow bool
	Tail   int64 // lines of each container; -1: all
	Since  int64 // seconds; 0: all
	Router bool  // the router's too
}

// maxLogs is how many logs may be read at once: each is a connection that stays.
const maxLogs = 64

// logLine is one line of `logs -o json`.
type logLine struct {
	Pod  string `json:"pod"`
	Pool string `json:"pool"` // router for the router's
	Line string `json:"line"`
}

// Logs shows the logs of a service's engines, or of one pool's, line by line as they come, each after the name of its pod.
func (p *Plugin) Logs(ctx context.Context, service, pool string, o LogOptions) error {
	states, err := p.services(ctx, service)
	if err != nil {
		return err
	}
	state := states[0]
	pods, err := logPods(state, pool, o.Router)
	if err != nil {
		return err
	}
	if len(pods) > maxLogs {
		return fmt.Errorf("%w: %d pods are too many at once, at most %d: name a pool, or use kubectl logs", ErrUsage, len(pods), maxLogs)
	}
	width := 0
	for _, pod := range pods {
		width = max(width, len(pod.Name))
	}
	lines := make(chan logLine)
	ctx, cancel := context.WithCancel(ctx)
	failures := make([]error, len(pods))
	var group sync.WaitGroup
	for i, pod := range pods {
		group.Go(func() { failures[i] = p.readLog(ctx, pod, o, lines) })
	}
	go func() {
		group.Wait()
		close(lines)
	}()
	defer cancel() // then who writes does not wait any more
	for line := range lines {
		if err := p.writeLine(line, width); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return p.logFailures(pods, failures)
}

// logFailures is an error when no log could be read; of some it is told beside the others.
func (p *Plugin) logFailures(pods []*corev1.Pod, failures []error) error {
	failed := errors.Join(failures...)
	if failed == nil {
		return nil
	}
	if !slices.Contains(failures, nil) {
		return failures[0]
	}
	for i, err := range failures {
		if err != nil {
			p.warn(fmt.Sprintf("%s: %v", pods[i].Name, err))
		}
	}
	return nil
}

func logPods(state *cluster.State, pool string, router bool) ([]*corev1.Pod, error) {
	if pool != "" {
		of, err := state.Pool(pool)
		if err != nil {
			return nil, err
		}
		pods := state.PoolPods(of)
		if len(pods) == 0 {
			return nil, fmt.Errorf("pool %s of InferenceService %s has no pod: see kubectl sluice status %s", pool, state.Service.Name, state.Service.Name)
		}
		return pods, nil
	}
	pods := slices.Clone(state.Pods)
	if router {
		pods = append(pods, state.Routers...)
	}
	if len(pods) == 0 {
		return nil, fmt.Errorf("InferenceService %s has no pod: see kubectl sluice status %s", state.Service.Name, state.Service.Name)
	}
	return pods, nil
}

func (p *Plugin) readLog(ctx context.Context, pod *corev1.Pod, o LogOptions, lines chan<- logLine) error {
	options := &corev1.PodLogOptions{Container: containerOf(pod), Follow: o.Follow}
	if o.Tail >= 0 {
		options.TailLines = &o.Tail
	}
	if o.Since > 0 {
		options.SinceSeconds = &o.Since
	}
	body, err := p.Cluster.Core.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options).Stream(ctx)
	if err != nil {
		return p.Cluster.Explain(err, "read the log of pod "+pod.Name, pod.Namespace)
	}
	defer func() { _ = body.Close() }()
	pool := pod.Labels[v1alpha1.LabelPool]
	if pool == "" {
		pool = pod.Labels[v1alpha1.LabelComponent]
	}
	for reader := bufio.NewReaderSize(body, 64<<10); ; {
		text, err := reader.ReadSlice('\n')
		if len(text) > 0 {
			select {
			case lines <- logLine{Pod: pod.Name, Pool: pool, Line: trimEnd(text)}:
			case <-ctx.Done():
				return nil
			}
		}
		switch {
		case err == nil, errors.Is(err, bufio.ErrBufferFull): // a line that is longer than the buffer comes in pieces
		case errors.Is(err, io.EOF), ctx.Err() != nil:
			return nil
		default:
			return fmt.Errorf("read the log of pod %s: %w", pod.Name, err)
		}
	}
}

func (p *Plugin) writeLine(line logLine, width int) error {
	if p.Output == JSON {
		return p.writeJSONLine(line)
	}
	if _, err := fmt.Fprintf(p.Out, "%-*s  %s\n", width, line.Pod, line.Line); err != nil {
		return fmt.Errorf("write the log: %w", err)
	}
	return nil
}

// containerOf is the container that computes: the one named after its component, else the first.
func containerOf(pod *corev1.Pod) string {
	for _, container := range pod.Spec.Containers {
		if container.Name == pod.Labels[v1alpha1.LabelComponent] {
			return container.Name
		}
	}
	return pod.Spec.Containers[0].Name
}

func trimEnd(line []byte) string {
	for len(line) > 0 && (line[len(line)-1] == '\n' || line[len(line)-1] == '\r') {
		line = line[:len(line)-1]
	}
	return string(line)
}
