package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/grammar"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/request"
)

// refusal is the part of an error that differs between errors.
type refused struct {
	Status      int
	Param, Code string
	Message     string
}

// readRefusal checks the form of an error body, which says everything twice, and gives what it says.
func readRefusal(t *testing.T, status int, body []byte) refused {
	t.Helper()
	var got errorBody
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatalf("status %d: the body is no JSON: %v\n%s", status, err, body)
	}
	text := func(p *string) string {
		if p == nil {
			return ""
		}
		return *p
	}
	want := errorBody{
		Object: "error", Message: got.Message, Type: got.Type, Param: got.Param, Code: status,
		Error: errorDetail{Message: got.Message, Type: got.Type, Param: got.Param, Code: got.Error.Code},
	}
	if diff := cmp.Diff(want, got); diff != "" || got.Message == "" || got.Type == "" {
		t.Errorf("the error's form: (-want +got)\n%s\n%s", diff, body)
	}
	return refused{status, text(got.Param), text(got.Error.Code), got.Message}
}

func TestRefusals(t *testing.T) {
	const chat, text, native = "/v1/chat/completions", "/v1/completions", "/generate"
	bad := http.StatusBadRequest
	many := func(item string, n int) string { return "[" + strings.Repeat(item+",", n-1) + item + "]" }
	for _, tc := range []struct {
		name, path, body string
		want             refused
	}{
		{"no body", text, "", refused{bad, "", codeInvalidJSON, "the request body is empty: send a JSON object"}},
		{"malformed", text, "{\"prompt\":\n  \"a\",,}", refused{bad, "", codeInvalidJSON, "the request body is not valid JSON at line 2 column 7: invalid character ',' looking for beginning of object key string"}},
		{"cut off", text, `{"prompt":"a`, refused{bad, "", codeInvalidJSON, "the request body is not valid JSON at line 1 column 12: unexpected end of JSON input"}},
		{"two values", text, `{} {}`, refused{bad, "", codeInvalidJSON, "the request body is not valid JSON at line 1 column 4: invalid character '{' after top-level value"}},
		{"array", text, `[1]`, refused{bad, "", codeInvalidJSON, "the request body must be a JSON object, not an array"}},
		{"null", text, `null`, refused{bad, "", codeInvalidJSON, "the request body must be a JSON object, not null"}},
		{"too deep", text, `{"prompt":` + strings.Repeat("[", 11000/4), refused{bad, "", codeInvalidJSON, "the request body is not valid JSON at line 1 column 2760: unexpected end of JSON input"}},
		{"too large", text, `{"prompt":"` + strings.Repeat("a", 20000) + `"}`, refused{413, "", codeTooLarge, "the request body is larger than the 16384 bytes that --max-body-bytes allows"}},

		{"unknown model", text, `{"model":"gpt-9","prompt":"a"}`, refused{404, "model", codeModelNotFound, `model "gpt-9" does not exist: this engine serves "tiny"`}},
		{"model of a wrong type", text, `{"model":1,"prompt":"a"}`, refused{bad, "model", "", "model must be a string, not the number 1"}},
		{"no prompt", text, `{}`, refused{bad, "prompt", "", "prompt is missing: send the prompt"}},
		{"prompt of a wrong type", text, `{"prompt":{}}`, refused{bad, "prompt", "", "prompt must be a string, an array of strings, or token ids, not an object"}},
		{"prompt mixed", text, `{"prompt":["a",1]}`, refused{bad, "prompt[1]", "", "prompt[1] must be a string, not the number 1"}},
		{"prompt of lists mixed", text, `{"prompt":[[1],2]}`, refused{bad, "prompt[1]", "", "prompt[1] must be an array of token ids, not the number 2"}},
		{"empty list", text, `{"prompt":[]}`, refused{bad, "prompt", "", "prompt must not be an empty array"}},
		{"empty inner list", text, `{"prompt":[[]]}`, refused{bad, "prompt[0]", "", "prompt[0] must have at least one token"}},
		{"negative token", text, `{"prompt":[1,-2]}`, refused{bad, "prompt[1]", "", "prompt[1] must be a token id, not -2"}},
		{"token beyond the vocabulary", text, `{"prompt":[320]}`, refused{bad, "prompt[0]", "", "prompt[0] is token 320, but the model's tokens end at 319"}},
		{"token of a wrong type", text, `{"prompt":[1,"a"]}`, refused{bad, "prompt[1]", "", "prompt[1] must be an integer, not a string"}},
		{"prompt longer than the pool", text, `{"prompt":` + many("1", 96) + `}`, refused{bad, "prompt", codeContextLength, "prompt has 96 tokens, but at most 95 fit: the context is 128 tokens and the KV pool 96, and one token must be left for the answer"}},

		{"negative max_tokens", text, `{"prompt":"a","max_tokens":-1}`, refused{bad, "max_tokens", "", "max_tokens must be at least 1, not -1"}},
		{"huge max_tokens", text, `{"prompt":[1],"max_tokens":1000000000}`, refused{bad, "max_tokens", codeContextLength, "max_tokens is 1000000000 and the prompt has 1 tokens, but the context is 128: send at most 127"}},
		{"max_tokens beyond 64 bits", text, `{"prompt":[1],"max_tokens":1e30}`, refused{bad, "max_tokens", "", "max_tokens must be an integer of 64 bits, not the number 1e30"}},
		{"max_tokens a fraction", text, `{"prompt":[1],"max_tokens":1.5}`, refused{bad, "max_tokens", "", "max_tokens must be an integer of 64 bits, not the number 1.5"}},
		{"max_tokens a string", text, `{"prompt":[1],"max_tokens":"5"}`, refused{bad, "max_tokens", "", "max_tokens must be an integer of 64 bits, not a string"}},
		{"min_tokens above max_tokens", text, `{"prompt":[1],"max_tokens":2,"min_tokens":3}`, refused{bad, "min_tokens", "", "min_tokens must be at most the maximum of new tokens (2), not 3"}},
		{"temperature", text, `{"prompt":[1],"temperature":-0.1}`, refused{bad, "temperature", "", "temperature must be from 0 to 100, not -0.1"}},
		{"temperature a string", text, `{"prompt":[1],"temperature":"hot"}`, refused{bad, "temperature", "", "temperature must be a number, not a string"}},
		{"top_p zero", text, `{"prompt":[1],"top_p":0}`, refused{bad, "top_p", "", "top_p must be greater than 0 and at most 1, not 0"}},
		{"top_p too large", text, `{"prompt":[1],"top_p":1.5}`, refused{bad, "top_p", "", "top_p must be greater than 0 and at most 1, not 1.5"}},
		{"top_k", text, `{"prompt":[1],"top_k":-2}`, refused{bad, "top_k", "", "top_k must be at least -1, not -2"}},
		{"top_p negative zero", text, `{"prompt":[1],"top_p":-0.0}`, refused{bad, "top_p", "", "top_p must be greater than 0 and at most 1, not -0"}},
		{"top_p tiny", text, `{"prompt":[1],"top_p":1e-60}`, refused{200, "", "", ""}},
		{"logit_bias of a name", text, `{"prompt":[1],"logit_bias":{"a":1,"5":1}}`, refused{bad, "logit_bias", "", `logit_bias must have token ids as keys, not "a"`}},
		{"logit_bias of a padded id", text, `{"prompt":[1],"logit_bias":{"05":1}}`, refused{bad, "logit_bias", "", `logit_bias must have token ids as keys, not "05"`}},
		{"logit_bias out of range", text, `{"prompt":[1],"logit_bias":{"7":101}}`, refused{bad, "logit_bias.7", "", "logit_bias.7 must be from -100 to 100, not 101"}},
		{"logit_bias of an unknown token", text, `{"prompt":[1],"logit_bias":{"7":1,"320":1}}`, refused{bad, "logit_bias", "", "logit_bias has token 320, but the model's tokens end at 319"}},
		{"logit_bias a list", native, `{"text":"a","sampling_params":{"logit_bias":[1]}}`, refused{bad, "sampling_params.logit_bias", "", "sampling_params.logit_bias must be an object, not an array"}},
		{"logit_bias of nothing", text, `{"prompt":[1],"logit_bias":{ }}`, refused{200, "", "", ""}},
		{"tools of nothing", chat, `{"messages":[{"role":"user","content":"a"}],"tools":[ ]}`, refused{200, "", "", ""}},
		{"rank that is none", native, `{"text":"a","routed_dp_rank":1}`, refused{bad, "routed_dp_rank", "", "routed_dp_rank is 1: this engine has one data-parallel rank, send 0 or leave it out"}},
		{"rank by its old name", text, `{"prompt":"a","data_parallel_rank":"x"}`, refused{bad, "data_parallel_rank", "", "data_parallel_rank must be an integer of 64 bits, not a string"}},
		{"prefill rank that is none", native, `{"text":["a","b"],"disagg_prefill_dp_rank":[0,2]}`, refused{bad, "disagg_prefill_dp_rank", "", "disagg_prefill_dp_rank is 2: this engine has one data-parallel rank, send 0 or leave it out"}},
		{"the rank", native, `{"text":"a","routed_dp_rank":0}`, refused{200, "", "", ""}},
		{"five stops", text, `{"prompt":[1],"stop":["a","b","c","d","e"]}`, refused{bad, "stop", "", "stop must hold at most 4 strings, not 5"}},
		{"empty stop", text, `{"prompt":[1],"stop":["a",""]}`, refused{bad, "stop", "", "stop must not hold an empty string (number 1)"}},
		{"stop a number", text, `{"prompt":[1],"stop":[7]}`, refused{bad, "stop[0]", "", "stop[0] must be a string, not the number 7"}},
		{"stop token beyond the vocabulary", text, `{"prompt":[1],"stop_token_ids":[5,400]}`, refused{bad, "stop_token_ids[1]", "", "stop_token_ids[1] is token 400, but the model's tokens end at 319"}},
		{"stream a string", text, `{"prompt":[1],"stream":"yes"}`, refused{bad, "stream", "", "stream must be true or false, not a string"}},
		{"n zero", text, `{"prompt":[1],"n":0}`, refused{bad, "n", "", "n must be at least 1, not 0"}},
		{"n too large", chat, `{"messages":[{"role":"user","content":"a"}],"n":129}`, refused{bad, "n", "", "n must be at most 128, not 129"}},
		{"too many prompts", text, `{"prompt":` + many("[1]", 2049) + `}`, refused{bad, "prompt", "", "prompt must hold at most 2048 prompts, not 2049"}},
		{"too many texts", text, `{"prompt":` + many(`"a"`, 2049) + `}`, refused{bad, "prompt", "", "prompt must hold at most 2048 prompts, not 2049"}},
		{"n times prompts", text, `{"prompt":` + many("[1]", 17) + `,"n":128}`, refused{bad, "n", "", "n is 128 for 17 prompts, but a request may have 2048 sequences: send fewer prompts or a smaller n"}},
		{"n that differs", native, `{"text":["a","b"],"sampling_params":[{"n":1},{"n":2}]}`, refused{bad, "sampling_params[1].n", "", "sampling_params[1].n must be the same for all prompts, not 1 and 2"}},
		{"best_of", text, `{"prompt":[1],"best_of":3,"n":2}`, refused{bad, "best_of", codeNotSupported, "best_of is not supported: leave it out, or send what n is; choose among n answers by their logprobs"}},
		{"best_of that is n", text, `{"prompt":[1],"best_of":2,"n":2}`, refused{200, "", "", ""}},
		{"echo a string", text, `{"prompt":[1],"echo":"yes"}`, refused{bad, "echo", "", "echo must be true or false, not a string"}},
		{"suffix", text, `{"prompt":[1],"suffix":"b"}`, refused{bad, "suffix", codeNotSupported, "suffix is not supported: leave it out; the engine continues texts and does not fill gaps"}},
		{"logprobs negative", text, `{"prompt":[1],"logprobs":-1}`, refused{bad, "logprobs", "", "logprobs must be at least 0, not -1"}},
		{"logprobs too many", text, `{"prompt":[1],"logprobs":21}`, refused{bad, "logprobs", "", "logprobs must be at most 20, not 21"}},
		{"logprobs a boolean", text, `{"prompt":[1],"logprobs":true}`, refused{bad, "logprobs", "", "logprobs must be an integer of 64 bits, not a boolean"}},
		{"chat logprobs a number", chat, `{"messages":[{"role":"user","content":"a"}],"logprobs":5}`, refused{bad, "logprobs", "", "logprobs must be true or false, not the number 5"}},
		{"top_logprobs alone", chat, `{"messages":[{"role":"user","content":"a"}],"top_logprobs":2}`, refused{bad, "top_logprobs", "", "top_logprobs needs logprobs: send logprobs true, or leave both out"}},
		{"response_format unknown", chat, `{"messages":[{"role":"user","content":"a"}],"response_format":{"type":"xml"}}`, refused{bad, "response_format.type", codeNotSupported, "response_format.type is not supported: send text, json_object or json_schema, not xml"}},
		{"response_format without a schema", chat, `{"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema"}}`, refused{bad, "response_format.json_schema", "", "response_format.json_schema is missing: send an object with name and schema"}},
		{"schema without a name", chat, `{"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema","json_schema":{"schema":{}}}}`, refused{bad, "response_format.json_schema.name", "", `response_format.json_schema.name must be 1 to 64 letters, digits, underscores and dashes, not ""`}},
		{"name without a schema", chat, `{"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema","json_schema":{"name":"a"}}}`, refused{bad, "response_format.json_schema.schema", "", "response_format.json_schema.schema is missing: send the JSON schema that the answer must fit"}},
		{"schema a number", chat, `{"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":7}}}`, refused{bad, "response_format.json_schema.schema", "", "response_format.json_schema.schema must be a JSON schema, which is an object, not the number 7"}},
		{"schema that is no JSON", text, `{"prompt":[1],"json_schema":"{"}`, refused{bad, "json_schema", "", "json_schema must hold a JSON schema, but it is no JSON"}},
		{"two grammars", text, `{"prompt":[1],"json_schema":"{}","regex":"a"}`, refused{bad, "regex", "", "regex and json_schema exclude each other: send one of them"}},
		{"format and a grammar", text, `{"prompt":[1],"response_format":{"type":"json_object"},"regex":"a"}`, refused{bad, "regex", "", "regex and response_format exclude each other: send one of them"}},
		{"ebnf", native, `{"text":"a","sampling_params":{"ebnf":"root ::= a"}}`, refused{bad, "sampling_params.ebnf", codeNotSupported, "sampling_params.ebnf is not supported: write the language as json_schema or regex"}},
		{"structural_tag", text, `{"prompt":[1],"structural_tag":"{}"}`, refused{bad, "structural_tag", codeNotSupported, "structural_tag is not supported: bound the whole answer with json_schema or regex"}},
		{"frequency_penalty", text, `{"prompt":[1],"frequency_penalty":2.5}`, refused{bad, "frequency_penalty", "", "frequency_penalty must be from -2 to 2, not 2.5"}},
		{"presence_penalty", text, `{"prompt":[1],"presence_penalty":-3}`, refused{bad, "presence_penalty", "", "presence_penalty must be from -2 to 2, not -3"}},
		{"repetition_penalty", text, `{"prompt":[1],"repetition_penalty":0}`, refused{bad, "repetition_penalty", "", "repetition_penalty must be greater than 0 and at most 2, not 0"}},
		{"min_p", text, `{"prompt":[1],"min_p":1.1}`, refused{bad, "min_p", "", "min_p must be from 0 to 1, not 1.1"}},
		{"stop_regex", text, `{"prompt":[1],"stop_regex":"a+"}`, refused{bad, "stop_regex", codeNotSupported, "stop_regex is not supported: leave it out; stop takes strings, stop_token_ids tokens"}},
		{"lora_path", text, `{"prompt":[1],"lora_path":"x"}`, refused{bad, "lora_path", codeNotSupported, "lora_path is not supported: leave it out"}},
		{"hidden states", native, `{"text":"a","return_hidden_states":true}`, refused{bad, "return_hidden_states", codeNotSupported, "return_hidden_states is not supported: send false or leave it out"}},
		{"cache_salt a number", text, `{"prompt":[1],"cache_salt":1}`, refused{bad, "cache_salt", "", "cache_salt must be a string, not the number 1"}},
		{"extra keys that don't fit", text, `{"prompt":[[1],[2]],"extra_key":["a"]}`, refused{bad, "extra_key", "", "extra_key must be one value or 2, one for each prompt, not 1"}},
		{"session without an id", native, `{"text":"a","session_params":{}}`, refused{bad, "session_params.id", "", "session_params.id is missing: send the id that /open_session gave"}},
		{"session with two answers", native, `{"text":"a","session_params":{"id":"s"},"sampling_params":{"n":2}}`, refused{bad, "session_params", "", "session_params is for one sequence, not 2: a session goes one turn at a time; send n=1 and one prompt"}},
		{"session twice", text, `{"prompt":[1],"session_params":{"id":"s"},"session_id":"s"}`, refused{bad, "session_id", "", "session_id and session_params exclude each other: send session_params for a turn of an open session"}},
		{"rid of a wrong type", text, `{"prompt":[1],"rid":1}`, refused{bad, "rid", "", "rid must be a string or an array of strings, not the number 1"}},
		{"rids that don't fit", text, `{"prompt":[[1],[2],[3]],"rid":["a","b"]}`, refused{bad, "rid", "", "rid must be one string or 3, one for each prompt, not 2"}},
		{"rid twice", text, `{"prompt":[[1],[2]],"rid":["a","a"]}`, refused{bad, "rid", "", `rid "a" is in use by a running request: send another or leave it out`}},
		{"priority", text, `{"prompt":[1],"priority":"high"}`, refused{bad, "priority", "", "priority must be an integer of 64 bits, not a string"}},

		{"no messages", chat, `{"messages":[]}`, refused{bad, "messages", "", "messages must hold at least one message"}},
		{"messages a string", chat, `{"messages":"a"}`, refused{bad, "messages", "", "messages must be an array, not a string"}},
		{"more messages than tokens, none looked at", chat, `{"messages":` + many("1", 96) + `}`, refused{bad, "messages", codeContextLength, "messages holds 96 messages, but a prompt has at most 95 tokens: the context is 128 tokens and the KV pool 96"}},
		{"as many messages as tokens", chat, `{"messages":` + many("1", 95) + `}`, refused{bad, "messages[0]", "", "messages[0] must be an object, not the number 1"}},
		{"more text than tokens can be", chat, `{"messages":[{"role":"user","content":"` + strings.Repeat("z", 16_000) + `"}]}`, refused{bad, "messages", codeContextLength, "messages make a prompt of more than 95 tokens (chat template, line 1: renders too much: more than 4845 bytes): the context is 128 tokens and the KV pool 96"}},
		{"message a string", chat, `{"messages":["a"]}`, refused{bad, "messages[0]", "", "messages[0] must be an object, not a string"}},
		{"no role", chat, `{"messages":[{"content":"a"}]}`, refused{bad, "messages[0].role", "", "messages[0].role is missing: send system, user or assistant"}},
		{"unknown role", chat, `{"messages":[{"role":"usr","content":"a"}]}`, refused{bad, "messages[0].role", "", `messages[0].role is "usr": send one of system, developer, user, assistant, tool, function`}},
		{"no content", chat, `{"messages":[{"role":"user"}]}`, refused{bad, "messages[0].content", "", "messages[0].content is missing: send the text"}},
		{"content a number", chat, `{"messages":[{"role":"user","content":5}]}`, refused{bad, "messages[0].content", "", "messages[0].content must be a string or an array of text parts, not the number 5"}},
		{"image", chat, `{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, refused{bad, "messages[0].content[0].type", codeNotSupported, "messages[0].content[0].type is not supported: send text, not image_url"}},
		{"tools", chat, `{"messages":[{"role":"user","content":"a"}],"tools":[{}]}`, refused{bad, "tools", codeNotSupported, "tools is not supported: leave it out; the engine does not read calls from answers"}},
		{"tool_choice", chat, `{"messages":[{"role":"user","content":"a"}],"tool_choice":"required"}`, refused{bad, "tool_choice", codeNotSupported, "tool_choice is not supported: send none or leave it out; the engine does not read calls from answers"}},
		{"tool_choice of none", chat, `{"messages":[{"role":"user","content":"a"}],"tool_choice":"none"}`, refused{200, "", "", ""}},
		{"long chat", chat, `{"messages":[{"role":"user","content":"` + strings.Repeat("z ", 500) + `"}]}`, refused{bad, "messages", codeContextLength, "messages has 1017 tokens, but at most 95 fit: the context is 128 tokens and the KV pool 96, and one token must be left for the answer"}},

		{"neither text nor ids", native, `{}`, refused{bad, "text", "", "text is missing: send the prompt"}},
		{"text and ids", native, `{"text":"a","input_ids":[1]}`, refused{bad, "input_ids", "", "input_ids and text exclude each other: send one of them"}},
		{"ids as text", native, `{"text":[1]}`, refused{bad, "text", "", "text must be a string or an array of strings; send token ids as input_ids"}},
		{"sampling_params a list", native, `{"text":"a","sampling_params":[{},{}]}`, refused{bad, "sampling_params", "", "sampling_params must be one object or 1, one for each prompt, not 2"}},
		{"field inside sampling_params", native, `{"text":"a","sampling_params":{"max_new_tokens":-3}}`, refused{bad, "sampling_params.max_new_tokens", "", "sampling_params.max_new_tokens must be at least 1, not -3"}},
		{"regex a number", native, `{"text":"a","sampling_params":{"regex":1}}`, refused{bad, "sampling_params.regex", "", "sampling_params.regex must be a string, not the number 1"}},
		{"logprob_start_len too large", native, `{"input_ids":[1,2],"return_logprob":true,"logprob_start_len":3}`, refused{bad, "logprob_start_len", "", "logprob_start_len is 3, but the prompt has 2 tokens: send at most that, or -1 for none of the prompt"}},
		{"asked token that is none", native, `{"input_ids":[1],"return_logprob":true,"token_ids_logprob":[5,320]}`, refused{bad, "token_ids_logprob[1]", "", "token_ids_logprob[1] is token 320, but the model's tokens end at 319"}},
		{"asked tokens that don't fit", native, `{"input_ids":[[1],[2]],"return_logprob":true,"token_ids_logprob":[[5]]}`, refused{bad, "token_ids_logprob", "", "token_ids_logprob must be one list or 2, one for each prompt, not 1"}},
		{"return_logprob of a wrong type", native, `{"text":["a","b"],"return_logprob":[true,1]}`, refused{bad, "return_logprob[1]", "", "return_logprob[1] must be true or false, not the number 1"}},
		{"flat logprobs", native, `{"text":"a","return_logprob":true,"return_flat_raw_top_logprobs":true}`, refused{bad, "return_flat_raw_top_logprobs", codeNotSupported, "return_flat_raw_top_logprobs is not supported: send false or leave it out, and read input_top_logprobs"}},

		{"detokenize text", "/v1/detokenize", `{"tokens":"a"}`, refused{bad, "tokens", "", "tokens must hold token ids, not strings"}},
		{"detokenize an unknown token", "/v1/detokenize", `{"tokens":[320]}`, refused{bad, "tokens", "", "tokens must hold tokens of the model, which end at 319, but list 0 has 320"}},
		{"abort without rid", "/abort_request", `{}`, refused{bad, "rid", "", "rid is missing: send the request's rid or a prefix of it, or abort_all true"}},
		{"unknown route", "/v1/nothing", `{}`, refused{404, "", codeNotFound, "there is no route /v1/nothing"}},
		{"route with a double slash", "//v1/completions", `{}`, refused{404, "", codeNotFound, "there is no route //v1/completions"}},
		{"wrong method", "/v1/models", `{}`, refused{405, "", codeMethod, "/v1/models does not take POST: use GET or HEAD"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, nil)
			r := b.call(http.MethodPost, tc.path, tc.body)
			if tc.want.Status == http.StatusOK {
				if r.Code != http.StatusOK {
					t.Errorf("status %d: %s", r.Code, r.Body)
				}
			} else if diff := cmp.Diff(tc.want, readRefusal(t, r.Code, r.Body.Bytes())); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if good := b.call(http.MethodPost, text, `{"prompt":"a"}`); good.Code != http.StatusOK {
				t.Errorf("a good request after it: status %d: %s", good.Code, good.Body)
			}
		})
	}
}

// TestLongGrammars: a source that no compiler takes does not go to the ranks, once for each answer.
func TestLongGrammars(t *testing.T) {
	long := strings.Repeat("a", grammar.DefaultSourceBytes)
	for name, tc := range map[string]struct{ path, body, param, what string }{
		"regex":           {"/v1/completions", `{"prompt":"a","regex":"` + long + `b"}`, "regex", "regex takes 262145 bytes"},
		"native schema":   {"/generate", `{"text":"a","sampling_params":{"json_schema":"{\"title\":\"` + long + `\"}"}}`, "sampling_params.json_schema", "sampling_params.json_schema takes 262156 bytes"},
		"response format": {"/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"title":"` + long + `"}}}}`, "response_format", "response_format takes 262156 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(c *Config, _ *scriptedRank) { c.MaxBodyBytes = 1 << 20 })
			r := b.call(http.MethodPost, tc.path, tc.body)
			want := refused{http.StatusBadRequest, tc.param, codeGrammar, tc.what + ", more than 262144: make it simpler"}
			if diff := cmp.Diff(want, readRefusal(t, r.Code, r.Body.Bytes())); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	b := newBench(t, func(c *Config, _ *scriptedRank) { c.MaxBodyBytes = 1 << 20 })
	if r := b.call(http.MethodPost, "/v1/completions", `{"prompt":"a","regex":"`+long+`"}`); r.Code != http.StatusOK {
		t.Errorf("the longest source: status %d: %s", r.Code, r.Body)
	}
}

func TestQueries(t *testing.T) {
	for _, tc := range []struct {
		name, path string
		want       refused
	}{
		{"section", "/v1/loads?include=core,nope", refused{400, "include", "", `include has no section "nope": choose from core, memory, spec, lora, disagg, queues, all`}},
		{"format", "/v1/loads?format=xml", refused{400, "format", "", `format must be json or prometheus, not "xml"`}},
		{"dp_rank", "/v1/loads?dp_rank=a", refused{400, "dp_rank", "", `dp_rank must be an integer, not "a"`}},
		{"model", "/v1/models/org/other", refused{404, "model", codeModelNotFound, `model "org/other" does not exist: this engine serves "tiny"`}},
		{"flush time", "/flush_cache?timeout=-1", refused{400, "timeout", "", `timeout must be seconds from 0 to 3600, not "-1"`}},
		{"busy flush", "/flush_cache", refused{400, "", codeNotFlushed, "the cache is not flushed: 2 requests run"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, func(_ *Config, r *scriptedRank) { r.flush = errors.New("2 requests run") })
			r := b.call(http.MethodGet, tc.path, "")
			if diff := cmp.Diff(tc.want, readRefusal(t, r.Code, r.Body.Bytes())); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestPairing: an engine of a pair says what it needs.
func TestPairing(t *testing.T) {
	for _, tc := range []struct {
		name string
		mode rank.Mode
		body string
		want refused
	}{
		{"prefill without a room", rank.ModePrefill, `{"prompt":[1]}`, refused{400, "bootstrap_room", "", "bootstrap_room is missing: a prefill engine serves only requests that a router has paired; send it to the router"}},
		{"decode without a room", rank.ModeDecode, `{"prompt":[1]}`, refused{400, "bootstrap_room", "", "bootstrap_room is missing: a decode engine serves only requests that a router has paired; send it to the router"}},
		{"decode without a host", rank.ModeDecode, `{"prompt":[1],"bootstrap_room":1}`, refused{400, "bootstrap_host", "", "bootstrap_host is missing: name the host of the prefill engine's bootstrap server"}},
		{"negative room", rank.ModePrefill, `{"prompt":[1],"bootstrap_room":-1}`, refused{400, "bootstrap_room", "", "bootstrap_room must be from 0 to 9223372036854775807, not -1"}},
		{"room beyond 64 bits", rank.ModePrefill, `{"prompt":[1],"bootstrap_room":9223372036854775808}`, refused{400, "bootstrap_room", "", "bootstrap_room must be an integer of 64 bits, not the number 9223372036854775808"}},
		{"port", rank.ModeDecode, `{"prompt":[1],"bootstrap_room":1,"bootstrap_host":"h","bootstrap_port":70000}`, refused{400, "bootstrap_port", "", "bootstrap_port must be from 1 to 65535, not 70000"}},
		{"no host", rank.ModeDecode, `{"prompt":[1],"bootstrap_room":1,"bootstrap_host":""}`, refused{400, "bootstrap_host", "", `bootstrap_host must be a host name or an address, not ""`}},
		{"host with more", rank.ModeDecode, `{"prompt":[1],"bootstrap_room":1,"bootstrap_host":"h:80/x?"}`, refused{400, "bootstrap_host", "", `bootstrap_host must be a host name or an address, not "h:80/x?"`}},
		{"rooms that don't fit", rank.ModePrefill, `{"prompt":[[1],[2],[3]],"bootstrap_room":[1,2]}`, refused{400, "bootstrap_room", "", "bootstrap_room must be one value or 3, one for each prompt, not 2"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, func(c *Config, _ *scriptedRank) { c.Rank.Disagg.Mode = tc.mode })
			r := b.call(http.MethodPost, "/v1/completions", tc.body)
			if diff := cmp.Diff(tc.want, readRefusal(t, r.Code, r.Body.Bytes())); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestDataRankHeader: the header wins over the body.
func TestDataRankHeader(t *testing.T) {
	for _, tc := range []struct {
		name, value, body string
		want              refused
	}{
		{"the rank", "0", `{"prompt":[1],"routed_dp_rank":3}`, refused{200, "", "", ""}},
		{"another", "3", `{"prompt":[1],"routed_dp_rank":0}`, refused{400, dataRankHeader, "", "X-Data-Parallel-Rank is 3: this engine has one data-parallel rank, send 0 or leave it out"}},
		{"no integer", "x", `{"prompt":[1]}`, refused{400, dataRankHeader, "", `X-Data-Parallel-Rank must be an integer, not "x": send the rank's number or leave it out`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newBench(t, nil).call(http.MethodPost, "/v1/completions", tc.body, dataRankHeader, tc.value)
			if tc.want.Status == http.StatusOK {
				if r.Code != http.StatusOK {
					t.Errorf("status %d: %s", r.Code, r.Body)
				}
				return
			}
			if diff := cmp.Diff(tc.want, readRefusal(t, r.Code, r.Body.Bytes())); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestIsHost(t *testing.T) {
	for host, want := range map[string]bool{
		"10.0.0.7": true, "::1": true, "fd00::7": true, "localhost": true, "chat-prefill-0.chat.team-a.svc.cluster.local": true, "h.": true, "a_b": true,
		"": false, ".": false, "a..b": false, "a b": false, "a:80": false, "[::1]": false, "a/b": false, "u@h": false, "a?b": false, "h\n": false, "-h": false,
		strings.Repeat("a.", 130): false, strings.Repeat("a", 64): false,
	} {
		if got := isHost(host); got != want {
			t.Errorf("%q is a host: %t, want %t", host, got, want)
		}
	}
}

func TestKeys(t *testing.T) {
	for _, tc := range []struct {
		name, reason   string
		api, admin     string
		path, key      string
		wantAuthorized bool
	}{
		{"open", "no key is set", "", "", "/v1/models", "", true},
		{"missing", "the user's key guards the routes", "k", "", "/v1/models", "", false},
		{"wrong", "another key", "k", "", "/v1/models", "Bearer kk", false},
		{"right", "the key", "k", "", "/v1/models", "Bearer k", true},
		{"scheme", "not a bearer token", "k", "", "/v1/models", "Basic k", false},
		{"health", "probes have no key", "k", "a", "/health", "", true},
		{"metrics", "scrapers have no key", "k", "a", "/metrics/", "", true},
		{"control by the user", "with an admin key the user's does not open control routes", "k", "a", "/flush_cache", "Bearer k", false},
		{"control by the admin", "its key does", "k", "a", "/flush_cache", "Bearer a", true},
		{"control without an admin key", "then the user's key opens them", "k", "", "/flush_cache", "Bearer k", true},
		{"control with an admin key alone", "no user key is set, control is guarded all the same", "", "a", "/flush_cache", "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, func(c *Config, _ *scriptedRank) { c.APIKey, c.AdminAPIKey = tc.api, tc.admin })
			r := b.call(http.MethodGet, tc.path, "", "Authorization", tc.key)
			if got := r.Code != http.StatusUnauthorized; got != tc.wantAuthorized {
				t.Errorf("%s: status %d", tc.reason, r.Code)
			}
		})
	}
}

// TestOutcomes: an abort has its outcome's status before the first byte, and ends a stream with an error event after it.
func TestOutcomes(t *testing.T) {
	for _, outcome := range []request.Outcome{
		request.OutcomeRefused, request.OutcomeTooLong, request.OutcomeTimeout, request.OutcomeBootstrapFailed, request.OutcomeTransferFailed,
		request.OutcomeAbortedOperator, request.OutcomeInternal,
	} {
		t.Run(string(outcome), func(t *testing.T) {
			end := request.Finish{Type: request.FinishAbort, Outcome: outcome, Message: "because"}
			b := newBench(t, nil)
			b.rank.script = b.say(end, "")
			for _, path := range []string{"/v1/completions", "/generate"} {
				for _, stream := range []bool{false, true} {
					r := b.call(http.MethodPost, path, fmt.Sprintf(`{"text":"a","prompt":"a","stream":%v}`, stream))
					want := refused{outcome.HTTPStatus(), "", string(outcome), "because"}
					if diff := cmp.Diff(want, readRefusal(t, r.Code, r.Body.Bytes())); diff != "" {
						t.Errorf("%s stream=%v: (-want +got)\n%s", path, stream, diff)
					}
				}
			}
			b.rank.script = b.say(end, "x", "y")
			r := b.call(http.MethodPost, "/v1/completions", `{"prompt":"a","stream":true,"rid":"r"}`)
			retryable := outcome.HTTPStatus() >= 500
			want := fmt.Sprintf(`{"id":"r","object":"text_completion","created":1700000000,"model":"tiny","choices":[{"index":0,"text":"x","logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}
{"error":{"message":"because","type":%q,"param":null,"code":%q,"retryable":%v}}
`, (&apiError{status: outcome.HTTPStatus()}).kind(), outcome, retryable)
			if diff := cmp.Diff(want, indent(r.Body.String())); diff != "" || r.Code != http.StatusOK {
				t.Errorf("stream: status %d (-want +got)\n%s", r.Code, diff)
			}
		})
	}
}
