package server

import (
	"net/http"
	"slices"
	"strings"

	"github.com/sluice-dev/sluice/engine/metrics"
	"github.com/sluice-dev/sluice/internal/query"
)

// access says who may use a route.
type access int

const (
	accessOpen  access = iota // everybody: probes and scrapers
	accessUser                // --api-key, when set
	accessAdmin               // --admin-api-key when set, else --api-key when set
)

// route is one row of the table of routes.
type route struct {
	pattern string // also the metrics' endpoint; a last segment in braces takes the rest of the path
	methods []string
	access  access
	handle  http.HandlerFunc
}

// routes is the table, by exact path and by prefix.
type routes struct {
	exact  map[string]*route
	prefix map[string]*route // "/v1/models/" -> /v1/models/{model}

	parameters map[string][]query.Param // by pattern
}

var (
	onlyGet   = []string{http.MethodGet, http.MethodHead}
	onlyPost  = []string{http.MethodPost}
	postOrPut = []string{http.MethodPost, http.MethodPut}
	getOrPost = []string{http.MethodGet, http.MethodPost}
)

// rows lists every route of the engine.
func (s *Server) rows() []route {
	rows := []route{
		{"/v1/completions", onlyPost, accessUser, s.serveOpenAI(s.completionRoute())},
		{"/v1/chat/completions", onlyPost, accessUser, s.serveOpenAI(s.chatRoute())},
		{"/generate", postOrPut, accessUser, s.inference(s.generate)},
		{"/v1/models", onlyGet, accessUser, s.models},
		{"/v1/models/{model}", onlyGet, accessUser, s.model},
		{"/v1/tokenize", onlyPost, accessUser, s.tokenize},
		{"/v1/detokenize", onlyPost, accessUser, s.detokenize},

		{"/health", onlyGet, accessOpen, s.health},
		{"/health_generate", onlyGet, accessOpen, s.healthGenerate},
		{"/server_info", onlyGet, accessUser, s.serverInfo},
		{"/get_server_info", onlyGet, accessUser, deprecated("/server_info", s.serverInfo)},
		{"/model_info", onlyGet, accessUser, s.modelInfo},
		{"/get_model_info", onlyGet, accessUser, deprecated("/model_info", s.modelInfo)},
		{"/weight_version", onlyGet, accessUser, s.weightVersion},
		{"/get_load", onlyGet, accessUser, deprecated("/v1/loads", s.getLoad)},
		{"/v1/loads", onlyGet, accessUser, s.loads},

		{"/flush_cache", getOrPost, accessAdmin, s.flushCache},
		{"/abort_request", onlyPost, accessAdmin, s.abortRequest},
		{"/pause_generation", onlyPost, accessAdmin, s.pauseGeneration},
		{"/continue_generation", onlyPost, accessAdmin, s.continueGeneration},
		{"/open_session", getOrPost, accessAdmin, s.openSession},
		{"/close_session", getOrPost, accessAdmin, s.closeSession},
		{"/start_profile", getOrPost, accessAdmin, s.startProfile},
		{"/stop_profile", getOrPost, accessAdmin, s.stopProfile},
		{"/set_trace_level", getOrPost, accessAdmin, s.setTraceLevel},
		{"/configure_logging", getOrPost, accessAdmin, s.configureLogging},
		{"/set_internal_state", postOrPut, accessAdmin, s.setInternalState},
		{debugRequestsRoute, onlyGet, accessAdmin, s.debugRequests},
		{debugRequestsRoute + "/{rid}", onlyGet, accessAdmin, s.debugRequest},
		{"/freeze_gc", getOrPost, accessAdmin, s.freezeGC},
	}
	if s.metrics != nil {
		rows = append(rows,
			route{"/metrics", onlyGet, accessOpen, s.metrics.ServeHTTP},
			route{"/metrics/", onlyGet, accessOpen, s.metrics.ServeHTTP})
	}
	if s.cfg.NodeRank > 0 {
		return s.nodeRows(rows)
	}
	return rows
}

// parameters are those of the routes that take no others, by pattern: what is written wrongly would not count, and nobody would
// know. The other routes leave alone what they don't know, as SGLang does: gateways and client libraries add parameters of their
// own to inference routes, and whoever probes does to probes.
func parameters() map[string][]query.Param {
	none := []query.Param{}
	return map[string][]query.Param{
		"/v1/loads": {{Name: "include", Many: true}, {Name: "dp_rank"}, {Name: "format"}},
		"/get_load": none,

		"/flush_cache": query.Single("timeout"), "/set_trace_level": query.Single("level"),
		"/abort_request": none, "/pause_generation": none, "/continue_generation": none, "/open_session": none, "/close_session": none,
		"/start_profile": none, "/stop_profile": none, "/configure_logging": none, "/set_internal_state": none, "/freeze_gc": none,

		debugRequestsRoute:            query.Single("slowest", "limit", "outcome", "room", "since", "format"),
		debugRequestsRoute + "/{rid}": query.Single("format"),

		"/metrics": none, "/metrics/": none,
	}
}

// table makes the rows findable.
func (s *Server) table() routes {
	rows := s.rows()
	t := routes{exact: map[string]*route{}, prefix: map[string]*route{}, parameters: parameters()}
	for i := range rows {
		if open := strings.IndexByte(rows[i].pattern, '{'); open >= 0 {
			t.prefix[rows[i].pattern[:open]] = &rows[i]
			continue
		}
		t.exact[rows[i].pattern] = &rows[i]
	}
	return t
}

// find gives the route of a path, or nil.
func (t routes) find(path string) *route {
	if r := t.exact[path]; r != nil {
		return r
	}
	for prefix, r := range t.prefix {
		if len(path) > len(prefix) && strings.HasPrefix(path, prefix) {
			return r
		}
	}
	return nil
}

// deprecated warns the client that a route has a newer name.
func deprecated(successor string, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Deprecation", "true")
		w.Header().Set("Link", "<"+successor+`>; rel="successor-version"`)
		next(w, r)
	}
}

// ServeHTTP finds the route and runs it: counted, guarded by its key, and with a panic turned into an answer.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	found := s.routes.find(r.URL.Path)
	endpoint, method := metrics.UnmatchedEndpoint, r.Method
	if found != nil {
		endpoint = found.pattern
	}
	answer := &countedWriter{ResponseWriter: w, patience: s.cfg.ClientTimeout, started: func(status int) { s.events.ResponseStarted(endpoint, method, status) }}
	if s.currentPhase() >= phaseLeaving {
		// The last answer of its connection, so that the end of the server finds none on which a client is about to send.
		answer.Header().Set("Connection", "close")
	}
	s.boundBody(answer, r)
	answer.allow()
	defer answer.allow() // for what the server itself writes at the end
	s.events.RequestStarted(endpoint, method)
	defer s.events.RequestEnded(endpoint, method)
	if key := r.Header.Get(routingKeyHeader); key != "" {
		s.events.RoutingKeyHeld(key)
		defer s.events.RoutingKeyFreed(key)
	}
	defer s.recover(answer, r)
	switch {
	case found == nil:
		writeError(answer, failure(http.StatusNotFound, codeNotFound, "there is no route %s", clip(r.URL.Path)))
	case !slices.Contains(found.methods, r.Method):
		answer.Header().Set("Allow", strings.Join(found.methods, ", "))
		writeError(answer, failure(http.StatusMethodNotAllowed, codeMethod, "%s does not take %s: use %s",
			found.pattern, clip(r.Method), strings.Join(found.methods, " or ")))
	case !s.authorized(found.access, r):
		writeError(answer, failure(http.StatusUnauthorized, codeInvalidKey, "the API key is missing or wrong: send the header Authorization: Bearer KEY"))
	default:
		if err := s.routes.check(found, r); err != nil {
			writeError(answer, err)
			return
		}
		found.handle(answer, r)
	}
}

// check refuses parameters that a route can't read, does not know, or got more often than once.
func (t routes) check(found *route, r *http.Request) *apiError {
	known, fixed := t.parameters[found.pattern]
	if !fixed {
		return nil
	}
	if _, err := query.Parse(r.URL.RawQuery, known); err != nil {
		return failure(http.StatusBadRequest, "", "the query of the URL: %v", err)
	}
	return nil
}

// clip shortens what a client sent for an error message.
func clip(text string) string {
	const most = 200
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
