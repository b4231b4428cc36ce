package proxy

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/sluice-dev/sluice/router/fleet"
)

// infer serves one inference request: see the numbered list in doc.go.
func (p *Proxy) infer(c *call) {
	p.begun.Add(1)
	p.open.Add(1)
	defer p.open.Add(-1)
	c.trail = p.recent.begin(c.route, c.start)
	body, ok := c.readBody()
	if !ok {
		return
	}
	read := p.cfg.Now()
	layout, err := objectLayout(body)
	if err != nil {
		c.refuse(&apiError{status: http.StatusBadRequest, code: "invalid_json", message: err.Error()})
		return
	}
	if c.trail != nil {
		c.trail.named(ridOf(body, layout))
	}
	ctx, cancel := c.r.Context(), context.CancelFunc(func() {})
	if p.cfg.RequestTimeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, p.cfg.RequestTimeout)
	}
	defer cancel()

	var avoid fleet.Avoid
	var last *failure // of the attempt before
	own := p.cfg.Now().Sub(read)
	for attempt := 0; ; attempt++ {
		asked := p.cfg.Now()
		c.trail.enter(stagePick, asked)
		lease, err := p.fleet.Acquire(ctx, int64(len(body)/4), &avoid, p.patience(last))
		if err != nil {
			p.giveUp(ctx, c, last, err)
			return
		}
		leased := p.cfg.Now()
		c.trail.enter(stageDispatch, leased)
		c.trail.picked(lease)
		p.observer.Waited(leased.Sub(asked))
		e := &exchange{p: p, c: c, lease: lease}
		e.forwarded = func() {
			now := p.cfg.Now()
			c.trail.enter(stageAwait, now)
			if attempt == 0 {
				p.observer.Forwarded(c.route, own+now.Sub(leased))
			}
		}
		last = e.run(ctx, body, layout)
		if last == nil {
			return
		}
		if !last.again || attempt == p.cfg.MaxRetries || ctx.Err() != nil {
			p.giveUp(ctx, c, last, nil)
			return
		}
		last.avoid(&avoid)
		p.observer.Retried(last.reason)
		c.trail.change(func(a *try) { a.Reason, a.Error = last.reason, clip(last.text()) })
		p.cfg.Log.Info("try another engine", "route", c.route, "reason", last.reason, "error", last.text())
		last.discard()
	}
}

// patience is how long to wait for engines. After the answer of a living engine there is no waiting: it will do.
func (p *Proxy) patience(last *failure) time.Duration {
	if last != nil && !last.answer.broken() {
		return 0
	}
	return p.cfg.QueueTimeout
}

// giveUp answers a request that no engine answered well.
func (p *Proxy) giveUp(ctx context.Context, c *call, last *failure, acquire error) {
	switch {
	case c.r.Context().Err() != nil:
		c.left()
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		c.outcome = OutcomeTimeout
		c.refuse(&apiError{status: http.StatusGatewayTimeout, code: "timeout", message: "no engine answered within --request-timeout"})
	case last != nil && last.answer.resp != nil:
		last.pass(c)
	case last != nil:
		c.refuse(&apiError{status: http.StatusBadGateway, code: "engine_failed", message: "the engines failed before they could answer: " + last.text(), retryAfter: 1})
	default:
		c.outcome = OutcomeNoEngine
		c.refuse(&apiError{status: http.StatusServiceUnavailable, code: "no_engine", message: acquire.Error() + "; try again later", retryAfter: 1})
	}
}

// failure is an attempt without an answer for the client yet.
type failure struct {
	answer *answer // the one to pass on when nobody does better; its head is its whole body if it has one
	again  bool    // another pair may do better
	reason RetryReason
	avoid  func(*fleet.Avoid)
}

func (f *failure) text() string {
	if f.answer.err != nil {
		return f.answer.err.Error()
	}
	return f.answer.engine.Name + " answered " + f.answer.resp.Status
}

// discard ends the answer's connection.
func (f *failure) discard() { f.answer.close() }

// pass sends an engine's refusal to the client as it is.
func (f *failure) pass(c *call) {
	defer f.discard()
	c.outcome = OutcomeClientError
	if f.answer.resp.StatusCode >= 500 {
		c.outcome = OutcomeEngineError
	}
	c.relay(f.answer)
}
