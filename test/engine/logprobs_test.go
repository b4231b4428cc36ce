package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/sluice-dev/sluice/test/harness"
)

// scored is an answer of /generate with logprobs; a row is [logprob, token, text].
type scored struct {
	Text      string  `json:"text"`
	OutputIDs []int32 `json:"output_ids"`
	MetaInfo  struct {
		Input       [][]any   `json:"input_token_logprobs"`
		Output      [][]any   `json:"output_token_logprobs"`
		OutputTop   [][][]any `json:"output_top_logprobs"`
		InputTop    [][][]any `json:"input_top_logprobs"`
		OutputAsked [][][]any `json:"output_token_ids_logprobs"`
	} `json:"meta_info"`
}

func (r *replica) score(body string) scored {
	r.t.Helper()
	status, text := r.post("/generate", body)
	if status != http.StatusOK {
		r.t.Fatalf("status %d: %s", status, text)
	}
	return decode[scored](r.t, text)
}

// TestLogprobs: they are those of a distribution, say the same of the same tokens on every route, whole or streamed, as
// answer or as prompt, and change no token.
func TestLogprobs(t *testing.T) {
	r := start(t)
	const prompt, length = "the old mill by the river", 16
	plain := r.score(fmt.Sprintf(`{"text":%q,"sampling_params":{"temperature":0,"max_new_tokens":%d,"ignore_eos":true}}`, prompt, length))
	with := r.score(fmt.Sprintf(`{"text":%q,"sampling_params":{"temperature":0,"max_new_tokens":%d,"ignore_eos":true},"return_logprob":true,"logprob_start_len":0,
		"top_logprobs_num":4,"token_ids_logprob":[5,6],"return_text_in_logprobs":true}`, prompt, length))
	if diff := cmp.Diff(plain.OutputIDs, with.OutputIDs); diff != "" || len(with.MetaInfo.Output) != length {
		t.Fatalf("%d logprobs, (-plain +with)\n%s", len(with.MetaInfo.Output), diff)
	}
	for i, row := range with.MetaInfo.Output {
		top := with.MetaInfo.OutputTop[i]
		if row[1] != float64(with.OutputIDs[i]) || !cmp.Equal(top[0], row) {
			t.Errorf("position %d: %v, greedy, but the likeliest is %v", i, row, top[0])
		}
		sum, before := 0.0, 0.0
		for k, one := range top {
			value := one[0].(float64)
			if value > 0 || k > 0 && value > before {
				t.Errorf("position %d: the likeliest are out of order: %v", i, top)
			}
			sum, before = sum+math.Exp(value), value
		}
		if sum > 1.0001 || len(top) != 4 || len(with.MetaInfo.OutputAsked[i]) != 2 || with.MetaInfo.OutputAsked[i][0][1] != 5.0 {
			t.Errorf("position %d: %d likeliest of sum %v, asked %v", i, len(top), sum, with.MetaInfo.OutputAsked[i])
		}
	}

	// The answer as a prompt: the same tokens after the same tokens.
	var ids []int32
	for _, row := range with.MetaInfo.Input {
		ids = append(ids, int32(row[1].(float64)))
	}
	promptTokens := len(ids)
	ids = append(ids, with.OutputIDs...)
	list, err := json.Marshal(ids)
	if err != nil {
		t.Fatal(err)
	}
	for _, start := range []int{0, promptTokens - 1} {
		again := r.score(fmt.Sprintf(`{"input_ids":%s,"sampling_params":{"temperature":0,"max_new_tokens":1},"return_logprob":true,"logprob_start_len":%d,"top_logprobs_num":1,"return_text_in_logprobs":true}`, list, start))
		if len(again.MetaInfo.Input) != len(ids)-start || again.MetaInfo.Input[0][0] != nil || again.MetaInfo.InputTop[0] != nil {
			t.Fatalf("from %d there are %d rows, the first %v", start, len(again.MetaInfo.Input), again.MetaInfo.Input[0])
		}
		for i, row := range with.MetaInfo.Output {
			as := again.MetaInfo.Input[promptTokens-start+i]
			if row[1] != as[1] || row[2] != as[2] || math.Abs(row[0].(float64)-as[0].(float64)) > 1e-4 {
				t.Errorf("from %d: token %d is %v as an answer and %v as a prompt", start, i, row, as)
			}
		}
	}
	r.idle()
}

// TestCompletionLogprobs: tokens, offsets and logprobs of /v1/completions fit its text, also behind an echo and in a stream.
func TestCompletionLogprobs(t *testing.T) {
	r := start(t)
	type form struct {
		Choices []struct {
			Text     string `json:"text"`
			Logprobs *struct {
				TextOffset    []int                `json:"text_offset"`
				Tokens        []string             `json:"tokens"`
				TokenLogprobs []*float64           `json:"token_logprobs"`
				TopLogprobs   []map[string]float64 `json:"top_logprobs"`
			} `json:"logprobs"`
		} `json:"choices"`
	}
	for _, echo := range []bool{false, true} {
		body := fmt.Sprintf(`{"prompt":"the old mill für Brot 水","max_tokens":20,"seed":3,"ignore_eos":true,"logprobs":2,"echo":%t`, echo)
		status, text := r.post("/v1/completions", body+"}")
		if status != http.StatusOK {
			t.Fatalf("status %d: %s", status, text)
		}
		whole := decode[form](t, text).Choices[0]
		runes := []rune(whole.Text)
		for i, token := range whole.Logprobs.Tokens {
			at := whole.Logprobs.TextOffset[i]
			if !strings.HasPrefix(token, "bytes:") && !strings.HasPrefix(token, "<|") && !strings.HasPrefix(string(runes[min(at, len(runes)):]), token) {
				t.Errorf("echo %t: token %d, %q, is not at %d of %q", echo, i, token, at, whole.Text)
			}
			if value := whole.Logprobs.TokenLogprobs[i]; value != nil && whole.Logprobs.TopLogprobs[i][token] != *value {
				t.Errorf("echo %t: token %d, %q, has logprob %v, among the likeliest %v", echo, i, token, *value, whole.Logprobs.TopLogprobs[i])
			}
		}
		if first := whole.Logprobs.TokenLogprobs[0]; (first == nil) != echo || strings.HasPrefix(whole.Text, "the old mill für Brot 水") != echo {
			t.Errorf("echo %t: the first logprob is %v, the text %q", echo, first, whole.Text)
		}
		_, streamed := r.post("/v1/completions", body+`,"stream":true}`)
		joined := whole
		joined.Text, joined.Logprobs = "", nil
		for _, data := range events(streamed) {
			if data == "[DONE]" {
				continue
			}
			piece := decode[form](t, data).Choices[0]
			joined.Text += piece.Text
			if joined.Logprobs == nil {
				joined.Logprobs = piece.Logprobs
				continue
			}
			l := joined.Logprobs
			l.Tokens, l.TextOffset = append(l.Tokens, piece.Logprobs.Tokens...), append(l.TextOffset, piece.Logprobs.TextOffset...)
			l.TokenLogprobs, l.TopLogprobs = append(l.TokenLogprobs, piece.Logprobs.TokenLogprobs...), append(l.TopLogprobs, piece.Logprobs.TopLogprobs...)
		}
		if diff := cmp.Diff(whole, joined); diff != "" {
			t.Errorf("echo %t: (-whole +streamed)\n%s", echo, diff)
		}
	}
}

// TestOpenAILogprobs: OpenAI's own client reads them, and the tokens' bytes are the message.
func TestOpenAILogprobs(t *testing.T) {
	r := start(t)
	client := openai.NewClient(option.WithBaseURL(r.url+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0))
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	chat := openai.ChatCompletionNewParams{
		Model: "tiny", MaxCompletionTokens: openai.Int(24), Seed: openai.Int(3), Logprobs: openai.Bool(true), TopLogprobs: openai.Int(3),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Was macht eine Mühle?")},
	}
	whole, err := client.Chat.Completions.New(ctx, chat)
	if err != nil {
		t.Fatal(err)
	}
	var bytes []byte
	for _, token := range whole.Choices[0].Logprobs.Content {
		for _, b := range token.Bytes {
			bytes = append(bytes, byte(b))
		}
		if len(token.TopLogprobs) != 3 || token.Logprob > 0 {
			t.Errorf("token %+v", token)
		}
	}
	if text, message := strings.ToValidUTF8(string(bytes), ""), strings.ReplaceAll(whole.Choices[0].Message.Content, "\uFFFD", ""); text != message {
		t.Errorf("the tokens are %q, the message %q", text, message)
	}
	stream := client.Chat.Completions.NewStreaming(ctx, chat)
	var streamed []openai.ChatCompletionTokenLogprob
	for stream.Next() {
		for _, choice := range stream.Current().Choices {
			streamed = append(streamed, choice.Logprobs.Content...)
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	plain := func(list []openai.ChatCompletionTokenLogprob) (rows []string) {
		for _, l := range list {
			rows = append(rows, fmt.Sprint(l.Token, l.Bytes, l.Logprob, len(l.TopLogprobs)))
		}
		return rows
	}
	if diff := cmp.Diff(plain(whole.Choices[0].Logprobs.Content), plain(streamed)); diff != "" {
		t.Errorf("(-whole +streamed)\n%s", diff)
	}
}
