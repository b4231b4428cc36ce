package main

import (
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/metrics"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/server"
	"github.com/sluice-dev/sluice/engine/trace"
	"github.com/spf13/pflag"
)

// parse reads flags as the program does.
func parse(args ...string) (server.Config, secretFiles, error) {
	cfg, files := server.Default(), secretFiles{}
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	serveFlags(f, &cfg, &files)
	err := f.Parse(joinLists(args, takesList(command())))
	return cfg, files, err
}

func TestServeFlags(t *testing.T) {
	want := server.Default()
	want.ModelPath, want.ServedModelName, want.Host, want.Port = "/m", "n", "0.0.0.0", 1
	want.APIKey, want.AdminAPIKey, want.MaxBodyBytes = "k", "a", 2
	want.DPSize, want.LoadBalanceMethod = 2, "total_tokens"
	want.NNodes, want.NodeRank, want.DistInitAddr, want.DistTimeout = 4, 1, "h:5", 18*time.Second
	want.LogRequests, want.LogRequestsLevel, want.LogRequestsSampleRate = true, 3, 0.25
	want.EnableMetrics, want.EnableCacheReport, want.BootstrapPort = true, true, 3
	want.ExtraMetricLabels = map[string]string{"cluster": "c"}
	want.CustomLabelsHeader, want.AllowedCustomLabels = "x-l", []string{"team", "shift"}
	want.Buckets = metrics.Buckets{
		TimeToFirstToken: []float64{0.1, 0.5}, InterTokenLatency: []float64{0.2}, E2ERequestLatency: []float64{1, 2},
		PromptTokens: []float64{984, 992, 996, 998, 1000, 1002, 1004, 1008, 1016}, GenerationTokens: []float64{5, 50},
	}
	want.DrainAccept, want.DrainTimeout = 1500*time.Millisecond, 2*time.Minute
	want.Rank = rank.Config{
		TPSize: 2, PPSize: 3, Metrics: rank.MetricsConfig{MaxLabelValues: 19},
		PageSize: 4, MaxTotalTokens: 5, SWAFullTokensRatio: 0.25, ContextLength: 6, MaxRunningRequests: 7, MaxRunningRequestsUnderSLO: 8, MaxQueuedRequests: 9, ChunkedPrefillSize: -1,
		MaxPrefillTokens: 10, SchedulePolicy: "lpm", ScheduleConservativeness: 0.5, RetractionPolicy: "priority", EnableMixedChunk: true, DisableOverlapSchedule: true,
		EnableStreamingSession: true, SessionTimeout: 18 * time.Second, MaxSessionTokens: 19,
		Cache: rank.CacheConfig{Disable: true, EvictionPolicy: "lfu", EnableOnDecode: true},
		Priority: rank.PriorityConfig{
			Enabled: true, Default: new(-14), LowFirst: true, PreemptionThreshold: 15, DisablePreemption: true, AbortWhenDisabled: true,
		},
		RequestWaitingTimeout: 16 * time.Second, RequestRunningTimeout: 17 * time.Minute, Seed: 11, Threads: 12, DecodeLogInterval: 13, LogLevel: "debug", Trace: trace.Config{
			Enabled: true, Endpoint: "c:4318", Modules: []string{"request", "mooncake"},
			Protocol: trace.GRPC, Level: 3, Delay: 500 * time.Millisecond, BatchSize: 64,
		}, Disagg: rank.DisaggConfig{Mode: rank.ModePrefill, AdvertiseHost: "h"},
	}
	got, files, err := parse("--model-path", "/m", "--served-model-name", "n", "--host", "0.0.0.0", "--port", "1", "--api-key", "k", "--admin-api-key", "a",
		"--max-body-bytes", "2", "--page-size", "4", "--max-total-tokens", "5", "--swa-full-tokens-ratio", "0.25", "--context-length", "6", "--max-running-requests", "7",
		"--max-running-requests-under-slo", "8", "--max-queued-requests", "9", "--chunked-prefill-size", "-1", "--max-prefill-tokens", "10",
		"--schedule-policy", "lpm", "--schedule-conservativeness", "0.5", "--retraction-policy", "priority", "--enable-mixed-chunk", "--disable-overlap-schedule",
		"--enable-streaming-session", "--session-timeout", "18", "--max-session-tokens", "19", "--disable-radix-cache", "--radix-eviction-policy", "lfu", "--disaggregation-decode-enable-radix-cache", "--enable-priority-scheduling",
		"--default-priority-value", "-14", "--schedule-low-priority-values-first", "--priority-scheduling-preemption-threshold", "15",
		"--disable-priority-preemption", "--abort-on-priority-when-disabled", "--request-waiting-timeout", "16", "--request-running-timeout", "17m",
		"--random-seed", "11",
		"--threads", "12", "--enable-metrics", "--extra-metric-labels", `{"cluster":"c"}`, "--metrics-max-label-values", "19", "--tokenizer-metrics-custom-labels-header", "x-l",
		"--tokenizer-metrics-allowed-custom-labels", "team", "shift", "--bucket-time-to-first-token", "0.1", "0.5", "--bucket-inter-token-latency=0.2",
		"--bucket-e2e-request-latency", "1,2", "--prompt-tokens-buckets", "tse", "1000", "2", "8", "--generation-tokens-buckets", "custom 5 50",
		"--enable-trace", "--otlp-traces-endpoint", "c:4318", "--trace-modules", "request, mooncake",
		"--decode-log-interval", "13", "--enable-cache-report", "--dp-size", "2", "--tensor-parallel-size", "2", "--pp", "3", "--nnodes", "4", "--node-rank", "1", "--nccl-init-addr", "h:5", "--dist-timeout", "18", "--dist-secret-file", "g", "--load-balance-method", "shortest_queue", "--load-balance-method", "total_tokens", "--log-requests", "--log-requests-level", "3", "--log-requests-sample-rate", "0.25", "--log-level", "debug", "--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", "3",
		"--disaggregation-host", "h", "--disaggregation-secret-file", "f", "--drain-accept", "1.5", "--drain-timeout", "2m")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" || files != (secretFiles{pd: "f", nodes: "g"}) {
		t.Errorf("secret files %q (-want +got)\n%s", files, diff)
	}
	if got, _, err := parse(); err != nil || !cmp.Equal(got, server.Default()) {
		t.Errorf("no flag: %v\n%s", err, cmp.Diff(server.Default(), got))
	}
}

func TestRefusedFlags(t *testing.T) {
	for _, tc := range []struct{ flag, value, want string }{
		{"--disaggregation-mode", "both", "use prefill, decode or null"},
		{"--drain-timeout", "soon", "give seconds"},
		{"--drain-timeout", "-1", "give seconds"},
		{"--drain-timeout", "-5s", "give seconds"},
		{"--dist-timeout", "-1ms", "give seconds"},
		{"--extra-metric-labels", `{"a":"b"} c`, "give a JSON object of strings"},
		{"--extra-metric-labels", "cluster=a", "give a JSON object of strings"},
		{"--extra-metric-labels", `{"a":1}`, "give a JSON object of strings"},
		{"--extra-metric-labels", `{"a":"b","c":"a","a":"b"}`, `it has the label "a" twice`},
		{"--extra-metric-labels", `{"a":"b","\u0061":"c"}`, `it has the label "a" twice`},
		{"--tokenizer-metrics-allowed-custom-labels", ",", "has an empty word"},
		{"--tokenizer-metrics-allowed-custom-labels", "", "has an empty word"},
		{"--tokenizer-metrics-allowed-custom-labels", "team,,shift", "has an empty word"},
		{"--tokenizer-metrics-allowed-custom-labels", "team, shift, ", "has an empty word"},
		{"--trace-modules", ",request", "has an empty name"},
		{"--bucket-e2e-request-latency", "1,,2", "has an empty word"},
		{"--bucket-e2e-request-latency", "fast", `"fast" is not a number`},
		{"--prompt-tokens-buckets", "linear", "is not known"},
		{"--port", "http", "invalid syntax"},
		{"--ep-size", "2", "unknown flag: --ep-size"},
		{"--schedule-policy", "lof", "use fcfs or lpm"},
		{"--retraction-policy", "age", "use length or priority"},
		{"--default-priority-value", "high", "give a whole number"},
		{"--request-waiting-timeout", "-1", "give seconds"},
	} {
		t.Run(tc.flag+" "+tc.value, func(t *testing.T) {
			if _, _, err := parse(tc.flag, tc.value); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.flag) {
				t.Errorf("the error is %v, want %q and the flag in it", err, tc.want)
			}
		})
	}
}

// TestZero: a flag that counts either refuses 0 by its name, or its help says what 0 does.
func TestZero(t *testing.T) {
	cfg, files := server.Default(), secretFiles{}
	all := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	serveFlags(all, &cfg, &files)
	seen := 0
	all.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains([]string{"int", "int64", "uint64", "float64", "seconds"}, f.Value.Type()) {
			return
		}
		seen++
		cfg, _, err := parse("--model-path", "/m", "--"+f.Name, "0")
		if err == nil {
			_, err = cfg.Validate()
		}
		switch {
		case err == nil && !regexp.MustCompile(`\b0\b`).MatchString(f.Usage):
			t.Errorf("--%s 0 is taken, and its help doesn't say what it means: %s", f.Name, f.Usage)
		case err != nil && !strings.HasPrefix(err.Error(), "--"+f.Name+" is 0"):
			t.Errorf("--%s 0: the error is %q", f.Name, err)
		}
	})
	if seen < 20 {
		t.Errorf("%d flags count", seen)
	}
}

func TestReadEnvironment(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		file         string // --disaggregation-secret-file
		environment  map[string]string
		change       func(*server.Config)
		wantErr      string
	}{
		{"nothing", "the defaults stay", "", nil, func(*server.Config) {}, ""},
		{"all", "each goes where it belongs", "", map[string]string{
			"SLUICE_PD_SECRET": "s\n", "POD_IP": "10.0.0.7", "PROMETHEUS_MULTIPROC_DIR": "/d", "SGLANG_TORCH_PROFILER_DIR": "/p", "SGLANG_HEALTH_CHECK_TIMEOUT": "3", "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
		}, func(c *server.Config) {
			c.Rank.Disagg.Secret, c.Rank.Disagg.AdvertiseHost, c.MetricsDir = "s", "10.0.0.7", "/d"
			c.HealthTimeout, c.HealthGenerates, c.ProfilerDir = 3*time.Second, false, "/p"
		}, ""},
		{"file wins", "over the environment", "good", map[string]string{"SLUICE_PD_SECRET": "s"}, func(c *server.Config) { c.Rank.Disagg.Secret = "from the file" }, ""},
		{"nodes", "have a secret of their own", "", map[string]string{"SLUICE_PD_SECRET": "s", "SLUICE_DIST_SECRET": "d\n"}, func(c *server.Config) {
			c.Rank.Disagg.Secret, c.DistSecret = "s", "d"
		}, ""},
		{"traces", "SGLang's variables, and OpenTelemetry's", "", map[string]string{
			"SGLANG_TRACE_LEVEL": "1", "SGLANG_OTLP_EXPORTER_SCHEDULE_DELAY_MILLIS": "20", "SGLANG_OTLP_EXPORTER_MAX_EXPORT_BATCH_SIZE": "7", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
		}, func(c *server.Config) {
			c.Rank.Trace.Level, c.Rank.Trace.Delay, c.Rank.Trace.BatchSize, c.Rank.Trace.Protocol = 1, 20*time.Millisecond, 7, trace.HTTPProtobuf
		}, ""},
		{"trace level that is none", "the variable is named", "", map[string]string{"SGLANG_TRACE_LEVEL": "high"}, nil, `SGLANG_TRACE_LEVEL is "high": give a whole number`},
		{"no file", "the flag is named", "missing", nil, nil, "--disaggregation-secret-file"},
		{"empty file", "an empty secret is none", "empty", nil, nil, "is empty"},
		{"time to meet", "of the two halves of a pair", "", map[string]string{"SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "1.5", "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "2"}, func(c *server.Config) {
			c.Rank.Disagg.BootstrapTimeout, c.Rank.Disagg.WaitingTimeout = 1500*time.Millisecond, 2*time.Second
		}, ""},
		{"time to meet that is none", "the variable is named", "", map[string]string{"SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "0"}, nil, `SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT is "0": give seconds, more than 0`},
		{"time to wait too short", "it would round to none", "", map[string]string{"SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "1e-12"}, nil, `SGLANG_DISAGGREGATION_WAITING_TIMEOUT is "1e-12"`},
		{"timeout", "the variable is named", "", map[string]string{"SGLANG_HEALTH_CHECK_TIMEOUT": "x"}, nil, "SGLANG_HEALTH_CHECK_TIMEOUT"},
		{"request time-outs", "SGLang's variables; -1 is no limit", "", map[string]string{"SGLANG_REQ_WAITING_TIMEOUT": "2.5", "SGLANG_REQ_RUNNING_TIMEOUT": "-1"},
			func(c *server.Config) { c.Rank.RequestWaitingTimeout = 2500 * time.Millisecond }, ""},
		{"grammars", "time to compile", "", map[string]string{"SGLANG_GRAMMAR_TIMEOUT": "7"},
			func(c *server.Config) { c.Rank.GrammarTimeout = 7 * time.Second }, ""},
		{"request time-out that is none", "the variable is named", "", map[string]string{"SGLANG_REQ_RUNNING_TIMEOUT": "x"}, nil, `SGLANG_REQ_RUNNING_TIMEOUT is "x": give seconds`},
		{"hit rate", "its window", "", map[string]string{"SGLANG_CACHE_HIT_RATE_WINDOW_SECONDS": "2.5"},
			func(c *server.Config) { c.Rank.CacheHitRateWindow = 2500 * time.Millisecond }, ""},
		{"hit rate over nothing", "the variable is named", "", map[string]string{"SGLANG_CACHE_HIT_RATE_WINDOW_SECONDS": "0"}, nil,
			`SGLANG_CACHE_HIT_RATE_WINDOW_SECONDS is "0": give seconds`},
		{"device timer", "", "", map[string]string{"SGLANG_ENABLE_METRICS_DEVICE_TIMER": "1"}, func(c *server.Config) { c.Rank.Metrics.DeviceTimer = true }, ""},
		{"device timer?", "the variable is named", "", map[string]string{"SGLANG_ENABLE_METRICS_DEVICE_TIMER": "often"}, nil, `SGLANG_ENABLE_METRICS_DEVICE_TIMER is "often"`},
		{"evictions", "bounds replace the built-in ones", "", map[string]string{"SGLANG_BUCKET_EVICTION_DURATION": "0.5, 0.01"},
			func(c *server.Config) { c.Rank.Metrics.EvictionBuckets = []float64{0.01, 0.5} }, ""},
		{"evictions, none", "the built-in ones", "", map[string]string{"SGLANG_BUCKET_EVICTION_DURATION": " "}, func(*server.Config) {}, ""},
		{"evictions, no number", "the variable is named", "", map[string]string{"SGLANG_BUCKET_EVICTION_DURATION": "0.1,,2"}, nil, `SGLANG_BUCKET_EVICTION_DURATION is "0.1,,2": "" is no number: give seconds`},
		{"evictions, twice", "the variable is named", "", map[string]string{"SGLANG_BUCKET_EVICTION_DURATION": "1,1"}, nil, "bound 1 is there twice"},
		{"times", "ours goes before SGLang's", "", map[string]string{"SLUICE_TEST_REQUEST_TIME_STATS": "1", "SGLANG_TEST_REQUEST_TIME_STATS": "0"},
			func(c *server.Config) { c.Rank.AssertTimes = true }, ""},
		{"times, by SGLang's name", "works alone", "", map[string]string{"SGLANG_TEST_REQUEST_TIME_STATS": "true"}, func(c *server.Config) { c.Rank.AssertTimes = true }, ""},
		{"times?", "the variable is named", "", map[string]string{"SLUICE_TEST_REQUEST_TIME_STATS": "maybe"}, nil, `SLUICE_TEST_REQUEST_TIME_STATS is "maybe": give true or false`},
		{"retraction", "every third step, as in SGLang", "", map[string]string{"SGLANG_TEST_RETRACT": "1"}, func(c *server.Config) { c.Rank.TestRetractSteps = 3 }, ""},
		{"retraction, interval", "its own", "", map[string]string{"SGLANG_TEST_RETRACT": "true", "SGLANG_TEST_RETRACT_INTERVAL": "7"},
			func(c *server.Config) { c.Rank.TestRetractSteps = 7 }, ""},
		{"no retraction", "the interval alone does nothing", "", map[string]string{"SGLANG_TEST_RETRACT": "false", "SGLANG_TEST_RETRACT_INTERVAL": "x"}, func(*server.Config) {}, ""},
		{"retraction, no interval", "the variable is named", "", map[string]string{"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "0"}, nil,
			`SGLANG_TEST_RETRACT_INTERVAL is "0": give decode steps`},
		{"retraction?", "the variable is named", "", map[string]string{"SGLANG_TEST_RETRACT": "often"}, nil, `SGLANG_TEST_RETRACT is "often"`},
		{"switch", "the variable is named", "", map[string]string{"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "x"}, nil, "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := server.Default()
			lookup := func(name string) (string, bool) {
				value, set := tc.environment[name]
				return value, set
			}
			read := func(path string) ([]byte, error) {
				text, there := map[string]string{"good": " from the file\n", "empty": "\n"}[path]
				if !there {
					return nil, errors.New("no such file")
				}
				return []byte(text), nil
			}
			err := readEnvironment(&cfg, secretFiles{pd: tc.file}, lookup, read)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("%s: the error is %v, want %q in it", tc.reason, err, tc.wantErr)
				}
				return
			}
			want := server.Default()
			tc.change(&want)
			if diff := cmp.Diff(want, cfg); diff != "" || err != nil {
				t.Errorf("%s: %v (-want +got)\n%s", tc.reason, err, diff)
			}
		})
	}
}

// TestAbsurdNumbers: every flag that takes a number refuses what is none, or none that it can use, before the engine listens,
// and the message names the flag and what to give. A new flag must refuse it too, or stand here with what it takes.
func TestAbsurdNumbers(t *testing.T) {
	const most64, mostUnsigned, small = "9223372036854775807", "18446744073709551615", "1e-300"
	absurd := []string{"NaN", "+Inf", "-Inf", "-1", "-9223372036854775808", "1e300", small, most64, mostUnsigned, "1e400", ""}
	taken := map[string][]string{
		"random-seed":               {most64, mostUnsigned}, // any number
		"chunked-prefill-size":      {"-1"},
		"default-priority-value":    {"-1"},
		"schedule-conservativeness": {small},
		"swa-full-tokens-ratio":     {small},
		"drain-accept":              {small}, // as 0
		"drain-timeout":             {small},
		"request-waiting-timeout":   {small},
		"request-running-timeout":   {small},
		"log-requests-sample-rate":  {small},
	}
	for _, name := range []string{"bucket-time-to-first-token", "bucket-inter-token-latency", "bucket-e2e-request-latency"} {
		taken[name] = []string{"1e300", small, most64, mostUnsigned} // bounds of a histogram
	}
	rules := []string{"prompt-tokens-buckets", "generation-tokens-buckets"}
	for _, name := range rules {
		taken[name] = []string{"tse 1e300 2 8", "tse " + small + " 2 8", "tse " + most64 + " 2 8", "tse " + mostUnsigned + " 2 8"}
	}
	cfg, files := server.Default(), secretFiles{}
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	serveFlags(flags, &cfg, &files)
	numbers := 0
	flags.VisitAll(func(flag *pflag.Flag) {
		switch kind := flag.Value.Type(); {
		case slices.Contains([]string{"int", "int64", "uint64", "float64", "seconds"}, kind), taken[flag.Name] != nil:
		default:
			return
		}
		numbers++
		for _, value := range absurd {
			if slices.Contains(rules, flag.Name) {
				value = "tse " + value + " 2 8"
			}
			cfg, _, err := parse("--model-path=/m", "--"+flag.Name+"="+value)
			if err == nil {
				_, err = cfg.Validate()
			}
			switch wanted := slices.Contains(taken[flag.Name], value); {
			case wanted && err != nil:
				t.Errorf("--%s=%s: %v, want it to be taken", flag.Name, value, err)
			case !wanted && err == nil:
				t.Errorf("--%s=%s is taken", flag.Name, value)
			case !wanted && (!strings.Contains(err.Error(), "--"+flag.Name) || !remedy.MatchString(err.Error())):
				t.Errorf("--%s=%s: the error %q does not name the flag, or not what to give", flag.Name, value, err)
			}
		}
	})
	if numbers < 30 {
		t.Errorf("%d flags take numbers, there are more", numbers)
	}
}

// remedy is how messages say what to do; those about the syntax of a number are of the standard library.
var remedy = regexp.MustCompile(`\b(give|raise|takes|leave|name)\b|invalid syntax|value out of range`)
