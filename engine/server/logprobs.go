package server

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/sluice-dev/sluice/engine/disagg"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/tokenizer"
)

const (
	maxTopLogprobs       = 20  // on the OpenAI routes, as OpenAI documents for chat
	maxTopLogprobsNative = 256 // on /generate
	maxLogprobTokens     = 1024

	// leastLogprob stands for what JSON can't write: the logprob of a token that can't come.
	leastLogprob = -9999
)

// logprob is a natural logarithm of a probability as JSON can hold it.
func logprob(value float32) float32 {
	if value < leastLogprob || value != value {
		return leastLogprob
	}
	return value
}

// tokenName writes a token's bytes as text. What is no UTF-8 alone, a part of a rune, is written in escapes behind prefix,
// so that two tokens never have the same name.
func tokenName(t *tokenizer.Tokenizer, id int32, prefix string) string {
	piece := t.Piece(id)
	if utf8.ValidString(piece) {
		return piece
	}
	var name strings.Builder
	name.WriteString(prefix)
	for i := range len(piece) {
		fmt.Fprintf(&name, `\x%02x`, piece[i])
	}
	return name.String()
}

// textOffsets says where in a text each token begins, in runes. A token that begins inside a rune begins where that rune
// does.
type textOffsets struct {
	tokenizer *tokenizer.Tokenizer
	stream    *tokenizer.Stream
	runes     int // whole ones so far
}

func newTextOffsets(t *tokenizer.Tokenizer, skipSpecial bool) *textOffsets {
	return &textOffsets{tokenizer: t, stream: t.NewStream(skipSpecial)}
}

// next gives the offset of the next token of the text.
func (o *textOffsets) next(id int32) int {
	at := o.runes
	pending := len(o.stream.Pending())
	if begun := append(o.stream.Pending()[:pending:pending], o.tokenizer.Piece(id)...); pending > 0 && utf8.FullRune(begun) {
		if r, n := utf8.DecodeRune(begun); r == utf8.RuneError && n == 1 {
			at++ // what came before is no rune with this token, so it stands for a replacement rune of its own
		}
	}
	o.runes += utf8.RuneCountInString(o.stream.Push(id))
	return at
}

// completionLogprobs is the form of /v1/completions: parallel lists by token.
type completionLogprobs struct {
	TextOffset    []int
	TokenLogprobs []*float32 // nil for the first token of an echoed prompt
	Tokens        []string
	TopLogprobs   []topLogprobs // empty when none were asked for; the token itself is among them
}

// bytesPrefix begins the name of a token that is no text, as OpenAI writes it.
const bytesPrefix = "bytes:"

// completionForm gives the form of some tokens; top says whether the likeliest were asked for. first is a token without a
// logprob before the others, or nil.
func completionForm(t *tokenizer.Tokenizer, offsets *textOffsets, first *int32, list []request.TokenLogprobs, top bool) *completionLogprobs {
	form := &completionLogprobs{TextOffset: []int{}, TokenLogprobs: []*float32{}, Tokens: []string{}, TopLogprobs: []topLogprobs{}}
	add := func(id int32, value *float32, tops topLogprobs) {
		form.TextOffset = append(form.TextOffset, offsets.next(id))
		form.Tokens = append(form.Tokens, tokenName(t, id, bytesPrefix))
		form.TokenLogprobs = append(form.TokenLogprobs, value)
		if top {
			form.TopLogprobs = append(form.TopLogprobs, tops)
		}
	}
	if first != nil {
		add(*first, nil, nil)
	}
	for _, l := range list {
		var tops []namedLogprob
		if top {
			for _, one := range append(l.Top[:len(l.Top):len(l.Top)], l.TokenLogprob) { // the likeliest first
				tops = append(tops, namedLogprob{tokenName(t, one.Token, bytesPrefix), logprob(one.Logprob)})
			}
		}
		value := logprob(l.Logprob)
		add(l.Token, &value, newTopLogprobs(tops))
	}
	return form
}

// chatLogprobs is the form of /v1/chat/completions.
type chatLogprobs struct {
	Content []chatTokenLogprob
}

type chatTokenLogprob struct {
	chatTopLogprob
	TopLogprobs []chatTopLogprob
}

type chatTopLogprob struct {
	Token   string
	Bytes   string // exact, also where Token can't be; written as an array of numbers
	Logprob float32
}

func chatForm(t *tokenizer.Tokenizer, list []request.TokenLogprobs) *chatLogprobs {
	one := func(l request.TokenLogprob) chatTopLogprob {
		return chatTopLogprob{Token: tokenName(t, l.Token, ""), Bytes: t.Piece(l.Token), Logprob: logprob(l.Logprob)}
	}
	form := &chatLogprobs{Content: []chatTokenLogprob{}}
	for _, l := range list {
		entry := chatTokenLogprob{chatTopLogprob: one(l.TokenLogprob), TopLogprobs: []chatTopLogprob{}}
		for _, top := range l.Top {
			entry.TopLogprobs = append(entry.TopLogprobs, one(top))
		}
		form.Content = append(form.Content, entry)
	}
	return form
}

// nativeLogprobs are the fields of meta_info of /generate. Lists of the prompt begin at logprob_start_len with a token that
// has none.
type nativeLogprobs struct {
	Input        nativeList  `json:"input_token_logprobs"`
	Output       nativeList  `json:"output_token_logprobs"`
	OutputLength int         `json:"output_token_logprobs_length"`
	InputTop     *nativeRows `json:"input_top_logprobs,omitempty"` // absent unless asked for, as the rest
	OutputTop    *nativeRows `json:"output_top_logprobs,omitempty"`
	InputAsked   *nativeRows `json:"input_token_ids_logprobs,omitempty"`
	OutputAsked  *nativeRows `json:"output_token_ids_logprobs,omitempty"`
}

// wantNative is what a sequence of /generate wants to know.
type wantNative struct {
	*request.WantLogprobs
	startLen int  // first position of the prompt in the lists; the prompt's length: none
	text     bool // with the tokens' text
}

// nativeForm gives the fields of a sequence so far.
func nativeForm(t *tokenizer.Tokenizer, want *wantNative, prompt []int32, a *answer) *nativeLogprobs {
	texts := map[int32]string{}
	one := func(l request.TokenLogprob) nativeLogprob {
		entry := nativeLogprob{logprob: logprob(l.Logprob), token: l.Token, named: want.text}
		if want.text {
			text, known := texts[l.Token]
			if !known {
				text = t.Decode([]int32{l.Token}, false)
				texts[l.Token] = text
			}
			entry.text = text
		}
		return entry
	}
	many := func(list []request.TokenLogprob) nativeList {
		entries := make(nativeList, len(list))
		for i, l := range list {
			entries[i] = one(l)
		}
		return entries
	}
	form := &nativeLogprobs{
		Input: make(nativeList, 0, len(a.promptLogprobs)+1), Output: make(nativeList, 0, len(a.logprobs)), OutputLength: len(a.logprobs),
	}
	tops := func(side []request.TokenLogprobs, first bool, pick func(l request.TokenLogprobs) []request.TokenLogprob) *nativeRows {
		rows := make(nativeRows, 0, len(side)+1)
		if first {
			rows = append(rows, nil)
		}
		for _, l := range side {
			rows = append(rows, many(pick(l)))
		}
		return &rows
	}
	fromPrompt := want.startLen < len(prompt)
	if fromPrompt {
		first := one(request.TokenLogprob{Token: prompt[want.startLen]})
		first.unknown = true
		form.Input = append(form.Input, first)
	}
	for _, l := range a.promptLogprobs {
		form.Input = append(form.Input, one(l.TokenLogprob))
	}
	for _, l := range a.logprobs {
		form.Output = append(form.Output, one(l.TokenLogprob))
	}
	if want.Top > 0 {
		top := func(l request.TokenLogprobs) []request.TokenLogprob { return l.Top }
		form.InputTop, form.OutputTop = tops(a.promptLogprobs, fromPrompt, top), tops(a.logprobs, false, top)
	}
	if len(want.TokenIDs) > 0 {
		asked := func(l request.TokenLogprobs) []request.TokenLogprob { return l.Asked }
		form.InputAsked, form.OutputAsked = tops(a.promptLogprobs, fromPrompt, asked), tops(a.logprobs, false, asked)
	}
	return form
}

// readNativeLogprobs reads what each of count prompts wants; an element is nil when it wants nothing. Their places are
// checked by wantNative.check, once the prompts are tokens.
func readNativeLogprobs(o *object, count int) []*wantNative {
	wants := make([]*wantNative, count)
	on := perPrompt(o, "return_logprob", count, false, func(inner *object, name string) bool { return inner.boolean(name, false) })
	starts := perPrompt(o, "logprob_start_len", count, -1, func(inner *object, name string) int {
		return int(inner.integerIn(name, -1, -1, math.MaxInt32))
	})
	tops := perPrompt(o, "top_logprobs_num", count, 0, func(inner *object, name string) int {
		return int(inner.integerIn(name, 0, 0, maxTopLogprobsNative))
	})
	ids := askedTokens(o, count)
	text := o.boolean("return_text_in_logprobs", false)
	if o.boolean("return_flat_raw_top_logprobs", false) {
		o.fail(unsupportedField("return_flat_raw_top_logprobs", "send false or leave it out, and read input_top_logprobs"))
	}
	for i := range wants {
		if on[i] {
			wants[i] = &wantNative{WantLogprobs: &request.WantLogprobs{Top: tops[i], TokenIDs: ids[i]}, startLen: starts[i], text: text}
		}
	}
	return wants
}

// askedTokens reads token_ids_logprob: one list for all prompts, or one for each.
func askedTokens(o *object, count int) [][]int32 {
	const name = "token_ids_logprob"
	lists := make([][]int32, count)
	raw, present := o.value(name)
	if !present {
		return lists
	}
	items, _ := array(raw)
	if len(items) > 0 && (isKind(items[0], '[') || isKind(items[0], 'n')) {
		if len(items) != count {
			o.failField(name, "must be one list or %d, one for each prompt, not %d", count, len(items))
			return lists
		}
		for i, item := range items {
			field := fmt.Sprintf("%s[%d]", name, i)
			lists[i] = tokenIDs(&object{path: o.path, fault: o.fault, raw: map[string]rawMessage{field: item}}, field)
		}
	} else {
		shared := tokenIDs(o, name)
		for i := range lists {
			lists[i] = shared
		}
	}
	for _, list := range lists {
		if len(list) > maxLogprobTokens {
			o.failField(name, "must hold at most %d ids, not %d", maxLogprobTokens, len(list))
		}
	}
	return lists
}

// check fits what is wanted to a prompt and a model, and sets PromptFrom.
func (w *wantNative) check(e *engine, prompt []int32) *apiError {
	for i, id := range w.TokenIDs {
		if int(id) >= e.info.VocabSize {
			return badField(fmt.Sprintf("token_ids_logprob[%d]", i), "is token %d, but the model's tokens end at %d", id, e.info.VocabSize-1)
		}
	}
	switch {
	case w.startLen < 0:
		w.startLen = len(prompt)
	case w.startLen > len(prompt):
		return badField("logprob_start_len", "is %d, but the prompt has %d tokens: send at most that, or -1 for none of the prompt", w.startLen, len(prompt))
	}
	if from := w.startLen + 1; from < len(prompt) {
		w.PromptFrom = from
	}
	return nil
}

// readCompletionLogprobs reads logprobs and echo of /v1/completions; want is nil when no logprobs are wanted.
func readCompletionLogprobs(o *object) (want *request.WantLogprobs, echo bool) {
	echo = o.boolean("echo", false)
	if o.has("logprobs") {
		want = &request.WantLogprobs{Top: int(o.integerIn("logprobs", 0, 0, maxTopLogprobs))}
	}
	return want, echo
}

// readChatLogprobs reads logprobs and top_logprobs of /v1/chat/completions; nil when none are wanted.
func readChatLogprobs(o *object) *request.WantLogprobs {
	on := o.boolean("logprobs", false)
	top := int(o.integerIn("top_logprobs", 0, 0, maxTopLogprobs))
	if !on {
		if top > 0 {
			o.failField("top_logprobs", "needs logprobs: send logprobs true, or leave both out")
		}
		return nil
	}
	return &request.WantLogprobs{Top: top}
}

// checkPromptLogprobs refuses more logprobs of a prompt than a prefill engine can hand over with the first token.
func (s *Server) checkPromptLogprobs(want *request.WantLogprobs, prompt int, field string) *apiError {
	if want == nil || want.PromptFrom == 0 || s.cfg.Rank.Disagg.Mode == rank.ModeUnified {
		return nil
	}
	positions, further := prompt-want.PromptFrom+1, want.Top+len(want.TokenIDs)
	if n := disagg.FirstLogprobsBytes(positions, further); n > disagg.MaxFirstBytes {
		return badField(field, "wants logprobs of %d positions with %d further tokens each, %d bytes, but a prefill engine can hand over %d: ask for fewer",
			positions, further, n, disagg.MaxFirstBytes)
	}
	return nil
}
