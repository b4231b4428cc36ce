package server

import (
	"math"
	"net/http"
	"slices"
	"sync"

	"github.com/google/uuid"
	"github.com/sluice-dev/sluice/engine/request"
)

// sessions notes which sessions have had a turn: a later turn goes on in the middle of a text, so its prompt has no token
// for the begin of one. The ranks hold the sessions themselves, and alone know when one has timed out; so what is noted is
// in two generations of at most maxNoted sessions, and the older one is forgotten when the newer one is full. The zero
// value is ready. Safe for concurrent use.
type sessions struct {
	mu         sync.Mutex
	used, aged map[string]bool // by id, of those opened and not closed: a turn has ended well; used wins
}

// maxNoted is how many other sessions must be opened or have a turn before one is forgotten: more than the ranks of the
// largest replica have open at the same time.
const maxNoted = maxDPSize * 4096

// note writes what is known of a session. The caller holds mu.
func (s *sessions) note(id string, used bool) {
	if _, known := s.used[id]; !known && (s.used == nil || len(s.used) >= maxNoted) {
		s.used, s.aged = map[string]bool{}, s.used
	}
	s.used[id] = used
}

// find gives what is noted of a session. The caller holds mu.
func (s *sessions) find(id string) (used, open bool) {
	if used, open = s.used[id]; open {
		return used, true
	}
	used, open = s.aged[id]
	return used, open
}

func (s *sessions) opened(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note(id, false)
}

func (s *sessions) closed(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.used, id)
	delete(s.aged, id)
}

// turned notes that a turn has ended well.
func (s *sessions) turned(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, open := s.find(id); open {
		s.note(id, true)
	}
}

// goesOn reports whether a turn follows tokens that the session holds.
func (s *sessions) goesOn(turn *request.Turn) bool {
	if turn == nil || turn.Offset != nil && *turn.Offset == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	used, _ := s.find(turn.SessionID)
	return used
}

// continuation drops from a turn's prompts what begins every text.
func (s *Server) continuation(e *engine, turn *request.Turn, prompts [][]int32) {
	if !s.sessions.goesOn(turn) {
		return
	}
	begin := e.tokenizer.Encode("", true)
	for i, ids := range prompts {
		if len(ids) > len(begin) && slices.Equal(ids[:len(begin)], begin) {
			prompts[i] = ids[len(begin):]
		}
	}
}

// readTurn reads session_params; nil when the request is no turn of a session. A session goes one turn at a time, so the
// request must have one sequence.
func readTurn(o *object, sequences int) *request.Turn {
	if o.has("session_id") && o.has("session_params") {
		o.failField("session_id", "and session_params exclude each other: send session_params for a turn of an open session")
	}
	o.string("session_id", "") // names a conversation for routers; it changes no prompt
	if !o.has("session_params") {
		return nil
	}
	inner := o.object("session_params")
	turn := &request.Turn{
		SessionID: inner.string("id", ""), RID: inner.string("rid", ""), Replace: inner.boolean("replace", false),
		DropPreviousOutput: inner.boolean("drop_previous_output", false),
	}
	if turn.SessionID == "" {
		inner.failField("id", "is missing: send the id that /open_session gave")
	}
	if inner.has("offset") {
		offset := int(inner.integerIn("offset", 0, 0, math.MaxInt32))
		turn.Offset = &offset
	}
	if sequences > 1 {
		o.failField("session_params", "is for one sequence, not %d: a session goes one turn at a time; send n=1 and one prompt", sequences)
	}
	return turn
}

// maxSessionSeconds is the longest time-out of a session.
const maxSessionSeconds = 7 * 24 * 3600

// openSession opens a session and answers with its id, as a JSON string.
func (s *Server) openSession(w http.ResponseWriter, r *http.Request) {
	e, o, err := s.controlBody(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	session := request.Session{
		ID: o.string("session_id", ""), Streaming: o.boolean("streaming", false),
		CapacityTokens: int(o.integerIn("capacity_of_str_len", 0, 0, math.MaxInt32)), // a token is at least one byte
		TimeoutNanos:   int64(o.number("timeout", 0, 0, maxSessionSeconds) * 1e9),
	}
	switch {
	case session.ID == "":
		session.ID = uuid.NewString()
	case len(session.ID) > 256:
		o.failField("session_id", "must have at most 256 bytes, not %d", len(session.ID))
	}
	if *o.fault != nil {
		writeError(w, *o.fault)
		return
	}
	if openErr := e.rank.OpenSession(r.Context(), session); openErr != nil {
		writeError(w, controlError(codeRefused, "the session is not opened", openErr))
		return
	}
	s.sessions.opened(session.ID)
	writeJSON(w, http.StatusOK, session.ID)
}

// closeSession closes a session, ends its turn if one runs, and frees what it holds.
func (s *Server) closeSession(w http.ResponseWriter, r *http.Request) {
	e, o, err := s.controlBody(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	id := o.string("session_id", "")
	if id == "" {
		o.failField("session_id", "is missing: send the id that /open_session gave")
	}
	if *o.fault != nil {
		writeError(w, *o.fault)
		return
	}
	if closeErr := e.rank.CloseSession(r.Context(), id); closeErr != nil {
		writeError(w, controlError(codeRefused, "the session is not closed", closeErr))
		return
	}
	s.sessions.closed(id)
	w.WriteHeader(http.StatusOK)
}
