package proxy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-dev/sluice/internal/bearer"
	"github.com/sluice-dev/sluice/internal/query"
	"github.com/sluice-dev/sluice/router/demand"
	"github.com/sluice-dev/sluice/router/fleet"
)

// Config configures a Proxy.
type Config struct {
	MaxBodyBytes   int64         // of a request, 1 to 2^40
	MaxRetries     int           // other pairs that are tried after the first, >= 0
	QueueTimeout   time.Duration // wait for a usable engine; 0: none
	RequestTimeout time.Duration // of a whole request; 0: none
	ReadTimeout    time.Duration // until the client has sent its body, > 0
	WriteTimeout   time.Duration // until the client takes a piece of its answer, > 0
	DialTimeout    time.Duration // of a connection to an engine, > 0
	DebugRequests  int           // ended requests that /debug/requests has, >= 0; 0: none

	APIKey      string // of the routes that engines answer; "": open
	AdminAPIKey string // of /workers and /debug/requests; "": APIKey is it

	Room    func() int64     // a random room, 1 <= room < 2^63 - 2^20: engines count on from it for batches
	Now     func() time.Time // for the Observer
	Log     *slog.Logger
	Metrics http.Handler // GET /metrics
}

// Validate names the first field that is wrong, by its flag.
func (c Config) Validate() error {
	switch {
	case c.MaxBodyBytes <= 0 || c.MaxBodyBytes > maxBodyLimit:
		return fmt.Errorf("--max-body-bytes is %d: give 1 to %d", c.MaxBodyBytes, int64(maxBodyLimit))
	case c.MaxRetries < 0:
		return fmt.Errorf("--max-retries is %d: give 0 for none, or more", c.MaxRetries)
	case c.DebugRequests < 0 || c.DebugRequests > maxDebugRequests:
		return fmt.Errorf("--debug-requests is %d: give 0 for none, or up to %d", c.DebugRequests, maxDebugRequests)
	}
	for _, t := range []struct {
		flag   string
		value  time.Duration
		lowest time.Duration
		remedy string
	}{
		{"--queue-timeout", c.QueueTimeout, 0, "0s for none, or more"},
		{"--request-timeout", c.RequestTimeout, 0, "0s for none, or more"},
		{"--read-timeout", c.ReadTimeout, 1, "more than 0s, for example 1m"},
		{"--write-timeout", c.WriteTimeout, 1, "more than 0s, for example 1m"},
		{"--dial-timeout", c.DialTimeout, 1, "more than 0s, for example 2s"},
	} {
		if t.value < t.lowest {
			return fmt.Errorf("%s is %v: give %s", t.flag, t.value, t.remedy)
		}
	}
	return nil
}

const (
	// maxBodyLimit is the most that MaxBodyBytes can be; bodies are held in memory.
	maxBodyLimit = 1 << 40

	// maxDebugRequests bounds DebugRequests.
	maxDebugRequests = 1 << 20

	chunkBytes = 32 << 10 // one read from an engine

	// prefillGrace is how long a prefill engine may take to end its answer after the decode engine's is complete.
	prefillGrace = 2 * time.Second
	// verdictGrace is how long a failed side waits for the other side's error, to see which one caused it.
	verdictGrace = 250 * time.Millisecond
)

// Proxy is the HTTP side of a router. It is an http.Handler.
type Proxy struct {
	cfg       Config
	fleet     *fleet.Fleet
	observer  Observer
	recent    *recentRequests // nil: none are remembered
	transport *http.Transport
	draining  atomic.Bool
	begun     atomic.Uint64  // inference requests so far
	open      atomic.Int64   // of them, those that have not ended
	behind    sync.WaitGroup // prefill answers that end after their request
}

// New makes a proxy over a fleet.
func New(cfg Config, f *fleet.Fleet, o Observer) (*Proxy, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Proxy{cfg: cfg, fleet: f, observer: o, recent: newRecentRequests(cfg.DebugRequests), transport: newTransport(cfg.DialTimeout)}, nil
}

// Drain makes /health answer 503, so that new requests go elsewhere. Requests that come nevertheless are served, and told
// to use another connection the next time, so that none is left that the end of the server would cut.
func (p *Proxy) Drain() { p.draining.Store(true) }

// Close waits for what requests have left behind and closes the connections to engines. The server must have ended.
func (p *Proxy) Close() {
	p.behind.Wait()
	p.transport.CloseIdleConnections()
}

// Routes lists the routes, as they are counted.
func Routes() []string {
	return []string{routeCompletions, routeChat, routeGenerate, routeTokenize, routeDetokenize, routeModels, routeModel, routeOther}
}

// The routes that are counted; the router's own (health, metrics, workers) are not.
const (
	routeCompletions = "/v1/completions"
	routeChat        = "/v1/chat/completions"
	routeGenerate    = "/generate"
	routeTokenize    = "/v1/tokenize"
	routeDetokenize  = "/v1/detokenize"
	routeModels      = "/v1/models"
	routeModel       = "/v1/models/{model}"
	routeOther       = "other"
)

// ServeHTTP finds the route.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.draining.Load() {
		w.Header().Set("Connection", "close")
	}
	p.allowWrite(http.NewResponseController(w), p.smallAnswer())
	if r.ContentLength != 0 {
		// Also where nobody reads the body: the HTTP server itself reads what a handler leaves before it answers. It lifts
		// the deadline, which is the connection's, before the next request.
		http.NewResponseController(w).SetReadDeadline(p.cfg.Now().Add(p.cfg.ReadTimeout)) //nolint:errcheck // not every server can
	}
	switch path := r.URL.Path; {
	case path == routeCompletions, path == routeChat:
		p.counted(path, w, r, p.infer, http.MethodPost)
	case path == routeGenerate:
		p.counted(path, w, r, p.infer, http.MethodPost, http.MethodPut)
	case path == routeTokenize, path == routeDetokenize:
		p.counted(path, w, r, p.any, http.MethodPost)
	case path == routeModels:
		p.counted(path, w, r, p.any, http.MethodGet, http.MethodHead)
	case strings.HasPrefix(path, routeModels+"/"):
		p.counted(routeModel, w, r, p.any, http.MethodGet, http.MethodHead)
	case path == "/health", path == "/ready":
		onlyRead(w, r, p.health)
	case path == demand.Path:
		onlyRead(w, r, unasked(func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, p.demand()) }))
	case path == "/workers":
		onlyRead(w, r, func(w http.ResponseWriter, r *http.Request) { p.admin(w, r, unasked(p.workers)) })
	case path == debugRequestsRoute, strings.HasPrefix(path, debugRequestsRoute+"/"):
		onlyRead(w, r, func(w http.ResponseWriter, r *http.Request) { p.admin(w, r, p.debugRequests) })
	case (path == "/metrics" || path == "/metrics/") && p.cfg.Metrics != nil:
		onlyRead(w, r, unasked(p.cfg.Metrics.ServeHTTP))
	default:
		p.counted(routeOther, w, r, func(c *call) {
			c.refuse(&apiError{status: http.StatusNotFound, code: "not_found", message: "the router has no route " + clip(path)})
		})
	}
}

// allowWrite gives the client a time to take what is written next. The deadline stays when the request ends, for the last
// of an answer goes out after that; the next request sets its own.
func (p *Proxy) allowWrite(control *http.ResponseController, within time.Duration) {
	control.SetWriteDeadline(p.cfg.Now().Add(within)) //nolint:errcheck // not every server can
}

// smallAnswer is the time for an answer that the HTTP server may send only after it has waited for the request's body.
func (p *Proxy) smallAnswer() time.Duration { return p.cfg.ReadTimeout + p.cfg.WriteTimeout }

// demand is what the router has to do, for whoever wakes and empties pools.
func (p *Proxy) demand() demand.Report {
	// The counts come first: a request that begins in between is in Begun at the next look at the latest.
	report := demand.Report{Begun: p.begun.Load(), Open: p.open.Load(), Waiting: map[string]int{}}
	for role, n := range p.fleet.Waiting() {
		report.Waiting[string(role)] = n
	}
	return report
}

// onlyRead serves what the router itself tells, to those who ask for it with GET or HEAD.
func onlyRead(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		(&apiError{status: http.StatusMethodNotAllowed, code: "method_not_allowed", message: clip(r.URL.Path) + " takes GET or HEAD"}).write(w)
		return
	}
	next(w, r)
}

// unasked refuses the parameters of a query where there are none: whoever wrote them believes that they count.
func unasked(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if _, err := query.Parse(r.URL.RawQuery, nil); err != nil {
			(&apiError{status: http.StatusBadRequest, message: "the query of the URL: " + err.Error()}).write(w)
			return
		}
		next(w, r)
	}
}

func (p *Proxy) health(w http.ResponseWriter, _ *http.Request) {
	if p.draining.Load() {
		writeJSON(w, http.StatusServiceUnavailable, map[string]string{"status": "draining"})
		return
	}
	if err := p.fleet.Ready(); err != nil {
		writeJSON(w, http.StatusServiceUnavailable, map[string]string{"status": "unavailable", "reason": err.Error()})
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

func (p *Proxy) workers(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"workers": p.fleet.Workers()})
}

// admin serves what shows other clients' requests, or where engines are.
func (p *Proxy) admin(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
	if !bearer.Has(r, cmp.Or(p.cfg.AdminAPIKey, p.cfg.APIKey)) {
		noKey().write(w)
		return
	}
	next(w, r)
}

func noKey() *apiError {
	return &apiError{status: http.StatusUnauthorized, code: "invalid_api_key", message: "the API key is missing or wrong: send the header Authorization: Bearer KEY"}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v) //nolint:errcheck,errchkjson // the client went
}

func clip(s string) string {
	if len(s) > 200 {
		return strings.ToValidUTF8(s[:200], "") + "…"
	}
	return s
}

// call is one counted request of a client.
type call struct {
	p       *Proxy
	route   string
	w       http.ResponseWriter
	control *http.ResponseController
	r       *http.Request
	start   time.Time
	trail   *trail // of an inference request; nil: it is not remembered

	status  int     // sent, 0 before
	outcome Outcome // "" until decided
}

// counted runs a handler between Started and Finished.
func (p *Proxy) counted(route string, w http.ResponseWriter, r *http.Request, handle func(*call), methods ...string) {
	c := &call{p: p, route: route, w: w, control: http.NewResponseController(w), r: r, start: p.cfg.Now()}
	p.observer.Started(route)
	defer func() {
		p.allowWrite(c.control, p.smallAnswer()) // for what the server itself writes at the end
		now := p.cfg.Now()
		p.recent.end(c.trail, now, c.status, c.outcome)
		p.observer.Finished(route, c.status, c.outcome, now.Sub(c.start))
	}()
	switch {
	case len(methods) == 0: // it is no route
		handle(c)
	case !slices.Contains(methods, r.Method):
		w.Header().Set("Allow", strings.Join(methods, ", "))
		c.refuse(&apiError{status: http.StatusMethodNotAllowed, code: "method_not_allowed", message: fmt.Sprintf("%s takes %s", route, strings.Join(methods, " or "))})
	case !bearer.Has(r, p.cfg.APIKey):
		c.refuse(noKey())
	default:
		handle(c)
	}
}

// refuse answers with an error of the router's own.
func (c *call) refuse(e *apiError) {
	if c.outcome == "" {
		switch {
		case e.status < 500:
			c.outcome = OutcomeClientError
		default:
			c.outcome = OutcomeEngineError
		}
	}
	c.begin(e.status)
	e.write(c.w)
}

// begin notes the status that goes out.
func (c *call) begin(status int) {
	c.status = status
	c.p.allowWrite(c.control, c.p.smallAnswer())
	now := c.p.cfg.Now()
	c.trail.enter(stageStream, now)
	c.p.observer.FirstByte(c.route, now.Sub(c.start))
}

// readBody reads the client's body. ok is false when the call is answered already.
func (c *call) readBody() (body []byte, ok bool) {
	limit := c.p.cfg.MaxBodyBytes
	tooLarge := &apiError{
		status: http.StatusRequestEntityTooLarge, code: "body_too_large",
		message: fmt.Sprintf("the body has more than %d bytes: send a shorter prompt, or raise the router's --max-body-bytes", limit),
	}
	if c.r.ContentLength > limit && c.r.Header.Get("Expect") != "" {
		c.refuse(tooLarge) // the client waits for this answer before it sends
		return nil, false
	}
	body, err := readAtMost(c.r.Body, c.r.ContentLength, limit)
	if errors.Is(err, errTooLarge) {
		// A client that writes before it reads must get to the end to see the answer; one that sends without end need not.
		if _, err := io.CopyN(io.Discard, c.r.Body, 4*limit); !errors.Is(err, io.EOF) {
			c.w.Header().Set("Connection", "close")
		}
	}
	switch {
	case errors.Is(err, errTooLarge):
		c.refuse(tooLarge)
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.refuse(&apiError{status: http.StatusRequestTimeout, code: "incomplete_body", message: fmt.Sprintf("the body did not come within %v", c.p.cfg.ReadTimeout)})
	case c.r.Context().Err() != nil:
		c.left()
	case err != nil:
		c.refuse(&apiError{status: http.StatusBadRequest, code: "incomplete_body", message: "read the body: " + err.Error()})
	default:
		// The body is whole; what is read from now on only tells when the client goes.
		c.control.SetReadDeadline(time.Time{}) //nolint:errcheck // not every server can
		return body, true
	}
	return nil, false
}

var errTooLarge = errors.New("the body is too large")

// firstBodyBytes is what is set aside for a body before any of it has come, whatever length its header claims.
const firstBodyBytes = 64 << 10

// readAtMost reads a body to its end, or gives errTooLarge. claimed is its length by the header, -1 when unknown. Memory
// grows with what really comes.
func readAtMost(r io.Reader, claimed, limit int64) ([]byte, error) {
	if claimed > limit {
		return nil, errTooLarge
	}
	if claimed >= 0 && claimed <= firstBodyBytes {
		body := make([]byte, claimed)
		_, err := io.ReadFull(r, body)
		return body, err
	}
	body := bytes.NewBuffer(make([]byte, 0, firstBodyBytes))
	_, err := body.ReadFrom(io.LimitReader(r, limit+1))
	if err == nil && int64(body.Len()) > limit {
		return nil, errTooLarge
	}
	return body.Bytes(), err
}

// statusClientClosed is counted for a client that went before its answer began.
const statusClientClosed = 499

// left ends a request whose client has gone before its answer began. A client that only closed its sending half may
// still read: it must not take silence for success.
func (c *call) left() {
	c.outcome, c.status = OutcomeClientClosed, statusClientClosed
	c.p.allowWrite(c.control, c.p.smallAnswer())
	e := &apiError{status: statusClientClosed, code: "aborted_client", message: "the client closed the connection"}
	e.write(c.w)
}
