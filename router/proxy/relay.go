package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/sluice-dev/sluice/router/fleet"
)

var chunks = sync.Pool{New: func() any { return new([chunkBytes]byte) }}

// errClient marks a failure to write to the client.
var errClient = errors.New("write to the client")

// copyAnswer sends status, header and body of an answer to the client, flushing each piece. tail is the end of what was
// sent, at most two bytes. The error is errClient's or the engine's.
func (c *call) copyAnswer(a *answer) (tail []byte, err error) {
	copyHeader(c.w.Header(), a.resp.Header)
	c.begin(a.resp.StatusCode)
	c.w.WriteHeader(a.resp.StatusCode)
	send := func(b []byte) error {
		c.p.allowWrite(c.control, c.p.cfg.WriteTimeout)
		if _, err := c.w.Write(b); err != nil {
			return fmt.Errorf("%w: %w", errClient, err)
		}
		if err := c.control.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return fmt.Errorf("%w: %w", errClient, err)
		}
		tail = append(tail, b[max(0, len(b)-2):]...)
		tail = tail[max(0, len(tail)-2):]
		return nil
	}
	if err := send(a.head); err != nil || a.ended {
		return tail, err
	}
	buf := chunks.Get().(*[chunkBytes]byte) //nolint:forcetypeassert // the pool holds nothing else
	defer chunks.Put(buf)
	for {
		n, err := a.resp.Body.Read(buf[:])
		if n > 0 {
			if err := send(buf[:n]); err != nil {
				return tail, err
			}
		}
		if errors.Is(err, io.EOF) {
			return tail, nil
		}
		if err != nil {
			return tail, err
		}
	}
}

// stream relays a good answer, and ends the use of the engine that gave it.
func (e *exchange) stream(ctx context.Context, a *answer) {
	defer a.close()
	tail, err := e.c.copyAnswer(a)
	switch {
	case err == nil:
		e.c.outcome = OutcomeOK
		e.lease.Decode.Done(fleet.Succeeded)
	case errors.Is(err, errClient) || e.c.r.Context().Err() != nil:
		e.c.outcome = OutcomeClientClosed
		e.lease.Decode.Done(fleet.Unknown)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		e.c.outcome = OutcomeTimeout
		e.lease.Decode.Done(fleet.Unknown)
		e.c.breakOff(a, tail, &apiError{status: http.StatusGatewayTimeout, code: "timeout", message: "the answer took longer than --request-timeout"})
	default:
		e.c.outcome = OutcomeBroken
		e.lease.Decode.Done(fleet.Failed)
		e.p.cfg.Log.Warn("an engine broke off its answer", "engine", a.engine.Name, "route", e.c.route, "error", err)
		e.c.breakOff(a, tail, &apiError{status: http.StatusBadGateway, code: "engine_failed", message: fmt.Sprintf("%s engine %s broke off its answer", a.engine.Role, a.engine.Name)})
	}
}

// breakOff ends an answer that has begun: an event stream with an error event, everything else by closing the
// connection, so that nobody takes the part for the whole.
func (c *call) breakOff(a *answer, tail []byte, e *apiError) {
	if !isEventStream(a.resp.Header) || a.resp.Header.Get("Content-Encoding") != "" {
		panic(http.ErrAbortHandler)
	}
	var b []byte
	if len(tail) > 0 && !bytes.Equal(tail, []byte("\n\n")) {
		b = append(b, '\n', '\n') // end the event that was cut
	}
	c.p.allowWrite(c.control, c.p.cfg.WriteTimeout)
	c.w.Write(append(b, e.event()...))
	c.control.Flush()
}

// relay sends an answer whose outcome is decided.
func (c *call) relay(a *answer) {
	if _, err := c.copyAnswer(a); err != nil {
		if !errors.Is(err, errClient) && c.r.Context().Err() == nil {
			c.outcome = OutcomeBroken
			panic(http.ErrAbortHandler)
		}
		c.outcome = OutcomeClientClosed
	}
}

// maxAny is how many engines are asked a question that every engine can answer.
const maxAny = 3

// any passes a request to whichever engine answers.
func (p *Proxy) any(c *call) {
	body, ok := c.readBody()
	if !ok {
		return
	}
	engines := p.fleet.Any()
	if len(engines) == 0 {
		c.outcome = OutcomeNoEngine
		c.refuse(&apiError{status: http.StatusServiceUnavailable, code: "no_engine", message: "no engine is ready; try again later", retryAfter: 1})
		return
	}
	engines = engines[:min(len(engines), maxAny)]
	for i, engine := range engines {
		a := p.send(c.r.Context(), engine, c.r, body)
		if _, again := a.retryable(); again && c.r.Context().Err() == nil && i < len(engines)-1 {
			a.close()
			continue
		}
		switch {
		case a.err == nil:
			c.outcome = OutcomeOK
			if a.resp.StatusCode >= 500 {
				c.outcome = OutcomeEngineError
			} else if a.resp.StatusCode >= 400 {
				c.outcome = OutcomeClientError
			}
			c.relay(a)
			a.close()
		case c.r.Context().Err() != nil:
			c.left()
		default:
			c.refuse(&apiError{status: http.StatusBadGateway, code: "engine_failed", message: a.err.Error(), retryAfter: 1})
		}
		return
	}
}
