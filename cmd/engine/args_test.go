package main

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/server"
	"github.com/spf13/pflag"
)

// TestShownArgs: each kind of flag has its JSON type, and keys are not among them.
func TestShownArgs(t *testing.T) {
	cfg, files := server.Default(), secretFiles{}
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	serveFlags(f, &cfg, &files)
	err := f.Parse([]string{
		"--api-key", "secret", "--admin-api-key", "secret", "--model-path", "/m", "--page-size", "4", "--enable-metrics", "--drain-timeout", "2m",
		"--extra-metric-labels", `{"a":"b"}`, "--tokenizer-metrics-allowed-custom-labels", "x y", "--random-seed", "18446744073709551615",
	})
	if err != nil {
		t.Fatal(err)
	}
	all, err := json.Marshal(shownArgs(f))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(all), `"secret"`) {
		t.Errorf("a key is shown: %s", all)
	}
	var args map[string]json.RawMessage
	if err := json.Unmarshal(all, &args); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"model_path": `"/m"`, "page_size": "4", "enable_metrics": "true", "log_requests": "false", "drain_timeout": "120", "extra_metric_labels": `{"a":"b"}`,
		"tokenizer_metrics_allowed_custom_labels": `["x","y"]`, "random_seed": "18446744073709551615", "served_model_name": "null", "default_priority_value": "null",
		"bucket_e2e_request_latency": "[]", "disaggregation_mode": `"null"`, "schedule_policy": `"fcfs"`,
	} {
		if diff := cmp.Diff(want, string(args[name])); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}
