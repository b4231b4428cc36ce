package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/tokenizer"
)

// chatAnswer is the body of /v1/chat/completions, and of each chunk of its stream.
type chatAnswer struct {
	ID      string       `json:"id"`
	Object  string       `json:"object"` // chat.completion, chat.completion.chunk
	Created int64        `json:"created"`
	Model   string       `json:"model"`
	Choices []chatChoice `json:"choices"`
	Usage   *usage       `json:"usage"`
	Ext     *extension   `json:"sglext,omitempty"`
}

// chatChoice has a message in a whole answer and a delta in a chunk.
type chatChoice struct {
	Index        int           `json:"index"`
	Message      *chatMessage  `json:"message,omitempty"`
	Delta        *chatDelta    `json:"delta,omitempty"`
	Logprobs     *chatLogprobs `json:"logprobs"` // null: none were asked for, or the chunk has no token
	FinishReason *string       `json:"finish_reason"`
	MatchedStop  any           `json:"matched_stop"`
}

type chatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type chatDelta struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

const roleAssistant = "assistant"

// roles are what a message may be from; the chat template says what becomes of each.
var roles = []string{"system", "developer", "user", roleAssistant, "tool", "function"}

func (s *Server) chatRoute() openAIRoute {
	return openAIRoute{read: s.readChat, stream: s.streamChat, answer: s.wholeChat}
}

func (s *Server) wholeChat(j *job, req openAIRequest, answers []answer) any {
	body := s.chatAnswer(j, "chat.completion")
	body.Usage = j.usage(s.cacheReport())
	body.Ext = j.extension(req.details)
	for i := range answers {
		choice := chatChoice{
			Index: i, Message: &chatMessage{Role: roleAssistant, Content: answers[i].text.String()},
			FinishReason: finishReason(answers[i].finish), MatchedStop: matchedStop(answers[i].finish),
		}
		if q := j.sequences[i]; q.logprobs != nil {
			choice.Logprobs = chatForm(q.engine.tokenizer, answers[i].logprobs)
		}
		body.Choices = append(body.Choices, choice)
	}
	return body
}

// refuseTools refuses what would make the model call functions, unless the client says that it must not.
func refuseTools(o *object) {
	const remedy = "leave it out; the engine does not read calls from answers"
	for _, name := range []string{"tools", "functions"} {
		if raw, present := o.value(name); present && !isEmpty(raw) {
			o.fail(unsupportedField(name, remedy))
		}
	}
	for _, name := range []string{"tool_choice", "function_call"} {
		if raw, present := o.value(name); present && string(raw) != `"none"` && string(raw) != `"auto"` {
			o.fail(unsupportedField(name, "send none or leave it out; the engine does not read calls from answers"))
		}
	}
}

// readChat turns the body into the sequences of one prompt.
func (s *Server) readChat(r *http.Request, e *engine, o *object, arrival ledger.Timeline) (openAIRequest, *apiError) {
	messages := readMessages(o, e)
	refuseTools(o)
	want := readChatLogprobs(o)
	if o.boolean("continue_final_message", false) {
		o.fail(unsupportedField("continue_final_message", "send false or leave it out"))
	}
	var extra map[string]any
	if raw, present := o.value("chat_template_kwargs"); present && json.Unmarshal(raw, &extra) != nil {
		o.failField("chat_template_kwargs", "must be an object, not %s", kindOf(raw))
	}
	generationPrompt := o.boolean("add_generation_prompt", true)
	req, err := s.readOpenAI(r, o, openAISampling(o, 0), want, 1, arrival)
	if err != nil {
		return req, err
	}
	text, templateErr := e.tokenizer.ApplyChatTemplate(messages, generationPrompt, extra, e.maxTextBytes)
	if errors.Is(templateErr, tokenizer.ErrChatTooLong) {
		return req, e.tooManyMessages("make a prompt of more than %d tokens (%v)", e.info.MaxPromptTokens(), templateErr)
	}
	if templateErr != nil {
		return req, badField("messages", "do not fit the model's chat template: %v", templateErr)
	}
	ids, err := e.encode("messages", text, false)
	if err != nil {
		return req, err
	}
	prompts := [][]int32{ids}
	s.continuation(e, req.specs[0].turn, prompts)
	return req, fillPrompts(e, req.specs, prompts, maxTokensField(o), false)
}

// tooManyMessages refuses a conversation that can't fit.
func (e *engine) tooManyMessages(format string, args ...any) *apiError {
	err := badField("messages", format+": the context is %d tokens and the KV pool %d", append(args, e.info.ContextLength, e.info.MaxTotalNumTokens)...)
	err.code = codeContextLength
	return err
}

// readMessages reads the conversation. One with more messages than a prompt may have tokens is refused before any of them
// is looked at: templates give each a token at least.
func readMessages(o *object, e *engine) []tokenizer.Message {
	raw, present := o.value("messages")
	items, isArray := array(raw)
	if limit := e.info.MaxPromptTokens(); len(items) > limit {
		o.fail(e.tooManyMessages("holds %d messages, but a prompt has at most %d tokens", len(items), limit))
		return nil
	}
	if present && !isArray {
		o.failField("messages", "must be an array, not %s", kindOf(raw))
	}
	objects := o.elements("messages", items)
	if len(objects) == 0 {
		o.failField("messages", "must hold at least one message")
		return nil
	}
	messages := make([]tokenizer.Message, len(objects))
	for i, m := range objects {
		messages[i] = tokenizer.Message{Role: m.string("role", ""), Content: readContent(m)}
		switch role := messages[i].Role; {
		case role == "":
			m.failField("role", "is missing: send system, user or assistant")
		case !slices.Contains(roles, role):
			m.failField("role", "is %q: send one of %s", clip(role), strings.Join(roles, ", "))
		}
		for name, raw := range m.raw {
			if name == "role" || name == "content" {
				continue
			}
			var value any
			if json.Unmarshal(raw, &value) == nil && value != nil {
				if messages[i].Extra == nil {
					messages[i].Extra = map[string]any{}
				}
				messages[i].Extra[name] = value
			}
		}
	}
	return messages
}

// readContent reads a message's content: a string, text parts, or null as in a turn that only called tools.
func readContent(m *object) string {
	raw, present := m.value("content")
	switch {
	case !present:
		if _, named := m.raw["content"]; !named && !m.has("tool_calls") {
			m.failField("content", "is missing: send the text")
		}
		return ""
	case isKind(raw, '"'):
		return m.string("content", "")
	case !isKind(raw, '['):
		m.failField("content", "must be a string or an array of text parts, not %s", kindOf(raw))
		return ""
	}
	var text strings.Builder
	for i, part := range m.objects("content") {
		if kind := part.string("type", "text"); kind != "text" {
			m.fail(unsupportedField(fmt.Sprintf("%scontent[%d].type", m.path, i), "send text, not "+kind))
			return ""
		}
		if !part.has("text") {
			part.failField("text", "is missing")
		}
		text.WriteString(part.string("text", ""))
	}
	return text.String()
}

// chatAnswer is an answer, or a chunk, without choices.
func (s *Server) chatAnswer(j *job, object string) chatAnswer {
	return chatAnswer{
		ID: j.id, Object: object, Model: s.cfg.ServedModelName, Choices: []chatChoice{},
		Created: s.unixSeconds(j.sequences[0].timeline.Started()),
	}
}

// streamChat sends for each answer the role, the text as it comes and the reason of the end, and the usage when asked for.
func (s *Server) streamChat(ctx context.Context, events *eventStream, j *job, req openAIRequest) {
	chunk := s.chatAnswer(j, "chat.completion.chunk")
	begun := make([]bool, len(j.sequences))
	err := j.stream(ctx, func(index int, p piece) {
		q := j.sequences[index]
		send := func(choice chatChoice) {
			choice.Index = index
			chunk.Choices = []chatChoice{choice}
			if req.options.everyChunk {
				chunk.Usage = q.usage(s.cacheReport())
			}
			events.send(chunk)
		}
		if !begun[index] {
			begun[index] = true
			empty := ""
			send(chatChoice{Delta: &chatDelta{Role: roleAssistant, Content: &empty}})
		}
		if p.text != "" || len(p.logprobs) > 0 {
			choice := chatChoice{Delta: &chatDelta{Content: &p.text}}
			if len(p.logprobs) > 0 {
				choice.Logprobs = chatForm(q.engine.tokenizer, p.logprobs)
			}
			send(choice)
		}
		if p.finish != nil {
			send(chatChoice{Delta: &chatDelta{}, FinishReason: finishReason(p.finish), MatchedStop: matchedStop(p.finish)})
		}
	})
	if err != nil {
		events.fail(err)
		return
	}
	chunk.Choices, chunk.Usage, chunk.Ext = []chatChoice{}, nil, j.extension(req.details)
	if req.options.atEnd {
		chunk.Usage = j.usage(s.cacheReport())
	}
	if req.options.atEnd || req.details {
		events.send(chunk)
	}
	events.done()
}
