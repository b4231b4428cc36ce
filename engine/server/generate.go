package server

import (
	"context"
	"net/http"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
)

const nativeMaxNewTokens = 128 // SGLang's default

// generateAnswer is the body of /generate for one sequence, and of each chunk of its stream, which repeats the text and
// the tokens so far.
type generateAnswer struct {
	Text      string   `json:"text"`
	OutputIDs []int32  `json:"output_ids"`
	MetaInfo  metaInfo `json:"meta_info"`
	Index     *int     `json:"index,omitempty"` // in streamed batches
}

// metaInfo describes a sequence. Of the times, which come at the end, only e2e_latency is there without --enable-metrics.
type metaInfo struct {
	ID                  string        `json:"id"`
	FinishReason        any           `json:"finish_reason"` // null while the sequence lives
	PromptTokens        int           `json:"prompt_tokens"`
	CompletionTokens    int           `json:"completion_tokens"`
	ReasoningTokens     int           `json:"reasoning_tokens"` // always 0: answers are not searched for reasoning
	CachedTokens        int           `json:"cached_tokens"`
	CachedTokensDetails cachedDetails `json:"cached_tokens_details"`
	NumRetractions      int           `json:"num_retractions"`
	WeightVersion       string        `json:"weight_version"`
	DPRank              *int          `json:"dp_rank"` // null: there is one
	requestTimes

	*nativeLogprobs // nil: none were asked for
}

// cachedDetails says where cached tokens came from; the device's memory is the only tier.
type cachedDetails struct {
	Device int `json:"device"`
	Host   int `json:"host"`
}

type stopReason struct {
	Type    request.FinishType `json:"type"`
	Matched any                `json:"matched,omitempty"`
}

type lengthReason struct {
	Type   request.FinishType `json:"type"`
	Length int                `json:"length"` // the completion tokens that were allowed
}

const weightVersion = "default"

func (s *Server) generate(w http.ResponseWriter, r *http.Request, a *account) *apiError {
	e, o, err := a.receive(w, r)
	if err != nil {
		return err
	}
	req, err := s.readGenerate(r.Header, e, o, a.arrival)
	if err != nil {
		return err
	}
	j, err := a.start(r, e, req.id, req.specs)
	if err != nil {
		return err
	}
	if req.specs[0].streaming {
		events, ctx, end := s.newEventStream(w, r)
		defer end()
		s.streamGenerate(ctx, events, j, req)
		return nil
	}
	answers, err := j.collect(r.Context())
	if err != nil {
		return err
	}
	list := make(generateAnswers, len(answers))
	for i := range answers {
		list[i] = s.generateAnswer(j.sequences[i], req.wants[i], &answers[i])
	}
	if req.list {
		return a.answer(w, list)
	}
	return a.answer(w, list[0])
}

// generateRequest is a body of /generate once it is read.
type generateRequest struct {
	id    string
	specs []sequenceSpec // [prompts*n]
	wants []*wantNative  // [prompts*n]; nil: no logprobs
	list  bool           // the answer is a list: several prompts or several answers, or a list of one prompt
}

// readGenerate turns the body into sequences.
func (s *Server) readGenerate(header http.Header, e *engine, o *object, arrival ledger.Timeline) (generateRequest, *apiError) {
	p := readNativePrompts(o)
	refuseUnsupportedNative(o)
	if *o.fault != nil {
		return generateRequest{}, *o.fault
	}
	base := sequenceSpec{
		priority: priority(o), streaming: o.boolean("stream", false), uncounted: !o.boolean("log_metrics", true),
		unlogged: o.boolean("no_logs", false), labels: s.bodyLabels(o), timeline: s.readReceived(o, arrival),
		parent: s.readTraceParent(header, o),
	}
	prompts := p.count()
	params := readSamplingParams(o, prompts)
	n := params[0].choices
	wants := readNativeLogprobs(o, prompts)
	checkSequences(o, prompts, n)
	if *o.fault != nil {
		return generateRequest{}, *o.fault
	}
	place := s.readPlacement(header, o, prompts)
	base.turn, base.dpRank, base.routingKey = readTurn(o, prompts*n), place.dpRank, place.routingKey
	names := identity(o, prompts, n)
	bootstraps := s.readBootstraps(o, prompts, n)
	if *o.fault != nil {
		return generateRequest{}, *o.fault
	}
	ids, err := p.encode(e, true)
	if err != nil {
		return generateRequest{}, err
	}
	s.continuation(e, base.turn, ids)
	req := generateRequest{id: names.base, list: p.batch || n > 1}
	for i, param := range params {
		if err := s.fitNative(e, &param, wants[i], ids[i]); err != nil {
			return generateRequest{}, err
		}
		for k := range n {
			spec := base
			at := i*n + k
			spec.rid, spec.choice, spec.prompt, spec.cacheKey = names.rids[at], k, ids[i], place.cacheKeys[i]
			spec.bootstrap, spec.sampling = bootstraps[at], param.choice(k)
			if wants[i] != nil {
				spec.logprobs = wants[i].WantLogprobs
			}
			req.specs, req.wants = append(req.specs, spec), append(req.wants, wants[i])
		}
	}
	return req, nil
}

// readNativePrompts reads text or input_ids.
func readNativePrompts(o *object) prompts {
	field := "text"
	if !o.has("text") && o.has("input_ids") {
		field = "input_ids"
	} else if o.has("input_ids") {
		o.failField("input_ids", "and text exclude each other: send one of them")
	}
	p := readPrompts(o, field)
	if field == "text" && len(p.ids) > 0 {
		o.failField("text", "must be a string or an array of strings; send token ids as input_ids")
	}
	if field == "input_ids" && len(p.texts) > 0 {
		o.failField("input_ids", "must hold token ids; send strings as text")
	}
	return p
}

// refuseUnsupportedNative refuses fields of /generate that would change the answer.
func refuseUnsupportedNative(o *object) {
	for _, name := range []string{"lora_path", "input_embeds", "image_data", "video_data", "audio_data", "custom_logit_processor"} {
		if raw, present := o.value(name); present && !isEmpty(raw) {
			o.fail(unsupportedField(name, "leave it out"))
		}
	}
	for _, name := range []string{"return_hidden_states", "return_routed_experts"} {
		if raw, present := o.value(name); present && string(raw) != "false" {
			o.fail(unsupportedField(name, "send false or leave it out"))
		}
	}
}

// fitNative fits what a prompt's answers may be to the model and the prompt.
func (s *Server) fitNative(e *engine, p *samplingParams, want *wantNative, prompt []int32) *apiError {
	if !p.named {
		p.MaxNewTokens = min(p.MaxNewTokens, e.info.ContextLength-len(prompt))
	}
	if err := boundNewTokens(e.info, &p.sampling, len(prompt), p.path+"max_new_tokens"); err != nil {
		return err
	}
	if want == nil {
		return nil
	}
	if err := want.check(e, prompt); err != nil {
		return err
	}
	return s.checkPromptLogprobs(want.WantLogprobs, len(prompt), "logprob_start_len")
}

// samplingParams are the sampling parameters of one prompt.
type samplingParams struct {
	sampling
	named bool // the client gave the maximum of new tokens
	path  string
}

// readSamplingParams reads one object for all prompts, or a list with one for each.
func readSamplingParams(o *object, count int) []samplingParams {
	list := make([]samplingParams, count)
	read := func(inner *object) samplingParams {
		return samplingParams{sampling: nativeSampling(inner), named: inner.has("max_new_tokens"), path: inner.path}
	}
	raw, present := o.value("sampling_params")
	if !present || !isKind(raw, '[') {
		one := read(o.object("sampling_params"))
		for i := range list {
			list[i] = one
		}
		return list
	}
	objects := o.objects("sampling_params")
	if len(objects) != count {
		o.failField("sampling_params", "must be one object or %d, one for each prompt, not %d", count, len(objects))
		for i := range list {
			list[i].choices = 1
		}
		return list
	}
	for i, inner := range objects {
		list[i] = read(inner)
		if list[i].choices != list[0].choices {
			inner.failField("n", "must be the same for all prompts, not %d and %d", list[0].choices, list[i].choices)
		}
	}
	return list
}

func (s *Server) streamGenerate(ctx context.Context, events *eventStream, j *job, req generateRequest) {
	answers := make([]answer, len(j.sequences))
	err := j.stream(ctx, func(index int, p piece) {
		answers[index].add(p)
		if p.text == "" && len(p.ids) == 0 && p.finish == nil {
			return
		}
		chunk := s.generateAnswer(j.sequences[index], req.wants[index], &answers[index])
		if req.list {
			chunk.Index = &index
		}
		events.send(chunk)
	})
	if err != nil {
		events.fail(err)
		return
	}
	events.done()
}

// generateAnswer describes a sequence so far.
func (s *Server) generateAnswer(q *sequence, want *wantNative, a *answer) generateAnswer {
	ids := a.ids
	if ids == nil {
		ids = []int32{}
	}
	whole := generateAnswer{Text: a.text.String(), OutputIDs: ids, MetaInfo: s.metaInfo(q, a.finish)}
	if want != nil {
		whole.MetaInfo.nativeLogprobs = nativeForm(q.engine.tokenizer, want, q.prompt, a)
	}
	return whole
}

func (s *Server) metaInfo(q *sequence, finish *request.Finish) metaInfo {
	m := metaInfo{
		ID: q.rid, PromptTokens: q.promptTokens, CompletionTokens: q.completionTokens, CachedTokens: q.cachedTokens,
		CachedTokensDetails: cachedDetails{Device: q.cachedTokens}, NumRetractions: q.retractions, WeightVersion: weightVersion, DPRank: q.answeringRank(),
	}
	if finish == nil {
		return m
	}
	switch finish.Type {
	case request.FinishLength:
		m.FinishReason = lengthReason{Type: finish.Type, Length: q.completionTokens}
	default:
		m.FinishReason = stopReason{Type: finish.Type, Matched: matchedStop(finish)}
	}
	m.requestTimes = q.times()
	if !s.cfg.EnableMetrics {
		m.requestTimes = requestTimes{E2ELatency: m.E2ELatency}
	}
	return m
}

// unixSeconds is the whole second of an instant.
func (s *Server) unixSeconds(i ledger.Instant) int64 { return s.clock.Wall(i) / 1e9 }

// bodyLabels reads custom_labels: the allowed keys of it; others are not looked at.
func (s *Server) bodyLabels(o *object) map[string]string {
	inner := o.object("custom_labels")
	var labels map[string]string
	for _, name := range s.cfg.AllowedCustomLabels {
		if inner.has(name) {
			if labels == nil {
				labels = map[string]string{}
			}
			labels[name] = inner.string(name, "")
		}
	}
	return labels
}
