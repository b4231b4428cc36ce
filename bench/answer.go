package bench

import (
	"encoding/json"
	"fmt"
)

// chunk is what one event of a stream, or a whole answer, tells.
type chunk struct {
	output bool   // it carries output
	finish string // reason of the end; "" while it goes on

	usage                      bool // the counts below are known
	prompt, completion, cached int  // tokens so far
	cachedKnown                bool
}

// answerUsage is the usage of the OpenAI APIs.
type answerUsage struct {
	PromptTokens        int `json:"prompt_tokens"`
	CompletionTokens    int `json:"completion_tokens"`
	PromptTokensDetails *struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// message is a chat's message or delta. What a model thinks and the tools it calls are output too.
type message struct {
	Content          string            `json:"content"`
	ReasoningContent string            `json:"reasoning_content"`
	Reasoning        string            `json:"reasoning"`
	Refusal          string            `json:"refusal"`
	ToolCalls        []json.RawMessage `json:"tool_calls"`
}

func (m *message) output() bool {
	return m != nil && (m.Content != "" || m.ReasoningContent != "" || m.Reasoning != "" || m.Refusal != "" || len(m.ToolCalls) > 0)
}

// serverError is an error that an answer carries.
type serverError struct{ message string }

func (e *serverError) Error() string { return e.message }

// readChunk reads an event of a stream or a whole answer of an API.
func readChunk(api API, data []byte) (chunk, error) {
	if api == Generate {
		return readGenerated(data)
	}
	var answer struct {
		Choices []struct {
			Text         *string  `json:"text"`
			Message      *message `json:"message"`
			Delta        *message `json:"delta"`
			FinishReason *string  `json:"finish_reason"`
		} `json:"choices"`
		Usage *answerUsage    `json:"usage"`
		Error json.RawMessage `json:"error"`
		errorFields
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return chunk{}, fmt.Errorf("read %s: %w", clip(data), err)
	}
	if err := carriedError(answer.Error, answer.errorFields); err != nil {
		return chunk{}, err
	}
	var c chunk
	for _, choice := range answer.Choices {
		// A completion's chunk stands for tokens even when their text is held back; a chat's may only name the role.
		c.output = c.output || choice.Text != nil || choice.Delta.output() || choice.Message.output()
		if choice.FinishReason != nil && *choice.FinishReason != "" {
			c.finish = *choice.FinishReason
			if choice.Text != nil && *choice.Text == "" {
				c.output = false // only the end
			}
		}
	}
	if u := answer.Usage; u != nil {
		c.usage, c.prompt, c.completion = true, u.PromptTokens, u.CompletionTokens
		if u.PromptTokensDetails != nil {
			c.cached, c.cachedKnown = u.PromptTokensDetails.CachedTokens, true
		}
	}
	return c, nil
}

// readGenerated reads an answer of /generate, whose events repeat all that came before.
func readGenerated(data []byte) (chunk, error) {
	var answer struct {
		Text     string `json:"text"`
		MetaInfo *struct {
			FinishReason *struct {
				Type    string `json:"type"`
				Message string `json:"message"`
			} `json:"finish_reason"`
			PromptTokens     int  `json:"prompt_tokens"`
			CompletionTokens int  `json:"completion_tokens"`
			CachedTokens     *int `json:"cached_tokens"`
		} `json:"meta_info"`
		Error json.RawMessage `json:"error"`
		errorFields
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return chunk{}, fmt.Errorf("read %s: %w", clip(data), err)
	}
	if err := carriedError(answer.Error, answer.errorFields); err != nil {
		return chunk{}, err
	}
	c := chunk{output: answer.Text != ""}
	if m := answer.MetaInfo; m != nil {
		c.usage, c.prompt, c.completion = true, m.PromptTokens, m.CompletionTokens
		c.output = m.CompletionTokens > 0
		if m.CachedTokens != nil {
			c.cached, c.cachedKnown = *m.CachedTokens, true
		}
		if m.FinishReason != nil {
			c.finish = m.FinishReason.Type
		}
	}
	return c, nil
}

// errorFields are an error that is the answer itself, as SGLang writes it.
type errorFields struct {
	Object  string `json:"object"`
	Message string `json:"message"`
}

// carriedError gives the error that an answer holds: an object or a string in the field error, or the answer itself.
func carriedError(field json.RawMessage, whole errorFields) error {
	if whole.Object == "error" {
		return &serverError{message: whole.Message}
	}
	if len(field) == 0 || string(field) == "null" {
		return nil
	}
	var object struct {
		Message string `json:"message"`
	}
	var text string
	switch {
	case json.Unmarshal(field, &object) == nil && object.Message != "":
		return &serverError{message: object.Message}
	case json.Unmarshal(field, &text) == nil:
		return &serverError{message: text}
	default:
		return &serverError{message: clip(field)}
	}
}

// clip shortens what a server sent, for messages.
func clip(data []byte) string {
	const most = 200
	if len(data) > most {
		return fmt.Sprintf("%q…", data[:most])
	}
	return fmt.Sprintf("%q", data)
}
