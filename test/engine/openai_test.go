package engine

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"

	"github.com/sluice-dev/sluice/test/harness"
)

// TestOpenAIClient drives the engine with OpenAI's own client, key included.
func TestOpenAIClient(t *testing.T) {
	r := start(t, "--api-key", "secret", "--enable-cache-report")
	client := openai.NewClient(option.WithBaseURL(r.url+"/v1"), option.WithAPIKey("secret"), option.WithMaxRetries(0))
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()

	t.Run("models", func(t *testing.T) {
		page, err := client.Models.List(ctx)
		if err != nil || len(page.Data) != 1 || page.Data[0].ID != "tiny" {
			t.Fatalf("models %+v: %v", page, err)
		}
		if one, err := client.Models.Get(ctx, "tiny"); err != nil || one.ID != "tiny" {
			t.Errorf("model %+v: %v", one, err)
		}
	})

	completion := openai.CompletionNewParams{
		Model: "tiny", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("the river runs")},
		MaxTokens: openai.Int(12), Temperature: openai.Float(0), Seed: openai.Int(1),
	}
	var whole *openai.Completion
	t.Run("completion", func(t *testing.T) {
		var err error
		if whole, err = client.Completions.New(ctx, completion); err != nil {
			t.Fatal(err)
		}
		if whole.Usage.CompletionTokens != 12 || whole.Choices[0].FinishReason != openai.CompletionChoiceFinishReasonLength || whole.Choices[0].Text == "" {
			t.Errorf("answer %+v", whole)
		}
	})
	t.Run("completion stream", func(t *testing.T) {
		stream := client.Completions.NewStreaming(ctx, completion)
		text := ""
		for stream.Next() {
			text += stream.Current().Choices[0].Text
		}
		if err := stream.Err(); err != nil || text != whole.Choices[0].Text {
			t.Errorf("stream gives %q, whole gave %q: %v", text, whole.Choices[0].Text, err)
		}
	})

	chat := openai.ChatCompletionNewParams{
		Model: "tiny", MaxCompletionTokens: openai.Int(10), Temperature: openai.Float(0.7), TopP: openai.Float(0.9), Seed: openai.Int(3),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("Be brief."), openai.UserMessage("What does a mill do?")},
	}
	var said *openai.ChatCompletion
	t.Run("chat", func(t *testing.T) {
		var err error
		if said, err = client.Chat.Completions.New(ctx, chat); err != nil {
			t.Fatal(err)
		}
		if said.Choices[0].Message.Role != "assistant" || said.Usage.TotalTokens != said.Usage.PromptTokens+said.Usage.CompletionTokens {
			t.Errorf("answer %+v", said)
		}
	})
	t.Run("chat stream", func(t *testing.T) {
		chat := chat
		chat.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: param.NewOpt(true)}
		stream := client.Chat.Completions.NewStreaming(ctx, chat)
		all := openai.ChatCompletionAccumulator{}
		for stream.Next() {
			if !all.AddChunk(stream.Current()) {
				t.Errorf("the chunk does not fit: %+v", stream.Current())
			}
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		if all.Choices[0].Message.Content != said.Choices[0].Message.Content || all.Usage.CompletionTokens != said.Usage.CompletionTokens {
			t.Errorf("stream gives %+v, whole gave %+v", all.ChatCompletion, said)
		}
	})

	for _, tc := range []struct {
		name, reason string
		key, model   string
		maxTokens    int64
		status       int
		param, code  string
	}{
		{"unknown model", "404 with the field", "secret", "gpt-9", 1, 404, "model", "model_not_found"},
		{"too many tokens", "400 with the field", "secret", "tiny", 1 << 40, 400, "max_tokens", "context_length_exceeded"},
		{"wrong key", "401", "other", "tiny", 1, 401, "", "invalid_api_key"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := client.Completions.New(ctx, openai.CompletionNewParams{
				Model: openai.CompletionNewParamsModel(tc.model), Prompt: completion.Prompt, MaxTokens: openai.Int(tc.maxTokens),
			}, option.WithAPIKey(tc.key))
			var refused *openai.Error
			if !errors.As(err, &refused) {
				t.Fatalf("%s: the client does not understand the error: %v", tc.reason, err)
			}
			if refused.StatusCode != tc.status || refused.Param != tc.param || refused.Code != tc.code || refused.Message == "" {
				t.Errorf("%s: status %d, param %q, code %q, message %q", tc.reason, refused.StatusCode, refused.Param, refused.Code, refused.Message)
			}
		})
	}
	t.Run("probes without a key", func(t *testing.T) {
		if got := r.status("/health"); got != http.StatusOK {
			t.Errorf("status %d", got)
		}
		if got := r.status("/v1/loads"); got != http.StatusUnauthorized {
			t.Errorf("loads: status %d", got)
		}
	})
}

// TestMetrics: both paths answer without a redirect, and one request shows in the families of both processes.
func TestMetrics(t *testing.T) {
	r := start(t, "--enable-metrics", "--extra-metric-labels", `{"cluster":"a"}`, "--tokenizer-metrics-allowed-custom-labels", "team", "shift")
	if status, body := r.post("/v1/completions", `{"prompt":"the mill","max_tokens":5,"ignore_eos":true}`); status != http.StatusOK {
		t.Fatalf("status %d: %s", status, body)
	}
	for _, path := range []string{"/metrics", "/metrics/"} {
		want := []string{
			`sglang:num_requests_total{cluster="a",engine_type="unified",is_streaming="False",model_name="tiny",shift="",team=""} 1`,
			`sglang:generation_tokens_total{cluster="a",engine_type="unified",is_streaming="False",model_name="tiny",shift="",team=""} 5`,
			`sglang:max_total_num_tokens{cluster="a",engine_type="unified",model_name="tiny",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 4096`,
			`sglang:num_queue_reqs{cluster="a",engine_type="unified",model_name="tiny",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 0`,
			`sglang:http_requests_total{cluster="a",endpoint="/v1/completions",method="POST"} 1`,
			`go_goroutines `,
		}
		r.wait("every family is there on "+path, func() bool {
			answer, err := http.Get(r.url + path)
			if err != nil {
				return false
			}
			defer answer.Body.Close()
			var text strings.Builder
			if _, err := io.Copy(&text, answer.Body); err != nil || answer.StatusCode != http.StatusOK {
				return false
			}
			for _, line := range want {
				if !strings.Contains(text.String(), line) {
					return false
				}
			}
			return true
		})
	}
}
