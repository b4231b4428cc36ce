package rank

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/loads"
	"github.com/sluice-dev/sluice/engine/profile"
	"github.com/sluice-dev/sluice/engine/rank/rankpb"
	"github.com/sluice-dev/sluice/engine/request"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Errors of a Client that callers tell apart.
var (
	// ErrClosed: Close was called.
	ErrClosed = errors.New("the rank was closed")
	// ErrDuplicate: a request with this rid lives.
	ErrDuplicate = errors.New("a request with this rid lives")
	// ErrTooLarge: a request takes more bytes than the protocol carries.
	ErrTooLarge = errors.New("the request is too large for the rank")
)

// LostError says that a call was not answered because the rank has ended or can't be reached. Any other error of a call is
// what the rank said, or the end of the caller's context.
type LostError struct{ Cause error }

func (e *LostError) Error() string { return e.Cause.Error() }

// Unwrap gives the cause.
func (e *LostError) Unwrap() error { return e.Cause }

// drainGrace is how long the last outputs of a rank that has ended may take to be read.
const drainGrace = time.Second

// handle is the client side of one rank, wherever it runs. It ends exactly once: by end, which the goroutine that watches
// the rank calls.
type handle struct {
	info Info
	conn *grpc.ClientConn
	api  rankpb.RankClient

	calls  grpc.BidiStreamingClient[rankpb.Call, rankpb.Event]
	sendMu sync.Mutex // of calls.Send

	received chan struct{} // closed when no more outputs come

	mu      sync.Mutex
	streams map[string]*Stream // by rid, without Finish
	closing bool               // the rank was asked to end
	ended   bool
	err     error
	done    chan struct{}
}

// connect makes the client of a rank that serves, over connections that dial gives. lost is called once, when outputs
// stop coming.
func connect(ctx context.Context, dial func(context.Context) (net.Conn, error), lost func()) (*handle, error) {
	conn, err := grpc.NewClient("passthrough:///rank",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes)),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to the rank: %w", err)
	}
	h := &handle{
		conn: conn, api: rankpb.NewRankClient(conn), streams: map[string]*Stream{},
		received: make(chan struct{}), done: make(chan struct{}),
	}
	info, err := h.api.Info(ctx, &rankpb.InfoRequest{})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ask the rank for its facts: %w", err), conn.Close())
	}
	h.info = infoFromWire(info)
	// The stream lives as long as the connection, not as long as ctx.
	if h.calls, err = h.api.Connect(context.WithoutCancel(ctx)); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to the rank: %w", err), conn.Close())
	}
	go func() {
		h.receive()
		close(h.received)
		lost()
	}()
	return h, nil
}

// receive puts outputs into their streams until no more come.
func (h *handle) receive() {
	for {
		e, err := h.calls.Recv()
		if err != nil {
			return // the goroutine that watches the rank finds out why
		}
		for _, w := range e.GetOutputs() {
			o := outputFromWire(w)
			h.mu.Lock()
			s := h.streams[o.RID]
			if o.Finish != nil {
				delete(h.streams, o.RID)
			}
			h.mu.Unlock()
			if s != nil {
				s.Put(o)
			}
		}
	}
}

// Submit implements Client.
func (h *handle) Submit(ctx context.Context, r *request.Request) (*Stream, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	call := &rankpb.Call{Call: &rankpb.Call_Submit{Submit: requestToWire(r)}}
	if n := proto.Size(call); n > maxMessageBytes { // sent, it would break the connection
		return nil, fmt.Errorf("submit request %s: %w: %d bytes, at most %d can be sent", r.RID, ErrTooLarge, n, maxMessageBytes)
	}
	s := NewStream()
	h.mu.Lock()
	switch {
	case h.ended || h.closing:
		err := h.err
		h.mu.Unlock()
		return nil, fmt.Errorf("submit request %s: %w", r.RID, orClosed(err))
	case h.streams[r.RID] != nil:
		h.mu.Unlock()
		return nil, fmt.Errorf("submit request %s: %w: send another rid", r.RID, ErrDuplicate)
	}
	h.streams[r.RID] = s
	h.mu.Unlock()
	if err := h.send(call); err != nil {
		h.mu.Lock()
		delete(h.streams, r.RID)
		h.mu.Unlock()
		return nil, fmt.Errorf("submit request %s: %w", r.RID, err)
	}
	return s, nil
}

func orClosed(err error) error {
	if err == nil {
		return ErrClosed
	}
	return err
}

func (h *handle) send(c *rankpb.Call) error {
	h.sendMu.Lock()
	defer h.sendMu.Unlock()
	if err := h.calls.Send(c); err != nil {
		return fmt.Errorf("the connection to the rank is lost: %w", err)
	}
	return nil
}

// Abort implements Client.
func (h *handle) Abort(rid string, reason request.Outcome) error {
	return h.abort(&rankpb.Abort{Rid: rid, Outcome: string(reason)})
}

// AbortAll implements Client.
func (h *handle) AbortAll(prefix string) error {
	return h.abort(&rankpb.Abort{Rid: prefix, Prefix: true})
}

func (h *handle) abort(a *rankpb.Abort) error {
	select {
	case <-h.done:
		return nil // so has every request
	default:
	}
	if err := h.send(&rankpb.Call{Call: &rankpb.Call_Abort{Abort: a}}); err != nil {
		return fmt.Errorf("abort %q: %w", a.GetRid(), err)
	}
	return nil
}

// Loads implements Client.
func (h *handle) Loads(ctx context.Context) ([]loads.Load, error) {
	reply, err := h.api.Load(ctx, &rankpb.LoadRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask the rank for its load: %w", h.cause(err))
	}
	var l loads.Load
	if err := json.Unmarshal(reply.GetLoad(), &l); err != nil {
		return nil, fmt.Errorf("decode the rank's load: %w", err)
	}
	return []loads.Load{l}, nil
}

// timelinesAtOnce is how many requests one question is about, so that the scheduler is not held up by a list of thousands.
const timelinesAtOnce = 256

// Timelines implements Client.
func (h *handle) Timelines(ctx context.Context, rids []string) (map[string]*ledger.Record, error) {
	found := map[string]*ledger.Record{}
	for some := range slices.Chunk(rids, timelinesAtOnce) {
		reply, err := h.api.Timelines(ctx, &rankpb.TimelinesRequest{Rids: some})
		if err != nil {
			return found, fmt.Errorf("ask the rank for timelines: %w", h.cause(err))
		}
		for rid, w := range reply.GetTimelines() {
			found[rid] = timelineFromWire(w)
		}
	}
	return found, nil
}

// Info implements Client.
func (h *handle) Info() Info { return h.info }

// Flush implements Client.
func (h *handle) Flush(ctx context.Context) error {
	if _, err := h.api.Flush(ctx, &rankpb.FlushRequest{}); err != nil {
		return fmt.Errorf("flush the cache: %w", h.cause(err))
	}
	return nil
}

// Pause implements Client.
func (h *handle) Pause(ctx context.Context, mode request.PauseMode) error {
	if _, err := h.api.Pause(ctx, &rankpb.PauseRequest{Mode: string(mode)}); err != nil {
		return fmt.Errorf("pause: %w", h.cause(err))
	}
	return nil
}

// Continue implements Client.
func (h *handle) Continue(ctx context.Context) error {
	if _, err := h.api.Continue(ctx, &rankpb.ContinueRequest{}); err != nil {
		return fmt.Errorf("continue: %w", h.cause(err))
	}
	return nil
}

// OpenSession implements Client.
func (h *handle) OpenSession(ctx context.Context, s request.Session) error {
	if _, err := h.api.OpenSession(ctx, sessionToWire(s)); err != nil {
		return fmt.Errorf("open session %q: %w", s.ID, h.cause(err))
	}
	return nil
}

// CloseSession implements Client.
func (h *handle) CloseSession(ctx context.Context, id string) error {
	if _, err := h.api.CloseSession(ctx, &rankpb.CloseSessionRequest{Id: id}); err != nil {
		return fmt.Errorf("close session %q: %w", id, h.cause(err))
	}
	return nil
}

// StartProfile implements Client.
func (h *handle) StartProfile(ctx context.Context, o profile.Options) error {
	if _, err := h.api.StartProfile(ctx, &rankpb.StartProfileRequest{
		Dir: o.Dir, Name: o.Name, Cpu: o.CPU, Memory: o.Memory, FromStep: o.FromStep, Steps: o.Steps,
	}); err != nil {
		return fmt.Errorf("start a profile of rank %d: %w", h.info.Rank, h.cause(err))
	}
	return nil
}

// StopProfile implements Client.
func (h *handle) StopProfile(ctx context.Context) (files []string, err error) {
	reply, err := h.api.StopProfile(ctx, &rankpb.StopProfileRequest{})
	if err != nil {
		return nil, fmt.Errorf("stop the profile of rank %d: %w", h.info.Rank, h.cause(err))
	}
	return reply.GetFiles(), nil
}

// AwaitStep implements Client.
func (h *handle) AwaitStep(ctx context.Context, n int64) (newest int64, err error) {
	reply, err := h.api.AwaitStep(ctx, &rankpb.AwaitStepRequest{Step: n})
	if err != nil {
		return 0, fmt.Errorf("wait for step %d: %w", n, h.cause(err))
	}
	return reply.GetNewest(), nil
}

// Collect implements Client.
func (h *handle) Collect(ctx context.Context) error {
	if _, err := h.api.Collect(ctx, &rankpb.CollectRequest{}); err != nil {
		return fmt.Errorf("collect the garbage of rank %d: %w", h.info.Rank, h.cause(err))
	}
	return nil
}

// cause says why a call failed, without the words of the protocol.
func (h *handle) cause(err error) error {
	select {
	case <-h.done:
		return &LostError{orClosed(h.Err())}
	default:
	}
	switch s := status.Convert(err); s.Code() {
	case codes.FailedPrecondition:
		return errors.New(s.Message())
	case codes.Canceled:
		return context.Canceled
	case codes.DeadlineExceeded:
		return context.DeadlineExceeded
	default:
		return &LostError{err}
	}
}

// Done implements Client.
func (h *handle) Done() <-chan struct{} { return h.done }

// Err implements Client.
func (h *handle) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// beginClose notes that the rank is asked to end, so that its end is no error.
func (h *handle) beginClose() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closing = true
}

// fail tells all requests that live that they are lost.
func (h *handle) fail(err error) {
	h.mu.Lock()
	streams := slices.Collect(maps.Values(h.streams))
	h.mu.Unlock()
	for _, s := range streams {
		s.Fail(err)
	}
}

// end is called once, when the rank is gone: the last outputs are read, streams without a Finish fail, and Done is
// closed. err says how the rank ended; it is dropped when Close asked for it.
func (h *handle) end(err error) {
	t := time.NewTimer(drainGrace)
	defer t.Stop()
	select {
	case <-h.received:
	case <-t.C:
	}
	_ = h.conn.Close() // it tells only that it was closed before
	<-h.received

	h.mu.Lock()
	h.ended = true
	if !h.closing {
		h.err = err
	}
	cause := orClosed(h.err)
	streams := h.streams
	h.streams = nil
	h.mu.Unlock()
	for _, s := range streams {
		s.Fail(cause)
	}
	close(h.done)
}
