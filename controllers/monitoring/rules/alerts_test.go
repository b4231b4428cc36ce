package rules

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// rank are labels of a scheduler's series.
const rank = `tp_rank="0",pp_rank="0",moe_ep_rank="0",model_name="m"`

// firing is what must fire, or nothing, over some load.
type firing struct {
	name, reason string
	service      *v1alpha1.InferenceService // pair() unless said otherwise
	step         time.Duration              // between values, a minute unless said otherwise
	last         time.Duration              // how long before the end rules begin to run; 0 is from the beginning
	load         string
	want         []fired
}

func alertLabels(severity string, more ...string) map[string]string {
	all := map[string]string{"severity": severity}
	for i := 0; i < len(more); i += 2 {
		all[more[i]] = more[i+1]
	}
	return all
}

// ofReplica are the labels of an alert about a replica.
func ofReplica(severity, pool, replica string, more ...string) map[string]string {
	return alertLabels(severity, append([]string{"pool", pool, "engine_type", pool, "replica", replica, "revision", "abc"}, more...)...)
}

func ofPool(severity, pool string) map[string]string {
	return alertLabels(severity, "pool", pool, "engine_type", pool)
}

// slow is a load of first tokens, ten a minute of which so many come within a second.
func slow(within string) string {
	return `decode/0 sglang:time_to_first_token_seconds_bucket{le="1.0",model_name="m"} ` + within + `
	decode/0 sglang:time_to_first_token_seconds_count{model_name="m"} 0+10x75`
}

var firings = []firing{
	// Latency.
	{
		name: "first tokens: all are slow", reason: "the budget is gone within hours", load: slow("0x75"),
		want: []fired{
			{"SluiceFirstTokenBudgetBurns", alertLabels("critical", "slo", "ttft", "window", "1h"), "Of the first tokens of chat, 100% were slower than 1s within 1h"},
			{"SluiceFirstTokenBudgetBurns", alertLabels("critical", "slo", "ttft", "window", "6h"), "Of the first tokens of chat, 100% were slower than 1s within 6h"},
			{"SluiceFirstTokenBudgetBurns", alertLabels("warning", "slo", "ttft", "window", "1d"), "Of the first tokens of chat, 100% were slower than 1s within 1d"},
		},
	},
	{name: "first tokens: all are in time", reason: "nothing is slow", load: slow("0+10x75")},
	{
		name: "first tokens: whole bounds as Prometheus 2 stores them", reason: "1 and 1.0 are one bound",
		load: strings.ReplaceAll(slow("0+10x75"), "1.0", "1"),
	},
	{
		name: "first tokens: it is over", reason: "the short window is clean, so nobody is called any more",
		load: `decode/0 sglang:time_to_first_token_seconds_bucket{le="1.0"} 0x40 0+10x35
		       decode/0 sglang:time_to_first_token_seconds_count 0+10x75`,
		want: []fired{{"SluiceFirstTokenBudgetBurns", alertLabels("warning", "slo", "ttft", "window", "1d"), "Of the first tokens of chat, 54.67% were slower than 1s within 1d"}},
	},
	{
		name: "first tokens: 2 % are slow for three days", reason: "slow burning makes a ticket, and no call", step: 5 * time.Minute, last: 4 * time.Hour,
		load: `decode/0 sglang:time_to_first_token_seconds_bucket{le="1.0"} 0+98x864
		       decode/0 sglang:time_to_first_token_seconds_count 0+100x864`,
		want: []fired{{"SluiceFirstTokenBudgetBurns", alertLabels("warning", "slo", "ttft", "window", "3d"), "Of the first tokens of chat, 2% were slower than 1s within 3d"}},
	},
	{
		name: "first tokens: half a per cent is slow for three days", reason: "that is what the budget is for", step: 5 * time.Minute, last: 4 * time.Hour,
		load: `decode/0 sglang:time_to_first_token_seconds_bucket{le="1.0"} 0+995x864
		       decode/0 sglang:time_to_first_token_seconds_count 0+1000x864`,
	},
	{
		name: "first tokens: two requests, both slow", reason: "so few say nothing",
		load: `decode/0 sglang:time_to_first_token_seconds_bucket{le="1.0"} 0x75
		       decode/0 sglang:time_to_first_token_seconds_count 0x70 1 2x4`,
	},
	{name: "first tokens: no traffic", reason: "no quotient without a denominator", load: strings.ReplaceAll(slow("0x75"), "0+10x75", "7x75")},
	{
		name: "first tokens: the engine restarts", reason: "a counter that begins anew is no slow request",
		load: `decode/0 sglang:time_to_first_token_seconds_bucket{le="1.0"} 0+10x40 0+10x34
		       decode/0 sglang:time_to_first_token_seconds_count 0+10x40 0+10x34`,
	},
	{
		name: "first tokens: a slow replica among fast ones", reason: "clients see both: a third is slow",
		load: slow("0+10x75") + `
		decode/1 sglang:time_to_first_token_seconds_bucket{le="1.0"} 0x75
		decode/1 sglang:time_to_first_token_seconds_count 0+5x75`,
		want: []fired{
			{"SluiceFirstTokenBudgetBurns", alertLabels("critical", "slo", "ttft", "window", "1h"), "Of the first tokens of chat, 33.33% were slower than 1s within 1h"},
			{"SluiceFirstTokenBudgetBurns", alertLabels("critical", "slo", "ttft", "window", "6h"), "Of the first tokens of chat, 33.33% were slower than 1s within 6h"},
			{"SluiceFirstTokenBudgetBurns", alertLabels("warning", "slo", "ttft", "window", "1d"), "Of the first tokens of chat, 33.33% were slower than 1s within 1d"},
		},
	},
	{
		name: "tokens: between the bound and the threshold", reason: "40 ms is the bound below 50 ms; what is slower counts as slow, and the objective is loose",
		load: `decode/0 sglang:inter_token_latency_seconds_bucket{le="0.04"} 0x75
		       decode/0 sglang:inter_token_latency_seconds_bucket{le="0.06"} 0+100x75
		       decode/0 sglang:inter_token_latency_seconds_count 0+100x75`,
		want: []fired{
			{"SluiceTokenBudgetBurns", alertLabels("critical", "slo", "itl", "window", "1h"), "Of the tokens after the first of chat, 100% were slower than 50ms within 1h"},
			{"SluiceTokenBudgetBurns", alertLabels("critical", "slo", "itl", "window", "6h"), "Of the tokens after the first of chat, 100% were slower than 50ms within 6h"},
			{"SluiceTokenBudgetBurns", alertLabels("warning", "slo", "itl", "window", "1d"), "Of the tokens after the first of chat, 100% were slower than 50ms within 1d"},
		},
	},

	// Memory.
	{
		name: "KV: all of it is locked", reason: "the next token retracts",
		load: `decode/0 sglang:token_usage{dp_rank="0",priority="",` + rank + `} 0.5x3 0.97x15
		       decode/0 sglang:token_usage{dp_rank="1",priority="",` + rank + `} 0.5x18`,
		want: []fired{{"SluiceKVPressure", ofReplica("warning", "decode", "0", "dp_rank", "0"), "Running requests lock 97% of the KV memory of decode replica 0"}},
	},
	{name: "KV: full for a moment", reason: "peaks are what memory is for", load: `decode/0 sglang:token_usage{` + rank + `} 0.97x8 0.5 0.97x8`},
	{name: "KV: sentinel and NaN", reason: "neither is a number", load: `decode/0 sglang:token_usage{` + rank + `} NaNx18
		prefill/0 sglang:token_usage{` + rank + `} -1x18`},
	{
		name: "KV: ranks of a tensor-parallel group", reason: "they tell the same thing twice, and one alert is enough", service: unified(),
		load: `unified/0 sglang:token_usage{tp_rank="0",priority=""} 0.99x15
		       unified/0 sglang:token_usage{tp_rank="1",priority=""} 0.99x15`,
		want: []fired{{"SluiceKVPressure", ofReplica("warning", "unified", "0"), "Running requests lock 99% of the KV memory of unified replica 0"}},
	},
	{
		name: "retraction: a fifth of all tokens", reason: "the pool admits more than it holds",
		load: `decode/0 sglang:num_retracted_output_tokens_total{priority="",` + rank + `} 0+120x20
		       decode/0 sglang:num_retracted_requests_total{priority="",` + rank + `} 0+6x20
		       decode/0 sglang:realtime_tokens_total{mode="decode",priority="",` + rank + `} 0+600x20`,
		want: []fired{{"SluiceRetractionStorm", ofPool("warning", "decode"), "Pool decode throws 20% of its tokens away by retraction"}},
	},
	{
		name: "retraction: many short ones", reason: "the tokens are the loss, not the requests",
		load: `decode/0 sglang:num_retracted_output_tokens_total{` + rank + `} 0+6x20
		       decode/0 sglang:num_retracted_requests_total{` + rank + `} 0+6x20
		       decode/0 sglang:realtime_tokens_total{mode="decode",` + rank + `} 0+600x20`,
	},
	{
		name: "retraction: a single one of an idle pool", reason: "one request is no storm",
		load: `decode/0 sglang:num_retracted_output_tokens_total{` + rank + `} 0x5 100x15
		       decode/0 sglang:num_retracted_requests_total{` + rank + `} 0x5 1x15
		       decode/0 sglang:realtime_tokens_total{mode="decode",` + rank + `} 0x5 150x15`,
	},
	{
		name: "retraction: priorities repeat the total", reason: "counted twice, 8 % would be 16 %",
		load: `decode/0 sglang:num_retracted_output_tokens_total{priority="",` + rank + `} 0+48x20
		       decode/0 sglang:num_retracted_output_tokens_total{priority="1",` + rank + `} 0+48x20
		       decode/0 sglang:num_retracted_requests_total{priority="",` + rank + `} 0+6x20
		       decode/0 sglang:realtime_tokens_total{mode="decode",priority="",` + rank + `} 0+600x20`,
	},

	// Hand-over.
	{
		name: "hand-over: requests wait and nothing arrives", reason: "clients get no first token",
		load: `prefill/0 sglang:num_prefill_inflight_queue_reqs{` + rank + `} 2x20
		       decode/0 sglang:num_decode_transfer_queue_reqs{` + rank + `} 3x20
		       prefill/0 sglang:kv_transfer_total_mb_count{` + rank + `} 0+5x3 15x20`,
		want: []fired{{"SluiceTransferStall", alertLabels("critical"), "5 requests wait for a hand-over and no KV arrives"}},
	},
	{
		name: "hand-over: never a transfer since the start", reason: "without the series nothing has arrived either",
		load: `prefill/0 sglang:num_prefill_bootstrap_queue_reqs{` + rank + `} 1x20`,
		want: []fired{{"SluiceTransferStall", alertLabels("critical"), "1 requests wait for a hand-over and no KV arrives"}},
	},
	{
		name: "hand-over: queues, and transfers end", reason: "that is how it works",
		load: `prefill/0 sglang:num_prefill_inflight_queue_reqs{` + rank + `} 2x20
		       prefill/0 sglang:kv_transfer_total_mb_count{` + rank + `} 0+1x20`,
	},
	{
		name: "hand-over: idle", reason: "nothing is to be moved",
		load: `prefill/0 sglang:num_prefill_inflight_queue_reqs{` + rank + `} 0x20
		       prefill/0 sglang:kv_transfer_total_mb_count{` + rank + `} 9x20`,
	},
	{
		name: "hand-over: a prefill engine restarts", reason: "its counter begins at 0 and moves",
		load: `prefill/0 sglang:num_prefill_inflight_queue_reqs{` + rank + `} 2x20
		       prefill/0 sglang:kv_transfer_total_mb_count{` + rank + `} 50+1x9 0+1x10`,
	},

	// Ranks.
	{
		name: "ranks: one does nearly all", reason: "the other idles", service: unified(),
		load: `unified/0 sglang:realtime_tokens_total{mode="decode",dp_rank="0",` + rank + `} 0+9000x40
		       unified/0 sglang:realtime_tokens_total{mode="decode",dp_rank="1",` + rank + `} 0+1000x40`,
		want: []fired{{"SluiceRankImbalance", ofReplica("warning", "unified", "0"), "The busiest rank of unified replica 0 does 1.8 times the mean"}},
	},
	{
		name: "ranks: alike", reason: "nobody idles", service: unified(),
		load: `unified/0 sglang:realtime_tokens_total{mode="decode",dp_rank="0",` + rank + `} 0+5000x40
		       unified/0 sglang:realtime_tokens_total{mode="decode",dp_rank="1",` + rank + `} 0+5200x40`,
	},
	{
		name: "ranks: hardly any work", reason: "a request here and there cannot be even", service: unified(),
		load: `unified/0 sglang:realtime_tokens_total{mode="decode",dp_rank="0",` + rank + `} 0+100x40
		       unified/0 sglang:realtime_tokens_total{mode="decode",dp_rank="1",` + rank + `} 0x40`,
	},
	{
		name: "ranks: of two replicas", reason: "a replica alone has nothing to be uneven with", service: unified(),
		load: `unified/0 sglang:realtime_tokens_total{mode="decode",dp_rank="0",` + rank + `} 0+9000x40
		       unified/1 sglang:realtime_tokens_total{mode="decode",dp_rank="0",` + rank + `} 0+1000x40`,
	},
	{
		name: "engine: frozen", reason: "it has work and does not turn",
		load: `decode/0 sglang:num_running_reqs{priority="",dp_rank="0",` + rank + `} 4x20
		       decode/0 sglang:num_queue_reqs{priority="",dp_rank="0",` + rank + `} 3x20
		       decode/0 sglang:scheduler_iterations_total{dp_rank="0",` + rank + `} 0+500x5 2500x15
		       decode/0 sglang:num_running_reqs{priority="",dp_rank="1",` + rank + `} 4x20
		       decode/0 sglang:num_queue_reqs{priority="",dp_rank="1",` + rank + `} 0x20
		       decode/0 sglang:scheduler_iterations_total{dp_rank="1",` + rank + `} 0+500x20`,
		want: []fired{{"SluiceEngineFrozen", ofReplica("critical", "decode", "0", "dp_rank", "0"), "A rank of decode replica 0 holds 7 requests and stands still"}},
	},
	{
		name: "engine: idle", reason: "without a request nothing has to turn",
		load: `decode/0 sglang:num_running_reqs{` + rank + `} 0x20
		       decode/0 sglang:num_queue_reqs{` + rank + `} 0x20
		       decode/0 sglang:scheduler_iterations_total{` + rank + `} 2500x20`,
	},
	{
		name: "engine: paused", reason: "somebody wants it to stand still",
		load: `decode/0 sglang:num_running_reqs{` + rank + `} 4x20
		       decode/0 sglang:num_queue_reqs{` + rank + `} 0x20
		       decode/0 sglang:num_paused_reqs{` + rank + `} 4x20
		       decode/0 sglang:scheduler_iterations_total{` + rank + `} 2500x20`,
	},
	{
		name: "engine: restarts", reason: "the counter begins anew and moves",
		load: `decode/0 sglang:num_running_reqs{` + rank + `} 4x20
		       decode/0 sglang:num_queue_reqs{` + rank + `} 0x20
		       decode/0 sglang:scheduler_iterations_total{` + rank + `} 9000+500x9 0+500x10`,
	},

	// Router.
	{
		name: "router: requests and no decode engine", reason: "clients wait for nothing",
		load: `router sluice_router_engines{role="prefill",state="ready"} 1x20
		       router sluice_router_engines{role="decode",state="ready"} 0x20
		       router sluice_router_engines{role="unified",state="ready"} 0x20
		       router sluice_router_in_flight_requests{route="/generate"} 3x20
		       prefill/0 up 1x20`,
		want: []fired{{"SluiceRouterWithoutEngines", alertLabels("critical", "role", "decode"), "Clients ask chat and no decode engine is ready"}},
	},
	{
		name: "router: refuses since nothing is there", reason: "refused clients are clients", service: unified(),
		load: `router sluice_router_engines{role="unified",state="ready"} 0x20
		       router sluice_router_in_flight_requests{route="/generate"} 0x20
		       router sluice_router_requests_total{code="503",outcome="refused",route="/generate"} 0+1x20`,
		want: []fired{
			{"SluiceRouterWithoutEngines", alertLabels("critical", "role", "unified"), "Clients ask chat and no unified engine is ready"},
			{"SluiceServerErrors", alertLabels("critical"), "100% of the answers of chat are server errors"},
		},
	},
	{
		name: "router: scaled to zero", reason: "nobody asks, so nothing is missing",
		load: `router sluice_router_engines{role="prefill",state="ready"} 0x20
		       router sluice_router_engines{role="decode",state="ready"} 0x20
		       router sluice_router_in_flight_requests{route="/generate"} 0x20`,
	},
	{
		name: "router: waking up", reason: "a cold start takes a moment",
		load: `router sluice_router_engines{role="decode",state="ready"} 0x10 0x3 1x7
		       router sluice_router_engines{role="prefill",state="ready"} 1x20
		       prefill/0 up 1x20
		       decode/0 up _x10 _x3 1x7
		       router sluice_router_in_flight_requests{route="/generate"} 0x10 2x10`,
	},
	{
		name: "router: a tenth fails", reason: "clients see it",
		load: `router sluice_router_requests_total{code="200"} 0+90x20
		       router sluice_router_requests_total{code="502"} 0+10x20`,
		want: []fired{{"SluiceServerErrors", alertLabels("critical"), "10% of the answers of chat are server errors"}},
	},
	{
		name: "router: clients leave and ask for nonsense", reason: "that is theirs",
		load: `router sluice_router_requests_total{code="400"} 0+90x20
		       router sluice_router_requests_total{code="499"} 0+90x20`,
	},
	{
		name: "router: one failure of two requests", reason: "so few say nothing",
		load: `router sluice_router_requests_total{code="200"} 0x5 1x15
		       router sluice_router_requests_total{code="500"} 0x5 1x15`,
	},
	{
		name: "requests: hand-overs fail", reason: "nobody did that but the engines",
		load: `decode/0 sluice_request_outcomes_total{outcome="stop"} 0+50x20
		       decode/0 sluice_request_outcomes_total{outcome="transfer_failed"} 0+10x20
		       decode/0 sluice_request_outcomes_total{outcome="aborted_client"} 0+40x20
		       decode/0 sluice_requests_submitted_total 0+100x20
		       decode/0 sluice_requests_in_flight 0x20`,
		want: []fired{{"SluiceRequestsEndBadly", ofPool("warning", "decode"), "10% of the requests of pool decode end without their answer"}},
	},
	{
		name: "requests: clients leave", reason: "that is theirs",
		load: `decode/0 sluice_request_outcomes_total{outcome="stop"} 0+50x20
		       decode/0 sluice_request_outcomes_total{outcome="aborted_client"} 0+40x20
		       decode/0 sluice_request_outcomes_total{outcome="too_long"} 0+10x20`,
	},

	// Metrics themselves.
	{
		name: "scrapes: a target is down", reason: "its numbers are missing",
		load: `decode/0 up 1x5 0x15
		       decode/1 up 1x20`,
		want: []fired{{"SluiceScrapeGap", ofReplica("warning", "decode", "0", "instance", "decode/0", "pod", "chat-decode-0-0", "node_rank", "0"), "Prometheus cannot scrape chat-decode-0-0 (decode/0)"}},
	},
	{
		name: "scrapes: of the router", reason: "it is a target too", load: `router up 0x15`,
		want: []fired{{"SluiceScrapeGap", alertLabels("warning", "instance", "router", "pod", "chat-router-0", "pool", "router", "engine_type", "router", "replica", "chat-router-x", "dp_rank", "all"), "Prometheus cannot scrape chat-router-0 (router)"}},
	},
	{name: "scrapes: one fails", reason: "the next one comes", load: `decode/0 up 1x5 0 1x10`},
	{name: "scrapes: a replica goes", reason: "what was scaled in is no gap", load: `decode/0 up 1x20
		decode/1 up 1x5 stale`},
	{
		name: "scrapes: an engine has no target", reason: "the router sends it requests",
		load: `router sluice_router_engines{role="decode",state="ready"} 2x20
		       router sluice_router_engines{role="prefill",state="ready"} 1x20
		       decode/0 up 1x20
		       router up 1x20`,
		want: []fired{
			{"SluiceEnginesNotScraped", alertLabels("warning", "engine_type", "decode"), "1 ready decode engines of chat are not scraped"},
			{"SluiceEnginesNotScraped", alertLabels("warning", "engine_type", "prefill"), "1 ready prefill engines of chat are not scraped"},
		},
	},
	{
		name: "scrapes: two pods of one replica, two routers", reason: "the router knows replicas, and each router knows all of them",
		load: `router sluice_router_engines{role="decode",state="ready",instance="r1"} 1x20
		       decode/0 up{container="a"} 1x20
		       decode/0 up{container="b"} 1x20`,
	},
	{
		name: "metrics: a store cannot be read", reason: "what it counted is missing",
		load: `decode/0 sluice_metrics_store_faults_total{reason="version"} 0x5 1x3`,
		want: []fired{{"SluiceMetricsStoreFaults", ofReplica("warning", "decode", "0", "reason", "version"), "Metrics of processes of decode replica 0 cannot be read: version"}},
	},
	{
		name: "ledger: a law is broken", reason: "the engine miscounts",
		load: `decode/0 sluice_ledger_violations_total{law="kv_pages"} 0x5 2x5
		       decode/0 sluice_ledger_violations_total{law="outcomes"} 0x10`,
		want: []fired{{"SluiceLedgerViolation", ofReplica("critical", "decode", "0", "law", "kv_pages"), "decode replica 0 broke the law kv_pages"}},
	},
	{name: "ledger: was broken an hour ago", reason: "it was told then", load: `decode/0 sluice_ledger_violations_total{law="kv_pages"} 2x60`},
	{name: "ledger: a restart after a breach", reason: "0 after 2 is no breach", load: `decode/0 sluice_ledger_violations_total{law="kv_pages"} 2x5 0x20`},
	{
		name: "outcomes: one is missing", reason: "it was lost or counted twice",
		load: `decode/0 sluice_requests_submitted_total 0+10x20
		       decode/0 sluice_request_outcomes_total{outcome="stop"} 0+8x20
		       decode/0 sluice_requests_in_flight 0+1x20`,
		want: []fired{{"SluiceOutcomesDoNotAddUp", ofReplica("warning", "decode", "0"), "20 requests of decode replica 0 were lost or counted twice"}},
	},
	{
		name: "outcomes: nothing has ended yet", reason: "without the series of outcomes, none has",
		load: `decode/0 sluice_requests_submitted_total{priority="1"} 3x20
		       decode/0 sluice_requests_in_flight{priority="1"} 3x20`,
	},
	{
		name: "outcomes: by priority", reason: "parts add up",
		load: `decode/0 sluice_requests_submitted_total{priority="1"} 3x20
		       decode/0 sluice_requests_submitted_total{priority="2"} 4x20
		       decode/0 sluice_request_outcomes_total{priority="1",outcome="stop"} 3x20
		       decode/0 sluice_request_outcomes_total{priority="2",outcome="stop"} 3x20
		       decode/0 sluice_requests_in_flight{priority="1"} 0x20
		       decode/0 sluice_requests_in_flight{priority="2"} 1x20`,
	},
	{name: "nothing at all", reason: "a service without pods fires nothing", load: `decode/0 up 1x20`},
}

// needed leaves the recording rules out on which no alert rests.
func needed(t *testing.T, rule *monitoringv1.PrometheusRule) *monitoringv1.PrometheusRule {
	t.Helper()
	asked := map[string]bool{}
	for _, r := range rule.Spec.Groups[1].Rules {
		for _, selector := range selectors(t, r.Expr.String()) {
			asked[selector.Name] = true
		}
	}
	group := &rule.Spec.Groups[0]
	group.Rules = slices.DeleteFunc(group.Rules, func(r monitoringv1.Rule) bool { return !asked[r.Record] })
	return rule
}

// TestAlerts: what has to fire fires, and nothing else; under the other spelling of names too; and never for the series of
// another service, tenant or namespace.
func TestAlerts(t *testing.T) {
	seen := map[string]bool{}
	for i, tc := range firings {
		for _, f := range tc.want {
			seen[f.Name] = true
		}
		s := tc.service
		if s == nil {
			s = pair()
		}
		if !strings.Contains(tc.name, "tokens: ") {
			s.Spec.SLO = nil
		}
		rule := needed(t, build(t, s, Options{}))
		step := tc.step
		if step == 0 {
			step = time.Minute
		}
		every := time.Minute
		if s.Spec.SLO != nil {
			every = 5 * time.Minute
		}
		run := func(name string, respell bool, want []fired, from ...where) {
			t.Run(tc.name+name, func(t *testing.T) {
				t.Parallel()
				p := newPrometheus(t)
				all := map[string][]parser.SequenceValue{}
				for _, w := range from {
					maps.Copy(all, load{step, tc.load}.series(t, w, respell))
				}
				end := p.append(t, step, all)
				begin := epoch
				if tc.last != 0 {
					begin = end.Add(-tc.last)
				}
				if diff := cmp.Diff(want, p.evaluate(t, rule, begin, end, every)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
				}
			})
		}
		run("", false, tc.want, here)
		if len(tc.want) > 0 && (tc.service != nil || tc.step == 0 && !strings.Contains(tc.name, "tokens: ") || i == 0) {
			run(", with underscores", true, tc.want, here)
			run(", of others", false, nil, where{here.namespace, here.tenant, "chat-2"}, where{here.namespace, "other", here.service}, where{"team-b", here.tenant, here.service})
		}
	}
	each(build(t, pair(), Options{}), func(r monitoringv1.Rule) {
		if r.Alert != "" && !seen[r.Alert] {
			t.Errorf("no test makes %s fire", r.Alert)
		}
	})
}

// TestRecordings compares what is recorded of two replicas with two data-parallel and two tensor-parallel ranks each, with
// priorities, with a prefill engine that has no utilization.
func TestRecordings(t *testing.T) {
	p := newPrometheus(t)
	lines := `
	prefill/0 sglang:num_queue_reqs{priority="",dp_rank="0",tp_rank="0"} 3x10
	prefill/0 sglang:num_running_reqs{priority="",dp_rank="0",tp_rank="0"} 1x10
	prefill/0 sglang:num_prefill_bootstrap_queue_reqs{priority="",dp_rank="0",tp_rank="0"} 2x10
	prefill/0 sglang:utilization{dp_rank="0",tp_rank="0"} -1x10
	prefill/0 sluice_kv_sent_bytes_total{outcome="done",node="0"} 0+600x10
	prefill/0 sluice_kv_sent_bytes_total{outcome="done",node="1"} 0+1200x10
	prefill/0 sluice_kv_sent_bytes_total{outcome="failed",node="0"} 0+60x10
	prefill/0 up 1x10
	prefill/1 up 0x10
	decode2/0 sglang:num_running_reqs{priority="",dp_rank="0",tp_rank="0"} 5x10
	decode2/0 up 1x10
	decode/2 sglang:utilization{dp_rank="0",tp_rank="0"} 0.9x10
	decode/2 sglang:num_running_reqs{priority="",dp_rank="0",tp_rank="0"} 0x10
	decode/2 sglang:num_queue_reqs{priority="",dp_rank="0",tp_rank="0"} 0x10
	decode/2 sglang:fwd_occupancy{dp_rank="0",tp_rank="0"} NaNx10
	`
	for replica, running := range map[string]string{"0": "10", "1": "20"} {
		for _, dp := range []string{"0", "1"} {
			for _, tp := range []string{"0", "1"} {
				where := `dp_rank="` + dp + `",tp_rank="` + tp + `"`
				lines += `
				decode/` + replica + ` sglang:num_running_reqs{priority="",` + where + `} ` + running + `x10
				decode/` + replica + ` sglang:num_running_reqs{priority="7",` + where + `} ` + running + `x10
				decode/` + replica + ` sglang:num_queue_reqs{priority="",` + where + `} 1x10
				decode/` + replica + ` sglang:utilization{` + where + `} 0.` + running + `x10
				decode/` + replica + ` sglang:realtime_tokens_total{mode="decode",` + where + `} 0+` + running + `x10
				decode/` + replica + ` sglang:kv_used_tokens{` + where + `} ` + running + `x10`
			}
		}
	}
	all := load{time.Minute, lines}.series(t, here, false)
	maps.Copy(all, load{time.Minute, lines}.series(t, where{here.namespace, here.tenant, "chat-2"}, false))
	end := p.append(t, time.Minute, all)
	p.evaluate(t, build(t, pair(), Options{}), end.Add(-2*time.Minute), end, time.Minute)
	for name, want := range map[string]map[string]float64{
		"pool:sluice_running_requests:sum": {`{engine_type="decode", pool="decode"}`: 60, `{engine_type="decode", pool="decode2"}`: 5, `{engine_type="prefill", pool="prefill"}`: 1},
		"role:sluice_running_requests:sum": {`{engine_type="decode"}`: 65, `{engine_type="prefill"}`: 1},
		"pool:sluice_queued_requests:sum": {
			`{engine_type="decode", pool="decode", queue="waiting"}`: 4, `{engine_type="prefill", pool="prefill", queue="waiting"}`: 3,
			`{engine_type="prefill", pool="prefill", queue="bootstrap"}`: 2,
		},
		// Replica 2 is idle: its gauge keeps 0.9 and counts as 0. The prefill engine's −1 is none.
		"pool:sluice_utilization:avg":         {`{engine_type="decode", pool="decode"}`: 0.12},
		"pool:sluice_utilization:max":         {`{engine_type="decode", pool="decode"}`: 0.2},
		"pool:sluice_generated_tokens:rate5m": {`{engine_type="decode", pool="decode"}`: 1},
		"role:sluice_generated_tokens:rate5m": {`{engine_type="decode"}`: 1},
		"pool:sluice_kv_tokens:sum":           {`{engine_type="decode", pool="decode", state="used"}`: 60},
		// Every rank counts its own part, and each node of a replica what its ranks sent.
		"pool:sluice_kv_transferred_bytes:rate5m": {`{engine_type="prefill", pool="prefill"}`: 30},
		"pool:sluice_engines_up:sum":              {`{engine_type="decode", pool="decode2"}`: 1, `{engine_type="prefill", pool="prefill"}`: 1},
	} {
		got := p.instant(t, name, end)
		if diff := cmp.Diff(want, normal(got, name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// normal takes the name away from series.
func normal(numbers map[string]float64, name string) map[string]float64 {
	all := maps.Clone(numbers)
	clear(all)
	for series, v := range numbers {
		series = strings.TrimPrefix(series, name)
		series = strings.Replace(series, `__name__="`+name+`", `, "", 1)
		all[series] = v
	}
	return all
}
