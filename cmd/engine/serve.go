package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/engine/dp"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/server"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func serveCommand() *cobra.Command {
	cfg := server.Default()
	var files secretFiles
	c := &cobra.Command{
		Use:   "serve --model-path DIR",
		Short: "Serve one replica of a model",
		Long: `Serve one replica of a model over HTTP. Flags have SGLang's names and meanings.
SIGTERM drains: health checks fail at once, requests are taken for --drain-accept more, and what runs may finish until
--drain-timeout. What was aborted then, clients that don't read and ranks that don't end get ` + server.DrainOverrun.String() + ` more at most.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := readEnvironment(&cfg, files, os.LookupEnv, os.ReadFile); err != nil {
				return err
			}
			if !c.Flags().Changed("random-seed") {
				cfg.Rank.Seed = rand.Uint64()
			}
			cfg.Args = shownArgs(c.Flags())
			log := slog.New(slog.NewTextHandler(c.ErrOrStderr(), &slog.HandlerOptions{Level: level(cfg.Rank.LogLevel)}))
			return server.Serve(c.Context(), cfg, server.Runtime{Log: log, StartRank: startRank})
		},
	}
	serveFlags(c.Flags(), &cfg, &files)
	return c
}

// startRank starts the rank, or the ranks of a world, as processes of their own: this binary again.
func startRank(ctx context.Context, cfg rank.Config) (rank.Client, error) {
	if cfg.TPSize > 1 || cfg.PPSize > 1 {
		return rank.StartWorld(ctx, cfg)
	}
	return rank.Start(ctx, cfg)
}

// serveFlags declares every flag of serve. Those that SGLang has keep its name, meaning and default.
func serveFlags(f *pflag.FlagSet, cfg *server.Config, files *secretFiles) {
	f.SortFlags = false
	f.SetNormalizeFunc(oldNames)
	r := &cfg.Rank
	f.StringVar(&cfg.ModelPath, "model-path", "", "directory with config.json, model.safetensors and tokenizer.json")
	f.StringVar(&cfg.ServedModelName, "served-model-name", "", "name that clients use (default: the model path)")
	f.StringVar(&cfg.Host, "host", cfg.Host, "address to listen on; 0.0.0.0 for all interfaces")
	f.IntVar(&cfg.Port, "port", cfg.Port, "port of the API; 0 for a free one")
	f.StringVar(&cfg.APIKey, "api-key", "", "key that clients must send as a bearer token; health and metrics stay open")
	f.StringVar(&cfg.AdminAPIKey, "admin-api-key", "", "key for control routes (default: the API key)")
	f.IntVar(&cfg.DebugRequests, "debug-requests", cfg.DebugRequests, "ended requests whose timelines /debug/requests has; 0: none")
	f.Int64Var(&cfg.MaxBodyBytes, "max-body-bytes", cfg.MaxBodyBytes, "largest request body")

	f.IntVar(&r.PageSize, "page-size", r.PageSize, "tokens per page of KV memory")
	f.IntVar(&r.MaxTotalTokens, "max-total-tokens", 0, "KV capacity in tokens; 0: from the memory there is")
	f.Float64Var(&r.SWAFullTokensRatio, "swa-full-tokens-ratio", r.SWAFullTokensRatio, "KV capacity of sliding-window layers as a part of that of full ones")
	f.IntVar(&r.ContextLength, "context-length", 0, "longest sequence, prompt and answer; 0: the model's")
	f.IntVar(&r.MaxRunningRequests, "max-running-requests", r.MaxRunningRequests, "most requests that run at the same time")
	f.IntVar(&r.MaxRunningRequestsUnderSLO, "max-running-requests-under-slo", 0, "running requests at which utilization is 1; 0: --max-running-requests")
	f.IntVar(&r.MaxQueuedRequests, "max-queued-requests", 0, "waiting requests beyond which new ones are refused; 0: no limit")
	f.IntVar(&r.ChunkedPrefillSize, "chunked-prefill-size", r.ChunkedPrefillSize, "prompt tokens computed in one step; -1 for whole prompts")
	f.IntVar(&r.MaxPrefillTokens, "max-prefill-tokens", r.MaxPrefillTokens, "prompt tokens that one prefill batch admits")
	policyFlags(f, r)
	f.Uint64Var(&r.Seed, "random-seed", 0, "seed of the seeds of requests that bring none, 0 too (default: a random one)")
	f.IntVar(&r.Threads, "threads", 0, "threads that compute; 0: one for each CPU")

	f.IntVar(&r.TPSize, "tp-size", r.TPSize, "ranks that share each layer of the model")
	f.IntVar(&r.PPSize, "pp-size", r.PPSize, "stages that the layers of the model are divided into")
	f.IntVar(&cfg.NNodes, "nnodes", cfg.NNodes, "nodes over which the ranks of the model are spread evenly, in their order")
	f.IntVar(&cfg.NodeRank, "node-rank", 0, "which of the nodes this is; 0 has the API, the others only compute")
	f.StringVar(&cfg.DistInitAddr, "dist-init-addr", "", "host:port of node 0, where the nodes meet; the same on all")
	f.Var((*seconds)(&cfg.DistTimeout), "dist-timeout", "longest wait for the other nodes")
	f.StringVar(&files.nodes, "dist-secret-file", "", "file with the secret that the nodes share (default: SLUICE_DIST_SECRET, else that of the PD engines)")
	f.IntVar(&cfg.DPSize, "dp-size", cfg.DPSize, "replicas of the model behind this API, each with its own rank")
	f.Var(oneOf(&cfg.LoadBalanceMethod, dp.Methods()...), "load-balance-method", "which replica takes a request: "+strings.Join(dp.Methods(), ", "))

	f.BoolVar(&cfg.EnableMetrics, "enable-metrics", false, "serve /metrics")
	f.BoolVar(&r.Metrics.AllRanks, "enable-metrics-for-all-schedulers", false, "every rank of a stage writes metrics, not the first alone")
	f.BoolVar(&r.Metrics.MFU, "enable-mfu-metrics", false, "count the operations and the memory traffic of steps by the model's shapes")
	f.Var((*labelMap)(&cfg.ExtraMetricLabels), "extra-metric-labels", `labels on every family, as JSON: {"cluster":"a"}`)
	f.IntVar(&r.Metrics.MaxLabelValues, "metrics-max-label-values", r.Metrics.MaxLabelValues, "values of a label that clients choose (custom labels, priorities); further ones count as other")
	f.StringVar(&cfg.CustomLabelsHeader, "tokenizer-metrics-custom-labels-header", cfg.CustomLabelsHeader, "header with a request's own labels, as JSON")
	f.Var(list(&cfg.AllowedCustomLabels), "tokenizer-metrics-allowed-custom-labels", "keys that the header may set")
	f.Var(bounds(&cfg.Buckets.TimeToFirstToken), "bucket-time-to-first-token", "bounds of the histogram, in seconds (default: built in)")
	f.Var(bounds(&cfg.Buckets.InterTokenLatency), "bucket-inter-token-latency", "bounds of the histogram, in seconds (default: built in)")
	f.Var(bounds(&cfg.Buckets.E2ERequestLatency), "bucket-e2e-request-latency", "bounds of the histogram, in seconds (default: built in)")
	f.Var(rule(&cfg.Buckets.PromptTokens), "prompt-tokens-buckets", "default, tse MIDDLE BASE COUNT, or custom BOUND…")
	f.Var(rule(&cfg.Buckets.GenerationTokens), "generation-tokens-buckets", "default, tse MIDDLE BASE COUNT, or custom BOUND…")
	f.IntVar(&r.DecodeLogInterval, "decode-log-interval", r.DecodeLogInterval, "decode steps between two reports")
	f.BoolVar(&cfg.EnableCacheReport, "enable-cache-report", false, "tell clients how many prompt tokens came from the cache")
	f.BoolVar(&cfg.LogRequests, "log-requests", false, "log a line when a request comes and when it ends")
	f.IntVar(&cfg.LogRequestsLevel, "log-requests-level", cfg.LogRequestsLevel, "what the lines hold: 0 counts and times, 1 also the sampling parameters, 2 also the begin of texts, 3 whole texts")
	f.Float64Var(&cfg.LogRequestsSampleRate, "log-requests-sample-rate", cfg.LogRequestsSampleRate, "the share of the requests that is logged, 0 to 1")
	f.StringVar(&r.LogLevel, "log-level", r.LogLevel, "debug, info, warning or error")

	f.BoolVar(&r.Trace.Enabled, "enable-trace", false, "make spans of requests and send them to an OpenTelemetry collector")
	f.StringVar(&r.Trace.Endpoint, "otlp-traces-endpoint", r.Trace.Endpoint, "the collector: host:port, or a URL such as https://host:4318/v1/traces")
	f.Var((*modules)(&r.Trace.Modules), "trace-modules", "whose spans are made, with commas between: request")

	f.Var((*mode)(&r.Disagg.Mode), "disaggregation-mode", "prefill, decode or null")
	f.IntVar(&cfg.BootstrapPort, "disaggregation-bootstrap-port", cfg.BootstrapPort, "port of a prefill engine's bootstrap server; 0 for a free one")
	f.StringVar(&r.Disagg.AdvertiseHost, "disaggregation-host", "", "address that decode engines dial (default: POD_IP, else --host)")
	f.StringVar(&files.pd, "disaggregation-secret-file", "", "file with the secret that the service's engines share (default: SLUICE_PD_SECRET)")

	f.Var((*seconds)(&cfg.DrainAccept), "drain-accept", "time after SIGTERM in which requests are still taken; 0 for none")
	f.Var((*seconds)(&cfg.DrainTimeout), "drain-timeout", "time after SIGTERM after which what still runs is aborted; 0 for at once")
}

// secretFiles are the files of secrets that flags name.
type secretFiles struct{ pd, nodes string }

// oldNames gives the name of a flag for the other ones that SGLang takes.
func oldNames(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	switch name {
	case "tensor-parallel-size", "tp":
		name = "tp-size"
	case "pipeline-parallel-size", "pp":
		name = "pp-size"
	case "data-parallel-size", "dp":
		name = "dp-size"
	case "nccl-init-addr":
		name = "dist-init-addr"
	}
	return pflag.NormalizedName(name)
}

// readEnvironment fills in what comes from the environment and from files.
func readEnvironment(cfg *server.Config, files secretFiles, lookup func(string) (string, bool), read func(string) ([]byte, error)) error {
	d := &cfg.Rank.Disagg
	for _, v := range []struct {
		flag, file, variable, whose string
		to                          *string
	}{
		{"disaggregation-secret-file", files.pd, "SLUICE_PD_SECRET", "the service's engines", &d.Secret},
		{"dist-secret-file", files.nodes, "SLUICE_DIST_SECRET", "the replica's nodes", &cfg.DistSecret},
	} {
		if v.file == "" {
			secret, _ := lookup(v.variable)
			*v.to = strings.TrimSpace(secret)
			continue
		}
		text, err := read(v.file)
		if err != nil {
			return fmt.Errorf("--%s: %w", v.flag, err)
		}
		if *v.to = strings.TrimSpace(string(text)); *v.to == "" {
			return fmt.Errorf("--%s %s is empty: write the secret that %s share", v.flag, v.file, v.whose)
		}
	}
	cfg.MetricsDir, _ = lookup("PROMETHEUS_MULTIPROC_DIR")
	if dir, set := lookup("SGLANG_TORCH_PROFILER_DIR"); set && dir != "" {
		cfg.ProfilerDir = dir
	}
	if address, set := lookup("POD_IP"); set && d.AdvertiseHost == "" {
		d.AdvertiseHost = address
	}
	for _, v := range []struct {
		name string
		to   *time.Duration
	}{
		{"SGLANG_HEALTH_CHECK_TIMEOUT", &cfg.HealthTimeout},
		{"SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", &d.BootstrapTimeout},
		{"SGLANG_DISAGGREGATION_WAITING_TIMEOUT", &d.WaitingTimeout},
		{"SGLANG_GRAMMAR_TIMEOUT", &cfg.Rank.GrammarTimeout},
	} {
		text, set := lookup(v.name)
		if !set {
			continue
		}
		number, err := strconv.ParseFloat(text, 64)
		*v.to = time.Duration(number * float64(time.Second))
		if err != nil || !(number > 0 && number < 1e6) || *v.to <= 0 {
			return fmt.Errorf("%s is %q: give seconds, more than 0", v.name, text)
		}
	}
	if err := readPolicyEnvironment(&cfg.Rank, lookup); err != nil {
		return err
	}
	if err := readMetricsEnvironment(&cfg.Rank, lookup); err != nil {
		return err
	}
	if err := readTraceEnvironment(&cfg.Rank.Trace, lookup); err != nil {
		return err
	}
	if text, set := lookup("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"); set {
		value, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION is %q: give true or false", text)
		}
		cfg.HealthGenerates = value
	}
	return nil
}

func level(name string) slog.Level {
	var l slog.Level
	if name == "warning" {
		return slog.LevelWarn
	}
	if l.UnmarshalText([]byte(name)) != nil {
		return slog.LevelInfo // Validate refuses the name
	}
	return l
}
