package server

import (
	"context"
	"net/http"

	"github.com/sluice-dev/sluice/engine/ledger"
)

// account is one client request, from its arrival until it is answered: what it has in the books, in flight and at the
// rank. The goroutine of its handler has it.
type account struct {
	server    *Server
	arrival   ledger.Timeline
	uncounted bool     // log_metrics=false
	unlogged  bool     // no_logs
	rid       string   // the first that the body names, as far as it can be read; "": none
	admitted  bool     // dismiss is due
	entries   []*entry // of the request while its prompts are not known, then of its sequences; none when uncounted
	job       *job     // nil until the sequences are at the rank
	key       string   // the routing key of the body, which is held; "": none
	settled   bool     // all has ended in the books
}

// inference makes the handler of a route that serves requests: each is entered in the books when its body is there, and
// has ended in them before the end of its answer is sent, also when handle panics. What handle gives is answered.
func (s *Server) inference(handle func(w http.ResponseWriter, r *http.Request, a *account) *apiError) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a := &account{server: s, arrival: s.arrival()}
		defer a.close()
		err := handle(w, r, a)
		a.settle(err)
		if err != nil {
			writeError(w, err)
		}
	}
}

// receive reads a request's body and lets the request in; a slow sender is not in flight yet, so it does not hold up a
// drain.
func (a *account) receive(w http.ResponseWriter, r *http.Request) (*engine, *object, *apiError) {
	o, err := a.server.body(w, r)
	if err != nil {
		return nil, nil, err
	}
	a.uncounted, a.unlogged, a.rid = !o.boolean("log_metrics", true), o.boolean("no_logs", false), firstRID(o)
	e, err := a.server.admit()
	if err != nil {
		return nil, nil, err
	}
	a.admitted = true
	if !a.uncounted {
		a.entries = a.server.books.enter(1)
	}
	return e, o, nil
}

// start hands all sequences of the request to the rank, or none.
func (a *account) start(r *http.Request, e *engine, id string, specs []sequenceSpec) (*job, *apiError) {
	if key := specs[0].routingKey; key != "" && r.Header.Get(routingKeyHeader) == "" { // that of a header is held by ServeHTTP
		a.key = key
		a.server.events.RoutingKeyHeld(key)
	}
	if !a.uncounted {
		if more := len(specs) - 1; more > 0 {
			a.entries = append(a.entries, a.server.books.enter(more)...)
		}
		for i := range specs {
			specs[i].entry = a.entries[i]
		}
	}
	j, err := a.server.start(r.Context(), e, id, specs)
	a.job = j
	return j, err
}

// answer settles the request and sends its whole answer.
func (a *account) answer(w http.ResponseWriter, value any) *apiError {
	body, err := encodeJSON(value)
	if err != nil {
		return err
	}
	a.settle(nil)
	writeBody(w, http.StatusOK, body)
	return nil
}

// settle ends in the books what has not ended there: in the error's outcome, or each sequence in its own.
func (a *account) settle(err *apiError) {
	if a.settled {
		return
	}
	a.settled = true
	if a.job != nil {
		a.job.settle(err)
	}
	if a.uncounted {
		return
	}
	a.server.events.FuncLatency(funcGenerate, a.server.clock.Now().Sub(a.arrival.Started()))
	if err == nil {
		return
	}
	if a.job == nil {
		a.server.requests.refused(a.rid, a.uncounted || a.unlogged, err)
	}
	if a.entries == nil {
		a.server.books.refuse(err.outcome())
		return
	}
	a.server.books.endOpen(a.entries, err.outcome())
}

// close lets go of what the request holds. A request that ended by a panic has failed, and what it has at the rank ends.
func (a *account) close() {
	if !a.settled {
		if a.job != nil {
			a.job.abandon(context.Background())
		}
		a.settle(panicked())
	}
	if a.key != "" {
		a.server.events.RoutingKeyFreed(a.key)
	}
	if a.admitted {
		a.server.dismiss()
	}
}

// The names of the functions whose time is measured; see metrics' func_latency_seconds.
const (
	funcGenerate = "generate_request" // from a request's arrival until its answer
	funcTokenize = "tokenize_request" // until its prompt is tokens
	funcDispatch = "dispatch_request" // the hand-over of a sequence to the rank
	funcLoads    = "get_loads"        // an answer of /v1/loads
)
