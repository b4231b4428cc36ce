package server

import (
	"strings"

	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/tokenizer"
)

// detokenizer gives the text of token ids one piece at a time. It never gives half a rune.
type detokenizer interface {
	Push(ids ...int32) string
	Flush() string
}

var _ detokenizer = (*tokenizer.Stream)(nil)

// answerText turns the tokens of one sequence into text that may go to the client: what could be the begin of a stop
// string is held until it is certain, and the stop that ended the sequence is cut. The rank alone decides whether a stop
// string counts (not before the minimum of tokens); this only follows it.
//
// Invariant: what was given + held = the text of all tokens so far, until the end.
type answerText struct {
	detokenizer detokenizer
	stops       []string
	keepStop    bool
	held        string // suffix not given yet: the longest that is a proper prefix of a stop string
}

// push takes the next tokens and gives the text that is certain now. finish is not nil with the last tokens.
func (t *answerText) push(ids []int32, finish *request.Finish) string {
	if finish == nil {
		t.held += t.detokenizer.Push(ids...)
		return t.giveCertain()
	}
	if finish.Type == request.FinishStop && !t.keepStop {
		if finish.MatchedToken != nil && len(ids) > 0 && ids[len(ids)-1] == *finish.MatchedToken {
			return t.held + t.detokenizer.Push(ids[:len(ids)-1]...) + t.detokenizer.Flush()
		}
		if finish.MatchedStop != "" {
			return t.cut(ids, finish.MatchedStop)
		}
	}
	return t.held + t.detokenizer.Push(ids...) + t.detokenizer.Flush()
}

// cut gives the text before the stop string. The last token completed it, so an earlier one, which didn't count, stays.
func (t *answerText) cut(ids []int32, stop string) string {
	before := t.held
	if len(ids) > 0 {
		before += t.detokenizer.Push(ids[:len(ids)-1]...)
		ids = ids[len(ids)-1:]
	}
	all := before + t.detokenizer.Push(ids...) + t.detokenizer.Flush()
	from := max(0, len(before)-len(stop)+1)
	if at := strings.Index(all[from:], stop); at >= 0 {
		return all[:from+at]
	}
	if at := strings.LastIndex(all, stop); at >= 0 {
		return all[:at]
	}
	return all
}

// giveCertain gives all that is held but the suffix that could begin a stop string. Both are whole runes, so no rune is
// split.
func (t *answerText) giveCertain() string {
	keep := 0
	for _, stop := range t.stops {
		for n := min(len(stop)-1, len(t.held)); n > keep; n-- {
			if strings.HasSuffix(t.held, stop[:n]) {
				keep = n
				break
			}
		}
	}
	certain := t.held[:len(t.held)-keep]
	t.held = t.held[len(t.held)-keep:]
	return certain
}
