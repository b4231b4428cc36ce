package harness

// Answer is what /generate says of one sequence.
type Answer struct {
	Text      string  `json:"text"`
	OutputIDs []int32 `json:"output_ids"`
	MetaInfo  struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		CachedTokens     int `json:"cached_tokens"`
		NumRetractions   int `json:"num_retractions"`
		FinishReason     struct {
			Type    string `json:"type"`
			Matched any    `json:"matched"`
		} `json:"finish_reason"`
		// OutputTopLogprobs has, for each position, [logprob, token id, text or null] of the likeliest tokens.
		OutputTopLogprobs [][][]any `json:"output_top_logprobs"`
	} `json:"meta_info"`
}
