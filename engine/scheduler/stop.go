package scheduler

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sluice-dev/sluice/engine/request"
)

// ends reports whether a sequence's newest token ends it, and how: by a stop token, a stop string, or the length.
func (s *Scheduler) ends(q *sequence) (f request.Finish, ended bool) {
	p := &q.req.Sampling
	if q.generated() >= p.MinNewTokens {
		token := q.tokens[len(q.tokens)-1]
		if !p.IgnoreEOS && slices.Contains(s.cfg.EOS, token) || slices.Contains(p.StopTokenIDs, token) {
			return request.Finish{Type: request.FinishStop, Outcome: request.OutcomeStop, MatchedToken: new(token)}, true
		}
		if stop := matchStop(s.deps.Decoder, q.tokens[q.prompt:], p.Stop); stop != "" {
			return request.Finish{Type: request.FinishStop, Outcome: request.OutcomeStop, MatchedStop: stop}, true
		}
	}
	if q.generated() >= p.MaxNewTokens || len(q.tokens) >= s.limit {
		return request.Finish{Type: request.FinishLength, Outcome: request.OutcomeLength}, true
	}
	return request.Finish{}, false
}

// enders are the tokens that can end q's answer: its stop tokens and the model's end tokens, those too where they are
// ignored, as in SGLang.
func (s *Scheduler) enders(q *sequence) []int32 {
	if q.enders == nil {
		q.enders = append(slices.Clone(s.cfg.EOS), q.req.Sampling.StopTokenIDs...)
	}
	return q.enders
}

// matchStop gives the stop string that the newest token of answer completes, "" when none: the one that begins first in
// the text, and of those the first in stops. It decodes no more of the answer's end than the longest stop string can span.
func matchStop(d TailDecoder, answer []int32, stops []string) string {
	longest := 0
	for _, stop := range stops {
		longest = max(longest, len(stop))
	}
	if longest == 0 {
		return ""
	}
	text, before := tail(d, answer, longest)
	match, at := "", -1
	for _, stop := range stops {
		if stop == "" {
			continue
		}
		// A string that was complete before was allowed to pass, because of min_new_tokens.
		from := max(before-len(stop)+1, 0)
		if i := strings.Index(text[from:], stop); i >= 0 && (at < 0 || from+i < at) {
			match, at = stop, from+i
		}
	}
	return match
}

// tail decodes the end of answer, at least bytes of text before its newest token where there are so many, and with special
// tokens, which clients name as stop strings too. before is the length of the text that was final without the newest token.
func tail(d TailDecoder, answer []int32, bytes int) (text string, before int) {
	for n := bytes + 1; ; n *= 2 {
		n = min(n, len(answer))
		window := answer[len(answer)-n:]
		older := d.Decode(window[:n-1], false)
		if n == len(answer) || len(older) >= bytes+2*utf8.UTFMax {
			text = d.Decode(window, false)
			return text, min(len(strings.TrimRight(older, "\uFFFD")), len(text))
		}
	}
}
