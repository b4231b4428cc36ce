package server

import (
	"cmp"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
)

// requestView is one sequence as /debug/requests shows it. Times are nanoseconds.
type requestView struct {
	RID          string           `json:"rid"`
	InFlight     bool             `json:"in_flight"`
	Stage        string           `json:"stage"`   // of the API process; done
	Outcome      *request.Outcome `json:"outcome"` // null while it lives
	Message      string           `json:"message,omitempty"`
	Received     string           `json:"received"` // wall time, RFC 3339
	ReceivedWall int64            `json:"received_wall_nanos"`
	Streaming    bool             `json:"streaming"`
	Priority     *int             `json:"priority"`
	DPRank       *int             `json:"dp_rank"`        // null where there is one
	Room         *int64           `json:"bootstrap_room"` // null on a unified engine

	PromptTokens      int `json:"prompt_tokens"`
	CachedTokens      int `json:"cached_tokens"`
	ComputedTokens    int `json:"computed_tokens"`    // of the prompt, for the first time
	ReprocessedTokens int `json:"reprocessed_tokens"` // again after retractions
	CompletionTokens  int `json:"completion_tokens"`
	Retractions       int `json:"retractions"`

	TTFTNanos  *int64 `json:"ttft_nanos"` // null: no output came
	E2ENanos   int64  `json:"e2e_nanos"`  // so far while it lives
	QueueNanos *int64 `json:"queue_nanos"`

	API  *timelineView `json:"api_server"`
	Rank *timelineView `json:"scheduler"` // null when no rank has it, or has taken it from its inbox yet

	RankUnknown string `json:"scheduler_unknown,omitempty"` // why the rank did not say how far it is
}

// timelineView is one timeline. Starts are nanoseconds after the beginning of this timeline.
type timelineView struct {
	Form      string           `json:"form"`
	Stage     string           `json:"stage"`
	StartWall int64            `json:"start_wall_nanos"`
	Nanos     int64            `json:"nanos"`
	Visits    []visitView      `json:"visits"`
	Folded    int              `json:"visits_not_listed"`
	Stages    []spentView      `json:"stages"` // sums over visits; they sum to nanos once the request has ended
	Laps      []spentView      `json:"laps"`   // parts of a stage
	Durations map[string]int64 `json:"durations,omitempty"`
	Summary   string           `json:"summary,omitempty"` // the durations as a line of text
	Transfer  *transferView    `json:"transfer,omitempty"`
}

type visitView struct {
	Stage string `json:"stage"`
	Start int64  `json:"start"`
	Nanos int64  `json:"nanos"`
}

type spentView struct {
	Stage string `json:"stage"`
	Count int    `json:"count"`
	Nanos int64  `json:"nanos"`
}

type transferView struct {
	Bytes     int64   `json:"bytes"`
	PeerBytes *int64  `json:"peer_bytes"` // null: the peer did not say
	Nanos     int64   `json:"nanos"`
	SpeedGBs  float64 `json:"speed_gb_s"`
}

// requestList is the body of /debug/requests.
type requestList struct {
	InFlight  int           `json:"in_flight"`
	Kept      int           `json:"kept"`
	Forgotten int64         `json:"forgotten"` // ended, and not there any more
	Capacity  int           `json:"capacity"`
	Requests  []requestView `json:"requests"`
}

// glimpse is a sequence at one moment: enough to choose it, and what its view is made of.
type glimpse struct {
	of     *recent
	ending *ending        // nil: it lives
	api    *ledger.Record // of the API process, so far
}

// glance looks at a sequence as it is now.
func (x *recent) glance() glimpse {
	x.mu.Lock()
	g, timeline := glimpse{of: x, ending: x.ending}, x.timeline
	x.mu.Unlock()
	if g.ending != nil {
		g.api = g.ending.api
	} else {
		g.api = timeline.Record()
	}
	return g
}

// view shows what was seen.
func (g glimpse) view() requestView {
	x, e, api := g.of, g.ending, g.api
	v := requestView{
		RID: x.rid, InFlight: e == nil, Streaming: x.streaming, Priority: x.priority, Room: x.room,
		PromptTokens: x.prompt, CompletionTokens: int(x.tokens.Load()),
	}
	if rank := int(x.dpRank.Load()); rank >= 0 {
		v.DPRank = &rank
	}
	if e != nil {
		v.Outcome, v.Message = &e.outcome, e.message
		v.PromptTokens, v.CachedTokens, v.ComputedTokens, v.ReprocessedTokens = e.prompt, e.cached, e.computed, e.reprocessed
		v.CompletionTokens, v.Retractions = e.tokens, e.retracted
		if e.rank != nil {
			v.Rank, v.QueueNanos = viewTimeline(e.rank), &e.rank.QueueNanos
		}
	}
	v.API, v.Stage, v.E2ENanos, v.ReceivedWall = viewTimeline(api), api.Stage.String(), api.Nanos, api.StartWallNanos
	v.Received = time.Unix(0, api.StartWallNanos).UTC().Format(time.RFC3339Nano)
	if at, ok := api.Entered(ledger.StageStreamOutput); ok {
		v.TTFTNanos = &at
	}
	return v
}

func viewTimeline(r *ledger.Record) *timelineView {
	v := &timelineView{
		Form: r.Form.String(), Stage: r.Stage.String(), StartWall: r.StartWallNanos, Nanos: r.Nanos, Folded: r.Folded,
		Visits: []visitView{}, Stages: []spentView{}, Laps: []spentView{},
	}
	for _, visit := range r.Visits {
		v.Visits = append(v.Visits, visitView{visit.Stage.String(), visit.Start, visit.Nanos})
	}
	for _, s := range r.Spent {
		to := &v.Stages
		if s.Stage != ledger.StageNone && s.Stage.Info().Parent != ledger.StageNone { // none: of a rank of another release
			to = &v.Laps
		}
		*to = append(*to, spentView{s.Stage.String(), s.Count, s.Nanos})
	}
	if d := r.Durations(); len(d.Spans) > 0 {
		v.Durations, v.Summary = map[string]int64{}, d.String()
		for _, s := range d.Spans {
			v.Durations[s.Name] = s.Nanos
		}
	}
	if t := r.Transfer; t != nil {
		v.Transfer = &transferView{Bytes: t.OwnBytes, PeerBytes: t.PeerBytes, Nanos: t.Nanos, SpeedGBs: t.GigabytesPerSecond()}
	}
	return v
}

// maxListed is the most requests that one answer of /debug/requests holds, and the default without limit=.
const (
	maxListed     = 10000
	defaultListed = 100
)

// outcomeInFlight is what outcome= calls the sequences that have none yet.
const outcomeInFlight = "in_flight"

// debugQuery is what /debug/requests was asked for.
type debugQuery struct {
	slowest int // > 0: so many, the longest first
	limit   int
	outcome string
	room    *int64
	since   int64 // Unix nanoseconds
	text    bool
}

func (s *Server) readDebugQuery(r *http.Request) (q debugQuery, err *apiError) {
	values := r.URL.Query()
	q.limit, q.outcome = defaultListed, values.Get("outcome")
	for _, f := range []struct {
		name string
		to   *int
	}{{"slowest", &q.slowest}, {"limit", &q.limit}} {
		text := values.Get(f.name)
		if text == "" {
			continue
		}
		n, convErr := strconv.Atoi(text)
		if convErr != nil || n < 1 || n > maxListed {
			return q, badField(f.name, "must be an integer from 1 to %d, not %q", maxListed, clip(text))
		}
		*f.to = n
	}
	if q.slowest > 0 && values.Get("limit") == "" {
		q.limit = q.slowest
	}
	if q.outcome != "" && q.outcome != outcomeInFlight && !slices.Contains(request.Outcomes(), request.Outcome(q.outcome)) {
		return q, badField("outcome", "must be %s or one of %v, not %q", outcomeInFlight, request.Outcomes(), clip(q.outcome))
	}
	if text := values.Get("room"); text != "" {
		n, convErr := strconv.ParseInt(text, 10, 64)
		if convErr != nil {
			return q, badField("room", "must be an integer, not %q", clip(text))
		}
		q.room = &n
	}
	if text := values.Get("since"); text != "" {
		if d, convErr := time.ParseDuration(text); convErr == nil && d >= 0 {
			q.since = s.clock.Wall(s.clock.Now()) - int64(d)
		} else if at, convErr := time.Parse(time.RFC3339Nano, text); convErr == nil {
			q.since = wallNanos(at)
		} else {
			return q, badField("since", "must be a duration back from now, such as 5m, or a time in RFC 3339, not %q", clip(text))
		}
	}
	q.text, err = wantsText(values)
	return q, err
}

// wallNanos are the Unix nanoseconds of a time, or the nearest that there are.
func wallNanos(at time.Time) int64 {
	switch {
	case at.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	case at.Before(time.Unix(0, math.MinInt64)):
		return math.MinInt64
	}
	return at.UnixNano()
}

// wantsText reads format=.
func wantsText(values url.Values) (text bool, err *apiError) {
	switch format := values.Get("format"); format {
	case "", "json":
		return false, nil
	case "text":
		return true, nil
	default:
		return false, badField("format", "must be json or text, not %q", clip(format))
	}
}

// takes reports whether a sequence was asked for.
func (q debugQuery) takes(g glimpse) bool {
	outcome := outcomeInFlight
	if g.ending != nil {
		outcome = string(g.ending.outcome)
	}
	if q.room != nil && (g.of.room == nil || *g.of.room != *q.room) {
		return false
	}
	return (q.outcome == "" || q.outcome == outcome) && g.api.StartWallNanos >= q.since
}

// choose gives those of list that were asked for, in the order of the answer.
func (q debugQuery) choose(list []*recent) []glimpse {
	chosen := []glimpse{}
	for _, x := range list {
		if q.slowest == 0 && len(chosen) == q.limit {
			break
		}
		if g := x.glance(); q.takes(g) {
			chosen = append(chosen, g)
		}
	}
	if q.slowest > 0 {
		slices.SortStableFunc(chosen, func(a, b glimpse) int { return cmp.Compare(b.api.Nanos, a.api.Nanos) })
		chosen = chosen[:min(len(chosen), q.slowest, q.limit)]
	}
	return chosen
}

// debugRequests answers GET /debug/requests: the sequences that live and the last that ended.
func (s *Server) debugRequests(w http.ResponseWriter, r *http.Request) {
	q, err := s.readDebugQuery(r)
	if err == nil && s.recent == nil {
		err = notRecorded()
	}
	if err != nil {
		writeError(w, err)
		return
	}
	views := []requestView{}
	for _, g := range q.choose(s.recent.all()) {
		views = append(views, g.view())
	}
	s.askRank(r.Context(), views)
	if q.text {
		writeWaterfalls(w, views)
		return
	}
	body := requestList{Capacity: s.recent.capacity, Requests: views}
	body.InFlight, body.Kept, body.Forgotten = s.recent.counts()
	writeJSON(w, http.StatusOK, body)
}

// debugRequest answers GET /debug/requests/{rid}.
func (s *Server) debugRequest(w http.ResponseWriter, r *http.Request) {
	text, err := wantsText(r.URL.Query())
	rid := strings.TrimPrefix(r.URL.Path, debugRequestsRoute+"/")
	var x *recent
	switch {
	case err != nil:
	case s.recent == nil:
		err = notRecorded()
	default:
		if x = s.recent.find(rid); x == nil {
			_, kept, gone := s.recent.counts()
			err = failure(http.StatusNotFound, codeNotKept, "request %s is not remembered: it never came here, it is a health check, or it is "+
				"one of the %d that have gone from the ring, which has %d (--debug-requests %d)", clip(rid), gone, kept, s.recent.capacity)
		}
	}
	if err != nil {
		writeError(w, err)
		return
	}
	views := []requestView{x.glance().view()}
	s.askRank(r.Context(), views)
	if text {
		writeWaterfalls(w, views)
		return
	}
	writeJSON(w, http.StatusOK, views[0])
}

const debugRequestsRoute = "/debug/requests"

func notRecorded() *apiError {
	return failure(http.StatusNotFound, codeNotKept, "requests are not remembered: start the engine with --debug-requests, the number to keep")
}

func writeWaterfalls(w http.ResponseWriter, views []requestView) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	var b strings.Builder
	if len(views) == 0 {
		b.WriteString("no request that is remembered is as the query asks\n")
	}
	for i := range views {
		if i > 0 {
			b.WriteByte('\n')
		}
		waterfall(&b, &views[i])
	}
	w.Write([]byte(b.String()))
}
