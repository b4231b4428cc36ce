package bench

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
	"syscall"
	"time"
)

// Client sends requests to one server. It is safe for concurrent use.
type Client struct {
	URL     string // base URL, without /v1
	Target  Target
	Writer  Writer
	Seed    uint64        // of the load, for prompts
	Timeout time.Duration // of one request; 0: none
	HTTP    *http.Client
}

// NewHTTP gives a client that keeps as many connections as there are requests in flight.
func NewHTTP() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 0, 1<<20
	transport.DisableCompression = true // it would hold chunks back
	transport.ForceAttemptHTTP2 = false
	return &http.Client{Transport: transport}
}

var (
	errCancelled = errors.New("cancelled by the plan")
	errTimeout   = errors.New("the time for one request is over")
)

// maxErrorBytes bounds what is read of an answer that is an error.
const maxErrorBytes = 4096

// prepare writes the body of a request, before it is due: making a prompt is not the server's time.
func (c *Client) prepare(r Request) ([]byte, error) {
	return c.Target.body(r, c.Writer.Prompt(c.Seed, r))
}

// do sends a request with its body and follows its answer to the end. Its latencies count from due, which is not after
// now; times are since epoch.
func (c *Client) do(ctx context.Context, r Request, body []byte, due, epoch time.Time) Record {
	record := Record{
		Index: r.Index, Priority: r.Priority, InputTokens: r.InputTokens,
		Start: due.Sub(epoch), Sent: time.Since(epoch), Outcome: Completed,
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	if c.Timeout > 0 {
		defer time.AfterFunc(c.Timeout, func() { end(errTimeout) }).Stop()
	}
	if r.Cancel != nil && r.Cancel.Chunks == 0 {
		defer time.AfterFunc(r.Cancel.After, func() { end(errCancelled) }).Stop()
	}
	f := follower{record: &record, epoch: epoch, cancel: r.Cancel, api: c.Target.API}
	err := c.exchange(ctx, body, &f)
	record.End = f.last
	if err != nil || record.End == 0 {
		record.End = time.Since(epoch)
	}
	if err != nil {
		record.classify(ctx, err)
	}
	return record
}

// exchange sends the body and feeds the follower.
func (c *Client) exchange(ctx context.Context, body []byte, f *follower) error {
	response, err := c.post(ctx, c.Target.API.path(), body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return statusError(response)
	}
	if !c.Target.Stream {
		data, err := io.ReadAll(io.LimitReader(response.Body, maxEventBytes)) // what is cut is no JSON
		if err != nil {
			return err
		}
		return f.whole(data)
	}
	if kind := response.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/event-stream") {
		data, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBytes))
		return &failure{Malformed, fmt.Errorf("the answer is %q and no event stream: %s", kind, clip(data))}
	}
	stream := newEvents(response.Body)
	for {
		data, err := stream.next()
		if errors.Is(err, io.EOF) {
			return f.end(false)
		}
		if err != nil {
			return err
		}
		if string(data) == "[DONE]" {
			if err := f.end(true); err != nil {
				return err
			}
			// What is left is the end of the body; reading it lets the connection be used again.
			_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxErrorBytes))
			return nil
		}
		if err := f.event(data); err != nil {
			return err
		}
	}
}

// post sends a JSON body.
func (c *Client) post(ctx context.Context, path string, body []byte) (*http.Response, error) {
	return c.send(ctx, http.MethodPost, path, body)
}

// send sends a request with the target's headers; nil is no body.
func (c *Client) send(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, values := range c.Target.Header {
		request.Header[name] = values
	}
	if host := c.Target.Header.Get("Host"); host != "" {
		request.Host = host
	}
	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/json")
	}
	return c.HTTP.Do(request)
}

// failure is an error whose kind is known where it arises.
type failure struct {
	kind Failure
	err  error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// statusError reads an answer that is an error.
func statusError(response *http.Response) error {
	data, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBytes))
	kind := Failure(fmt.Sprintf("http %d", response.StatusCode))
	var answer struct {
		Error json.RawMessage `json:"error"`
		errorFields
	}
	if json.Unmarshal(data, &answer) == nil {
		if err := carriedError(answer.Error, answer.errorFields); err != nil {
			return &failure{kind, err}
		}
	}
	return &failure{kind, errors.New(strings.TrimSpace(string(data)))}
}

func (r *Record) fail(kind Failure, err error) {
	r.Outcome, r.Failure, r.Message = Failed, kind, err.Error()
}

// classify says what an error means for the request; ctx is the request's own.
func (r *Record) classify(ctx context.Context, err error) {
	cause := context.Cause(ctx)
	var known *failure
	var opError *net.OpError
	switch {
	case errors.Is(err, errCancelled) || errors.Is(cause, errCancelled):
		r.Outcome = Cancelled
	case errors.Is(cause, errTimeout):
		r.fail(TimedOut, errTimeout)
	case cause != nil:
		r.Outcome = Interrupted
	case errors.As(err, &known):
		r.fail(known.kind, err)
	case errors.Is(err, syscall.ECONNREFUSED):
		r.fail(Refused, err)
	case errors.As(err, &opError) && opError.Timeout():
		r.fail(TimedOut, err)
	default:
		r.fail(Broken, err)
	}
}
