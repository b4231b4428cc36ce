package server

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/metrics"
	"github.com/sluice-dev/sluice/engine/rank"
)

func TestValidate(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		change       func(*Config)
		want         func(*Config) // what Validate changes
		faults       []string      // or the lines of its error
	}{
		{"defaults", "the name is the path", func(*Config) {}, func(c *Config) {
			c.ServedModelName, c.Rank.ModelDir, c.Rank.ServedModelName = "/m", "/m", "/m"
		}, nil},
		{"prefill on loopback", "decode engines dial the host, and no secret is needed", func(c *Config) { c.Rank.Disagg.Mode = rank.ModePrefill }, func(c *Config) {
			c.ServedModelName, c.Rank.ModelDir, c.Rank.ServedModelName = "/m", "/m", "/m"
			c.Rank.Disagg.ListenHost, c.Rank.Disagg.AdvertiseHost = "127.0.0.1", "127.0.0.1"
		}, nil},
		{"prefill in a pod", "it listens everywhere and says its address", func(c *Config) {
			c.Host, c.Rank.Disagg = "0.0.0.0", rank.DisaggConfig{Mode: rank.ModePrefill, AdvertiseHost: "10.0.0.7", Secret: "s"}
		}, func(c *Config) {
			c.ServedModelName, c.Rank.ModelDir, c.Rank.ServedModelName = "/m", "/m", "/m"
			c.Rank.Disagg.ListenHost = "0.0.0.0"
		}, nil},
		{"short drain", "the time to accept is part of it", func(c *Config) { c.DrainTimeout = time.Second }, func(c *Config) {
			c.ServedModelName, c.Rank.ModelDir, c.Rank.ServedModelName = "/m", "/m", "/m"
			c.DrainAccept = time.Second
		}, nil},
		{"level", "SGLang's names", func(c *Config) { c.Rank.LogLevel = "warning" }, func(c *Config) {
			c.ServedModelName, c.Rank.ModelDir, c.Rank.ServedModelName = "/m", "/m", "/m"
			c.Rank.LogLevel = "warn"
		}, nil},
		{"every fault", "all are told at once, each with its flag", func(c *Config) {
			*c = Config{
				Host: "", Port: -1, BootstrapPort: 70000, MaxBodyBytes: 0, DrainAccept: -time.Second, DrainTimeout: -time.Second,
				ExtraMetricLabels: map[string]string{"1a": ""}, AllowedCustomLabels: []string{"a", "a", "le", "outcome"}, Buckets: metrics.Buckets{TimeToFirstToken: []float64{-1}},
				Rank: rank.Config{PageSize: -1, MaxTotalTokens: -1, LogLevel: "loud", ChunkedPrefillSize: -2, Disagg: rank.DisaggConfig{Mode: "both"}},
			}
		}, nil, []string{
			"--model-path is missing", "--host is empty", "--port is -1", "--disaggregation-bootstrap-port is 70000", "--max-body-bytes is 0", "--drain-accept is -1s",
			"--drain-timeout is -1s", "SGLANG_HEALTH_CHECK_TIMEOUT is 0s", `--extra-metric-labels has the label "1a"`,
			`--tokenizer-metrics-allowed-custom-labels has the label "a" twice`, `--tokenizer-metrics-allowed-custom-labels has the label "le"`, `--tokenizer-metrics-allowed-custom-labels has the label "outcome"`,
			"--tokenizer-metrics-custom-labels-header is empty", "--metrics-max-label-values is 0: give 1 to 65536; the default is 256", "--bucket-time-to-first-token is no list of bounds", "--page-size is -1", "--max-total-tokens is -1", "--max-running-requests is 0", "--max-prefill-tokens is 0",
			"--decode-log-interval is 0", "--max-session-tokens is 0", "--tp-size is 0", "--pp-size is 0", "--chunked-prefill-size is -2", "--swa-full-tokens-ratio is 0",
			"--schedule-conservativeness is 0", "--session-timeout is 0s", `--log-level is "loud"`, `--disaggregation-mode is "both"`,
			"--dp-size is 0", "--nnodes is 0",
		}},
		{"open without a secret", "peers on other machines must authenticate", func(c *Config) {
			c.Host, c.Rank.Disagg.Mode = "0.0.0.0", rank.ModePrefill
		}, nil, []string{"--disaggregation-host is missing", "--disaggregation-secret-file is missing"}},
		{"several nodes", "the secret of the PD peers is theirs too", func(c *Config) {
			c.NNodes, c.NodeRank, c.DistInitAddr, c.Rank.TPSize, c.Rank.Disagg.Secret = 2, 1, "10.0.0.1:5000", 4, "s"
		}, func(c *Config) {
			c.ServedModelName, c.Rank.ModelDir, c.Rank.ServedModelName = "/m", "/m", "/m"
			c.DistSecret = "s"
		}, nil},
		{"ranks that can't be spread", "each node has as many", func(c *Config) {
			c.NNodes, c.DistInitAddr, c.Rank.TPSize, c.Rank.PPSize = 4, "127.0.0.1:5000", 3, 2
		}, nil, []string{"--nnodes is 4, but --tp-size 3 times --pp-size 2 is 6"}},
		{"fewer ranks than none", "it would be taken for one", func(c *Config) { c.Rank.TPSize = -3 }, nil, []string{"--tp-size is -3: give a positive number"}},
		{"nodes without a meeting place", "they would never meet", func(c *Config) { c.NNodes, c.Rank.TPSize = 2, 2 }, nil, []string{`--dist-init-addr is "": give host:port of node 0`}},
		{"nodes without a secret", "anybody could join", func(c *Config) {
			c.NNodes, c.Rank.TPSize, c.DistInitAddr = 2, 2, "10.0.0.1:5000"
		}, nil, []string{"--dist-init-addr 10.0.0.1:5000 is not a loopback address and there is no secret"}},
		{"a node too many", "they count from 0", func(c *Config) {
			c.NNodes, c.NodeRank, c.Rank.TPSize, c.DistInitAddr = 2, 2, 2, "127.0.0.1:5000"
		}, nil, []string{"--node-rank is 2: give 0 to 1, --nnodes is 2"}},
		{"a node of none", "the number is missing", func(c *Config) { c.NodeRank = 1 }, nil, []string{"--node-rank is 1, but --nnodes is 1"}},
		{"bodies without a limit", "the limit's own arithmetic would overflow", func(c *Config) { c.MaxBodyBytes = 1<<63 - 1 }, nil, []string{"--max-body-bytes is 9223372036854775807: give 1 to 1099511627776"}},
		{"policies that can't be followed", "the rank would refuse them after the engine listens", func(c *Config) {
			c.Rank.RetractionPolicy, c.Rank.EnableMixedChunk, c.Rank.ChunkedPrefillSize = "priority", true, -1
			c.Rank.EnableStreamingSession, c.Rank.Cache = true, rank.CacheConfig{Disable: true, EnableOnDecode: true}
			c.Rank.Priority.PreemptionThreshold, c.Rank.Priority.Default = -1, new(1<<62)
			c.Rank.RequestWaitingTimeout, c.Rank.RequestRunningTimeout = -time.Second, -time.Minute
		}, nil, []string{
			"--priority-scheduling-preemption-threshold is -1: give 0 to", "--default-priority-value is 4611686018427387904: give -2147483648 to", "--retraction-policy is priority, but priority scheduling is off: give",
			"--enable-mixed-chunk is set, but --chunked-prefill-size is -1: give", "--enable-streaming-session is set, but", "--disaggregation-decode-enable-radix-cache is set, but",
			"--request-waiting-timeout is -1s: give", "--request-running-timeout is -1m0s: give",
		}},
		{"what only the rank knows", "it is asked before the engine listens", func(c *Config) { c.Rank.Cache.EvictionPolicy = "best" }, nil, []string{"rank config: "}},
		{"labels that series have already", "a client could make itself another rank, or the total", func(c *Config) {
			c.ExtraMetricLabels = map[string]string{"cluster": "a", "tp_rank": "x"}
			c.AllowedCustomLabels = []string{"team", "model_name", "engine_type", "priority", "tp_rank", "dp_rank", "cache_type", "cluster", "stage", "le", "9x", "team"}
		}, nil, []string{
			`--tokenizer-metrics-allowed-custom-labels has the label "model_name", which says of which engine`, `--tokenizer-metrics-allowed-custom-labels has the label "engine_type", which`,
			`--tokenizer-metrics-allowed-custom-labels has the label "priority", which`, `--tokenizer-metrics-allowed-custom-labels has the label "tp_rank", which --extra-metric-labels sets`,
			`--tokenizer-metrics-allowed-custom-labels has the label "dp_rank", which`, `--tokenizer-metrics-allowed-custom-labels has the label "cache_type", which`,
			`--tokenizer-metrics-allowed-custom-labels has the label "cluster", which --extra-metric-labels sets for all requests`,
			`--tokenizer-metrics-allowed-custom-labels has the label "stage", which some families have`, `--tokenizer-metrics-allowed-custom-labels has the label "le"`,
			`--tokenizer-metrics-allowed-custom-labels has the label "9x"`, `--tokenizer-metrics-allowed-custom-labels has the label "team" twice`,
		}},
		{"no header", "nothing could bring labels", func(c *Config) { c.CustomLabelsHeader = "" }, nil, []string{"--tokenizer-metrics-custom-labels-header is empty: name a header; the default is x-custom-labels"}},
		{"header that is none", "no client could send it", func(c *Config) { c.CustomLabelsHeader = "x labels" }, nil, []string{`--tokenizer-metrics-custom-labels-header is "x labels", which is no name of a header`}},
		{"header of HTTP", "the server takes it out of the request", func(c *Config) { c.CustomLabelsHeader = "transfer-encoding" }, nil, []string{`--tokenizer-metrics-custom-labels-header is "transfer-encoding", which says something else already`}},
		{"header of secrets", "they would be in the log", func(c *Config) { c.CustomLabelsHeader = "cookie" }, nil, []string{`--tokenizer-metrics-custom-labels-header is "cookie", which says something else already`}},
		{"header that proxies write", "it is no client's", func(c *Config) { c.CustomLabelsHeader = "x-forwarded-for" }, nil, []string{`--tokenizer-metrics-custom-labels-header is "x-forwarded-for", which says something else already`}},
		{"header of the engine", "it names a rank", func(c *Config) { c.CustomLabelsHeader = "x-data-parallel-rank" }, nil, []string{`--tokenizer-metrics-custom-labels-header is "x-data-parallel-rank", which says something else already`}},
		{"pool smaller than a page", "nothing would fit", func(c *Config) { c.Rank.MaxTotalTokens = 8 }, nil, []string{"--max-total-tokens is 8, less than a page of 16"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := Default()
			cfg.ModelPath = "/m"
			tc.change(&cfg)
			got, err := cfg.Validate()
			if tc.faults == nil {
				tc.want(&cfg)
				if diff := cmp.Diff(cfg, got); diff != "" || err != nil {
					t.Errorf("%s: %v (-want +got)\n%s", tc.reason, err, diff)
				}
				return
			}
			if err == nil {
				t.Fatalf("%s: no error", tc.reason)
			}
			lines := strings.Split(err.Error(), "\n")
			if len(lines) != len(tc.faults) {
				t.Fatalf("%s: %d faults, want %d:\n%v", tc.reason, len(lines), len(tc.faults), err)
			}
			for i, want := range tc.faults {
				if !strings.HasPrefix(lines[i], want) {
					t.Errorf("%s: fault %d is %q, want %q", tc.reason, i, lines[i], want)
				}
			}
		})
	}
}

// TestNoPlaceForMetrics: the error says which variable to set.
func TestNoPlaceForMetrics(t *testing.T) {
	t.Setenv("TMPDIR", "/proc/none")
	for dir, want := range map[string]string{
		"":            "--enable-metrics: the temporary directory is /proc/none: set TMPDIR or PROMETHEUS_MULTIPROC_DIR to one with space that can be written: ",
		"/proc/other": `--enable-metrics: PROMETHEUS_MULTIPROC_DIR is "/proc/other": `,
	} {
		_, err := newObserver(Config{EnableMetrics: true, MetricsDir: dir}, Runtime{}.withDefaults())
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: error %v, want %q first", dir, err, want)
		}
	}
}

// TestMetricsThatStay: a replica whose metrics can't be removed tells so and ends in order.
func TestMetricsThatStay(t *testing.T) {
	var log bytes.Buffer
	o, err := newObserver(Config{EnableMetrics: true, MetricsDir: t.TempDir()}, Runtime{}.withDefaults())
	if err != nil {
		t.Fatal(err)
	}
	if err := o.private.Remove(); err != nil { // so that it can't be done again
		t.Fatal(err)
	}
	o.end(slog.New(slog.NewTextHandler(&log, nil)))
	if got := log.String(); !strings.Contains(got, "the files of the metrics may be left behind") || !strings.Contains(got, "close the metrics: ") {
		t.Errorf("the log says %q", got)
	}
}

// TestOverwrittenLabels: extra labels that overwrite those of series are allowed, and named at the start.
func TestOverwrittenLabels(t *testing.T) {
	cfg := Default()
	cfg.ModelPath, cfg.EnableMetrics = "/m", true
	cfg.ExtraMetricLabels = map[string]string{"cluster": "a", "tp_rank": "all", "engine_type": "mine"}
	cfg, err := cfg.Validate()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"engine_type", "tp_rank"}, cfg.overwrittenLabels()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
