package server

import (
	"net/http"
	"slices"

	"github.com/sluice-dev/sluice/engine/request"
)

// The reference is what docs/reference/http.md is made from. A test compares it with the table of routes and with the
// fields that the handlers really read.

// RouteReference describes one route.
type RouteReference struct {
	Pattern string
	Methods []string
	Key     string // who may use it: nobody needs a key, the API key, the admin key
	Does    string // one or two sentences
	Query   []FieldReference
	Body    []FieldReference
}

// FieldReference describes one field of a body or a query. Names of fields inside objects have the path before them; [] is
// any element of an array.
type FieldReference struct {
	Name, Type, Default, Meaning string
}

// ErrorReference describes one word of error.code.
type ErrorReference struct {
	Code    string
	Status  int
	Meaning string
	Outcome string // of a request that is answered with it; "": no request that is counted is
}

// Reference lists every route in the order of the table.
func Reference() []RouteReference {
	rows := (&Server{metrics: http.NotFoundHandler()}).rows()
	list := make([]RouteReference, len(rows))
	texts := routeTexts()
	for i, row := range rows {
		list[i] = texts[row.pattern]
		list[i].Pattern, list[i].Methods = row.pattern, row.methods
		list[i].Key = map[access]string{accessOpen: "none", accessUser: "`--api-key`", accessAdmin: "`--admin-api-key`, else `--api-key`"}[row.access]
	}
	return list
}

func routeTexts() map[string]RouteReference {
	return map[string]RouteReference{
		"/v1/completions": {
			Does: "Continue texts, in OpenAI's form. Choice `i*n+k` is answer k to prompt i. The answer's `id` begins the rids of all its sequences, so it aborts them all.",
			Body: slices.Concat(completionFields(), openAIFields(), samplingFields(""), openAISamplingFields(), placementFields(), bootstrapFields()),
		},
		"/v1/chat/completions": {
			Does: "Answer a conversation, in OpenAI's form.",
			Body: slices.Concat(chatFields(), openAIFields(), samplingFields(""), openAISamplingFields(), placementFields(), bootstrapFields()),
		},
		"/generate": {
			Does: "Continue texts, in SGLang's form. A stream repeats the text and the tokens so far in each event. Several prompts, or n > 1, give a list.",
			Body: slices.Concat(generateFields(), samplingFields("sampling_params."), nativeSamplingFields(), placementFields(), bootstrapFields()),
		},
		"/v1/models":         {Does: "List the model that is served."},
		"/v1/models/{model}": {Does: "Describe the model of that name; 404 `model_not_found` for others."},
		"/v1/tokenize": {Does: "Give the tokens of texts.", Body: []FieldReference{
			modelField(), {"prompt", "string or list of strings", "required", "The texts."},
			{"add_special_tokens", "boolean", "true", "Put the tokens around a sequence that the model's prompts have."},
		}},
		"/v1/detokenize": {Does: "Give the texts of tokens.", Body: []FieldReference{
			modelField(), {"tokens", "list of integers, or list of such lists", "required", "The tokens."},
			{"skip_special_tokens", "boolean", "true", "Special tokens have no text."},
		}},

		"/health":          {Does: "200 when the ranks computed a token after the check began; 503 while the engine starts or leaves, or when none came in time. `SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=false` checks without a token."},
		"/health_generate": {Does: "As `/health`, always with a token."},
		"/server_info":     {Does: "The flags as they were understood, capacities, and `internal_states` by data-parallel rank, each with `ranks`, the process of every rank. Keys are never shown."},
		"/get_server_info": {Does: "Deprecated: `/server_info`."},
		"/model_info":      {Does: "The model's path, vocabulary and context length."},
		"/get_model_info":  {Does: "Deprecated: `/model_info`."},
		"/weight_version":  {Does: "The version of the weights."},
		"/get_load":        {Does: "Deprecated: `/v1/loads`."},
		"/v1/loads": {Does: "The load at this moment, by data-parallel rank.", Query: []FieldReference{
			{"include", "names, repeated or with commas", "all", "Sections: core, memory, spec, lora, disagg, queues, all. The core fields are always there."},
			{"dp_rank", "integer", "all", "That rank alone."},
			{"format", "json or prometheus", "json", "The numbers as gauges of the text exposition."},
		}},

		"/flush_cache": {Does: "Empty the prefix cache: 200 when no request lives, else 400 `not_idle`.", Query: []FieldReference{
			{"timeout", "seconds, 0 to 3600", "0", "Wait so long for the engine to become idle."},
		}},
		"/abort_request": {Does: "End requests. One that is not there is no error: it may have ended just now.", Body: []FieldReference{
			{"rid", "string", "", "The begin of the rids of what to end."},
			{"abort_all", "boolean", "false", "End all."},
		}},
		"/pause_generation": {Does: "Stop computing until `/continue_generation`; new requests queue.", Body: []FieldReference{
			{"mode", "abort, retract or in_place", "abort", "What becomes of the requests that run: they end, they give their KV back and are computed again later, or they stay as they are. With abort the answer comes when they have ended."},
		}},
		"/continue_generation": {Does: "End a pause.", Body: []FieldReference{
			{"torch_empty_cache", "boolean", "true", "Taken for the sake of clients; there is no such cache."},
		}},
		"/open_session": {Does: "Open a session: requests with its id in `session_params` go on from each other. The answer is the id, as a JSON string; 400 `refused` when it is in use.", Body: []FieldReference{
			{"session_id", "string", "a new one", "The id."},
			{"capacity_of_str_len", "integer", "0", "The most tokens of all its turns; 0: what a sequence may have."},
			{"streaming", "boolean", "false", "Keep the KV of its tokens between turns."},
			{"timeout", "seconds", "0", "Without a turn for so long it is closed; 0: the engine's own."},
		}},
		"/close_session": {Does: "Close a session: its turn ends if one runs, and what it holds is free.", Body: []FieldReference{
			{"session_id", "string", "required", "The id."},
		}},
		"/start_profile": {Does: "Record pprof profiles of the API process and of every rank, until `/stop_profile` or until `num_steps` are over; `/stop_profile` then names the files. The answer comes at once.", Body: []FieldReference{
			{"output_dir", "absolute path", "`SGLANG_TORCH_PROFILER_DIR`, else `/tmp`", "Where the files go, on the machine of each process. It is created."},
			{"profile_id", "string", "the Unix second", "Begins the files' names: `ID-PROCESS-PID.cpu.pprof` and `….heap.pprof`."},
			{"profile_prefix", "string", "", "Goes before the id."},
			{"activities", "list of CPU, MEM", "both", "Where the processors' time went; what is on the heap at the end. GPU is taken beside another and records nothing."},
			{"with_stack", "boolean", "true", "Taken; stacks are always recorded."},
			{"record_shapes", "boolean", "true", "Taken; there are no shapes."},
			{"start_step", "integer", "0", "Begin with this step of the scheduler, numbered from 1; with the next one if that is over, and 0: at once. Each DP rank counts its own steps; the API process goes by the first that gets there."},
			{"num_steps", "integer", "0", "End by itself after so many steps; 0: only by `/stop_profile`."},
			refusedField("profile_stages"), refusedField("profile_by_stage"), refusedField("merge_profiles"),
		}},
		"/stop_profile": {Does: "End the recording and name its files."},
		"/set_trace_level": {Does: "Change which spans requests that begin from now on get. No effect without `--enable-trace`, which the log says.", Query: []FieldReference{
			{"level", "integer, at least 0", "required", "0: none; 1: stages; 2: dispatches too; 3: every chunk, decode step and batch; 4: what a step costs the CPU. `SGLANG_TRACE_LEVEL` says what it begins with."},
		}},
		"/configure_logging": {Does: "Change the request log, which `--log-requests` begins with.", Body: slices.Concat(loggingFields(""), []FieldReference{
			refusedField("log_level"), refusedField("log_requests_format"), refusedField("dump_requests_folder"), refusedField("dump_requests_threshold"),
			refusedField("dump_requests_exclude_meta_keys"), refusedField("crash_dump_folder"),
		})},
		"/set_internal_state": {Does: "Change what can change while the engine serves, all or nothing; 400 names it when asked for more.", Body: slices.Concat([]FieldReference{
			{"server_args", "object", "required", "What to change."},
			{"server_args.enable_cache_report", "boolean", "as it is", "Tell clients how many prompt tokens came from the cache."},
		}, loggingFields("server_args."))},
		debugRequestsRoute: {Does: "The timelines of the requests that live and of the last that ended (`--debug-requests`): stages of the API process and of the scheduler in nanoseconds, tokens, transfers, retractions. Of those that live the scheduler is asked when this is (up to a second); `scheduler_unknown` says why it did not answer. Never a prompt or an answer. Health checks and requests with log_metrics=false are not there.", Query: []FieldReference{
			{"slowest", "integer, 1 to 10000", "", "So many, those that took longest first. Without it the newest come first, those that live before those that ended."},
			{"limit", "integer, 1 to 10000", "100", "The most that are listed."},
			{"outcome", "an outcome, or in_flight", "all", "Those alone."},
			{"room", "integer", "all", "Those alone that meet their other half in this bootstrap room."},
			{"since", "duration such as 5m, or time in RFC 3339", "all", "Those alone that came since then."},
			{"format", "json or text", "json", "As text: a waterfall of each."},
		}},
		debugRequestsRoute + "/{rid}": {Does: "The timeline of one request; 404 `request_not_kept` when it has fallen out of the ring.", Query: []FieldReference{
			{"format", "json or text", "json", "As text: a waterfall."},
		}},
		"/freeze_gc": {Does: "Collect garbage now, in every process. Go's collector has no generations to freeze."},

		"/metrics":  {Does: "All families in the text exposition, with `--enable-metrics`."},
		"/metrics/": {Does: "As `/metrics`, without a redirect."},
	}
}

func refusedField(name string) FieldReference { return FieldReference{name, "", "", "Refused."} }

func modelField() FieldReference {
	return FieldReference{"model", "string", "the served model", "404 `model_not_found` for another name."}
}

func loggingFields(path string) []FieldReference {
	return []FieldReference{
		{path + "log_requests", "boolean", "as it is", "A line when a request comes and one when it ends."},
		{path + "log_requests_level", "integer, 0 to 3", "as it is", "What the lines hold: 0 counts, outcome and times, 1 also the sampling parameters and the rank's durations, 2 also the begin of prompt and answer, 3 all of them."},
		{path + "log_requests_sample_rate", "number, 0 to 1", "as it is", "The share of the sequences that is logged. Their rids decide, so both lines of one are there or none, on every engine."},
	}
}

func completionFields() []FieldReference {
	return []FieldReference{
		{"prompt", "string, list of strings, list of tokens, or list of such lists", "required", "One prompt, or several."},
		{"logprobs", "integer, 0 to 20", "", "Logprobs of each token and of so many of the likeliest. A token that is no whole text is named `bytes:\\x…`. `text_offset` counts runes."},
		{"echo", "boolean", "false", "Put the prompt before the text, and its logprobs before the answer's. Its first token has none."},
		refusedField("suffix"),
	}
}

func chatFields() []FieldReference {
	return []FieldReference{
		{"messages", "list of objects", "required", "The conversation. Fields beside role and content reach the chat template."},
		{"messages[].role", "string", "required", "system, developer, user, assistant, tool or function."},
		{"messages[].content", "string or list of text parts", "required", "The text."},
		{"messages[].content[].type", "text", "text", "Other kinds are refused."},
		{"messages[].content[].text", "string", "required", "The part's text."},
		{"messages[].tool_calls", "list", "", "Reaches the chat template; a message that has it needs no content."},
		{"logprobs", "boolean", "false", "Logprobs of each token, with the token's exact bytes."},
		{"top_logprobs", "integer, 0 to 20", "0", "So many of the likeliest tokens at each position; needs logprobs."},
		{"chat_template_kwargs", "object", "", "Variables of the chat template."},
		{"add_generation_prompt", "boolean", "true", "End the prompt where the answer begins."},
		refusedField("tools"), refusedField("functions"), {"tool_choice", "none or auto", "", "Others are refused, for the engine reads no calls from answers."},
		{"function_call", "none or auto", "", "As tool_choice."}, {"continue_final_message", "boolean", "false", "true is refused."},
	}
}

func openAIFields() []FieldReference {
	return []FieldReference{
		modelField(),
		{"stream", "boolean", "false", "Server-sent events, `data: [DONE]` at the end. An error after the first event is an event with `error`."},
		{"stream_options", "object", "", "When a stream tells usage."},
		{"stream_options.include_usage", "boolean", "false", "One event at the end, without choices."},
		{"stream_options.continuous_usage_stats", "boolean", "false", "Each event, of its own sequence."},
		{"return_cached_tokens_details", "boolean", "false", "Where cached prompt tokens came from, as `sglext.cached_tokens_details`."},
		refusedField("lora_path"), refusedField("return_hidden_states"), refusedField("return_routed_experts"),
	}
}

func generateFields() []FieldReference {
	return []FieldReference{
		{"text", "string or list of strings", "this or input_ids", "One prompt, or several."},
		{"input_ids", "list of tokens, or list of such lists", "this or text", "The same as tokens."},
		{"sampling_params", "object, or one for each prompt", "", "How to pick tokens."},
		{"stream", "boolean", "false", "Server-sent events, `data: [DONE]` at the end."},
		{"return_logprob", "boolean, or one for each prompt", "false", "Lists of [logprob, token, text] in meta_info: `input_token_logprobs`, `output_token_logprobs`."},
		{"logprob_start_len", "integer, or one for each prompt", "-1", "The first position of the prompt in the lists, which has no logprob itself; -1: none of the prompt. In a session it counts from the turn's own prompt."},
		{"top_logprobs_num", "integer, 0 to 256, or one for each prompt", "0", "So many of the likeliest tokens at each position: `input_top_logprobs`, `output_top_logprobs`."},
		{"token_ids_logprob", "list of tokens, or one for each prompt", "", "The logprobs of these tokens at each position: `input_token_ids_logprobs`, `output_token_ids_logprobs`."},
		{"return_text_in_logprobs", "boolean", "false", "The tokens' texts in the lists; null without."},
		{"custom_labels", "object of strings", "", "Values of labels that `--tokenizer-metrics-allowed-custom-labels` allows. The other routes read the header."},
		{"received_time", "Unix seconds", "now", "When another process received the request: its latencies count from there. At most an hour ago."},
		refusedField("return_flat_raw_top_logprobs"), refusedField("lora_path"), refusedField("input_embeds"), refusedField("image_data"), refusedField("video_data"),
		refusedField("audio_data"), refusedField("custom_logit_processor"), refusedField("return_hidden_states"), refusedField("return_routed_experts"),
	}
}

func samplingFields(path string) []FieldReference {
	return slices.Concat([]FieldReference{
		{path + "n", "integer, 1 to 128", "1", "Answers for each prompt, with the seeds seed, seed+1, …"},
		{path + "temperature", "number, 0 to 100", "1", "0 is greedy."},
		{path + "top_p", "number, above 0, at most 1", "1", "The likeliest tokens that together have so much probability."},
		{path + "top_k", "integer", "-1", "So many of the likeliest tokens; -1 or 0: all."},
		{path + "min_p", "number, 0 to 1", "0", "Without tokens less likely than min_p times the likeliest."},
		{path + "frequency_penalty", "number, -2 to 2", "0", "Subtracted from a token's logit for each time that it is in the answer."},
		{path + "presence_penalty", "number, -2 to 2", "0", "Subtracted once when it is in the answer."},
		{path + "repetition_penalty", "number, above 0, at most 2", "1", "Divides a positive logit and multiplies a negative one of a token that is in the answer."},
		{path + "logit_bias", "object of numbers by token, -100 to 100", "", "Added to the tokens' logits."},
		{path + "stop", "string or list of strings", "", "The answer ends before these; at most 4 on the OpenAI routes, 64 on /generate."},
		{path + "stop_token_ids", "list of tokens", "", "The answer ends at these, besides the model's own."},
		{path + "ignore_eos", "boolean", "false", "Go on past the model's own end tokens."},
		{path + "no_stop_trim", "boolean", "false", "Keep the stop string or token in the text."},
		{path + "skip_special_tokens", "boolean", "true", "Special tokens have no text."},
		{path + "spaces_between_special_tokens", "boolean", "true", "Taken; tokens bring their own spaces, so both values mean the same."},
		{path + "json_schema", "object, or string that holds one", "", "The answer is JSON that fits the schema. 400 `invalid_grammar` names what is not supported."},
		{path + "regex", "string", "", "The whole answer matches the expression."},
		{path + "best_of", "integer", "n", "Refused unless it is n."},
		{path + "beam_width", "integer", "1", "Refused unless it is 1."},
	}, formatFields(path), []FieldReference{
		refusedField(path + "ebnf"), refusedField(path + "structural_tag"), refusedField(path + "stop_regex"), refusedField(path + "custom_logit_processor"),
	})
}

func formatFields(path string) []FieldReference {
	return []FieldReference{
		{path + "response_format", "object", "", "What the answer is, in OpenAI's form. At most one of response_format, json_schema and regex."},
		{path + "response_format.type", "text, json_object or json_schema", "text", "json_object: any JSON object."},
		{path + "response_format.json_schema", "object", "", "Required with type json_schema."},
		{path + "response_format.json_schema.name", "string", "required", "Letters, digits, underscores and dashes, at most 64."},
		{path + "response_format.json_schema.schema", "object", "required", "The schema."},
		{path + "response_format.json_schema.description", "string", "", "Taken."},
		{path + "response_format.json_schema.strict", "boolean", "false", "Taken; the schema binds the answer either way."},
	}
}

func openAISamplingFields() []FieldReference {
	return []FieldReference{
		{"max_tokens", "integer, at least 1", "16 for completions; as many as fit for chat", "The most tokens of an answer. What fits the context but not the KV pool is cut."},
		{"max_completion_tokens", "integer, at least 1", "", "The newer name of max_tokens; it wins."},
		{"min_tokens", "integer", "0", "Nothing ends the answer before so many tokens."},
		{"seed", "integer", "a random one", "The same seed gives the same tokens, whatever else the engine does."},
	}
}

func nativeSamplingFields() []FieldReference {
	return []FieldReference{
		{"sampling_params.max_new_tokens", "integer, at least 1", "128, or what fits", "The most tokens of an answer."},
		{"sampling_params.min_new_tokens", "integer", "0", "Nothing ends the answer before so many tokens."},
		{"sampling_params.sampling_seed", "integer", "a random one", "The same seed gives the same tokens, whatever else the engine does."},
	}
}

func placementFields() []FieldReference {
	return []FieldReference{
		{"rid", "string, or one for each prompt", "a new one", "The request's id. Sequences of one request are numbered behind it: `RID_0`, `RID_1`, …"},
		{"priority", "integer of 32 bits", "", "With `--enable-priority-scheduling`."},
		{"routed_dp_rank", "integer", "the DP controller's choice", "The data-parallel rank. The header `X-Data-Parallel-Rank` wins over it."},
		{"data_parallel_rank", "integer", "", "The old name of routed_dp_rank."},
		{"disagg_prefill_dp_rank", "integer, or one for each prompt", "", "The prefill engine's data-parallel rank."},
		{"routing_key", "string", "", "The key by which a router keeps requests together. The header `X-Smg-Routing-Key` wins over it."},
		{"cache_salt", "string, or one for each prompt", "", "Prefixes are shared between requests with the same salt and extra_key alone."},
		{"extra_key", "string, or one for each prompt", "", "As cache_salt."},
		{"external_trace_header", "object", "the headers", "The trace that the request is a part of. It wins over the headers `traceparent` and `tracestate`."},
		{"external_trace_header.traceparent", "string", "", "The client's span, as W3C Trace Context has it."},
		{"external_trace_header.tracestate", "string", "", "What goes with it."},
		{"session_id", "string", "", "Names a conversation for routers; it changes no prompt."},
		{"session_params", "object", "", "Makes the request a turn of a session: its prompt follows the session's tokens. One sequence."},
		{"session_params.id", "string", "required", "What /open_session gave."},
		{"session_params.rid", "string", "the newest turn", "The turn that this one goes on from."},
		{"session_params.offset", "integer", "all", "So many of the session's tokens are kept."},
		{"session_params.replace", "boolean", "false", "Drop the turns that followed."},
		{"session_params.drop_previous_output", "boolean", "false", "Drop the answer of the turn before, and keep its prompt."},
		{"log_metrics", "boolean", "true", "false: nothing of it reaches the metrics or the request log."},
		{"no_logs", "boolean", "false", "true: nothing of it reaches the request log."},
	}
}

func bootstrapFields() []FieldReference {
	return []FieldReference{
		{"bootstrap_host", "string, or one for each prompt", "required on a decode engine", "The prefill engine's host. The router sets it."},
		{"bootstrap_port", "integer, or one for each prompt", "`--disaggregation-bootstrap-port`", "The port of its bootstrap server."},
		{"bootstrap_room", "integer, or one for each prompt", "required on prefill and decode engines", "Where the two halves meet. The sequences of a request count up from it."},
	}
}

// ErrorCodes lists the words of error.code, with the outcomes of requests that the ranks end.
func ErrorCodes() []ErrorReference {
	list := []ErrorReference{
		{Code: codeInvalidJSON, Status: http.StatusBadRequest, Meaning: "The body is no JSON object; the message has the line and the column."},
		{Code: codeNotSupported, Status: http.StatusBadRequest, Meaning: "The field exists in the API, but this engine can't honour it; the message says what to do instead."},
		{Code: codeContextLength, Status: http.StatusBadRequest, Meaning: "Prompt and answer don't fit the context or the KV pool."},
		{Code: codeGrammar, Status: http.StatusBadRequest, Meaning: "The schema or expression can't bound an answer; the message names the keyword or construct."},
		{Code: codeSession, Status: http.StatusBadRequest, Meaning: "There is no such session, or the turn does not fit it."},
		{Code: codeNotFlushed, Status: http.StatusBadRequest, Meaning: "The cache can't be flushed while requests live."},
		{Code: codeRefused, Status: http.StatusBadRequest, Meaning: "The ranks say no to a control call. On the routes of requests it is the outcome of a full queue."},
		{Code: codeInvalidKey, Status: http.StatusUnauthorized, Meaning: "The key is missing or wrong."},
		{Code: codeModelNotFound, Status: http.StatusNotFound, Meaning: "This engine serves another model."},
		{Code: codeNotFound, Status: http.StatusNotFound, Meaning: "There is no such route."},
		{Code: codeNotKept, Status: http.StatusNotFound, Meaning: "The timeline of that request is not, or no more, remembered; the message says why."},
		{Code: codeMethod, Status: http.StatusMethodNotAllowed, Meaning: "The route takes other methods; the header Allow names them."},
		{Code: codeTooLarge, Status: http.StatusRequestEntityTooLarge, Meaning: "The body is larger than `--max-body-bytes`, or the request than what a rank takes."},
		{Code: codeNotReady, Status: http.StatusServiceUnavailable, Meaning: "The engine starts or shuts down."},
		{Code: codeEngineFailed, Status: http.StatusBadGateway, Meaning: "A rank died or could not be reached; 503 where only its state was asked for."},
		{Code: codeInternal, Status: http.StatusInternalServerError, Meaning: "A fault of the engine; its log says why."},
	}
	uncounted := []string{codeNotFlushed, codeRefused, codeInvalidKey, codeNotFound, codeNotKept, codeMethod}
	for i, e := range list {
		if !slices.Contains(uncounted, e.Code) {
			list[i].Outcome = string((&apiError{status: e.Status, code: e.Code}).outcome())
		}
	}
	for _, o := range []struct {
		outcome request.Outcome
		meaning string
	}{
		{request.OutcomeTooLong, "The sequence can never fit."},
		{request.OutcomeInvalid, "The ranks find the request wrong."},
		{request.OutcomeAbortedClient, "The client went away; nobody reads this. Also of the other half of its request, on prefill and decode engines."},
		{request.OutcomeRefused, "The queue is full (`--max-queued-requests`), or sessions remember too much (`--max-session-tokens`). Retry-After says when to come again."},
		{request.OutcomePreempted, "A request of higher priority took its place in a full queue."},
		{request.OutcomeAbortedOperator, "/abort_request, a pause or the end of a drain ended it, here or at the other engine of a pair."},
		{request.OutcomeTimeout, "It waited or ran longer than it may, here or at the other engine of a pair."},
		{request.OutcomeBootstrapFailed, "The prefill and the decode engine did not meet."},
		{request.OutcomeTransferFailed, "The other engine died, or KV was damaged on the way."},
	} {
		list = append(list, ErrorReference{Code: string(o.outcome), Status: o.outcome.HTTPStatus(), Meaning: o.meaning, Outcome: string(o.outcome)})
	}
	return list
}
