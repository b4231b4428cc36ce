package rank

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc/test/bufconn"

	"github.com/sluice-dev/sluice/engine/parallel"
)

// bufferBytes is how much a direction of the in-memory link holds.
const bufferBytes = 1 << 20

// inProcess is a rank in this process.
type inProcess struct {
	*handle
	stop context.CancelFunc
}

// StartInProcess runs a rank in this process, over an in-memory link, and returns when it serves. The same code as Start
// but for the process. ctx bounds the start alone.
func StartInProcess(ctx context.Context, cfg Config) (Client, error) {
	return startInProcess(ctx, cfg, nil)
}

// startInProcess starts one rank of a world, or with nil one alone. The world stays the caller's.
func startInProcess(ctx context.Context, cfg Config, world *parallel.World) (Client, error) {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	link := bufconn.Listen(bufferBytes)
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		err := run(life, cfg, world, newLogger(cfg, os.Stderr), func() (net.Listener, error) { return link, nil }, func() { close(ready) })
		_ = link.Close()
		ended <- err
	}()
	abandon := func(err error) error {
		stop()
		return errors.Join(err, <-ended)
	}
	select {
	case <-ready:
	case err := <-ended:
		stop()
		return nil, fmt.Errorf("start %s: %w", cfg.name(), err)
	case <-ctx.Done():
		return nil, abandon(ctx.Err())
	}
	h, err := connect(ctx, link.DialContext, func() {})
	if err != nil {
		return nil, abandon(err)
	}
	p := &inProcess{handle: h, stop: stop}
	go func() {
		err := <-ended
		if err == nil {
			err = errors.New("without an error")
		}
		h.end(fmt.Errorf("%s ended: %w", cfg.name(), err))
		stop()
	}()
	return p, nil
}

// Close implements Client. There is nothing to kill: when ctx ends first the rank ends later.
func (p *inProcess) Close(ctx context.Context) error {
	p.beginClose()
	p.stop()
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close rank %d: %w", p.info.Rank, ctx.Err())
	}
}
