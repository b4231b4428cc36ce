package server

import (
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestExpositionOfAReplica: what a real replica tells of the API process after one answer, one refusal and one request with a
// grammar.
func TestExpositionOfAReplica(t *testing.T) {
	r := serve(t, func(c *Config) {
		c.Rank.Priority.Enabled, c.AllowedCustomLabels, c.ExtraMetricLabels = true, []string{"team"}, map[string]string{"zone": "b"}
	})
	for _, q := range []struct {
		body string
		want int
	}{
		{`{"input_ids":[1,2,3],"priority":5,"custom_labels":{"team":"red"},"routing_key":"k","sampling_params":{"max_new_tokens":4,"ignore_eos":true}}`, http.StatusOK},
		{`{"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":40,"regex":"a"}}`, http.StatusOK},
		{`{"input_ids":"x"}`, http.StatusBadRequest},
	} {
		if status, body := r.ask(t, http.MethodPost, "/generate", q.body); status != q.want {
			t.Fatalf("status %d: %s", status, body)
		}
	}
	_, _ = r.ask(t, http.MethodGet, "/v1/loads", "")
	_, text := r.ask(t, http.MethodGet, "/metrics", "")
	own := `engine_type="unified",model_name="tiny"`
	for _, line := range []string{
		`sluice_requests_submitted_total{` + own + `,priority="",team="",zone="b"} 3`,
		`sluice_requests_in_flight{` + own + `,priority="",team="",zone="b"} 0`,
		`sluice_request_outcomes_total{` + own + `,outcome="length",priority="",team="",zone="b"} 1`,
		`sluice_request_outcomes_total{` + own + `,outcome="stop",priority="",team="",zone="b"} 1`,
		`sluice_request_outcomes_total{` + own + `,outcome="invalid",priority="",team="",zone="b"} 1`,
		`sluice_ledger_violations_total{law="outcomes"} 0`,
		`sluice_ledger_violations_total{law="stages"} 0`,
		`sglang:num_requests_total{engine_type="unified",is_streaming="False",model_name="tiny",priority="5",team="red",zone="b"} 1`,
		`sglang:num_so_requests_total{` + own + `,priority="",team="",zone="b"} 1`,
		`sglang:num_so_requests_total{` + own + `,priority="5",team="red",zone="b"} 0`,
		`sglang:time_to_first_token_seconds_count{engine_type="unified",is_streaming="False",model_name="tiny",priority="5",team="red",zone="b"} 1`,
		`sglang:routing_keys_active 0`,
		`sglang:func_latency_seconds_count{name="generate_request"} 3`,
		`sglang:func_latency_seconds_count{name="tokenize_request"} 2`,
		`sglang:func_latency_seconds_count{name="dispatch_request"} 2`,
		`sglang:func_latency_seconds_count{name="get_loads"} 1`,
		`sglang:http_requests_total{endpoint="/generate",method="POST",zone="b"} 3`,
		`sglang:http_responses_total{endpoint="/generate",method="POST",status_code="400",zone="b"} 1`,
		`sglang:http_requests_active{endpoint="/metrics",method="GET",zone="b"} 1`,
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	if strings.Contains(text, "None") {
		t.Error("a word stands for no value")
	}
	for _, f := range []struct {
		series string
		want   []string
	}{
		{`sglang:startup_time_seconds{.*phase="(\w+)".*} [0-9.e-]+`, []string{"kv_cache_allocation", "load_weight", "scheduler_e2e", "tokenizer_e2e"}},
		{`sglang:startup_latency_breakdown_seconds_max{context="(\w+)"} [0-9.e-]+`, []string{"attach", "kv_cache_allocation", "load_tokenizer", "load_weight", "scheduler_e2e", "start_ranks"}},
	} {
		var got []string
		for _, m := range regexp.MustCompile(f.series+"\n").FindAllStringSubmatch(text, -1) {
			got = append(got, m[1])
		}
		if slices.Sort(got); !slices.Equal(f.want, got) {
			t.Errorf("%s has %q, want %q", f.series, got, f.want)
		}
	}
}

// TestQueueTimeOfARetractedRequest: meta_info has all waits of a request, the histogram the first alone, and no wait is lost
// or negative.
func TestQueueTimeOfARetractedRequest(t *testing.T) {
	r := serve(t, func(c *Config) { c.Rank.TestRetractSteps, c.Rank.AssertTimes = 3, true })
	_, body := r.ask(t, http.MethodPost, "/generate", `{"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":12,"ignore_eos":true}}`)
	meta := lastMeta(t, body)
	if retractions, _ := meta["num_retractions"].(float64); retractions < 1 {
		t.Fatalf("the request was not retracted: %s", body)
	}
	_, text := r.ask(t, http.MethodGet, "/metrics", "")
	value := func(series string) float64 {
		t.Helper()
		m := regexp.MustCompile(`(?m)^` + series + `\{[^\n]*\} (\S+)$`).FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("no series %s", series)
		}
		v, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	first, all := value("sglang:queue_time_seconds_sum"), meta["queue_time"].(float64)
	if count := value("sglang:queue_time_seconds_count"); count != 1 || first < 0 || all <= first || all > meta["e2e_latency"].(float64) {
		t.Errorf("%v samples of the first wait, which took %v s; all waits took %v s of %v s", count, first, all, meta["e2e_latency"])
	}
	const slack = 1e-3 // two clocks, each with its own offset of the wall
	entry, prefilled := meta["forward_entry_time"].(float64), meta["prefill_finished_time"].(float64)
	if received, finished := meta["request_received_ts"].(float64), meta["request_finished_ts"].(float64); !(received <= entry+slack && entry <= prefilled && prefilled <= finished+slack) {
		t.Errorf("received %f, forward %f, prefill finished %f, finished %f: the first forward pass counts, and times are in order", received, entry, prefilled, finished)
	}
}
