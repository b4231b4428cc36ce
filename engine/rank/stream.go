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
	onEnd   func()          // called once ended or err is set; nil: nobody waits, or it was called

	completion int // CompletionTokens of the newest piece
	dpRank     int // which DP rank answers
}

// NewStream returns an empty mailbox.
func NewStream() *Stream { return &Stream{ready: make(chan struct{}, 1)} }

// DPRank is the DP rank that answers; 0 where there is one.
func (s *Stream) DPRank() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dpRank
}

// SetDPRank says which DP rank answers.
func (s *Stream) SetDPRank(dpRank int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dpRank = dpRank
}

// CompletionTokens is the number of tokens that the rank has generated so far, taken by the reader or not.
func (s *Stream) CompletionTokens() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.completion
}

// OnEnd has f called once, from any goroutine, after the Finish was put or the stream failed; at once when that has
// happened. f must not wait.
func (s *Stream) OnEnd(f func()) {
	s.mu.Lock()
	if !s.ended && s.err == nil {
		s.onEnd = f
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	f()
}

// takeOnEnd gives what has to be called now that the stream has ended; the caller calls it without the lock.
func (s *Stream) takeOnEnd() func() {
	f := s.onEnd
	s.onEnd = nil
	if f == nil {
		return func() {}
	}
	return f
}

// Put adds a piece. Pieces after the one with Finish are a mistake of the caller and panic.
func (s *Stream) Put(o request.Output) {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		panic("rank: output of request " + o.RID + " after its finish")
	}
	s.completion = o.CompletionTokens
	s.pending = Join(s.pending, o)
	s.ended = o.Finish != nil
	ended := func() {}
	if s.ended {
		ended = s.takeOnEnd()
	}
	s.signal()
	s.mu.Unlock()
	ended()
}

// Fail ends the stream without a Finish. It changes nothing when the Finish is there already.
func (s *Stream) Fail(err error) {
	s.mu.Lock()
	if s.ended || s.err != nil {
		s.mu.Unlock()
		return
	}
	s.err = err
	ended := s.takeOnEnd()
	s.signal()
	s.mu.Unlock()
	ended()
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
