package server

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sluice-dev/sluice/engine/disagg"
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/loads"
	"github.com/sluice-dev/sluice/engine/profile"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/tokenizer"
	"github.com/sluice-dev/sluice/engine/trace"
)

// Rank is what the server needs of a rank; rank.Client has it. Safe for concurrent use.
type Rank interface {
	// Submit hands a request over; the stream ends with the request or with the rank, whatever becomes of ctx.
	Submit(ctx context.Context, r *request.Request) (*rank.Stream, error)
	// Abort ends a request; an unknown rid is no error. The stream still gets its end.
	Abort(rid string, reason request.Outcome) error
	// AbortAll ends the requests whose rid begins with prefix.
	AbortAll(prefix string) error
	// Loads gives the load at this moment, one for each DP rank in their order, all sections filled.
	Loads(ctx context.Context) ([]loads.Load, error)
	// Timelines gives how far requests have come at the rank, by rid; with an error there may be some.
	Timelines(ctx context.Context, rids []string) (map[string]*ledger.Record, error)
	// Flush empties the prefix cache; an error when the rank isn't idle.
	Flush(ctx context.Context) error
	// Info gives the constant facts of the rank.
	Info() rank.Info
	// Pause stops computing until Continue; mode says what becomes of the requests that run.
	Pause(ctx context.Context, mode request.PauseMode) error
	// Continue ends a pause; there need not be one.
	Continue(ctx context.Context) error
	// OpenSession opens a session; CloseSession closes it and frees what it holds.
	OpenSession(ctx context.Context, s request.Session) error
	CloseSession(ctx context.Context, id string) error
	// StartProfile begins to record profiles of every process of the rank's, until StopProfile, which gives the files, or until
	// the steps are over that it is to last; AwaitStep waits for one of these.
	StartProfile(ctx context.Context, o profile.Options) error
	StopProfile(ctx context.Context) (files []string, err error)
	AwaitStep(ctx context.Context, n int64) (newest int64, err error)
	// Collect makes every process of the rank's collect its garbage now.
	Collect(ctx context.Context) error
}

// Server answers HTTP requests. It is an http.Handler from the start; requests that need the rank are refused with 503
// until Attach. Safe for concurrent use.
type Server struct {
	cfg     Config
	routes  routes
	events  Events
	metrics http.Handler // nil: metrics are off
	clock   ledger.Clock
	log     *slog.Logger

	books   *books
	tracing *trace.Process // nil: no request is traced
	tracer  *trace.Tracer

	requests *requestLog
	recent   *recentRequests // nil: none are remembered
	state    *liveState
	profiles *profile.Recorder // of this process
	sessions sessions

	fieldSeen func(path string) // told each field of a body that is looked at; nil but in a test

	rooms *disagg.Bootstrap // is told which DP rank has a room; nil: the room itself says so, or there is one

	started ledger.Instant
	current atomic.Pointer[engine] // nil until Attach
	outputs pulse                  // beats at every output of the rank

	mu       sync.Mutex
	phase    phase
	claimed  map[string]bool // rids of the sequences that live; true: it is aborted, also if it is not at the rank yet
	inFlight int             // admitted client requests that have not been answered
	idle     chan struct{}   // not nil while Drained waits; closed when inFlight is 0
}

// engine is what the server works with once the rank is up.
type engine struct {
	rank      Rank
	info      rank.Info
	tokenizer *tokenizer.Tokenizer
	attached  ledger.Instant

	maxTextBytes int // of a prompt that may fit; longer ones are refused before they are tokenized
}

// phase is where the server is in its life. It only moves forwards.
type phase int

const (
	phaseStarting phase = iota // no rank yet: health and inference answer 503
	phaseServing               // everything works
	phaseLeaving               // health answers 503 so that routing moves away; requests are still taken
	phaseDraining              // new requests are refused with 503; running ones go on
)

func (p phase) String() string {
	return [...]string{"starting", "serving", "leaving", "draining"}[p]
}

// Options are what a server is given besides its configuration. Zero values are allowed.
type Options struct {
	Events  Events         // nil: nobody listens
	Metrics http.Handler   // of /metrics; nil: the route does not exist
	Clock   ledger.Clock   // nil: the system's
	Log     *slog.Logger   // nil: slog.Default
	Tracing *trace.Process // nil: no request is traced
}

// New makes a server from a validated configuration.
func New(cfg Config, o Options) *Server {
	s := &Server{cfg: cfg, events: o.Events, metrics: o.Metrics, clock: o.Clock, log: o.Log, claimed: map[string]bool{}}
	if s.events == nil {
		s.events = noEvents{}
	}
	if s.clock == nil {
		s.clock = ledger.System()
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	s.books = newBooks(s.events, s.log)
	s.recent = newRecentRequests(cfg.DebugRequests)
	s.requests, s.state, s.profiles = newRequestLog(s.log, cfg.logSetting()), newLiveState(cfg), profile.NewRecorder("api", s.log)
	s.tracing = o.Tracing
	s.tracer = s.tracing.Tracer(trace.Place{Label: trace.Tokenizer, Role: string(cfg.Rank.Disagg.Mode)})
	s.started = s.clock.Now()
	s.routes = s.table()
	return s
}

// Attach begins the serving phase with a rank that is up.
func (s *Server) Attach(r Rank, t *tokenizer.Tokenizer) error {
	info := r.Info()
	if info.VocabSize < t.VocabSize() {
		s.log.Warn("the tokenizer has more tokens than the model", "tokenizer", t.VocabSize(), "model", info.VocabSize)
	}
	if info.MaxPromptTokens() < 1 {
		return errors.New("the KV pool has no room for a prompt and a token: raise --max-total-tokens or --context-length")
	}
	s.current.Store(&engine{
		rank: r, info: info, tokenizer: t, attached: s.clock.Now(), maxTextBytes: info.MaxPromptTokens() * longestToken(t) * maxNormalization,
	})
	s.moveTo(phaseServing)
	return nil
}

// maxNormalization is how many bytes of text may become one: composed runes are up to three times shorter.
const maxNormalization = 3

// longestToken is the most bytes that one token stands for.
func longestToken(t *tokenizer.Tokenizer) (bytes int) {
	for id := range int32(t.VocabSize()) {
		bytes = max(bytes, len(t.Decode([]int32{id}, false)))
	}
	return bytes
}

// Leave makes the health checks fail while requests are still taken, so that routers move away before any is refused.
func (s *Server) Leave() { s.moveTo(phaseLeaving) }

// Refuse ends admission: new requests are refused with 503.
func (s *Server) Refuse() { s.moveTo(phaseDraining) }

// Drained waits until no admitted request runs any more, or ctx ends. Call it after Refuse.
func (s *Server) Drained(ctx context.Context) error {
	s.mu.Lock()
	if s.inFlight == 0 {
		s.mu.Unlock()
		return nil
	}
	if s.idle == nil {
		s.idle = make(chan struct{})
	}
	idle := s.idle
	s.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// moveTo goes forwards to p; a phase that is behind already stays.
func (s *Server) moveTo(p phase) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase = max(s.phase, p)
}

func (s *Server) currentPhase() phase {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase
}

// admit lets a client request in. Each admission is followed by exactly one dismiss.
func (s *Server) admit() (*engine, *apiError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.current.Load()
	switch {
	case e == nil:
		return nil, failure(http.StatusServiceUnavailable, codeNotReady, "the engine is starting: try again when /health answers 200")
	case s.phase == phaseDraining:
		return nil, failure(http.StatusServiceUnavailable, codeNotReady, "the engine is shutting down: send the request to another")
	}
	s.inFlight++
	return e, nil
}

func (s *Server) dismiss() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight--
	if s.inFlight > 0 {
		return
	}
	s.books.checkEmpty() // whoever has an entry there is admitted
	if s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
}

// claim takes a rid for a sequence; false when it is in use.
func (s *Server) claim(rid string) (taken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, used := s.claimed[rid]; used {
		return false
	}
	s.claimed[rid] = false
	return true
}

// anyClaimed reports whether one of rids lives.
func (s *Server) anyClaimed(rids []string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(rids, func(rid string) bool { _, lives := s.claimed[rid]; return lives })
}

// doom marks the sequences whose rid begins with prefix as aborted, and gives their rids. The ranks are told after it: a
// sequence that is on its way to them at that moment finds the mark when it has arrived.
func (s *Server) doom(prefix string) (rids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for rid := range s.claimed {
		if strings.HasPrefix(rid, prefix) {
			s.claimed[rid] = true
			rids = append(rids, rid)
		}
	}
	return rids
}

// doomed reports whether a sequence that lives is aborted.
func (s *Server) doomed(rid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claimed[rid]
}

func (s *Server) release(rid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.claimed, rid)
}

// running gives the engine when the rank is up, whatever the phase.
func (s *Server) running() (*engine, *apiError) {
	if e := s.current.Load(); e != nil {
		return e, nil
	}
	return nil, failure(http.StatusServiceUnavailable, codeNotReady, "the engine is starting: try again when /health answers 200")
}

func (s *Server) prefillOnly() bool { return s.cfg.Rank.Disagg.Mode == rank.ModePrefill }
