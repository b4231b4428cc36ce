package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/router/discovery"
)

// hopByHop are headers that concern one connection only.
var hopByHop = []string{"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// copyHeader puts what may travel on from src into dst.
func copyHeader(dst, src http.Header) {
	dropped := map[string]bool{}
	for _, line := range src["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			dropped[http.CanonicalHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	for _, name := range hopByHop {
		dropped[name] = true
	}
	for name, values := range src {
		if !dropped[name] {
			dst[name] = values
		}
	}
}

// newTransport is the pool of connections to engines.
func newTransport(dialTimeout time.Duration) *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 512,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true, // answers pass byte for byte
		WriteBufferSize:     64 << 10,
		ReadBufferSize:      32 << 10,
	}
}

// answer is what an engine said, or the error instead.
type answer struct {
	engine discovery.Engine
	resp   *http.Response // nil with err
	head   []byte         // first bytes of the body; for prefill all that is kept
	ended  bool           // head is the whole body
	err    error          // could not be reached, or broke off before the first byte
}

// retryable tells whether another engine may do better, and why. Everything else is the client's to see.
func (a *answer) retryable() (reason RetryReason, ok bool) {
	if a.err != nil {
		var op *net.OpError
		if errors.As(a.err, &op) && op.Op == "dial" {
			return RetryConnect, true
		}
		return RetryReset, true
	}
	if a.lost() {
		return RetryReset, true
	}
	switch a.resp.StatusCode {
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		return RetryTransfer, true
	case statusClientClosed: // the client is this router: the other engine, or this one, lost its connection with it
		return RetryTransfer, true
	case http.StatusServiceUnavailable:
		return RetryBusy, true
	}
	return "", false
}

// lost reports whether the engine says that its rank died with the request: its process ends next.
func (a *answer) lost() bool {
	return a.code() == "engine_failed"
}

// aborted reports whether the engine says that an operator ended the request, at this engine or at the other one.
func (a *answer) aborted() bool { return a.err == nil && a.code() == "aborted_operator" }

// code is the word of an engine's error of its own, from 500 on; empty: it said none.
func (a *answer) code() string {
	if a.resp.StatusCode < http.StatusInternalServerError {
		return ""
	}
	var body struct {
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	if json.Unmarshal(a.head, &body) != nil {
		return ""
	}
	return body.Error.Code
}

// broken reports whether the engine is out of order, by silence or by its own word.
func (a *answer) broken() bool { return a.err != nil || a.lost() }

func (a *answer) good() bool { return a.err == nil && a.resp.StatusCode < 400 }

func (a *answer) close() {
	if a != nil && a.resp != nil {
		a.resp.Body.Close()
	}
}

// send makes one request of an engine and reads the first bytes of its answer.
func (p *Proxy) send(ctx context.Context, engine discovery.Engine, r *http.Request, body []byte) *answer {
	a := &answer{engine: engine}
	req, err := http.NewRequestWithContext(ctx, r.Method, engine.URL+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		a.err = err
		return a
	}
	copyHeader(req.Header, r.Header)
	req.Header.Del("Expect")
	if _, given := req.Header["User-Agent"]; !given {
		req.Header["User-Agent"] = nil
	}
	// A connection that the engine closed while it was idle is replaced without counting as a failure: the key makes the
	// transport try again, and is not sent.
	if _, given := req.Header["X-Idempotency-Key"]; !given {
		req.Header["X-Idempotency-Key"] = nil
	}
	if a.resp, err = p.transport.RoundTrip(req); err != nil { //nolint:bodyclose // answer.close does
		a.err = fmt.Errorf("%s engine %s: %w", engine.Role, engine.Name, err)
		return a
	}
	a.head = make([]byte, chunkBytes)
	n, err := a.resp.Body.Read(a.head)
	a.head = a.head[:n]
	switch {
	case errors.Is(err, io.EOF):
		a.ended = true
	case err != nil && n == 0:
		a.close()
		a.resp = nil
		a.err = fmt.Errorf("%s engine %s: %w before the first byte of its answer", engine.Role, engine.Name, err)
	}
	return a
}

// maxPrefillAnswer is how much of a prefill engine's answer is read; it holds one token.
const maxPrefillAnswer = 1 << 20

// sendPrefill makes the prefill engine's request and reads its whole answer. An error event in a stream counts as 502.
func (p *Proxy) sendPrefill(ctx context.Context, engine discovery.Engine, r *http.Request, body []byte) *answer {
	plain := r.Clone(ctx)
	plain.Header.Del("Accept-Encoding") // it is read here
	a := p.send(ctx, engine, plain, body)
	if a.err != nil {
		return a
	}
	defer a.resp.Body.Close()
	if !a.ended {
		rest, err := io.ReadAll(io.LimitReader(a.resp.Body, maxPrefillAnswer))
		a.head = append(a.head, rest...)
		if err != nil {
			a.resp, a.err = nil, fmt.Errorf("prefill engine %s: read its answer: %w", engine.Name, err)
			return a
		}
		a.ended = true
	}
	if event := errorEvent(a.head); a.good() && event != nil && isEventStream(a.resp.Header) {
		a.resp.StatusCode = http.StatusBadGateway
		a.resp.Header = http.Header{"Content-Type": {"application/json"}}
		a.head = event
	}
	return a
}

// errorEvent finds the data of an error event in a stream.
func errorEvent(stream []byte) []byte {
	for line := range bytes.Lines(stream) {
		if data, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: ")); ok && bytes.HasPrefix(data, []byte(`{"error"`)) {
			return data
		}
	}
	return nil
}

func isEventStream(h http.Header) bool {
	return strings.HasPrefix(h.Get("Content-Type"), "text/event-stream")
}
