package server

import (
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"time"

	"github.com/sluice-dev/sluice/engine/dp"
	"github.com/sluice-dev/sluice/engine/metrics"
	"github.com/sluice-dev/sluice/engine/parallel"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/trace"
	"github.com/sluice-dev/sluice/internal/peer"
)

// Config is everything that the flags of `serve` say. Validate it once; after that it does not change.
type Config struct {
	ModelPath       string // --model-path: directory of config.json, model.safetensors, tokenizer.json
	ServedModelName string // --served-model-name; empty: ModelPath
	Host            string // --host
	Port            int    // --port; 0: a free one

	APIKey      string // --api-key: guards the user's routes; empty: open
	AdminAPIKey string // --admin-api-key: guards control routes; empty: APIKey does

	EnableMetrics       bool              // --enable-metrics
	EnableCacheReport   bool              // --enable-cache-report: cached tokens in usage
	ExtraMetricLabels   map[string]string // --extra-metric-labels
	MetricsDir          string            // PROMETHEUS_MULTIPROC_DIR: a private directory is made inside; empty: a temporary one
	Buckets             metrics.Buckets   // --bucket-time-to-first-token and its like
	CustomLabelsHeader  string            // --tokenizer-metrics-custom-labels-header
	AllowedCustomLabels []string          // --tokenizer-metrics-allowed-custom-labels

	LogRequests      bool // --log-requests: a line for each request, until /configure_logging says otherwise
	LogRequestsLevel int  // --log-requests-level: 0 to 3, how much of it
	// LogRequestsSampleRate is the share of the requests that is logged, --log-requests-sample-rate: 0 to 1.
	LogRequestsSampleRate float64

	DebugRequests int // --debug-requests: ended requests whose timelines /debug/requests has; 0: none

	MaxBodyBytes    int64         // --max-body-bytes
	ClientTimeout   time.Duration // no flag: a client that sends or takes nothing for so long counts as gone
	HealthTimeout   time.Duration // SGLANG_HEALTH_CHECK_TIMEOUT: until a health check without output fails
	HealthGenerates bool          // SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION: /health asks the rank for a token

	ProfilerDir string // SGLANG_TORCH_PROFILER_DIR: where profiles go when /start_profile names no directory

	DrainAccept  time.Duration // --drain-accept: after SIGTERM, still taking requests while health says 503; at most DrainTimeout
	DrainTimeout time.Duration // --drain-timeout: after SIGTERM, until what still runs is aborted

	BootstrapPort int // --disaggregation-bootstrap-port; 0: a free one

	NNodes       int           // --nnodes: nodes over which the ranks are spread, at least 1
	NodeRank     int           // --node-rank: which of them this is; 0 has the API
	DistInitAddr string        // --dist-init-addr: where node 0 listens for the others
	DistSecret   string        // --dist-secret-file: what the nodes prove to each other; empty: that of the PD peers
	DistTimeout  time.Duration // --dist-timeout: until all nodes are there, more than 0

	DPSize            int    // --dp-size: replicas of the model behind this API process, at least 1
	LoadBalanceMethod string // --load-balance-method: how one is chosen for a request that names none

	// Args are the flags by SGLang's names, as /server_info shows them; without the keys. Nil: it shows what it knows itself.
	Args map[string]any

	// Rank is what the rank process gets. Its model directory, names, metrics and disaggregation addresses are filled in
	// from the fields above.
	Rank rank.Config
}

// Default is the configuration without any flag.
func Default() Config {
	return Config{
		Host: "127.0.0.1", Port: 30000, CustomLabelsHeader: "x-custom-labels", LogRequestsLevel: 2, LogRequestsSampleRate: 1, DebugRequests: 1024, MaxBodyBytes: 8 << 20,
		ClientTimeout: 2 * time.Minute, HealthTimeout: 20 * time.Second, HealthGenerates: true, DrainAccept: 2 * time.Second, DrainTimeout: 60 * time.Second,
		BootstrapPort: 8998, ProfilerDir: "/tmp", NNodes: 1, DistTimeout: 300 * time.Second, DPSize: 1, LoadBalanceMethod: string(dp.Auto),
		Rank: rank.Config{TPSize: 1, PPSize: 1, Trace: trace.DefaultConfig(), Metrics: rank.MetricsConfig{MaxLabelValues: metrics.DefaultLabelValues},
			PageSize: 16, SWAFullTokensRatio: 0.8, MaxRunningRequests: 256, ChunkedPrefillSize: 2048, MaxPrefillTokens: 16384, DecodeLogInterval: 40, LogLevel: "info", SessionTimeout: 30 * time.Minute, MaxSessionTokens: 16 << 20,
			Cache: rank.CacheConfig{EvictionPolicy: "lru"}, SchedulePolicy: "fcfs", ScheduleConservativeness: 1, RetractionPolicy: "length", Priority: rank.PriorityConfig{PreemptionThreshold: 10},
		},
	}
}

// Validate gives the configuration with everything derived filled in, or every fault that it has, each with its flag and
// what to write instead. The metrics directory and the bootstrap server's address are known only to Serve.
func (c Config) Validate() (Config, error) {
	var faults []error
	refuse := func(flag, format string, args ...any) {
		faults = append(faults, fmt.Errorf("--"+flag+" "+format, args...))
	}
	if c.ModelPath == "" {
		refuse("model-path", "is missing: name the model's directory, for example one that `sluice-engine init-model` wrote")
	}
	if c.ServedModelName == "" {
		c.ServedModelName = c.ModelPath
	}
	if c.Host == "" {
		refuse("host", "is empty: give 127.0.0.1, or 0.0.0.0 for all interfaces")
	}
	checkPort(refuse, "port", c.Port)
	checkPort(refuse, "disaggregation-bootstrap-port", c.BootstrapPort)
	if c.MaxBodyBytes < 1 || c.MaxBodyBytes > maxBodyLimit {
		refuse("max-body-bytes", "is %d: give 1 to %d; the default is %d", c.MaxBodyBytes, int64(maxBodyLimit), Default().MaxBodyBytes)
	}
	for _, f := range []struct {
		flag  string
		value time.Duration
	}{{"drain-accept", c.DrainAccept}, {"drain-timeout", c.DrainTimeout}} {
		if f.value < 0 {
			refuse(f.flag, "is %v: give seconds, at least 0", f.value)
		}
	}
	if c.LogRequestsLevel < 0 || c.LogRequestsLevel > maxLogLevel {
		refuse("log-requests-level", "is %d: give 0 to %d", c.LogRequestsLevel, maxLogLevel)
	}
	if !(c.LogRequestsSampleRate >= 0 && c.LogRequestsSampleRate <= 1) {
		refuse("log-requests-sample-rate", "is %g: give 0 to 1; 1 logs every request", c.LogRequestsSampleRate)
	}
	if c.DebugRequests < 0 || c.DebugRequests > maxDebugRequests {
		refuse("debug-requests", "is %d: give a number up to %d, or 0 to remember none", c.DebugRequests, maxDebugRequests)
	}
	c.DrainAccept = min(c.DrainAccept, c.DrainTimeout)
	if c.HealthTimeout <= 0 {
		faults = append(faults, fmt.Errorf("SGLANG_HEALTH_CHECK_TIMEOUT is %v: give seconds, more than 0", c.HealthTimeout))
	}
	switch c.Rank.LogLevel { // as SGLang calls them
	case "warning":
		c.Rank.LogLevel = "warn"
	case "critical":
		c.Rank.LogLevel = "error"
	}
	c.checkLabels(refuse)
	if n := c.Rank.Metrics.MaxLabelValues; n < 1 || n > maxLabelValues {
		refuse("metrics-max-label-values", "is %d: give 1 to %d; the default is %d", n, maxLabelValues, metrics.DefaultLabelValues)
	}
	c.checkBuckets(refuse)
	if err := c.Rank.Trace.Validate(); err != nil {
		faults = append(faults, err)
	}
	c.checkRankNumbers(refuse)
	c.checkPolicies(refuse)
	c.checkDisaggregation(refuse)
	c.checkDataParallel(refuse)
	if c.Rank.TPSize > 0 && c.Rank.PPSize > 0 {
		if _, err := parallel.At(0, c.Rank.TPSize, c.Rank.PPSize); err != nil {
			faults = append(faults, err)
		}
	}
	c.checkNodes(refuse)
	if err := errors.Join(faults...); err != nil {
		return Config{}, err
	}
	c.Rank.ModelDir, c.Rank.ServedModelName = c.ModelPath, c.ServedModelName
	c.Rank.Metrics.Enabled, c.Rank.Metrics.Labels = c.EnableMetrics, c.ExtraMetricLabels
	if err := c.checkRank(); err != nil {
		return Config{}, err
	}
	return c, nil
}

func (c Config) logSetting() logSetting {
	return logSetting{on: c.LogRequests, level: c.LogRequestsLevel, rate: c.LogRequestsSampleRate}
}

// maxLabelValues is the most that --metrics-max-label-values can be: each value is a series of many families.
const maxLabelValues = 1 << 16

// checkBuckets sorts the bounds.
func (c *Config) checkBuckets(refuse refusal) {
	for _, f := range []struct {
		flag   string
		bounds *[]float64
	}{
		{"bucket-time-to-first-token", &c.Buckets.TimeToFirstToken},
		{"bucket-inter-token-latency", &c.Buckets.InterTokenLatency},
		{"bucket-e2e-request-latency", &c.Buckets.E2ERequestLatency},
		{"prompt-tokens-buckets", &c.Buckets.PromptTokens},
		{"generation-tokens-buckets", &c.Buckets.GenerationTokens},
	} {
		if *f.bounds == nil {
			continue
		}
		sorted, err := metrics.CheckBuckets(*f.bounds)
		if err != nil {
			refuse(f.flag, "is no list of bounds: %v", err)
			continue
		}
		*f.bounds = sorted
	}
}

// maxDebugRequests bounds DebugRequests, each of which takes recentBytes.
const maxDebugRequests = 1 << 20

// maxBodyLimit is the most that MaxBodyBytes can be; bodies are held in memory.
const maxBodyLimit = 1 << 40

type refusal func(flag, format string, args ...any)

func checkPort(refuse refusal, flag string, port int) {
	if port < 0 || port > 65535 {
		refuse(flag, "is %d: give a port from 1 to 65535, or 0 for a free one", port)
	}
}

// Bounds of what flags of the rank can be. They are beyond any use; what fits a machine is found out on it.
const (
	mostTokens   = 1 << 40 // of pools and sessions
	mostRequests = 1 << 20 // each has state of its own
	mostInStep   = 1 << 30 // tokens, or steps between reports
	mostInPage   = 1 << 16 // tokens, as of the runner
	mostThreads  = 1 << 12 // as of the device
	mostPriority = 1 << 31 // so that differences are numbers too
)

// checkRankNumbers refuses what the rank could not use, in the words of the flags.
func (c Config) checkRankNumbers(refuse refusal) {
	r := c.Rank
	for _, f := range []struct {
		flag  string
		value int
		most  int
		zero  string // what 0 means; empty: nothing, it is refused
	}{
		{"page-size", r.PageSize, mostInPage, ""},
		{"max-total-tokens", r.MaxTotalTokens, mostTokens, "as many as memory allows"},
		{"context-length", r.ContextLength, mostTokens, "the model's"},
		{"max-running-requests", r.MaxRunningRequests, mostRequests, ""},
		{"max-running-requests-under-slo", r.MaxRunningRequestsUnderSLO, mostRequests, "--max-running-requests"},
		{"max-queued-requests", r.MaxQueuedRequests, math.MaxInt32, "no limit"},
		{"max-prefill-tokens", r.MaxPrefillTokens, mostInStep, ""},
		{"decode-log-interval", r.DecodeLogInterval, mostInStep, ""},
		{"max-session-tokens", r.MaxSessionTokens, mostTokens, ""},
		{"threads", r.Threads, mostThreads, "one for each CPU"},
		{"tp-size", r.TPSize, math.MaxInt, ""},
		{"pp-size", r.PPSize, math.MaxInt, ""},
	} {
		switch {
		case f.zero == "" && f.value < 1:
			refuse(f.flag, "is %d: give a positive number", f.value)
		case f.value < 0:
			refuse(f.flag, "is %d: give a positive number, or 0 for %s", f.value, f.zero)
		case f.value > f.most:
			refuse(f.flag, "is %d: give at most %d", f.value, f.most)
		}
	}
	if n := r.ChunkedPrefillSize; n < 1 && n != -1 || n > mostInStep {
		refuse("chunked-prefill-size", "is %d: give a positive number up to %d, or -1 for whole prompts", n, mostInStep)
	}
	if !(r.SWAFullTokensRatio > 0 && r.SWAFullTokensRatio <= 1) {
		refuse("swa-full-tokens-ratio", "is %g: give more than 0 and at most 1", r.SWAFullTokensRatio)
	}
	if !(r.ScheduleConservativeness > 0 && r.ScheduleConservativeness <= 100) {
		refuse("schedule-conservativeness", "is %g: give more than 0 and at most 100", r.ScheduleConservativeness)
	}
	if r.SessionTimeout <= 0 {
		refuse("session-timeout", "is %v: give seconds, more than 0", r.SessionTimeout)
	}
	if r.PageSize > 0 && r.MaxTotalTokens > 0 && r.MaxTotalTokens < r.PageSize {
		refuse("max-total-tokens", "is %d, less than a page of %d tokens (--page-size): raise it", r.MaxTotalTokens, r.PageSize)
	}
	if r.LogLevel != "" && !slices.Contains([]string{"debug", "info", "warn", "error"}, r.LogLevel) {
		refuse("log-level", "is %q: use debug, info, warning or error", r.LogLevel)
	}
}

// checkPolicies refuses what the scheduler could not follow, or what excludes each other.
func (c Config) checkPolicies(refuse refusal) {
	r := c.Rank
	if n := r.Priority.PreemptionThreshold; n < 0 || n > mostPriority {
		refuse("priority-scheduling-preemption-threshold", "is %d: give 0 to %d", n, mostPriority)
	}
	if n := r.Priority.Default; n != nil && (*n < -mostPriority || *n > mostPriority) {
		refuse("default-priority-value", "is %d: give %d to %d", *n, -mostPriority, mostPriority)
	}
	if r.RetractionPolicy == "priority" && !r.Priority.Enabled {
		refuse("retraction-policy", "is %s, but priority scheduling is off: give --enable-priority-scheduling too, or use length", r.RetractionPolicy)
	}
	if r.EnableMixedChunk && r.ChunkedPrefillSize == -1 {
		refuse("enable-mixed-chunk", "is set, but --chunked-prefill-size is -1: give it a positive number, or leave --enable-mixed-chunk out")
	}
	if r.EnableStreamingSession && r.Cache.Disable {
		refuse("enable-streaming-session", "is set, but the prefix cache that keeps the KV of sessions is off: leave --enable-streaming-session or --disable-radix-cache out")
	}
	if r.Cache.EnableOnDecode {
		refuse("disaggregation-decode-enable-radix-cache", "is set, but a decode engine has no prefix cache: leave it out; the prefill engines cache")
	}
	for _, f := range []struct {
		flag  string
		value time.Duration
	}{{"request-waiting-timeout", r.RequestWaitingTimeout}, {"request-running-timeout", r.RequestRunningTimeout}} {
		if f.value < 0 {
			refuse(f.flag, "is %v: give seconds, more than 0, or 0 for no limit", f.value)
		}
	}
}

// checkRank refuses what the rank itself would refuse once it is started, with what Serve will fill in standing in. It finds
// what the other checks have no flag for.
func (c Config) checkRank() error {
	r := c.Rank
	r.Metrics.Dir, r.Disagg.BootstrapURL = "-", "-"
	_, err := r.Validate()
	return err
}

// checkDisaggregation fills in the addresses that decode ranks dial and refuses a mode without what it needs.
func (c *Config) checkDisaggregation(refuse refusal) {
	d := &c.Rank.Disagg
	switch d.Mode {
	case rank.ModeUnified:
		return
	case rank.ModePrefill, rank.ModeDecode:
	default:
		refuse("disaggregation-mode", "is %q: use prefill, decode or null", string(d.Mode))
		return
	}
	d.ListenHost = c.Host
	if d.AdvertiseHost == "" {
		d.AdvertiseHost = c.Host
	}
	if d.Mode == rank.ModePrefill && isWildcard(d.AdvertiseHost) {
		refuse("disaggregation-host", "is missing and --host is %s, which decode engines can't dial: give this machine's address, or set POD_IP", c.Host)
	}
	if d.Secret == "" && !peer.Loopback(c.Host) {
		refuse("disaggregation-secret-file", "is missing: peers on other machines authenticate with a shared secret; name the file, or set SLUICE_PD_SECRET on all engines of the service")
	}
}

// checkDataParallel refuses what the DP controller could not do.
func (c *Config) checkDataParallel(refuse refusal) {
	if c.DPSize < 1 || c.DPSize > maxDPSize {
		refuse("dp-size", "is %d: give 1 to %d", c.DPSize, maxDPSize)
	}
	method, err := dp.ParseMethod(c.LoadBalanceMethod)
	if err != nil {
		refuse("load-balance-method", "%v", err)
	}
	if method == dp.FollowBootstrapRoom && c.Rank.Disagg.Mode == rank.ModeUnified {
		refuse("load-balance-method", "is %s, but requests of a unified engine have no room: use another, or --disaggregation-mode", method)
	}
	if c.Rank.Disagg.Mode == rank.ModePrefill && c.DPSize > 1 {
		c.Rank.Disagg.LoadBalance = string(method.Resolve(rank.ModePrefill))
	}
}

// maxDPSize bounds the processes of one replica.
const maxDPSize = 64

func isWildcard(host string) bool {
	ip := net.ParseIP(host)
	return ip != nil && ip.IsUnspecified()
}

// dialable is how a process on this machine reaches what listens on host.
func dialable(host string) string {
	if isWildcard(host) {
		return "127.0.0.1"
	}
	return host
}
