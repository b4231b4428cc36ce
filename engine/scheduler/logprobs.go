package scheduler

import (
	"github.com/sluice-dev/sluice/engine/disagg"
	"github.com/sluice-dev/sluice/engine/request"
)

// Logprobs on their way from steps to the sink: each once and in order, also when a sequence is computed again.

// logprobs is what a sequence that wants logprobs has to tell.
//
//	answer has an element for each token that is not delivered
//	prompt holds what came since the last delivery; next is the position of the prompt that comes after it
type logprobs struct {
	want   *request.WantLogprobs // of the next step; nil: none are wanted
	answer []request.TokenLogprobs
	prompt []request.TokenLogprobs
	next   int // 0: no logprobs of the prompt are wanted, or all have come
}

func newLogprobs(want *request.WantLogprobs) logprobs {
	l := logprobs{want: want}
	if want != nil {
		l.next = want.PromptFrom
	}
	return l
}

// behind gives what a turn wants in the places of its session, whose tokens before the turn's own prompt are so many.
func behind(want *request.WantLogprobs, before int) *request.WantLogprobs {
	if want == nil || want.PromptFrom == 0 {
		return want
	}
	moved := *want
	moved.PromptFrom += before
	return &moved
}

// takePrompt takes what a step gave for the prompt's positions up to computed, the tokens computed so far.
func (l *logprobs) takePrompt(came *Logprobs, computed, prompt int) {
	if l.next == 0 {
		return
	}
	if came != nil {
		l.prompt = append(l.prompt, came.Prompt...)
	}
	if l.next = max(l.next, computed+1); l.next >= prompt {
		l.next = 0
	}
}

// takeToken takes what is known about a new token of the answer.
func (l *logprobs) takeToken(token Sampled) {
	if l.want == nil {
		return
	}
	if token.Logprobs != nil && token.Logprobs.Sampled != nil {
		l.answer = append(l.answer, *token.Logprobs.Sampled)
		return
	}
	l.answer = append(l.answer, request.TokenLogprobs{TokenLogprob: request.TokenLogprob{Token: token.Token, Logprob: token.Logprob}})
}

// again prepares for computing the prompt again: what has come is not asked for once more.
func (l *logprobs) again() {
	if l.want == nil || l.want.PromptFrom == l.next {
		return
	}
	want := *l.want
	want.PromptFrom = l.next
	l.want = &want
}

// handOver gives what a prefill rank hands over with the first token: all that it knows, for nothing was delivered there.
func (l *logprobs) handOver() (first *request.TokenLogprobs, prompt []request.TokenLogprobs) {
	if n := len(l.answer); n > 0 {
		first = &l.answer[n-1]
	}
	return first, l.prompt
}

// takeFirst takes that on a decode rank. None of the prompt is asked for here any more.
func (l *logprobs) takeFirst(first disagg.First) {
	if l.want == nil {
		return
	}
	l.takeToken(Sampled{Token: first.Token, Logprob: first.Logprob, Logprobs: &Logprobs{Sampled: first.Logprobs}})
	l.prompt, l.next = first.Prompt, 0
	l.again()
}

// deliver gives what is to tell and forgets it.
func (l *logprobs) deliver() (answer, prompt []request.TokenLogprobs) {
	answer, prompt = l.answer, l.prompt
	l.answer, l.prompt = nil, nil
	return answer, prompt
}

// reusable is the most tokens whose KV q may take from elsewhere instead of computing it: the last token's logits are
// needed, and those of every token before a position of the prompt whose logprob is wanted.
func (q *sequence) reusable() int {
	n := len(q.tokens) - 1
	if q.logprobs.next > 0 {
		n = min(n, q.logprobs.next-1)
	}
	return n
}
