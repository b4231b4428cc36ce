package server

import (
	"strconv"

	"github.com/sluice-dev/sluice/engine/kvcache"
	"github.com/sluice-dev/sluice/engine/ledger"
)

// requestTimes are the times of a sequence that has ended, as meta_info and the request log tell them: points in time in
// Unix seconds, durations in seconds. All are read from the ledger, of which the metrics are too; what did not happen is nil.
type requestTimes struct {
	E2ELatency *float64 `json:"e2e_latency,omitempty"`

	QueueTime              *float64 `json:"queue_time,omitempty"` // of all waits in the scheduler's queue
	ForwardEntryTime       *float64 `json:"forward_entry_time,omitempty"`
	PrefillFinishedTime    *float64 `json:"prefill_finished_time,omitempty"`
	RequestReceivedTime    *float64 `json:"request_received_ts,omitempty"`
	DispatchFinishTime     *float64 `json:"api_server_dispatch_finish_ts,omitempty"`
	ResponseSentTime       *float64 `json:"response_sent_to_client_ts,omitempty"` // the first piece of a stream, else the answer
	RequestFinishedTime    *float64 `json:"request_finished_ts,omitempty"`
	FirstTokenLatency      *float64 `json:"first_token_latency,omitempty"`
	DecodeTokensThroughput *float64 `json:"decode_throughput,omitempty"` // tokens per second
}

// times reads the times of a sequence that has ended.
func (q *sequence) times() requestTimes {
	wall := func(i ledger.Instant, ok bool) *float64 {
		if !ok {
			return nil
		}
		return secondsOf(q.server.clock.Wall(i))
	}
	told := func(wallNanos int64) *float64 {
		if wallNanos == 0 {
			return nil
		}
		return secondsOf(wallNanos)
	}
	t := requestTimes{
		RequestReceivedTime: wall(q.timeline.Started(), true),
		DispatchFinishTime:  wall(q.timeline.At(ledger.StageAwaitOutput)),
		RequestFinishedTime: wall(q.timeline.Finished()),
		ResponseSentTime:    wall(q.timeline.Finished()),
	}
	if q.streaming {
		t.ResponseSentTime = wall(q.timeline.FirstToken())
	}
	if nanos, ok := q.timeline.EndToEnd(); ok {
		t.E2ELatency = secondsOf(nanos)
	}
	if nanos, ok := q.timeline.TimeToFirstToken(); ok {
		t.FirstTokenLatency = secondsOf(nanos)
	}
	if perToken, ok := q.timeline.TimePerOutputToken(q.completionTokens); ok {
		t.DecodeTokensThroughput = new(1e9 / perToken)
	}
	if f := q.finish; f != nil {
		t.QueueTime, t.ForwardEntryTime, t.PrefillFinishedTime = secondsOf(f.QueueNanos), told(f.ForwardEntryWallNanos), told(f.PrefillEndWallNanos)
	}
	return t
}

// args are the times for a line of the log, by the same names.
func (t requestTimes) args() (args []any) {
	for _, f := range []struct {
		name  string
		value *float64
	}{
		{"e2e_latency", t.E2ELatency},
		{"queue_time", t.QueueTime},
		{"forward_entry_time", t.ForwardEntryTime},
		{"prefill_finished_time", t.PrefillFinishedTime},
		{"request_received_ts", t.RequestReceivedTime},
		{"api_server_dispatch_finish_ts", t.DispatchFinishTime},
		{"response_sent_to_client_ts", t.ResponseSentTime},
		{"request_finished_ts", t.RequestFinishedTime},
		{"first_token_latency", t.FirstTokenLatency},
		{"decode_throughput", t.DecodeTokensThroughput},
	} {
		if f.value != nil {
			args = append(args, f.name, plainNumber(*f.value))
		}
	}
	return args
}

// plainNumber is written with all its digits and without an exponent.
type plainNumber float64

func (n plainNumber) MarshalText() ([]byte, error) {
	return strconv.AppendFloat(nil, float64(n), 'f', -1, 64), nil
}
func (n plainNumber) MarshalJSON() ([]byte, error) { return n.MarshalText() }

func secondsOf(nanos int64) *float64 {
	seconds := float64(nanos) / 1e9
	return &seconds
}

// checkTimes verifies law E4 of a sequence that has ended: its stages sum to its end-to-end time, and what the rank says it
// took is no longer. In the mode of SLUICE_TEST_REQUEST_TIME_STATS no time may be below 0 either.
func (s *Server) checkTimes(q *sequence) {
	own := q.timeline.Record()
	err := own.Check()
	var ranks *ledger.Record
	if q.finish != nil {
		ranks = q.finish.Timeline
	}
	if err == nil && ranks != nil {
		err = ranks.CheckWithin(own)
	}
	if err == nil && s.cfg.Rank.AssertTimes {
		if err = q.timeline.Assert(own); err == nil && ranks != nil {
			err = ranks.Durations().Check()
		}
	}
	if err == nil {
		return
	}
	s.events.Violated(ledger.LawStages)
	s.log.Error("a conservation law does not hold", "law", ledger.LawStages.Number(), "name", ledger.LawStages.String(), "rid", q.rid, "error", err)
	if kvcache.Invariants {
		panic("server: request " + q.rid + ": " + err.Error())
	}
}
