package rank

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/sluice-dev/sluice/engine/request"
)

// Stream is the mailbox of one request's answer. Who puts never waits: pieces that the reader has not taken yet are
// joined into one, so a mailbox holds at most one answer, whatever the reader does.
//
//	0 or more pieces · exactly one with Finish · io.EOF      the request ended
//	0 or more pieces · an error                               the rank ended
type Stream struct {
	mu      sync.Mutex
	pending *request.Output // not nil: a piece waits
	ended   bool            // pending holds the Finish, or it was taken
	err     error           // why no more comes although Finish didn't
	ready   chan struct{}   // capacity 1: something changed
}

// NewStream returns an empty mailbox.
func NewStream() *Stream { return &Stream{ready: make(chan struct{}, 1)} }

// Put adds a piece. Pieces after the one with Finish are a mistake of the caller and panic.
func (s *Stream) Put(o request.Output) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		panic("rank: output of request " + o.RID + " after its finish")
	}
	s.pending = Join(s.pending, o)
	s.ended = o.Finish != nil
	s.signal()
}

// Fail ends the stream without a Finish. It changes nothing when the Finish is there already.
func (s *Stream) Fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.err != nil {
		return
	}
	s.err = err
	s.signal()
}

func (s *Stream) signal() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// Recv waits for the next piece. It gives io.EOF after the piece with Finish, the error of Fail after the pieces before
// it, and ctx's error when ctx ends first. One goroutine at a time may call it.
func (s *Stream) Recv(ctx context.Context) (request.Output, error) {
	for {
		o, err := s.take()
		if !errors.Is(err, errEmpty) {
			return o, err
		}
		select {
		case <-s.ready:
		case <-ctx.Done():
			return request.Output{}, ctx.Err()
		}
	}
}

var errEmpty = errors.New("no piece waits")

func (s *Stream) take() (request.Output, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.pending != nil:
		o := *s.pending
		s.pending = nil
		return o, nil
	case s.ended:
		return request.Output{}, io.EOF
	case s.err != nil:
		return request.Output{}, s.err
	default:
		return request.Output{}, errEmpty
	}
}

// Join appends o to the piece before it, which may be nil, and returns the two as one.
func Join(before *request.Output, o request.Output) *request.Output {
	if before == nil {
		return &o
	}
	o.TokenIDs = append(before.TokenIDs[:len(before.TokenIDs):len(before.TokenIDs)], o.TokenIDs...)
	o.Logprobs = append(before.Logprobs[:len(before.Logprobs):len(before.Logprobs)], o.Logprobs...)
	o.PromptLogprobs = append(before.PromptLogprobs[:len(before.PromptLogprobs):len(before.PromptLogprobs)], o.PromptLogprobs...)
	return &o
}
