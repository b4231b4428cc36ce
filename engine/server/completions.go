package server

import (
	"context"
	"net/http"

	"github.com/sluice-dev/sluice/engine/ledger"
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
}

type completionChoice struct {
	Index        int     `json:"index"` // of the prompt in the request
	Text         string  `json:"text"`
	Logprobs     *string `json:"logprobs"` // always null
	FinishReason *string `json:"finish_reason"`
	MatchedStop  any     `json:"matched_stop"`
}

// openAIRequest is what the two OpenAI routes have in common once their body is read.
type openAIRequest struct {
	specs   []sequenceSpec
	stream  bool
	options streamOptions
}

// readOpenAI reads the fields that both routes share and makes one spec for each prompt. The caller has filled in what
// only its route has, and has not looked at the fault yet.
func (s *Server) readOpenAI(r *http.Request, o *object, p sampling, count int, arrival ledger.Timeline) (openAIRequest, *apiError) {
	s.checkModel(o)
	req := openAIRequest{stream: o.boolean("stream", false), options: readStreamOptions(o)}
	base := sequenceSpec{
		sampling: p, priority: priority(o), streaming: req.stream, timeline: arrival,
		uncounted: !o.boolean("log_metrics", true), labels: s.headerLabels(r),
	}
	rids := identity(o, count)
	bootstraps := s.readBootstraps(o, count)
	if *o.fault != nil {
		return req, *o.fault
	}
	for i, rid := range rids {
		spec := base
		spec.rid, spec.bootstrap = rid, bootstraps[i]
		req.specs = append(req.specs, spec)
	}
	return req, nil
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
	stream func(ctx context.Context, events *eventStream, j *job, options streamOptions)
	answer func(j *job, answers []answer) any // the body of an answer that is not streamed
}

// serveOpenAI runs a request of the route: read, start, and then stream or collect.
func (s *Server) serveOpenAI(route openAIRoute) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		arrival := s.arrival()
		e, o, err := s.receive(w, r)
		if err != nil {
			writeError(w, err)
			return
		}
		defer s.dismiss()
		req, err := route.read(r, e, o, arrival)
		if err != nil {
			writeError(w, err)
			return
		}
		j, err := s.start(r.Context(), e, req.specs)
		if err != nil {
			writeError(w, err)
			return
		}
		if req.stream {
			events, ctx, end := s.newEventStream(w, r)
			defer end()
			route.stream(ctx, events, j, req.options)
			return
		}
		answers, err := j.collect(r.Context())
		if err != nil {
			writeError(w, err)
			return
		}
		writeJSON(w, http.StatusOK, route.answer(j, answers))
	}
}

func (s *Server) completionRoute() openAIRoute {
	return openAIRoute{read: s.readCompletion, stream: s.streamCompletion, answer: s.wholeCompletion}
}

func (s *Server) wholeCompletion(j *job, answers []answer) any {
	body := s.completionAnswer(j)
	body.Usage = j.usage(s.cfg.EnableCacheReport)
	for i := range answers {
		body.Choices = append(body.Choices, completionChoice{
			Index: i, Text: answers[i].text.String(), FinishReason: finishReason(answers[i].finish), MatchedStop: matchedStop(answers[i].finish),
		})
	}
	return body
}

// readCompletion turns the body into sequences.
func (s *Server) readCompletion(r *http.Request, e *engine, o *object, arrival ledger.Timeline) (openAIRequest, *apiError) {
	p := readPrompts(o, "prompt")
	if o.boolean("echo", false) {
		o.fail(unsupportedField("echo", "send false or leave it out; the prompt is known to you"))
	}
	if o.has("logprobs") {
		o.fail(unsupportedField("logprobs", "leave it out"))
	}
	if o.string("suffix", "") != "" {
		o.fail(unsupportedField("suffix", "leave it out"))
	}
	refuseResponseFormat(o)
	req, err := s.readOpenAI(r, o, openAISampling(o, completionMaxTokens), p.count(), arrival)
	if err != nil {
		return req, err
	}
	ids, err := p.encode(e, true)
	if err != nil {
		return req, err
	}
	return req, fillPrompts(e, req.specs, ids, maxTokensField(o), !o.has("max_tokens") && !o.has("max_completion_tokens"))
}

// fillPrompts gives each spec its tokens and bounds its answer. With defaulted the maximum is not the client's, so it
// shrinks to what fits and is no reason to refuse.
func fillPrompts(e *engine, specs []sequenceSpec, ids [][]int32, maxField string, defaulted bool) *apiError {
	for i := range specs {
		specs[i].prompt = ids[i]
		if defaulted {
			specs[i].sampling.MaxNewTokens = min(specs[i].sampling.MaxNewTokens, e.info.ContextLength-len(ids[i]))
		}
		if err := boundNewTokens(e.info, &specs[i].sampling, len(ids[i]), maxField); err != nil {
			return err
		}
	}
	return nil
}

// refuseResponseFormat refuses structured output; plain text is what every answer is.
func refuseResponseFormat(o *object) {
	format := o.object("response_format")
	if kind := format.string("type", "text"); kind != "text" {
		o.fail(unsupportedField("response_format", "leave it out or send type text, not "+kind))
	}
}

// completionAnswer is an answer, or a chunk, without choices.
func (s *Server) completionAnswer(j *job) completionAnswer {
	first := j.sequences[0]
	return completionAnswer{
		ID: first.rid, Object: "text_completion", Model: s.cfg.ServedModelName, Choices: []completionChoice{},
		Created: s.unixSeconds(first.timeline.Started()),
	}
}

func (s *Server) streamCompletion(ctx context.Context, events *eventStream, j *job, options streamOptions) {
	chunk := s.completionAnswer(j)
	err := j.stream(ctx, func(index int, p piece) {
		if p.text == "" && p.finish == nil && events.begun {
			return // held back; the first chunk goes out all the same, for it is the first token's time
		}
		chunk.Choices = []completionChoice{{
			Index: index, Text: p.text, FinishReason: finishReason(p.finish), MatchedStop: matchedStop(p.finish),
		}}
		if options.everyChunk {
			chunk.Usage = j.sequences[index].usage(s.cfg.EnableCacheReport)
		}
		events.send(chunk)
	})
	if err != nil {
		events.fail(err)
		return
	}
	if options.atEnd {
		chunk.Choices, chunk.Usage = []completionChoice{}, j.usage(s.cfg.EnableCacheReport)
		events.send(chunk)
	}
	events.done()
}
