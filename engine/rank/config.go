package rank

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/engine/disagg"
	"github.com/sluice-dev/sluice/engine/kvcache"
	"github.com/sluice-dev/sluice/engine/metrics"
	"github.com/sluice-dev/sluice/engine/runner"
	"github.com/sluice-dev/sluice/engine/scheduler"
	"github.com/sluice-dev/sluice/engine/trace"
)

// Mode is what a rank does in prefill-decode disaggregation.
type Mode string

// The modes.
const (
	ModeUnified Mode = ""        // prefill and decode both, no peer
	ModePrefill Mode = "prefill" // computes prompts, answers after one token, sends KV
	ModeDecode  Mode = "decode"  // receives KV and decodes from it
)

// EngineType is the value of the label engine_type.
func (m Mode) EngineType() string {
	if m == ModeUnified {
		return "unified"
	}
	return string(m)
}

// Config is everything a rank process needs. It travels as JSON on the child's standard input. Zero values mean the
// default that the comment names; Validate fills them in.
type Config struct {
	Rank int `json:"rank"` // of the world, 0 <= Rank < TPSize*PPSize

	TPSize int `json:"tpSize,omitempty"` // ranks that share each layer; 0: 1
	PPSize int `json:"ppSize,omitempty"` // stages that the layers are divided into; 0: 1
	// Nodes says on which node this is, when the world lies on several.
	Nodes NodesConfig `json:"nodes,omitzero"`

	// MeetingDir is the private folder where the ranks of a world meet. StartWorld sets it.
	MeetingDir string `json:"meetingDir,omitempty"`

	// DPRank is which of the DP ranks behind one API process this is; nil: there is one. DPSize is how many there are: those
	// of one machine share its processors and memory; 0: 1.
	DPRank *int `json:"dpRank,omitempty"`
	DPSize int  `json:"dpSize,omitempty"`

	ModelDir        string `json:"modelDir"`
	ServedModelName string `json:"servedModelName"`

	PageSize       int `json:"pageSize"`       // tokens per page; 0: 16
	MaxTotalTokens int `json:"maxTotalTokens"` // KV capacity in tokens, rounded down to pages; 0: from the memory budget
	// SWAFullTokensRatio is the capacity of sliding-window layers as a part of that of full ones; 0: 0.8.
	SWAFullTokensRatio float64 `json:"swaFullTokensRatio"`
	ContextLength      int     `json:"contextLength"` // 0: the model's; more than the model's is an error

	MaxRunningRequests         int `json:"maxRunningRequests"`         // 0: 256
	MaxRunningRequestsUnderSLO int `json:"maxRunningRequestsUnderSLO"` // the cap of utilization; 0: MaxRunningRequests
	MaxQueuedRequests          int `json:"maxQueuedRequests"`          // more are refused; 0: no limit
	ChunkedPrefillSize         int `json:"chunkedPrefillSize"`         // prompt tokens a step; 0: 2048; -1: no chunks
	MaxPrefillTokens           int `json:"maxPrefillTokens"`           // prompt tokens a prefill batch admits; 0: 16384
	DecodeLogInterval          int `json:"decodeLogInterval"`          // decode steps between reports; 0: 40

	SchedulePolicy           string  `json:"schedulePolicy"`           // fcfs or lpm; empty: fcfs
	ScheduleConservativeness float64 `json:"scheduleConservativeness"` // more admits fewer requests at once; 0: 1
	RetractionPolicy         string  `json:"retractionPolicy"`         // length or priority; empty: length
	EnableMixedChunk         bool    `json:"enableMixedChunk"`         // prefill chunks are computed together with decodes

	GrammarTimeout time.Duration `json:"grammarTimeout"` // until a grammar must be compiled; 0: 300 s

	// DisableOverlapSchedule decides a step only when the results of the one before are known.
	DisableOverlapSchedule bool `json:"disableOverlapSchedule"`

	EnableStreamingSession bool          `json:"enableStreamingSession"` // sessions may keep their KV between turns
	MaxSessionTokens       int           `json:"maxSessionTokens"`       // that all sessions together remember; 0: 16 Mi, 64 MiB of memory
	SessionTimeout         time.Duration `json:"sessionTimeout"`         // of an idle session that names none itself; 0: 30 min

	Priority PriorityConfig `json:"priority"`
	Cache    CacheConfig    `json:"cache"`

	CacheHitRateWindow time.Duration `json:"cacheHitRateWindow"` // over which the load estimates what waiting requests find in the cache; 0: 15 s

	RequestWaitingTimeout time.Duration `json:"requestWaitingTimeout"` // in the waiting queue; 0: none
	RequestRunningTimeout time.Duration `json:"requestRunningTimeout"` // from the first forward on; 0: none

	Metrics MetricsConfig `json:"metrics"`
	Trace   trace.Config  `json:"trace,omitzero"` // whether requests that are traced get spans of this rank too
	Disagg  DisaggConfig  `json:"disagg"`

	Seed     uint64 `json:"seed"`     // of the seeds drawn for requests that bring none
	Threads  int    `json:"threads"`  // of the device; 0: GOMAXPROCS
	LogLevel string `json:"logLevel"` // debug, info, warn or error; empty: info

	// AssertTimes makes a request whose times can't be true end the rank's process, with its rid and the times. For tests.
	AssertTimes bool `json:"assertTimes,omitempty"`
	// TestRetractSteps > 0 retracts one request every so many decode steps, memory or not. For tests.
	TestRetractSteps int `json:"testRetractSteps,omitempty"`
}

// CacheConfig says how prefixes are cached. A decode rank caches none.
type CacheConfig struct {
	Disable        bool   `json:"disable"`        // every prompt is computed whole
	EvictionPolicy string `json:"evictionPolicy"` // what goes first when memory is short; empty: lru

	// EnableOnDecode is refused: what a decode rank receives is its own.
	EnableOnDecode bool `json:"enableOnDecode"`
}

// PriorityConfig says what the priorities of requests do.
type PriorityConfig struct {
	Enabled             bool `json:"enabled"`
	Default             *int `json:"default,omitempty"`   // of requests that bring none; nil: they come after all others
	LowFirst            bool `json:"lowFirst"`            // lower values are more urgent
	PreemptionThreshold int  `json:"preemptionThreshold"` // a running request is preempted for one whose priority exceeds its own by more
	DisablePreemption   bool `json:"disablePreemption"`
	AbortWhenDisabled   bool `json:"abortWhenDisabled"` // refuse requests that bring a priority while Enabled is false
}

// NodesConfig is the part of a world that lies on several nodes. Its ranks are spread over them evenly, in their order.
type NodesConfig struct {
	Count      int    `json:"count,omitempty"`      // 0: 1, and then nothing else is read
	Rank       int    `json:"rank,omitempty"`       // 0 <= Rank < Count
	Rendezvous string `json:"rendezvous,omitempty"` // where rank 0 listens for those of other nodes, host:port
	Secret     string `json:"secret,omitempty"`     // the same on all nodes; empty is allowed on loopback only

	// Listener is Rendezvous on node 0, where StartWorld hands it to rank 0 and closes it. Inherited says that it did.
	Listener  *net.TCPListener `json:"-"`
	Inherited bool             `json:"inherited,omitempty"`
}

// MetricsConfig says whether and where a rank writes its metrics.
type MetricsConfig struct {
	Enabled  bool              `json:"enabled"`
	AllRanks bool              `json:"allRanks"` // also the ranks that only do as the first of their stage does
	Dir      string            `json:"dir"`      // of the store shared with the API process
	Labels   map[string]string `json:"labels"`   // extra labels, on every family

	// MaxLabelValues is how many values a label that clients choose may have in a family; 0: the default.
	MaxLabelValues int `json:"maxLabelValues,omitempty"`
	// Backends make the series of some roles elsewhere than in the store. Only a rank in this process can have them.
	Backends map[metrics.Source]metrics.Backend `json:"-"`

	DeviceTimer     bool      `json:"deviceTimer,omitempty"`     // measure for how long the device computes
	MFU             bool      `json:"mfu,omitempty"`             // estimate what steps cost by the model's shapes
	EvictionBuckets []float64 `json:"evictionBuckets,omitempty"` // of the histogram of evictions, ascending; empty: the built-in ones
}

// FollowRoom is the LoadBalance with which a room names its DP rank.
const FollowRoom = disagg.FollowRoom

// DisaggConfig is the prefill-decode part.
type DisaggConfig struct {
	Mode Mode `json:"mode"`

	// BootstrapURL is the own bootstrap server, for example http://127.0.0.1:8998. Prefill only.
	BootstrapURL string `json:"bootstrapURL,omitempty"`
	// LoadBalance is how a prefill engine's requests find their DP rank: with FollowRoom its peers know it from
	// the room, else they ask the bootstrap server.
	LoadBalance string `json:"loadBalance,omitempty"`
	// ListenHost is where a prefill rank accepts decode ranks; empty: 127.0.0.1. AdvertiseHost is what it registers;
	// empty: ListenHost.
	ListenHost    string `json:"listenHost,omitempty"`
	AdvertiseHost string `json:"advertiseHost,omitempty"`
	// Secret authenticates the peers to each other. Empty is allowed on loopback only.
	Secret string `json:"secret,omitempty"`

	BootstrapTimeout time.Duration `json:"bootstrapTimeout,omitempty"` // until the peers met; 0: 300 s
	WaitingTimeout   time.Duration `json:"waitingTimeout,omitempty"`   // until the KV came; 0: 300 s
}

const (
	defaultPageSize         = 16
	defaultMaxRunning       = 256
	defaultChunk            = 2048
	defaultMaxPrefillTokens = 16384
	defaultDecodeInterval   = 40
	defaultSessionTimeout   = 30 * time.Minute
	defaultSessionTokens    = 16 << 20
	defaultTimeout          = 300 * time.Second // of grammars, bootstraps and transfers
)

// Validate returns c with defaults filled in, or what is wrong with it and what to write instead.
func (c Config) Validate() (Config, error) {
	var errs []error
	refuse := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.ModelDir == "" {
		refuse("model directory is empty: name the directory that holds config.json")
	}
	if n := c.worldSize(); c.Rank < 0 || c.Rank >= n {
		refuse("rank is %d: want 0 to %d in a world of %d", c.Rank, n-1, n)
	}
	if n := c.Nodes; n.Count > 1 && (c.worldSize()%n.Count != 0 || n.Rank < 0 || n.Rank >= n.Count) {
		refuse("node rank is %d of %d for %d ranks: the number of nodes divides that of the ranks", n.Rank, n.Count, c.worldSize())
	}
	positive := func(field string, v *int, def int) {
		if *v < 0 {
			refuse("%s is %d: give a positive number, or 0 for %d", field, *v, def)
		}
		if *v == 0 {
			*v = def
		}
	}
	positive("page size", &c.PageSize, defaultPageSize)
	positive("maximum of running requests", &c.MaxRunningRequests, defaultMaxRunning)
	positive("maximum of running requests under SLO", &c.MaxRunningRequestsUnderSLO, c.MaxRunningRequests)
	positive("maximum of prefill tokens", &c.MaxPrefillTokens, defaultMaxPrefillTokens)
	positive("decode log interval", &c.DecodeLogInterval, defaultDecodeInterval)
	positive("maximum of session tokens", &c.MaxSessionTokens, defaultSessionTokens)
	if c.ChunkedPrefillSize < -1 {
		refuse("chunked prefill size is %d: give a positive number, -1 for no chunks or 0 for %d", c.ChunkedPrefillSize, defaultChunk)
	}
	if c.ChunkedPrefillSize == 0 {
		c.ChunkedPrefillSize = defaultChunk
	}
	if c.MaxTotalTokens < 0 || c.MaxTotalTokens > 0 && c.PageSize > 0 && c.MaxTotalTokens < c.PageSize {
		refuse("maximum of total tokens is %d: give at least one page of %d tokens, or 0 to derive it", c.MaxTotalTokens, c.PageSize)
	}
	if !(c.SWAFullTokensRatio >= 0 && c.SWAFullTokensRatio <= 1) {
		refuse("ratio of sliding-window tokens is %g: give a number up to 1, or 0 for %g", c.SWAFullTokensRatio, runner.DefaultWindowRatio)
	}
	if c.SWAFullTokensRatio == 0 {
		c.SWAFullTokensRatio = runner.DefaultWindowRatio
	}
	for _, f := range []struct {
		name string
		v    int
	}{
		{"context length", c.ContextLength}, {"maximum of queued requests", c.MaxQueuedRequests},
		{"threads", c.Threads}, {"test retract steps", c.TestRetractSteps},
	} {
		if f.v < 0 {
			refuse("%s is %d: give a positive number, or 0 for the default", f.name, f.v)
		}
	}
	c = c.validatePolicies(refuse)
	switch c.LogLevel {
	case "":
		c.LogLevel = "info"
	case "debug", "info", "warn", "error":
	default:
		refuse("log level is %q: use debug, info, warn or error", c.LogLevel)
	}
	switch c.Disagg.Mode {
	case ModeUnified, ModeDecode:
	case ModePrefill:
		if c.Disagg.BootstrapURL == "" {
			refuse("bootstrap URL is empty on a prefill rank: name the replica's own bootstrap server, for example http://127.0.0.1:8998")
		}
	default:
		refuse("disaggregation mode is %q: use prefill, decode or nothing", c.Disagg.Mode)
	}
	if c.Disagg.ListenHost == "" {
		c.Disagg.ListenHost = "127.0.0.1"
	}
	if c.Disagg.AdvertiseHost == "" {
		c.Disagg.AdvertiseHost = c.Disagg.ListenHost
	}
	timeout := func(field string, d *time.Duration) {
		if *d < 0 {
			refuse("%s is %v: give a positive duration, or 0 for %v", field, *d, defaultTimeout)
		}
		if *d == 0 {
			*d = defaultTimeout
		}
	}
	timeout("grammar timeout", &c.GrammarTimeout)
	timeout("bootstrap timeout", &c.Disagg.BootstrapTimeout)
	timeout("waiting timeout", &c.Disagg.WaitingTimeout)
	if err := c.Trace.Validate(); err != nil {
		errs = append(errs, err)
	}
	if b := c.Metrics.EvictionBuckets; len(b) > 0 {
		sorted, err := metrics.CheckBuckets(b)
		if err != nil {
			refuse("buckets of evictions: %w", err)
		}
		c.Metrics.EvictionBuckets = sorted
	}
	if c.Metrics.Enabled && c.Metrics.Dir == "" {
		refuse("metrics directory is empty while metrics are enabled: name the directory of the store")
	}
	if err := errors.Join(errs...); err != nil {
		return Config{}, fmt.Errorf("rank config: %w", err)
	}
	return c, nil
}

// validatePolicies fills in and checks what the scheduler's policies are made of.
func (c Config) validatePolicies(refuse func(format string, args ...any)) Config {
	if c.Cache.EvictionPolicy == "" {
		c.Cache.EvictionPolicy = kvcache.LRU.String()
	}
	if _, err := kvcache.ParsePolicy(c.Cache.EvictionPolicy); err != nil {
		refuse("%w", err)
	}
	if c.SessionTimeout < 0 {
		refuse("session timeout is %v: give a positive duration, or 0 for %v", c.SessionTimeout, defaultSessionTimeout)
	}
	if c.SessionTimeout == 0 {
		c.SessionTimeout = defaultSessionTimeout
	}
	if c.EnableStreamingSession && c.Cache.Disable {
		refuse("streaming sessions are enabled, but the prefix cache that keeps their KV is disabled: leave --enable-streaming-session or --disable-radix-cache out")
	}
	if c.Cache.EnableOnDecode {
		refuse("a prefix cache is wanted on a decode rank, which has none: leave --disaggregation-decode-enable-radix-cache out; the prefill ranks cache")
	}
	if c.SchedulePolicy == "" {
		c.SchedulePolicy = scheduler.FCFS.String()
	}
	if _, err := scheduler.ParsePolicy(c.SchedulePolicy); err != nil {
		refuse("%w", err)
	}
	if c.RetractionPolicy == "" {
		c.RetractionPolicy = scheduler.RetractByLength.String()
	}
	if retraction, err := scheduler.ParseRetractionPolicy(c.RetractionPolicy); err != nil {
		refuse("%w", err)
	} else if retraction == scheduler.RetractByPriority && !c.Priority.Enabled {
		refuse("retraction policy is priority, but priority scheduling is off: enable it, or use length")
	}
	if c.ScheduleConservativeness == 0 {
		c.ScheduleConservativeness = 1
	}
	if !(c.ScheduleConservativeness > 0 && c.ScheduleConservativeness <= 100) {
		refuse("schedule conservativeness is %g: give more than 0 and at most 100", c.ScheduleConservativeness)
	}
	if c.EnableMixedChunk && c.ChunkedPrefillSize < 0 {
		refuse("mixed chunks are enabled, but the chunked prefill size is %d: give a positive chunk size", c.ChunkedPrefillSize)
	}
	if c.Priority.PreemptionThreshold < 0 {
		refuse("preemption threshold is %d: give 0 or more", c.Priority.PreemptionThreshold)
	}
	if c.CacheHitRateWindow < 0 {
		refuse("cache hit rate window is %v: give a positive duration, or 0 for 15 s", c.CacheHitRateWindow)
	}
	if c.RequestWaitingTimeout < 0 || c.RequestRunningTimeout < 0 {
		refuse("request time-outs are %v (waiting) and %v (running): give positive durations, or 0 for none",
			c.RequestWaitingTimeout, c.RequestRunningTimeout)
	}
	return c
}

// Info is what a rank knows once its model is loaded. It is constant.
type Info struct {
	Rank int
	PID  int

	Ranks []RankProcess // all ranks that hold the model together, in their order; this one is among them

	ModelID       string // names the weights; PD peers compare it
	DType         string // of the KV cache
	VocabSize     int
	NumLayers     int
	EOSTokenIDs   []int32
	ContextLength int // most tokens of a sequence, prompt and answer together

	PageSize                   int
	MaxTotalNumTokens          int // KV capacity, a multiple of PageSize
	MaxRunningRequests         int
	MaxRunningRequestsUnderSLO int
	WeightBytes                int64
	KVBytes                    int64

	Startup Startup
}

// Startup is how long the rank took to start, each time that of the rank of the world that took longest.
type Startup struct {
	LoadWeightNanos int64 `json:"load_weight_nanos"`
	KVCacheNanos    int64 `json:"kv_cache_nanos"` // to allocate the pages
	TotalNanos      int64 `json:"total_nanos"`    // from its configuration until its scheduler was there
}

// Longest takes from another rank what took longer there.
func (s Startup) Longest(other Startup) Startup {
	return Startup{
		LoadWeightNanos: max(s.LoadWeightNanos, other.LoadWeightNanos), KVCacheNanos: max(s.KVCacheNanos, other.KVCacheNanos),
		TotalNanos: max(s.TotalNanos, other.TotalNanos),
	}
}

// RankProcess is where a rank runs.
type RankProcess struct {
	DPRank   int `json:"dp_rank"`
	Rank     int `json:"rank"` // of its DP rank: pp_rank * tp_size + tp_rank
	TPRank   int `json:"tp_rank"`
	PPRank   int `json:"pp_rank"`
	NodeRank int `json:"node_rank"`
	PID      int `json:"pid"` // on its node, as its own PID namespace counts
}

// process describes this process as the configuration's rank.
func (c Config) process() RankProcess {
	return RankProcess{
		DPRank: c.dpRank(), Rank: c.Rank, TPRank: c.Rank % max(1, c.TPSize), PPRank: c.Rank / max(1, c.TPSize), NodeRank: c.Nodes.Rank, PID: os.Getpid(),
	}
}

// MaxPromptTokens is the longest prompt that can ever be served: one token of answer must fit too.
func (i Info) MaxPromptTokens() int { return min(i.ContextLength, i.MaxTotalNumTokens) - 1 }

// localRanks gives the ranks [from, to) of the world that are on this node.
func (c Config) localRanks() (from, to int) {
	n := max(1, c.Nodes.Count)
	each := c.worldSize() / n
	return c.Nodes.Rank * each, (c.Nodes.Rank + 1) * each
}

// dpRank is DPRank, 0 where there is one.
func (c Config) dpRank() int {
	if c.DPRank == nil {
		return 0
	}
	return *c.DPRank
}

// worldSize is the number of ranks that hold the model together.
func (c Config) worldSize() int { return max(1, c.TPSize) * max(1, c.PPSize) }

// name is what messages call this rank; with further details, such as its pid.
func (c Config) name(details ...string) string {
	name := fmt.Sprintf("rank %d", c.Rank)
	if c.DPRank != nil {
		name += fmt.Sprintf(" of DP rank %d", *c.DPRank)
	}
	if c.worldSize() > 1 {
		details = append([]string{fmt.Sprintf("tp %d, pp %d", c.Rank%max(1, c.TPSize), c.Rank/max(1, c.TPSize))}, details...)
	}
	if len(details) > 0 {
		name += " (" + strings.Join(details, ", ") + ")"
	}
	return name
}

// threads is how many processors the device uses; 0: all.
func (c Config) threads() int {
	if c.Threads > 0 || c.DPSize < 2 {
		return c.Threads
	}
	return max(1, runtime.GOMAXPROCS(0)/(c.DPSize*c.worldSize()))
}

// memFraction is the part of the free memory that weights and KV may take; 0: the runner's default.
func (c Config) memFraction() float64 {
	if c.DPSize < 2 {
		return 0
	}
	return runner.DefaultMemFraction / float64(c.DPSize)
}
