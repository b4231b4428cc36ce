package proxy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-dev/sluice/internal/query"
	"github.com/sluice-dev/sluice/internal/waterfall"
	"github.com/sluice-dev/sluice/router/fleet"
)

// The stages of a request in the router, in order; each ends when the next begins, so they sum to the whole. After a failed
// attempt it goes on from pick.
const (
	stageReceive  = "receive"  // until the body is there and read
	stagePick     = "pick"     // until engines are chosen for it, waiting included
	stageDispatch = "dispatch" // until the engines' requests are under way
	stageAwait    = "await"    // until the first byte goes to the client, or the attempt has failed
	stageStream   = "stream"   // until the answer is complete
)

// maxVisits bounds the stages that are told of one request; the last of them lasts to the end.
const maxVisits = 64

// trail is one inference request: where its time went, and which engines it went to. Nil notes nothing. Safe for concurrent
// use; moved on by the goroutine of its handler.
//
// Invariant: visits are in order of at, the first one at start.
type trail struct {
	route string
	start time.Time

	mu       sync.Mutex
	rid      string // that the client gave; ""
	visits   []visit
	attempts []try
	took     time.Duration // valid when ended
	status   int
	outcome  Outcome
	ended    bool
}

type visit struct {
	stage string
	at    time.Duration // after the start
}

// try is one pair of engines, or one unified engine, that a request was sent to.
type try struct {
	Prefill *engineName `json:"prefill"` // null: a unified engine
	Decode  engineName  `json:"decode"`
	Room    *int64      `json:"bootstrap_room"` // where the two meet
	// PrefillNanos is when the prefill engine had answered, after the start of the request; null: not before the decode engine.
	PrefillNanos *int64      `json:"prefill_answered_nanos"`
	Reason       RetryReason `json:"failed"` // "" unless another attempt followed
	Error        string      `json:"error,omitempty"`
}

type engineName struct {
	Name string `json:"name"`
	URL  string `json:"url"`
}

func (t *trail) enter(stage string, now time.Time) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.visits) < maxVisits && !t.ended {
		t.visits = append(t.visits, visit{stage, now.Sub(t.start)})
	}
}

// named notes the rid.
func (t *trail) named(rid string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rid = rid
}

// picked notes the engines of an attempt.
func (t *trail) picked(l fleet.Lease) {
	if t == nil {
		return
	}
	a := try{Decode: engineName{l.Decode.Engine.Name, l.Decode.Engine.URL}}
	if l.Prefill != nil {
		a.Prefill = &engineName{l.Prefill.Engine.Name, l.Prefill.Engine.URL}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.attempts) < maxVisits {
		t.attempts = append(t.attempts, a)
	}
}

// change lets f change the newest attempt.
func (t *trail) change(f func(*try)) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.attempts); n > 0 {
		f(&t.attempts[n-1])
	}
}

// recentRequests remembers the trails of requests that live and of the last that ended. Nil remembers none.
type recentRequests struct {
	capacity int

	mu    sync.Mutex
	live  map[*trail]struct{}
	ended []*trail // a ring
	next  int      // where the next one goes
	gone  int64    // ended ones that are not there any more
}

func newRecentRequests(capacity int) *recentRequests {
	if capacity <= 0 {
		return nil
	}
	return &recentRequests{capacity: capacity, live: map[*trail]struct{}{}}
}

func (l *recentRequests) begin(route string, start time.Time) *trail {
	if l == nil {
		return nil
	}
	t := &trail{route: route, start: start, visits: make([]visit, 1, 5)}
	t.visits[0].stage = stageReceive
	l.mu.Lock()
	defer l.mu.Unlock()
	l.live[t] = struct{}{}
	return t
}

func (l *recentRequests) end(t *trail, now time.Time, status int, outcome Outcome) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.took, t.status, t.outcome, t.ended = now.Sub(t.start), status, outcome, true
	t.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.live, t)
	if len(l.ended) < l.capacity {
		l.ended = append(l.ended, t)
		return
	}
	l.ended[l.next] = t
	l.next = (l.next + 1) % l.capacity
	l.gone++
}

// all gives what lives and then what ended, the newest first.
func (l *recentRequests) all() []*trail {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]*trail, 0, len(l.live)+len(l.ended))
	for t := range l.live {
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b *trail) int { return b.start.Compare(a.start) })
	for i := range l.ended {
		list = append(list, l.ended[(l.next+len(l.ended)-1-i)%len(l.ended)])
	}
	return list
}

// trailView is a trail as /debug/requests shows it. Times are nanoseconds.
type trailView struct {
	RID          string      `json:"rid"` // "" when the client gave none: the engine made one, find it by the room
	Route        string      `json:"route"`
	InFlight     bool        `json:"in_flight"`
	Stage        string      `json:"stage"` // done
	Status       int         `json:"status"`
	Outcome      *Outcome    `json:"outcome"` // null while it lives
	Received     string      `json:"received"`
	ReceivedWall int64       `json:"received_wall_nanos"`
	Nanos        int64       `json:"nanos"` // so far while it lives
	Stages       []stageView `json:"stages"`
	Attempts     []try       `json:"attempts"`
}

type stageView struct {
	Stage string `json:"stage"`
	Start int64  `json:"start"` // after the request's
	Nanos int64  `json:"nanos"`
}

// view shows a request that the caller has locked.
func (t *trail) view(now time.Time) trailView {
	v := trailView{
		RID: t.rid, Route: t.route, InFlight: !t.ended, Stage: "done", Status: t.status, ReceivedWall: t.start.UnixNano(),
		Received: t.start.UTC().Format(time.RFC3339Nano), Nanos: int64(t.took), Stages: []stageView{}, Attempts: append([]try{}, t.attempts...),
	}
	if t.ended {
		v.Outcome = new(t.outcome)
	} else {
		last := t.visits[len(t.visits)-1] // maybe entered after now was read
		v.Nanos, v.Stage = int64(max(now.Sub(t.start), last.at)), last.stage
	}
	for i, x := range t.visits {
		end := v.Nanos
		if i+1 < len(t.visits) {
			end = int64(t.visits[i+1].at)
		}
		v.Stages = append(v.Stages, stageView{x.stage, int64(x.at), end - int64(x.at)})
	}
	return v
}

// glimpse is what a request is chosen by for an answer.
type glimpse struct {
	of      *trail
	live    *trailView // as it was then; nil: it has ended and does not change any more
	outcome string     // outcomeInFlight while it lives
	nanos   int64      // so far while it lives
}

// outcomeInFlight is what outcome= calls the requests that have none yet.
const outcomeInFlight = "in_flight"

// glance looks at a request.
func (t *trail) glance(now time.Time) glimpse {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return glimpse{of: t, outcome: string(t.outcome), nanos: int64(t.took)}
	}
	v := t.view(now)
	return glimpse{of: t, live: &v, outcome: outcomeInFlight, nanos: v.Nanos}
}

// view shows what was seen.
func (g glimpse) view(now time.Time) trailView {
	if g.live != nil {
		return *g.live
	}
	g.of.mu.Lock()
	defer g.of.mu.Unlock()
	return g.of.view(now)
}

// is reports whether a request goes by that name: its rid, or a room of its engines.
func (t *trail) is(name string) bool {
	t.mu.Lock()
	named := t.rid != "" && t.rid == name
	t.mu.Unlock()
	return named || t.met(name)
}

// met reports whether two engines of the request met in the room.
func (t *trail) met(room string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.attempts, func(a try) bool { return a.Room != nil && strconv.FormatInt(*a.Room, 10) == room })
}

const (
	debugRequestsRoute = "/debug/requests"

	// maxListed is the most requests that one answer holds, and defaultListed what it holds without limit=.
	maxListed     = 10000
	defaultListed = 100
)

// debugRequests answers GET /debug/requests and /debug/requests/{rid or room}.
func (p *Proxy) debugRequests(w http.ResponseWriter, r *http.Request) {
	fail := func(status int, code, format string, args ...any) {
		(&apiError{status: status, code: code, message: fmt.Sprintf(format, args...)}).write(w)
	}
	name, one := strings.CutPrefix(r.URL.Path, debugRequestsRoute+"/")
	one = one && name != ""
	known := query.Single("slowest", "limit", "outcome", "room", "since", "format")
	if one {
		known = query.Single("format")
	}
	query, err := query.Parse(r.URL.RawQuery, known)
	if err != nil {
		fail(http.StatusBadRequest, "", "the query of the URL: %v", err)
		return
	}
	number := func(name string, without int) (n int, ok bool) {
		text := query.Get(name)
		if text == "" {
			return without, true
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxListed {
			fail(http.StatusBadRequest, "", "%s must be an integer from 1 to %d, not %q", name, maxListed, clip(text))
			return 0, false
		}
		return n, true
	}
	slowest, ok := number("slowest", 0)
	if !ok {
		return
	}
	limit, ok := number("limit", cmp.Or(slowest, defaultListed))
	if !ok {
		return
	}
	format := query.Get("format")
	if format != "" && format != "json" && format != "text" {
		fail(http.StatusBadRequest, "", "format must be json or text, not %q", clip(format))
		return
	}
	now := p.cfg.Now()
	var since time.Time
	if text := query.Get("since"); text != "" {
		if d, err := time.ParseDuration(text); err == nil && d >= 0 {
			since = now.Add(-d)
		} else if since, err = time.Parse(time.RFC3339Nano, text); err != nil {
			fail(http.StatusBadRequest, "", "since must be a duration back from now, such as 5m, or a time in RFC 3339, not %q", clip(text))
			return
		}
	}
	if p.recent == nil {
		fail(http.StatusNotFound, "request_not_kept", "requests are not remembered: start the router with --debug-requests, the number to keep")
		return
	}
	room := query.Get("room")
	if _, err := strconv.ParseInt(cmp.Or(room, "0"), 10, 64); err != nil {
		fail(http.StatusBadRequest, "", "room must be an integer, not %q", clip(room))
		return
	}
	outcome := query.Get("outcome")
	if outcome != "" && outcome != outcomeInFlight && !slices.Contains(Outcomes(), Outcome(outcome)) {
		fail(http.StatusBadRequest, "", "outcome must be %s or one of %v, not %q", outcomeInFlight, Outcomes(), clip(outcome))
		return
	}
	var chosen []glimpse
	for _, t := range p.recent.all() {
		g := t.glance(now)
		switch {
		case one && !t.is(name), room != "" && !t.met(room), outcome != "" && outcome != g.outcome, t.start.Before(since):
			continue
		}
		if chosen = append(chosen, g); one || slowest == 0 && len(chosen) == limit {
			break
		}
	}
	if one && len(chosen) == 0 {
		fail(http.StatusNotFound, "request_not_kept", "no request with the rid or room %s is remembered: it never came here, its client gave no rid, or it is "+
			"one of those that have gone from the ring (--debug-requests %d)", clip(name), p.recent.capacity)
		return
	}
	if slowest > 0 {
		slices.SortStableFunc(chosen, func(a, b glimpse) int { return cmp.Compare(b.nanos, a.nanos) })
		chosen = chosen[:min(len(chosen), slowest, limit)]
	}
	views := []trailView{}
	for _, g := range chosen {
		views = append(views, g.view(now))
	}
	switch {
	case format == "text":
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if len(views) == 0 {
			w.Write([]byte("no request that is remembered is as the query asks\n"))
		}
		for i := range views {
			w.Write([]byte(views[i].String()))
		}
	case one:
		writeJSON(w, http.StatusOK, views[0])
	default:
		p.recent.mu.Lock()
		live, kept, gone := len(p.recent.live), len(p.recent.ended), p.recent.gone
		p.recent.mu.Unlock()
		writeJSON(w, http.StatusOK, map[string]any{"in_flight": live, "kept": kept, "forgotten": gone, "capacity": p.recent.capacity, "requests": views})
	}
}

// String draws the request as a waterfall.
func (v *trailView) String() string {
	var b strings.Builder
	outcome := "in flight, " + v.Stage
	if v.Outcome != nil {
		outcome = fmt.Sprintf("%s (%d)", *v.Outcome, v.Status)
	}
	fmt.Fprintf(&b, "%s  %s  %s  received %s\n", waterfall.OneLine(cmp.Or(v.RID, "(no rid)")), v.Route, outcome, v.Received)
	for i, a := range v.Attempts {
		fmt.Fprintf(&b, "  attempt %d:", i+1)
		if a.Prefill != nil {
			fmt.Fprintf(&b, " prefill %s, decode %s", a.Prefill.Name, a.Decode.Name)
		} else {
			fmt.Fprintf(&b, " %s", a.Decode.Name)
		}
		if a.Room != nil {
			fmt.Fprintf(&b, ", room %d", *a.Room)
		}
		if a.PrefillNanos != nil {
			fmt.Fprintf(&b, ", prefill answered after %s ms", waterfall.Millis(*a.PrefillNanos))
		}
		if a.Reason != "" {
			fmt.Fprintf(&b, ": %s: %s", a.Reason, waterfall.OneLine(a.Error))
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "  router: %s ms\n", waterfall.Millis(v.Nanos))
	for _, s := range v.Stages {
		b.WriteString(waterfall.Line(s.Stage, s.Start, s.Nanos, v.Nanos))
	}
	return b.String()
}

// maxRID is the longest rid that is remembered.
const maxRID = 256

// ridOf gives the rid that a body names; "" when it names none, several, or a long one.
func ridOf(body []byte, l layout) (rid string) {
	for i, key := range l.keys {
		if string(body[key.from:key.to]) != `"rid"` {
			continue
		}
		value := strings.TrimLeft(string(body[key.to:min(l.members[i].to, key.to+4*maxRID)]), " \n\t\r:")
		if json.Unmarshal([]byte(value), &rid) != nil || len(rid) > maxRID {
			rid = ""
		}
	}
	return rid
}
