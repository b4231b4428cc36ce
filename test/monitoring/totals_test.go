package monitoring

import (
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// ranked is what a unified engine says whose ranks all export: two data-parallel ranks of two tensor-parallel times two
// pipeline ranks each, with priorities. n is the number of the scrape.
func ranked(n int, model string, queued [2]int, decoded [2]int, slow bool) string {
	var b strings.Builder
	for dp := range 2 {
		for tp := range 2 {
			for pp := range 2 {
				labels := fmt.Sprintf(`model_name=%q,engine_type="unified",tp_rank="%d",pp_rank="%d",moe_ep_rank="0",dp_rank="%d"`, model, tp, pp, dp)
				fmt.Fprintf(&b, "sglang:num_queue_reqs{%s,priority=\"\"} %d\n", labels, queued[dp])
				fmt.Fprintf(&b, "sglang:num_queue_reqs{%s,priority=\"0\"} 1\nsglang:num_queue_reqs{%s,priority=\"5\"} %d\n", labels, labels, queued[dp]-1)
				for mode, tokens := range map[string]int{"decode": decoded[dp], "prefill_compute": 10, "prefill_cache": 30} {
					fmt.Fprintf(&b, "sglang:realtime_tokens_total{%s,mode=%q,priority=\"\"} %d\n", labels, mode, n*tokens)
				}
				// A fifth of the 40 prompt tokens was computed or found before.
				fmt.Fprintf(&b, "sglang:prefill_effective_tokens_total{%s,mode=\"input\",priority=\"\"} %d\n", labels, n*8)
				fmt.Fprintf(&b, "sglang:prefill_effective_tokens_total{%s,mode=\"device_hit\",priority=\"\"} %d\n", labels, n*24)
				fmt.Fprintf(&b, "sglang:scheduler_idle_seconds_total{%s,priority=\"\"} %d\n", labels, n*(1+dp))
				fmt.Fprintf(&b, "sglang:scheduler_stage_seconds_total{%s,category=\"idle\",forward_overlap=\"none\",priority=\"\"} %d\n", labels, n*(1+dp))
				fmt.Fprintf(&b, "sglang:scheduler_stage_seconds_total{%s,category=\"run_batch\",forward_overlap=\"full\",priority=\"\"} %d\n", labels, n*(4-dp))
			}
		}
	}
	for status, answers := range map[string]int{"200": 19, "503": 1} {
		fmt.Fprintf(&b, "sglang:http_responses_total{endpoint=\"/generate\",method=\"POST\",status_code=%q} %d\n", status, n*answers)
		fmt.Fprintf(&b, "sglang:http_responses_total{endpoint=\"/health\",method=\"GET\",status_code=%q} %d\n", status, n*50)
	}
	// One engine answers many requests in 1 s, the other few in 9 s.
	count, seconds := 90*n, 90*n
	if slow {
		count, seconds = 10*n, 90*n
	}
	// Of 20 first tokens, 15 came within the second.
	for le, samples := range map[string]int{"0.8": 10, "1": 15, "2": 19, "+Inf": 20} {
		fmt.Fprintf(&b, "sglang:time_to_first_token_seconds_bucket{model_name=%q,engine_type=\"unified\",is_streaming=\"True\",le=%q} %d\n", model, le, n*samples)
	}
	fmt.Fprintf(&b, "sglang:time_to_first_token_seconds_count{model_name=%q,engine_type=\"unified\",is_streaming=\"True\"} %d\n", model, n*20)
	for outcome, requests := range map[string]int{"stop": 6, "length": 2, "timeout": 1, "aborted_client": 1} {
		fmt.Fprintf(&b, "sluice_request_outcomes_total{model_name=%q,engine_type=\"unified\",outcome=%q} %d\n", model, outcome, n*requests)
	}
	fmt.Fprintf(&b, "sglang:e2e_request_latency_seconds_sum{model_name=%q,engine_type=\"unified\",is_streaming=\"True\"} %d\n", model, seconds)
	fmt.Fprintf(&b, "sglang:e2e_request_latency_seconds_count{model_name=%q,engine_type=\"unified\",is_streaming=\"True\"} %d\n", model, count)
	return b.String()
}

// TestPanelsCountOnce: copies of ranks and series of single priorities add nothing to a total, an average weighs requests and
// not engines, and a model that nobody asks for has no NaN.
func TestPanelsCountOnce(t *testing.T) {
	begin := time.Unix(1_800_000_000, 0)
	var scrapes []scrape
	for n := range 5 {
		scrapes = append(scrapes, scrape{begin.Add(time.Duration(n) * scrapeInterval), map[string]string{
			"a": ranked(n, "m", [2]int{4, 9}, [2]int{50, 100}, false), "b": ranked(n, "m", [2]int{1, 2}, [2]int{5, 5}, true),
			"idle": ranked(0, "other", [2]int{1, 1}, [2]int{0, 0}, false),
		}})
	}
	s := newStore(t, scrapes, asWritten, byAddress)
	questions, variables := readBoard(t)
	all := map[string]string{"__rate_interval": "20s"}
	for _, v := range variables {
		all[v.Name] = v.AllValue
	}
	for _, tc := range []struct {
		panel, part, reason string
		choices, want       map[string]string
	}{
		{
			"Number Queued Requests", "", "the queues of the two data-parallel ranks, each once", nil,
			map[string]string{`{instance="a"}`: "13", `{instance="b"}`: "3", `{instance="idle"}`: "2"},
		},
		{
			"Number Queued Requests", "", "one tensor-parallel rank tells as much as all", map[string]string{"tp_rank": "1"},
			map[string]string{`{instance="a"}`: "13", `{instance="b"}`: "3", `{instance="idle"}`: "2"},
		},
		{
			"Number Queued Requests", "", "one data-parallel rank and one engine", map[string]string{"dp_rank": "1", "instance": "a"},
			map[string]string{`{instance="a"}`: "9"},
		},
		{
			"Waiting by Priority", "", "priorities over engines and data-parallel ranks", map[string]string{"model_name": "m"},
			map[string]string{`{priority="0"}`: "4", `{priority="5"}`: "12"},
		},
		{
			"Token Generation Throughput", "realtime_tokens", "150 tokens in 5 s", map[string]string{"instance": "(a|b)"},
			map[string]string{`{instance="a"}`: "30", `{instance="b"}`: "2"},
		},
		{
			"Cache Hit Rate", "", "24 of the 32 tokens that were not repeated; an engine without a prompt has no share", nil,
			map[string]string{`{instance="a"}`: "0.75", `{instance="b"}`: "0.75"},
		},
		{
			"End-to-End Request Latency", "_sum", "180 s over 100 requests, not the mean of 1 s and 9 s", nil,
			map[string]string{`{engine_type="unified", model_name="m"}`: "1.8"},
		},
		{
			"Repeated Share of Prefill", "", "8 of 40 tokens", map[string]string{"instance": "a"}, map[string]string{`{instance="a"}`: "0.2"},
		},
		{
			"Hit Rate by Source", "", "24 of the 32 tokens that were not repeated", nil, map[string]string{`{mode="device_hit"}`: "0.75"},
		},
		{
			"Idle", "scheduler_idle", "1 of 5 seconds and 2 of 5 seconds", map[string]string{"instance": "a"}, map[string]string{`{instance="a"}`: "0.3"},
		},
		{
			"Scheduler Time Accounted for", "", "5 of 5 seconds of each of two ranks", map[string]string{"instance": "a"}, map[string]string{`{instance="a"}`: "2"},
		},
		{
			"Kept to the SLO", "time_to_first_token", "15 of 20", nil, map[string]string{`{engine_type="unified", model_name="m"}`: "0.75"},
		},
		{
			"Ended without an Answer", "!~", "1 of 10, and what clients did apart", nil, map[string]string{`{engine_type="unified", model_name="m"}`: "0.1"},
		},
		{
			"HTTP Server Errors", "", "1 answer of 20, probes left out", nil, map[string]string{`{}`: "0.05"},
		},
		{
			"Waiting by Rank", "", "every rank as it tells of itself", map[string]string{"instance": "b", "pp_rank": "0"},
			map[string]string{
				`{dp_rank="0", instance="b", pp_rank="0", tp_rank="0"}`: "1", `{dp_rank="0", instance="b", pp_rank="0", tp_rank="1"}`: "1",
				`{dp_rank="1", instance="b", pp_rank="0", tp_rank="0"}`: "2", `{dp_rank="1", instance="b", pp_rank="0", tp_rank="1"}`: "2",
			},
		},
	} {
		choices := maps.Clone(all)
		maps.Copy(choices, tc.choices)
		asked := false
		for _, q := range questions {
			if !strings.HasPrefix(q.panel, tc.panel) || !strings.Contains(q.expr, tc.part) || strings.Contains(q.expr, "le)") {
				continue
			}
			asked = true
			got, err := s.last(t.Context(), choose(q.expr, choices))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s (%s) (-want +got):\n%s", tc.panel, tc.reason, diff)
			}
			break
		}
		if !asked {
			t.Errorf("no panel %s asks for %s", tc.panel, tc.part)
		}
	}
}

// round4 writes a number with what rounding errors leave of it.
func round4(v float64) string { return fmt.Sprint(math.Round(v*1e4) / 1e4) }
