package engine

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"

	"github.com/sluice-dev/sluice/test/harness"
)

// TestChoices: n answers with a seed are those of n requests with the seeds after it, streamed or not, on each route.
func TestChoices(t *testing.T) {
	r := start(t)
	var singles []string
	for i := range 3 {
		status, body := r.post("/v1/completions", fmt.Sprintf(`{"prompt":"the old mill","max_tokens":12,"seed":%d}`, 7+i))
		if status != http.StatusOK {
			t.Fatalf("status %d: %s", status, body)
		}
		singles = append(singles, decode[completion](t, body).Choices[0].Text)
	}
	if singles[0] == singles[1] || singles[1] == singles[2] {
		t.Fatalf("three seeds give %q: the test can't tell them apart", singles)
	}
	const body = `{"prompt":"the old mill","max_tokens":12,"seed":7,"n":3`
	status, whole := r.post("/v1/completions", body+"}")
	if status != http.StatusOK {
		t.Fatalf("status %d: %s", status, whole)
	}
	answer := decode[completion](t, whole)
	_, streamed := r.post("/v1/completions", body+`,"stream":true}`)
	pieces := make([]string, 3)
	for _, data := range events(streamed) {
		if data == "[DONE]" {
			continue
		}
		for _, choice := range decode[completion](t, data).Choices {
			pieces[choice.Index] += choice.Text
		}
	}
	type native struct {
		Text string `json:"text"`
	}
	_, list := r.post("/generate", `{"text":"the old mill","sampling_params":{"max_new_tokens":12,"sampling_seed":7,"n":3}}`)
	for i, one := range decode[[]native](t, list) {
		if one.Text != singles[i] || answer.Choices[i].Text != singles[i] || pieces[i] != singles[i] {
			t.Errorf("answer %d: alone %q, whole %q, streamed %q, generate %q", i, singles[i], answer.Choices[i].Text, pieces[i], one.Text)
		}
	}
	if answer.Usage.CompletionTokens != 36 {
		t.Errorf("usage %+v", answer.Usage)
	}
	r.idle()
}

// TestOpenAIChoices: OpenAI's own client takes several messages, whole and streamed.
func TestOpenAIChoices(t *testing.T) {
	r := start(t)
	client := openai.NewClient(option.WithBaseURL(r.url+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0))
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	chat := openai.ChatCompletionNewParams{
		Model: "tiny", N: openai.Int(3), MaxCompletionTokens: openai.Int(10), Seed: openai.Int(3),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("What does a mill do?")},
	}
	whole, err := client.Chat.Completions.New(ctx, chat)
	if err != nil {
		t.Fatal(err)
	}
	chat.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: param.NewOpt(true)}
	stream := client.Chat.Completions.NewStreaming(ctx, chat)
	all := openai.ChatCompletionAccumulator{}
	for stream.Next() {
		if !all.AddChunk(stream.Current()) {
			t.Fatalf("the chunk does not fit: %+v", stream.Current())
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	texts := func(choices []openai.ChatCompletionChoice) map[int64]string {
		byIndex := map[int64]string{}
		for _, choice := range choices {
			byIndex[choice.Index] = choice.Message.Content
		}
		return byIndex
	}
	if diff := cmp.Diff(texts(whole.Choices), texts(all.Choices)); diff != "" || len(whole.Choices) != 3 || whole.Usage.CompletionTokens != all.Usage.CompletionTokens {
		t.Errorf("%d choices, usage %+v and %+v, (-whole +streamed)\n%s", len(whole.Choices), whole.Usage, all.Usage, diff)
	}
}
