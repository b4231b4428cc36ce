package proxy

import (
	"context"
	"time"

	"github.com/sluice-dev/sluice/router/fleet"
)

// exchange is one attempt of a request: a body to one or two engines and their answers.
type exchange struct {
	p         *Proxy
	c         *call
	lease     fleet.Lease
	forwarded func() // called when the requests are handed over

	prefill, decode *answer // nil until known
}

// run sends the request and relays the answer. It returns nil when the client has got it, whole or broken off.
func (e *exchange) run(ctx context.Context, body []byte, l layout) *failure {
	if e.lease.Prefill == nil {
		return e.unified(ctx, body)
	}
	joinTrace(e.c.r.Header)
	pe := e.lease.Prefill.Engine
	room := e.p.cfg.Room()
	e.c.trail.change(func(a *try) { a.Room = &room })
	paired := withMeeting(body, l, meeting{host: pe.BootstrapHost, port: pe.BootstrapPort, room: room})

	// The prefill engine may end a moment after the answer is complete, so its request outlives the client's.
	pctx, stopPrefill := context.WithCancel(context.WithoutCancel(ctx))
	unlink := context.AfterFunc(ctx, stopPrefill)
	dctx, stopDecode := context.WithCancel(ctx)
	defer stopDecode()
	prefilled, decoded := make(chan *answer, 1), make(chan *answer, 1)
	e.p.behind.Go(func() { prefilled <- e.p.sendPrefill(pctx, pe, e.c.r, paired) })
	go func() { decoded <- e.p.send(dctx, e.lease.Decode.Engine, e.c.r, paired) }()
	e.forwarded()

	for e.decode == nil && (e.prefill == nil || e.prefill.good()) {
		select {
		case e.prefill = <-prefilled:
			if e.prefill.good() {
				after := int64(e.p.cfg.Now().Sub(e.c.start))
				e.c.trail.change(func(a *try) { a.PrefillNanos = &after })
				e.lease.Prefill.Done(fleet.Succeeded)
			}
		case e.decode = <-decoded:
		}
	}
	if e.decode == nil || !e.decode.good() {
		e.hearBoth(prefilled, decoded)
	}
	if e.decode != nil && e.decode.good() {
		e.relayDecode(ctx, pctx, unlink, stopPrefill, prefilled)
		return nil
	}
	unlink()
	stopPrefill()
	stopDecode()
	f := e.verdict(ctx)
	// What the other side says now is the consequence of being cancelled. It ends by itself; only its connection matters.
	if e.prefill == nil {
		e.p.behind.Go(func() { (<-prefilled).close() })
	}
	if e.decode == nil {
		e.p.behind.Go(func() { (<-decoded).close() })
	} else if f.answer != e.decode {
		e.decode.close()
	}
	return f
}

// relayDecode streams the decode engine's answer and leaves the prefill engine a moment to end its own.
func (e *exchange) relayDecode(ctx, pctx context.Context, unlink func() bool, stopPrefill context.CancelFunc, prefilled <-chan *answer) {
	// Also when relay panics to break the client's connection.
	defer func() {
		if !unlink() || e.c.outcome != OutcomeOK {
			stopPrefill() // nobody needs its KV any more
		}
		if e.prefill != nil {
			stopPrefill()
			if e.prefill.err != nil && ctx.Err() == nil {
				e.lease.Prefill.Done(fleet.Failed)
			}
			e.lease.Prefill.Done(fleet.Unknown)
			return
		}
		e.p.behind.Go(func() {
			defer stopPrefill()
			t := time.AfterFunc(prefillGrace, stopPrefill)
			defer t.Stop()
			a := <-prefilled
			a.close()
			switch {
			case a.err == nil:
				e.lease.Prefill.Done(fleet.Succeeded)
			case e.c.outcome == OutcomeOK && pctx.Err() == nil:
				e.lease.Prefill.Done(fleet.Failed)
			default:
				e.lease.Prefill.Done(fleet.Unknown)
			}
		})
	}()
	e.stream(ctx, e.decode)
}

// hearBoth waits a moment for the other side when one side says that they did not get together, 502 or 504, or that an operator
// ended the request: the cause may be on the other side.
func (e *exchange) hearBoth(prefilled, decoded <-chan *answer) {
	known := e.prefill
	if known == nil || known.good() {
		known = e.decode
	}
	if reason, _ := known.retryable(); reason != RetryTransfer && !known.aborted() {
		return
	}
	t := time.NewTimer(verdictGrace)
	defer t.Stop()
	select {
	case a := <-pick(e.prefill == nil, prefilled):
		e.prefill = a
	case a := <-pick(e.decode == nil, decoded):
		e.decode = a
	case <-t.C:
	case <-e.c.r.Context().Done():
	}
}

// pick gives c, or a channel on which nothing comes.
func pick(yes bool, c <-chan *answer) <-chan *answer {
	if yes {
		return c
	}
	return nil
}

// verdict says what a failed attempt means and ends the uses of its engines. In order: a side that says that the request
// is at fault is right; a side that could not be reached or broke off is the cause of whatever the other side says;
// otherwise both are avoided and none is quarantined, unless one side alone has no room.
func (e *exchange) verdict(ctx context.Context) *failure {
	type side struct {
		use    *fleet.Use
		answer *answer
	}
	var sides []side
	if e.prefill != nil && !e.prefill.good() {
		sides = append(sides, side{e.lease.Prefill, e.prefill})
	}
	if e.decode != nil && !e.decode.good() {
		sides = append(sides, side{e.lease.Decode, e.decode})
	}
	defer func() { // those that nobody blamed
		e.lease.Decode.Done(fleet.Unknown)
		if e.lease.Prefill != nil {
			e.lease.Prefill.Done(fleet.Unknown)
		}
	}()
	for _, s := range sides {
		if _, again := s.answer.retryable(); !again {
			s.use.Done(fleet.Succeeded)
			return &failure{answer: s.answer}
		}
	}
	if ctx.Err() != nil {
		return &failure{answer: sides[0].answer}
	}
	f := &failure{answer: sides[0].answer, again: true}
	f.reason, _ = sides[0].answer.retryable()
	for _, s := range sides {
		if s.answer.broken() {
			s.use.Done(fleet.Failed)
			f.answer, f.avoid = s.answer, func(a *fleet.Avoid) { a.Engine(s.use) }
			f.reason, _ = s.answer.retryable()
			return f
		}
	}
	f.avoid = func(a *fleet.Avoid) { a.Engine(sides[0].use) }
	if e.lease.Prefill != nil && (f.reason == RetryTransfer || len(sides) == 2 && sides[0].answer.aborted() && sides[1].answer.aborted()) {
		f.avoid = func(a *fleet.Avoid) { a.Pair(e.lease) }
	}
	return f
}

// unified is run for one engine that does both.
func (e *exchange) unified(ctx context.Context, body []byte) *failure {
	answered := make(chan *answer, 1)
	go func() { answered <- e.p.send(ctx, e.lease.Decode.Engine, e.c.r, body) }()
	e.forwarded()
	e.decode = <-answered
	if !e.decode.good() {
		return e.verdict(ctx)
	}
	e.stream(ctx, e.decode)
	return nil
}
