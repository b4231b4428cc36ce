package server

import "github.com/sluice-dev/sluice/engine/request"

// usage counts the tokens of an answer as OpenAI does.
type usage struct {
	PromptTokens        int            `json:"prompt_tokens"`
	CompletionTokens    int            `json:"completion_tokens"`
	TotalTokens         int            `json:"total_tokens"`
	PromptTokensDetails *promptDetails `json:"prompt_tokens_details"` // only with --enable-cache-report
}

type promptDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// usage sums over the sequences of a job, which have ended. A prompt counts once, however many answers there are to it.
func (j *job) usage(cacheReport bool) *usage {
	total := &usage{}
	for _, q := range j.sequences {
		u := q.usage(cacheReport)
		if q.choice > 0 {
			u = &usage{CompletionTokens: u.CompletionTokens, TotalTokens: u.CompletionTokens}
		}
		total.add(u)
	}
	return total
}

// usage is that of one sequence so far.
func (q *sequence) usage(cacheReport bool) *usage {
	u := &usage{PromptTokens: q.promptTokens, CompletionTokens: q.completionTokens, TotalTokens: q.promptTokens + q.completionTokens}
	if cacheReport {
		u.PromptTokensDetails = &promptDetails{CachedTokens: q.cachedTokens}
	}
	return u
}

func (u *usage) add(v *usage) {
	u.PromptTokens += v.PromptTokens
	u.CompletionTokens += v.CompletionTokens
	u.TotalTokens += v.TotalTokens
	if v.PromptTokensDetails != nil {
		if u.PromptTokensDetails == nil {
			u.PromptTokensDetails = &promptDetails{}
		}
		u.PromptTokensDetails.CachedTokens += v.PromptTokensDetails.CachedTokens
	}
}

// streamOptions say when a stream carries usage.
type streamOptions struct {
	atEnd      bool // one last chunk without choices
	everyChunk bool
}

func readStreamOptions(o *object) streamOptions {
	options := o.object("stream_options")
	return streamOptions{
		atEnd:      options.boolean("include_usage", false),
		everyChunk: options.boolean("continuous_usage_stats", false),
	}
}

// finishReason is OpenAI's word for the end of a sequence; nil while it lives.
func finishReason(finish *request.Finish) *string {
	if finish == nil {
		return nil
	}
	reason := string(finish.Type)
	return &reason
}

// matchedStop is what ended a sequence of finish reason stop: a token id, a string, or nil.
func matchedStop(finish *request.Finish) any {
	switch {
	case finish == nil || finish.Type != request.FinishStop:
		return nil
	case finish.MatchedToken != nil:
		return *finish.MatchedToken
	case finish.MatchedStop != "":
		return finish.MatchedStop
	default:
		return nil
	}
}
