package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/shared"

	"github.com/sluice-dev/sluice/test/harness"
)

// delivery is what the schema of the tests describes.
type delivery struct {
	Grain  string   `json:"grain"`
	Sacks  int      `json:"sacks"`
	Paid   bool     `json:"paid"`
	Stops  []string `json:"stops"`
	Remark *string  `json:"remark"`
}

const deliverySchema = `{"type":"object","additionalProperties":false,"required":["grain","sacks","paid","stops","remark"],"properties":{
	"grain":{"enum":["rye","wheat","oats"]},"sacks":{"type":"integer","minimum":1,"maximum":40},"paid":{"type":"boolean"},
	"stops":{"type":"array","items":{"type":"string","pattern":"^[a-z]{1,6}$"},"minItems":1,"maxItems":2},"remark":{"type":["string","null"],"maxLength":8}}}`

func checkDelivery(t *testing.T, text string) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	var d delivery
	if err := decoder.Decode(&d); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	grains := map[string]bool{"rye": true, "wheat": true, "oats": true}
	if !grains[d.Grain] || d.Sacks < 1 || d.Sacks > 40 || len(d.Stops) < 1 || len(d.Stops) > 2 || d.Remark != nil && len([]rune(*d.Remark)) > 8 {
		t.Errorf("the answer does not fit the schema: %s", text)
	}
	for _, stop := range d.Stops {
		if !regexp.MustCompile(`^[a-z]{1,6}$`).MatchString(stop) {
			t.Errorf("the stop %q does not fit the pattern", stop)
		}
	}
}

// TestOpenAIStructured: OpenAI's own client gets answers that fit its schema, whole and streamed, and an error that names
// what a schema has that is not supported.
func TestOpenAIStructured(t *testing.T) {
	r := start(t)
	client := openai.NewClient(option.WithBaseURL(r.url+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0))
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	chat := func(schema string, seed int64) openai.ChatCompletionNewParams {
		return openai.ChatCompletionNewParams{
			Model: "tiny", MaxCompletionTokens: openai.Int(400), Seed: openai.Int(seed), N: openai.Int(2),
			Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("What comes to the mill?")},
			ResponseFormat: openai.ChatCompletionNewParamsResponseFormatUnion{OfJSONSchema: &shared.ResponseFormatJSONSchemaParam{
				JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "delivery", Strict: openai.Bool(true), Schema: json.RawMessage(schema)},
			}},
		}
	}
	for seed := range int64(4) {
		answer, err := client.Chat.Completions.New(ctx, chat(deliverySchema, 10*seed))
		if err != nil {
			t.Fatal(err)
		}
		for _, choice := range answer.Choices {
			if choice.FinishReason != "stop" {
				t.Errorf("the answer ends with %s: %s", choice.FinishReason, choice.Message.Content)
			}
			checkDelivery(t, choice.Message.Content)
		}
		stream := client.Chat.Completions.NewStreaming(ctx, chat(deliverySchema, 10*seed))
		all := openai.ChatCompletionAccumulator{}
		for stream.Next() {
			all.AddChunk(stream.Current())
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		for _, choice := range all.Choices {
			if choice.Message.Content != answer.Choices[choice.Index].Message.Content {
				t.Errorf("answer %d: streamed %s, whole %s", choice.Index, choice.Message.Content, answer.Choices[choice.Index].Message.Content)
			}
		}
	}
	_, err := client.Chat.Completions.New(ctx, chat(`{"type":"object","unevaluatedProperties":false,"if":{"type":"object"},"then":{}}`, 1))
	var refused *openai.Error
	if !errors.As(err, &refused) || refused.StatusCode != http.StatusBadRequest || refused.Param != "response_format" || refused.Code != "invalid_grammar" {
		t.Fatalf("a schema that is not supported: %v", err)
	}
	if !strings.Contains(refused.Message, `if`) && !strings.Contains(refused.Message, "unevaluatedProperties") {
		t.Errorf("the keyword is not named: %s", refused.Message)
	}
	r.idle()
}

// TestRegex: the whole answer matches, greedy or drawn, on both kinds of routes.
func TestRegex(t *testing.T) {
	r := start(t)
	const expression = `(rye|wheat): [1-9][0-9]{0,2} (sacks|kg)`
	whole := regexp.MustCompile(`^(?:` + expression + `)$`)
	for seed := range 6 {
		status, body := r.post("/v1/completions", fmt.Sprintf(`{"prompt":"the mill","max_tokens":60,"temperature":%d,"seed":%d,"regex":%q}`, min(seed, 1), seed, expression))
		if status != http.StatusOK {
			t.Fatalf("status %d: %s", status, body)
		}
		if choice := decode[completion](t, body).Choices[0]; !whole.MatchString(choice.Text) || choice.FinishReason != "stop" {
			t.Errorf("%q ends with %s", choice.Text, choice.FinishReason)
		}
		status, body = r.post("/generate", fmt.Sprintf(`{"text":"the mill","sampling_params":{"max_new_tokens":60,"temperature":%d,"sampling_seed":%d,"regex":%q}}`, min(seed, 1), seed, expression))
		if text := decode[scored](t, body).Text; status != http.StatusOK || !whole.MatchString(text) {
			t.Errorf("status %d: %q", status, text)
		}
	}
	status, body := r.post("/v1/completions", `{"prompt":"a","regex":"(?=a)b"}`)
	if e := decode[completion](t, body).Error; status != http.StatusBadRequest || e == nil || e.Param != "regex" || e.Code != "invalid_grammar" {
		t.Errorf("an expression that is not supported: status %d: %s", status, body)
	}
	status, body = r.post("/v1/completions", `{"prompt":"a","max_tokens":400,"seed":1,"response_format":{"type":"json_object"}}`)
	if status != http.StatusOK || decode[completion](t, body).Choices[0].FinishReason == "stop" && !json.Valid([]byte(decode[completion](t, body).Choices[0].Text)) {
		t.Errorf("json_object: status %d: %s", status, body)
	}
	r.idle()
}
