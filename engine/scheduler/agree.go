package scheduler

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/sluice-dev/sluice/engine/disagg"
	"github.com/sluice-dev/sluice/engine/request"
)

// How the ranks of a world stay together. Each step begins with the leader's input, which all take (share), and then they
// compare what they have decided up to here and agree on the states of their transfers (agree). All else follows from
// that: the same input in the same state gives the same decision.

// DivergenceError says that two ranks took different decisions. The replica can't go on: their KV differs.
type DivergenceError struct {
	Step    int64 // steps launched on this rank
	Ranks   [2]int
	Digests [2]string
	Last    string // this rank's newest step
}

func (e *DivergenceError) Error() string {
	return fmt.Sprintf("ranks %d and %d took different decisions up to step %d: digests %s and %s; this rank's last is %s",
		e.Ranks[0], e.Ranks[1], e.Step, e.Digests[0], e.Digests[1], e.Last)
}

// leads reports whether this rank takes messages and reads the clock: it is the leader, or alone.
func (s *Scheduler) leads() bool { return s.deps.Peers == nil || s.deps.Peers.Leader() }

// share gives the leader's input to every rank. On the leader the messages keep their sinks and replies.
func (s *Scheduler) share(own input) (input, error) {
	if s.deps.Peers == nil {
		return own, nil
	}
	var raw []byte
	if s.deps.Peers.Leader() {
		own = s.shareable(own)
		var err error
		if raw, err = own.encode(); err != nil {
			return input{}, fmt.Errorf("encode the step's input: %w", err)
		}
	}
	raw, err := s.deps.Peers.Share(s.flight.ctx, raw)
	if err != nil {
		return input{}, fmt.Errorf("share the step's input: %w", err)
	}
	in, err := decodeInput(raw)
	if err != nil {
		return input{}, fmt.Errorf("decode the step's input: %w", err)
	}
	if s.deps.Peers.Leader() {
		in.connect(own)
	}
	return in, nil
}

// agree compares this rank's digest with the others' and brings the states of all transfers together.
func (s *Scheduler) agree() error {
	hands := s.handoffs()
	if s.deps.Peers == nil {
		for _, h := range hands {
			h.look()
		}
		return nil
	}
	s.scratch.report = encodeReport(s.scratch.report[:0], s.digest, hands)
	all, err := s.deps.Peers.Exchange(s.flight.ctx, s.scratch.report)
	if err != nil {
		return fmt.Errorf("compare decisions with the other ranks: %w", err)
	}
	for _, h := range hands {
		h.agreed, h.settled = disagg.Done, true
	}
	for rank, raw := range all {
		d, states, err := cutDigest(raw)
		if err != nil {
			return fmt.Errorf("report of rank %d: %w", rank, err)
		}
		first, _, err := cutDigest(all[0])
		if err != nil {
			return fmt.Errorf("report of rank 0: %w", err)
		}
		if d != first {
			// Nobody leaves before all know, else others would only see that a rank is gone.
			_, _ = s.deps.Peers.Exchange(s.flight.ctx, nil)
			return &DivergenceError{
				Step: s.flight.last, Ranks: [2]int{0, rank}, Digests: [2]string{first.String(), d.String()}, Last: s.newest(),
			}
		}
		if err := agreeStates(hands, states); err != nil {
			return fmt.Errorf("report of rank %d: %w", rank, err)
		}
	}
	return nil
}

// newest describes the newest step.
func (s *Scheduler) newest() string {
	return fmt.Sprintf("a %s batch of %d", s.flight.newest.kind, s.flight.newest.items)
}

// handoffs lists the transfers of live sequences and then those that hold pages, in the order that all ranks have.
func (s *Scheduler) handoffs() []*handoff {
	hands := s.scratch.hands[:0]
	if s.cfg.Role != Unified {
		for _, l := range s.in {
			for _, q := range l {
				if q.hand != nil {
					hands = append(hands, q.hand)
				}
			}
		}
		for _, h := range s.held {
			if h.hand != nil {
				hands = append(hands, h.hand)
			}
		}
	}
	s.scratch.hands = hands
	return hands
}

// maxFailureBytes is how much of a failure's text ranks tell each other.
const maxFailureBytes = 1 << 10

// encodeReport appends what a rank tells the others each step: its digest, and the state of each transfer, one byte, for a
// failed one followed by a byte that is 1 when the peers had not met, and by the outcome and the text, their lengths first.
func encodeReport(dst []byte, d digest, hands []*handoff) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(d))
	for _, h := range hands {
		state := h.own()
		dst = append(dst, byte(state))
		if state != disagg.Failed {
			continue
		}
		f := h.ownFailure()
		text := fmt.Sprint(f.err)
		text = text[:min(len(text), maxFailureBytes)]
		flag := byte(0)
		if f.bootstrap {
			flag = 1
		}
		dst = append(dst, flag)
		dst = appendText(dst, string(f.outcome))
		dst = appendText(dst, text)
	}
	return dst
}

func appendText(dst []byte, text string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(text))), text...)
}

// cutText reads what appendText wrote, of at most maxFailureBytes.
func cutText(raw []byte) (text string, rest []byte, err error) {
	n, size := binary.Uvarint(raw)
	if size <= 0 || n > maxFailureBytes || uint64(len(raw)-size) < n {
		return "", nil, errReport
	}
	return string(raw[size : size+int(n)]), raw[size+int(n):], nil
}

var errReport = errors.New("it is cut short, or not a report")

func cutDigest(raw []byte) (d digest, states []byte, err error) {
	if len(raw) < 8 {
		return 0, nil, errReport
	}
	return digest(binary.LittleEndian.Uint64(raw)), raw[8:], nil
}

// agreeStates brings one rank's states into those agreed so far, which begin as Done and settled.
func agreeStates(hands []*handoff, raw []byte) error {
	for _, h := range hands {
		if len(raw) < 1 || raw[0] > byte(disagg.Failed) {
			return errReport
		}
		state := disagg.State(raw[0])
		raw = raw[1:]
		if !state.Terminal() {
			h.settled = false
		}
		if state != disagg.Failed {
			if h.agreed != disagg.Failed {
				h.agreed = min(h.agreed, state)
			}
			continue
		}
		h.agreed = disagg.Failed
		if len(raw) < 1 {
			return errReport
		}
		f := failure{bootstrap: raw[0] == 1}
		outcome, rest, err := cutText(raw[1:])
		if err != nil {
			return err
		}
		if f.outcome = request.Outcome(outcome); outcome != "" && !f.outcome.Common() {
			return errReport
		}
		text, rest, err := cutText(rest)
		if err != nil {
			return err
		}
		raw = rest
		if f.err = errors.New(text); h.failed == nil {
			h.failed = &f
		}
	}
	if len(raw) > 0 {
		return errReport
	}
	return nil
}

// steady gives the context of what a rank does together with others. The leader's end is shared with them, so what it has
// begun is finished; another rank's end is the end of the world.
func (s *Scheduler) steady(ctx context.Context) context.Context {
	if s.deps.Peers != nil && s.deps.Peers.Leader() {
		return context.WithoutCancel(ctx)
	}
	return ctx
}
