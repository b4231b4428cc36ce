package parallel

import (
	"context"
	"errors"
)

// Pipe carries activations along the stages, from each rank to the one with the same place in the next stage. Send and
// Recv are called from one goroutine. A nil Pipe is a world of one stage.
type Pipe struct {
	world    *World
	previous *line // nil in the first stage
	next     *line // nil in the last stage
}

// Send gives x to the next stage. It returns when x may be changed again, which may be before it was received.
func (p *Pipe) Send(x []float32) error {
	if p == nil || p.next == nil {
		return errors.New("send activations: there is no stage behind this one")
	}
	return p.world.operation(context.Background(), "send activations", func(ctx context.Context) error {
		return p.next.put(ctx, kindActivations, bytesOf(x))
	})
}

// Recv fills x with what the previous stage sent, which must be as long.
func (p *Pipe) Recv(x []float32) error {
	if p == nil || p.previous == nil {
		return errors.New("receive activations: there is no stage before this one")
	}
	return p.world.operation(context.Background(), "receive activations", func(ctx context.Context) error {
		return p.previous.takeInto(ctx, kindActivations, bytesOf(x))
	})
}
