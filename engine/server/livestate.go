package server

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
)

// liveState is what /set_internal_state can change while the engine serves; everything else of the configuration stays as
// the flags said. Safe for concurrent use.
type liveState struct {
	cacheReport atomic.Bool
}

func newLiveState(cfg Config) *liveState {
	l := &liveState{}
	l.cacheReport.Store(cfg.EnableCacheReport)
	return l
}

// cacheReport says whether usage tells the cached tokens.
func (s *Server) cacheReport() bool { return s.state.cacheReport.Load() }

// stateAnswer is the body of /set_internal_state: one element for each data-parallel rank, all alike, as the state is the
// API process's.
type stateAnswer struct {
	Updated    bool           `json:"updated"`
	ServerArgs map[string]any `json:"server_args"` // the state that can be changed, as it is now
}

// liveNames are the names of what can be changed.
func liveNames() []string {
	return []string{"enable_cache_report", "log_requests", "log_requests_level", "log_requests_sample_rate"}
}

// setInternalState changes what {"server_args": {…}} names, all or nothing.
func (s *Server) setInternalState(w http.ResponseWriter, r *http.Request) {
	_, o, err := s.controlBody(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	if !o.has("server_args") {
		o.failField("server_args", "is missing: send an object with what to change: %s", strings.Join(liveNames(), ", "))
	}
	inner := o.object("server_args")
	for _, name := range slices.Sorted(maps.Keys(inner.raw)) {
		if !slices.Contains(liveNames(), name) {
			inner.failField(clip(name), "can't change while the engine serves: what can is %s; restart it with the flag for the rest", strings.Join(liveNames(), ", "))
		}
	}
	report := inner.boolean("enable_cache_report", s.cacheReport())
	logging := s.readLogging(inner)
	if *o.fault != nil {
		writeError(w, *o.fault)
		return
	}
	s.state.cacheReport.Store(report)
	s.requests.configure(logging)
	s.log.Info("the state was changed", "enable_cache_report", report, "log_requests", logging.on, "log_requests_level", logging.level, "log_requests_sample_rate", logging.rate)
	rows := make([]stateAnswer, s.dataRanks())
	for i := range rows {
		rows[i] = stateAnswer{Updated: true, ServerArgs: map[string]any{
			"enable_cache_report": report, "log_requests": logging.on, "log_requests_level": logging.level, "log_requests_sample_rate": logging.rate,
		}}
	}
	writeJSON(w, http.StatusOK, rows)
}

// readLogging reads log_requests, log_requests_level and log_requests_sample_rate; what is not named stays. A level or a rate
// alone does not turn the log on.
func (s *Server) readLogging(o *object) logSetting {
	was := s.requests.current()
	return logSetting{
		on:    o.boolean("log_requests", was.on),
		level: int(o.integerIn("log_requests_level", int64(was.level), 0, maxLogLevel)),
		rate:  o.number("log_requests_sample_rate", was.rate, 0, 1),
	}
}

// configureLogging changes the request log.
func (s *Server) configureLogging(w http.ResponseWriter, r *http.Request) {
	_, o, err := s.controlBody(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	logging := s.readLogging(o)
	for _, f := range []struct{ name, remedy string }{
		{"log_level", "restart the engine with --log-level"},
		{"log_requests_format", "leave it out; the log is text"},
		{"dump_requests_folder", "leave it out; log_requests_level 3 logs whole texts"},
		{"dump_requests_threshold", "leave it out"},
		{"dump_requests_exclude_meta_keys", "leave it out"},
		{"crash_dump_folder", "leave it out"},
	} {
		if o.has(f.name) {
			o.fail(unsupportedField(f.name, f.remedy))
		}
	}
	if *o.fault != nil {
		writeError(w, *o.fault)
		return
	}
	s.requests.configure(logging)
	s.log.Info("the request log was changed", "log_requests", logging.on, "log_requests_level", logging.level, "log_requests_sample_rate", logging.rate)
	w.WriteHeader(http.StatusOK)
}
