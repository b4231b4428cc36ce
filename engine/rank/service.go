package rank

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync/atomic"

	"github.com/sluice-dev/sluice/engine/profile"
	"github.com/sluice-dev/sluice/engine/rank/rankpb"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxMessageBytes bounds a message of the protocol: a prompt of ten million tokens fits.
const maxMessageBytes = 64 << 20

// service is the rank's end of the protocol.
type service struct {
	rankpb.UnimplementedRankServer

	info      Info
	scheduler *scheduler.Scheduler
	profiles  *profile.Recorder
	connected atomic.Bool
	ended     chan struct{} // closed when the scheduler has finished every request
}

func newService(info Info, s *scheduler.Scheduler, log *slog.Logger) *service {
	profiles := profile.NewRecorder(fmt.Sprintf("rank%d", info.Rank), log)
	return &service{info: info, scheduler: s, profiles: profiles, ended: make(chan struct{})}
}

func (s *service) server() *grpc.Server {
	srv := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessageBytes), grpc.MaxSendMsgSize(maxMessageBytes))
	rankpb.RegisterRankServer(srv, s)
	return srv
}

// Connect serves the API process. This goroutine sends; another one receives, so neither waits for the other.
func (s *service) Connect(stream grpc.BidiStreamingServer[rankpb.Call, rankpb.Event]) error {
	if !s.connected.CompareAndSwap(false, true) {
		return status.Error(codes.AlreadyExists, "another stream is connected to this rank")
	}
	defer s.connected.Store(false)
	box := newOutbox()
	defer func() {
		for _, rid := range box.unfinished() {
			s.scheduler.Abort(rid, request.OutcomeAbortedClient)
		}
	}()
	received := make(chan error, 1)
	go func() { received <- s.receive(stream, box) }()
	for {
		select {
		case <-box.ready:
			if err := send(stream, box); err != nil {
				return err
			}
		case err := <-received:
			return err
		case <-s.ended:
			return send(stream, box)
		}
	}
}

func send(stream grpc.BidiStreamingServer[rankpb.Call, rankpb.Event], box *outbox) error {
	for _, outputs := range events(box.take(), eventBytes) {
		if err := stream.Send(&rankpb.Event{Outputs: each(outputs, outputToWire)}); err != nil {
			return fmt.Errorf("send %d outputs: %w", len(outputs), err)
		}
	}
	return nil
}

// receive hands calls to the scheduler until the stream ends.
func (s *service) receive(stream grpc.BidiStreamingServer[rankpb.Call, rankpb.Event], box *outbox) error {
	for {
		call, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.handle(call, box); err != nil {
			return err
		}
	}
}

func (s *service) handle(call *rankpb.Call, box *outbox) error {
	switch c := call.GetCall().(type) {
	case *rankpb.Call_Submit:
		r := requestFromWire(c.Submit)
		box.expect(r.RID)
		if err := s.scheduler.Submit(r, box); err != nil {
			return status.Error(codes.Unavailable, err.Error())
		}
	case *rankpb.Call_Abort:
		if c.Abort.GetPrefix() {
			s.scheduler.AbortAll(c.Abort.GetRid())
			return nil
		}
		s.scheduler.Abort(c.Abort.GetRid(), request.Outcome(c.Abort.GetOutcome()))
	default:
		return status.Errorf(codes.InvalidArgument, "a call of type %T", c)
	}
	return nil
}

// Info tells the constants.
func (s *service) Info(context.Context, *rankpb.InfoRequest) (*rankpb.InfoReply, error) {
	return infoToWire(s.info), nil
}

// Load tells the load.
func (s *service) Load(context.Context, *rankpb.LoadRequest) (*rankpb.LoadReply, error) {
	raw, err := json.Marshal(s.scheduler.Load())
	if err != nil {
		return nil, status.Errorf(codes.Internal, "encode load: %v", err)
	}
	return &rankpb.LoadReply{Load: raw}, nil
}

// Timelines tells how far requests have come.
func (s *service) Timelines(ctx context.Context, r *rankpb.TimelinesRequest) (*rankpb.TimelinesReply, error) {
	found, err := s.scheduler.Timelines(ctx, r.GetRids())
	if err != nil {
		return nil, refusal(err)
	}
	reply := &rankpb.TimelinesReply{Timelines: make(map[string]*rankpb.Timeline, len(found))}
	for rid, record := range found {
		reply.Timelines[rid] = timelineToWire(record)
	}
	return reply, nil
}

// Flush empties the prefix cache.
func (s *service) Flush(ctx context.Context, _ *rankpb.FlushRequest) (*rankpb.FlushReply, error) {
	if err := s.scheduler.Flush(ctx); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &rankpb.FlushReply{}, nil
}

// Pause stops computing.
func (s *service) Pause(ctx context.Context, r *rankpb.PauseRequest) (*rankpb.PauseReply, error) {
	if err := s.scheduler.Pause(ctx, request.PauseMode(r.GetMode())); err != nil {
		return nil, refusal(err)
	}
	return &rankpb.PauseReply{}, nil
}

// Continue ends a pause.
func (s *service) Continue(ctx context.Context, _ *rankpb.ContinueRequest) (*rankpb.ContinueReply, error) {
	if err := s.scheduler.Continue(ctx); err != nil {
		return nil, refusal(err)
	}
	return &rankpb.ContinueReply{}, nil
}

// OpenSession opens a session.
func (s *service) OpenSession(ctx context.Context, r *rankpb.OpenSessionRequest) (*rankpb.OpenSessionReply, error) {
	if err := s.scheduler.OpenSession(ctx, sessionFromWire(r)); err != nil {
		return nil, refusal(err)
	}
	return &rankpb.OpenSessionReply{}, nil
}

// CloseSession closes a session.
func (s *service) CloseSession(ctx context.Context, r *rankpb.CloseSessionRequest) (*rankpb.CloseSessionReply, error) {
	if err := s.scheduler.CloseSession(ctx, r.GetId()); err != nil {
		return nil, refusal(err)
	}
	return &rankpb.CloseSessionReply{}, nil
}

// StartProfile begins a recording of this process.
func (s *service) StartProfile(_ context.Context, r *rankpb.StartProfileRequest) (*rankpb.StartProfileReply, error) {
	if err := s.profiles.Start(s.scheduler, profile.Options{
		Dir: r.GetDir(), Name: r.GetName(), CPU: r.GetCpu(), Memory: r.GetMemory(), FromStep: r.GetFromStep(), Steps: r.GetSteps(),
	}); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &rankpb.StartProfileReply{}, nil
}

// StopProfile ends it.
func (s *service) StopProfile(context.Context, *rankpb.StopProfileRequest) (*rankpb.StopProfileReply, error) {
	files, err := s.profiles.Stop()
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &rankpb.StopProfileReply{Files: files}, nil
}

// AwaitStep waits until a step is over.
func (s *service) AwaitStep(ctx context.Context, r *rankpb.AwaitStepRequest) (*rankpb.AwaitStepReply, error) {
	newest, err := s.scheduler.AwaitStep(ctx, r.GetStep())
	if err != nil {
		return nil, refusal(err)
	}
	return &rankpb.AwaitStepReply{Newest: newest}, nil
}

// Collect collects garbage.
func (s *service) Collect(context.Context, *rankpb.CollectRequest) (*rankpb.CollectReply, error) {
	runtime.GC()
	return &rankpb.CollectReply{}, nil
}

// refusal is the status of what the scheduler refuses to do.
func refusal(err error) error {
	if errors.Is(err, scheduler.ErrEnded) {
		return status.Error(codes.Unavailable, err.Error())
	}
	return status.Error(codes.FailedPrecondition, err.Error())
}
