package server

import (
	"hash/fnv"
	"log/slog"
	"strings"
	"sync/atomic"

	"github.com/sluice-dev/sluice/engine/request"
)

// maxLogLevel is the most that a line of the request log can hold.
const maxLogLevel = 3

// clippedText is how much of a text level 2 shows, in bytes.
const clippedText = 2048

// requestLog writes a line when a sequence comes and one when it ends, or one when a request is refused before, while it is
// on, for a sample of them. Levels: 0 counts, outcome and times, 1 also the sampling parameters and the rank's durations, 2
// also the begin of prompt and answer, 3 all of them. Requests that are not counted (health checks) or have no_logs leave no
// line. Safe for concurrent use.
type requestLog struct {
	log     *slog.Logger
	setting atomic.Pointer[logSetting]
}

// logSetting says what is logged.
type logSetting struct {
	on    bool
	level int     // 0 <= level <= maxLogLevel
	rate  float64 // the share of the sequences that is logged, [0, 1]
}

func newRequestLog(log *slog.Logger, setting logSetting) *requestLog {
	l := &requestLog{log: log}
	l.configure(setting)
	return l
}

func (l *requestLog) configure(setting logSetting) { l.setting.Store(&setting) }

func (l *requestLog) current() logSetting { return *l.setting.Load() }

// wants says what a line on the sequence holds; on is false when there is none. Whether a sequence is in the sample follows
// from its rid: both of its lines are there or none, and so on every engine that has a part of it.
func (l *requestLog) wants(q *sequence) (level int, on bool) {
	return l.samples(q.rid, q.uncounted || q.unlogged)
}

// samples says the same of a rid, whose owner may not want to be logged.
func (l *requestLog) samples(rid string, silent bool) (level int, on bool) {
	s := l.current()
	if !s.on || silent || !sampled(rid, s.rate) {
		return 0, false
	}
	return s.level, true
}

// sampled reports whether a rid is in the sample of a rate.
func sampled(rid string, rate float64) bool {
	if rate >= 1 {
		return true
	}
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(rid)) // never fails
	// The high bits of this hash hardly depend on the last bytes, so they are mixed once more.
	x := sum.Sum64()
	x ^= x >> 32
	x *= 0x9e3779b97f4a7c15
	return float64(x>>11)/(1<<53) < rate
}

// received writes the line of a sequence that was handed to the rank.
func (l *requestLog) received(q *sequence) {
	level, on := l.wants(q)
	if !on {
		return
	}
	args := []any{"rid", q.rid, "prompt_tokens", len(q.prompt), "stream", q.streaming}
	if q.priority != nil {
		args = append(args, "priority", *q.priority)
	}
	if level >= 1 {
		args = append(args, slog.Group("sampling", samplingArgs(q.sampling)...))
	}
	if level >= 2 {
		args = append(args, "prompt", clipAt(q.engine.tokenizer.Decode(firstTokens(q.prompt, level), false), level))
	}
	l.log.Info("request received", args...)
}

// refused writes the line of a request that ended before it was at the rank. rid is the first that the client gave it; where
// it gave none, "", chance decides whether it is in the sample.
func (l *requestLog) refused(rid string, silent bool, err *apiError) {
	var args []any
	draw := rid
	if rid == "" {
		draw = newRID()
	} else {
		args = append(args, "rid", clip(rid))
	}
	if _, on := l.samples(draw, silent); on {
		l.log.Info("request refused", append(args, "outcome", string(err.outcome()), "status", err.status, "message", err.message)...)
	}
}

// ended writes the line of a sequence's end.
func (l *requestLog) ended(q *sequence, outcome request.Outcome, message string) {
	level, on := l.wants(q)
	if !on {
		return
	}
	args := []any{
		"rid", q.rid, "outcome", string(outcome), "prompt_tokens", q.promptTokens, "cached_tokens", q.cachedTokens,
		"completion_tokens", q.completionTokens, "retractions", q.retractions,
	}
	if rank := q.answeringRank(); rank != nil {
		args = append(args, "dp_rank", *rank)
	}
	if id := q.trace.ID(); id != "" {
		args = append(args, "trace_id", id)
	}
	args = append(args, q.times().args()...)
	if level >= 1 && q.finish != nil && q.finish.Timeline != nil {
		args = append(args, "at_the_rank", q.finish.Timeline.Durations().String())
	}
	if message != "" {
		args = append(args, "message", message)
	}
	if level >= 2 && q.said != nil {
		args = append(args, "answer", clipAt(q.said.String(), level))
	}
	l.log.Info("request ended", args...)
}

// firstTokens are as many as can matter to a clipped text.
func firstTokens(prompt []int32, level int) []int32 {
	if level >= maxLogLevel {
		return prompt
	}
	return prompt[:min(len(prompt), clippedText)]
}

func clipAt(text string, level int) string {
	if level >= maxLogLevel || len(text) <= clippedText {
		return text
	}
	return strings.ToValidUTF8(text[:clippedText], "") + "…"
}

// samplingArgs are the parameters that differ from their neutral values.
func samplingArgs(s sampling) []any {
	args := []any{"max_new_tokens", s.MaxNewTokens, "temperature", s.Temperature}
	add := func(name string, differs bool, value any) {
		if differs {
			args = append(args, name, value)
		}
	}
	add("min_new_tokens", s.MinNewTokens > 0, s.MinNewTokens)
	add("top_p", s.TopP != 1, s.TopP)
	add("top_k", s.TopK > 0, s.TopK)
	add("min_p", s.MinP > 0, s.MinP)
	add("frequency_penalty", s.FrequencyPenalty != 0, s.FrequencyPenalty)
	add("presence_penalty", s.PresencePenalty != 0, s.PresencePenalty)
	add("repetition_penalty", s.RepetitionPenalty != 0, s.RepetitionPenalty)
	add("logit_bias", len(s.LogitBias) > 0, len(s.LogitBias))
	add("stop", len(s.Stop) > 0, s.Stop)
	add("stop_token_ids", len(s.StopTokenIDs) > 0, s.StopTokenIDs)
	add("ignore_eos", s.IgnoreEOS, s.IgnoreEOS)
	if s.Seed != nil {
		args = append(args, "seed", *s.Seed)
	}
	if s.grammar != nil {
		args = append(args, "grammar", string(s.grammar.Kind))
	}
	return args
}
