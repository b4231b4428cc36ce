package server

import (
	"context"
	"net/http"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
)

const completionMaxTokens = 16 // OpenAI's default

// completionAnswer is the body of /v1/completions, and of each chunk of its stream.
type completionAnswer struct {
	ID      string             `json:"id"`
	Object  string             `json:"object"` // text_completion
	Created int64              `json:"created"`
	Model   string             `json:"model"`
	Choices []completionChoice `json:"choices"`
	Usage   *usage             `json:"usage"`
	Ext     *extension         `json:"sglext,omitempty"`
}

type completionChoice struct {
	Index        int                 `json:"index"` // i*n+k: answer k to prompt i
	Text         string              `json:"text"`
	Logprobs     *completionLogprobs `json:"logprobs"` // null: none were asked for
	FinishReason *string             `json:"finish_reason"`
	MatchedStop  any                 `json:"matched_stop"`
}

// extension holds what OpenAI's form has no place for.
type extension struct {
	CachedTokensDetails *cachedDetails `json:"cached_tokens_details,omitempty"` // with return_cached_tokens_details
}

// openAIRequest is what the two OpenAI routes have in common once their body is read.
type openAIRequest struct {
	id      string
	specs   []sequenceSpec // [prompts*n]
	stream  bool
	options streamOptions
	details bool     // return_cached_tokens_details
	echo    []string // [prompts] what goes before the answers' texts; nil: nothing
}

// readOpenAI reads the fields that both routes share and makes the specs of all sequences. The caller has filled in what
// only its route has, and has not looked at the fault yet.
func (s *Server) readOpenAI(r *http.Request, o *object, p sampling, want *request.WantLogprobs, prompts int, arrival ledger.Timeline) (openAIRequest, *apiError) {
	s.checkModel(o)
	req := openAIRequest{stream: o.boolean("stream", false), options: readStreamOptions(o), details: o.boolean("return_cached_tokens_details", false)}
	checkSequences(o, prompts, p.choices)
	refuseUnsupportedOpenAI(o)
	base := sequenceSpec{
		logprobs: want, priority: priority(o), streaming: req.stream, timeline: arrival,
		uncounted: !o.boolean("log_metrics", true), unlogged: o.boolean("no_logs", false), labels: s.headerLabels(r),
		parent: s.readTraceParent(r.Header, o),
	}
	if *o.fault != nil {
		return req, *o.fault
	}
	place := s.readPlacement(r.Header, o, prompts)
	base.turn, base.dpRank, base.routingKey = readTurn(o, prompts*p.choices), place.dpRank, place.routingKey
	names := identity(o, prompts, p.choices)
	bootstraps := s.readBootstraps(o, prompts, p.choices)
	if *o.fault != nil {
		return req, *o.fault
	}
	req.id = names.base
	for i, rid := range names.rids {
		spec := base
		spec.rid, spec.choice, spec.cacheKey, spec.bootstrap = rid, i%p.choices, place.cacheKeys[i/p.choices], bootstraps[i]
		spec.sampling = p.choice(spec.choice)
		req.specs = append(req.specs, spec)
	}
	return req, nil
}

// refuseUnsupportedOpenAI refuses fields of both routes that would change the answer.
func refuseUnsupportedOpenAI(o *object) {
	if raw, present := o.value("lora_path"); present && !isEmpty(raw) {
		o.fail(unsupportedField("lora_path", "leave it out"))
	}
	for _, name := range []string{"return_hidden_states", "return_routed_experts"} {
		if raw, present := o.value(name); present && string(raw) != "false" {
			o.fail(unsupportedField(name, "send false or leave it out"))
		}
	}
}

// maxTokensField is the name that the client used for its maximum, for error messages.
func maxTokensField(o *object) string {
	if o.has("max_completion_tokens") {
		return "max_completion_tokens"
	}
	return "max_tokens"
}

// openAIRoute is what one of the OpenAI routes does in its own way.
type openAIRoute struct {
	read   func(r *http.Request, e *engine, o *object, arrival ledger.Timeline) (openAIRequest, *apiError)
	stream func(ctx context.Context, events *eventStream, j *job, req openAIRequest)
	answer func(j *job, req openAIRequest, answers []answer) any // the body of an answer that is not streamed
}

// serveOpenAI runs a request of the route: read, start, and then stream or collect.
func (s *Server) serveOpenAI(route openAIRoute) http.HandlerFunc {
	return s.inference(func(w http.ResponseWriter, r *http.Request, a *account) *apiError {
		e, o, err := a.receive(w, r)
		if err != nil {
			return err
		}
		req, err := route.read(r, e, o, a.arrival)
		if err != nil {
			return err
		}
		j, err := a.start(r, e, req.id, req.specs)
		if err != nil {
			return err
		}
		if req.stream {
			events, ctx, end := s.newEventStream(w, r)
			defer end()
			route.stream(ctx, events, j, req)
			return nil
		}
		answers, err := j.collect(r.Context())
		if err != nil {
			return err
		}
		return a.answer(w, route.answer(j, req, answers))
	})
}

func (s *Server) completionRoute() openAIRoute {
	return openAIRoute{read: s.readCompletion, stream: s.streamCompletion, answer: s.wholeCompletion}
}

func (s *Server) wholeCompletion(j *job, req openAIRequest, answers []answer) any {
	body := s.completionAnswer(j)
	body.Usage = j.usage(s.cacheReport())
	body.Ext = j.extension(req.details)
	for i := range answers {
		writer := newCompletionWriter(j, req, i)
		body.Choices = append(body.Choices, writer.choice(piece{
			text: answers[i].text.String(), logprobs: answers[i].logprobs, promptLogprobs: answers[i].promptLogprobs, finish: answers[i].finish,
		}))
	}
	return body
}

// readCompletion turns the body into sequences.
func (s *Server) readCompletion(r *http.Request, e *engine, o *object, arrival ledger.Timeline) (openAIRequest, *apiError) {
	p := readPrompts(o, "prompt")
	want, echo := readCompletionLogprobs(o)
	if o.string("suffix", "") != "" {
		o.fail(unsupportedField("suffix", "leave it out; the engine continues texts and does not fill gaps"))
	}
	req, err := s.readOpenAI(r, o, openAISampling(o, completionMaxTokens), want, p.count(), arrival)
	if err != nil {
		return req, err
	}
	ids, err := p.encode(e, true)
	if err != nil {
		return req, err
	}
	s.continuation(e, req.specs[0].turn, ids)
	if err := fillPrompts(e, req.specs, ids, maxTokensField(o), !o.has("max_tokens") && !o.has("max_completion_tokens")); err != nil {
		return req, err
	}
	if !echo {
		return req, nil
	}
	req.echo = p.texts
	for _, prompt := range p.ids {
		req.echo = append(req.echo, e.tokenizer.Decode(prompt, req.specs[0].sampling.skipSpecial))
	}
	return req, s.wantEchoed(req.specs)
}

// wantEchoed makes the logprobs of echoed prompts wanted where those of the answers are.
func (s *Server) wantEchoed(specs []sequenceSpec) *apiError {
	for i := range specs {
		if specs[i].logprobs == nil || len(specs[i].prompt) < 2 {
			continue
		}
		want := *specs[i].logprobs
		want.PromptFrom = 1
		specs[i].logprobs = &want
		if err := s.checkPromptLogprobs(&want, len(specs[i].prompt), "echo"); err != nil {
			return err
		}
	}
	return nil
}

// fillPrompts gives each spec its tokens and bounds its answer. With defaulted the maximum is not the client's, so it
// shrinks to what fits and is no reason to refuse.
func fillPrompts(e *engine, specs []sequenceSpec, ids [][]int32, maxField string, defaulted bool) *apiError {
	n := len(specs) / len(ids)
	for i := range specs {
		prompt := ids[i/n]
		specs[i].prompt = prompt
		if defaulted {
			specs[i].sampling.MaxNewTokens = min(specs[i].sampling.MaxNewTokens, e.info.ContextLength-len(prompt))
		}
		if err := boundNewTokens(e.info, &specs[i].sampling, len(prompt), maxField); err != nil {
			return err
		}
	}
	return nil
}

// completionWriter makes the choices of one sequence: its only one, or one for each piece of a stream.
type completionWriter struct {
	index    int
	sequence *sequence
	echo     string // not sent yet
	first    *int32 // the echoed prompt's first token, when its logprobs are wanted and it was not sent yet
	offsets  *textOffsets
}

func newCompletionWriter(j *job, req openAIRequest, index int) *completionWriter {
	q := j.sequences[index]
	w := &completionWriter{index: index, sequence: q}
	if req.echo != nil {
		w.echo = req.echo[index*len(req.echo)/len(j.sequences)]
	}
	if q.logprobs != nil {
		w.offsets = newTextOffsets(q.engine.tokenizer, q.sampling.skipSpecial)
		if req.echo != nil {
			w.first = &q.prompt[0]
		}
	}
	return w
}

// choice gives the next choice.
func (w *completionWriter) choice(p piece) completionChoice {
	c := completionChoice{Index: w.index, Text: w.echo + p.text, FinishReason: finishReason(p.finish), MatchedStop: matchedStop(p.finish)}
	if q := w.sequence; q.logprobs != nil {
		list := append(p.promptLogprobs[:len(p.promptLogprobs):len(p.promptLogprobs)], p.logprobs...)
		c.Logprobs = completionForm(q.engine.tokenizer, w.offsets, w.first, list, q.logprobs.Top > 0)
	}
	w.echo, w.first = "", nil
	return c
}

// completionAnswer is an answer, or a chunk, without choices.
func (s *Server) completionAnswer(j *job) completionAnswer {
	return completionAnswer{
		ID: j.id, Object: "text_completion", Model: s.cfg.ServedModelName, Choices: []completionChoice{},
		Created: s.unixSeconds(j.sequences[0].timeline.Started()),
	}
}

// streamCompletion sends each sequence's text as it comes. What says nothing new is held back, but not a sequence's first
// piece, for it is the first token's time.
func (s *Server) streamCompletion(ctx context.Context, events *eventStream, j *job, req openAIRequest) {
	chunk := s.completionAnswer(j)
	writers := make([]*completionWriter, len(j.sequences))
	err := j.stream(ctx, func(index int, p piece) {
		if writers[index] == nil {
			writers[index] = newCompletionWriter(j, req, index)
		} else if p.text == "" && len(p.logprobs) == 0 && len(p.promptLogprobs) == 0 && p.finish == nil {
			return
		}
		chunk.Choices = []completionChoice{writers[index].choice(p)}
		if req.options.everyChunk {
			chunk.Usage = j.sequences[index].usage(s.cacheReport())
		}
		events.send(chunk)
	})
	if err != nil {
		events.fail(err)
		return
	}
	chunk.Choices, chunk.Usage, chunk.Ext = []completionChoice{}, nil, j.extension(req.details)
	if req.options.atEnd {
		chunk.Usage = j.usage(s.cacheReport())
	}
	if req.options.atEnd || req.details {
		events.send(chunk)
	}
	events.done()
}

// extension tells where the prompts' cached tokens came from, when asked; the sequences have ended.
func (j *job) extension(details bool) *extension {
	if !details {
		return nil
	}
	cached := &cachedDetails{}
	for _, q := range j.sequences {
		if q.choice == 0 {
			cached.Device += q.cachedTokens
		}
	}
	return &extension{CachedTokensDetails: cached}
}
