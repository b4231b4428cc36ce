package rank

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestValidate(t *testing.T) {
	full := Config{
		ModelDir: "m", PageSize: 16, SWAFullTokensRatio: 0.8, MaxRunningRequests: 256, MaxRunningRequestsUnderSLO: 256, ChunkedPrefillSize: 2048, MaxPrefillTokens: 16384,
		DecodeLogInterval: 40, LogLevel: "info", SessionTimeout: 30 * time.Minute, MaxSessionTokens: 16 << 20, Cache: CacheConfig{EvictionPolicy: "lru"}, SchedulePolicy: "fcfs", ScheduleConservativeness: 1, RetractionPolicy: "length",
		GrammarTimeout: 300 * time.Second,
		Disagg:         DisaggConfig{ListenHost: "127.0.0.1", AdvertiseHost: "127.0.0.1", BootstrapTimeout: 300 * time.Second, WaitingTimeout: 300 * time.Second},
	}
	tests := []struct {
		name, reason string
		change       func(*Config)
		want         func(*Config)
		err          string
	}{
		{name: "defaults", reason: "zero means the default", change: func(*Config) {}, want: func(*Config) {}},
		{name: "slo", reason: "the cap follows the maximum", change: func(c *Config) { c.MaxRunningRequests = 7 },
			want: func(c *Config) { c.MaxRunningRequests, c.MaxRunningRequestsUnderSLO = 7, 7 }},
		{name: "host", reason: "what is advertised follows what is listened on", change: func(c *Config) { c.Disagg.ListenHost = "10.0.0.1" },
			want: func(c *Config) { c.Disagg.ListenHost, c.Disagg.AdvertiseHost = "10.0.0.1", "10.0.0.1" }},
		{name: "no chunks", reason: "-1 stays", change: func(c *Config) { c.ChunkedPrefillSize = -1 }, want: func(c *Config) { c.ChunkedPrefillSize = -1 }},
		{name: "model", reason: "there is no default", change: func(c *Config) { c.ModelDir = "" }, err: "model directory is empty"},
		{name: "rank", reason: "of another world", change: func(c *Config) { c.Rank, c.TPSize, c.PPSize = 6, 2, 3 }, err: "rank is 6: want 0 to 5 in a world of 6"},
		{name: "running", reason: "negative", change: func(c *Config) { c.MaxRunningRequests = -1 }, err: "maximum of running requests is -1: give a positive number, or 0 for 256"},
		{name: "chunk", reason: "-2 means nothing", change: func(c *Config) { c.ChunkedPrefillSize = -2 }, err: "chunked prefill size is -2"},
		{name: "tokens", reason: "less than a page", change: func(c *Config) { c.MaxTotalTokens = 5 }, err: "maximum of total tokens is 5: give at least one page of 16 tokens"},
		{name: "level", reason: "unknown", change: func(c *Config) { c.LogLevel = "loud" }, err: `log level is "loud": use debug, info, warn or error`},
		{name: "mode", reason: "unknown", change: func(c *Config) { c.Disagg.Mode = "both" }, err: `disaggregation mode is "both"`},
		{name: "bootstrap", reason: "prefill registers there", change: func(c *Config) { c.Disagg.Mode = ModePrefill }, err: "bootstrap URL is empty on a prefill rank"},
		{name: "timeout", reason: "negative", change: func(c *Config) { c.Disagg.WaitingTimeout = -1 }, err: "waiting timeout is -1ns"},
		{name: "metrics", reason: "they need a place", change: func(c *Config) { c.Metrics.Enabled = true }, err: "metrics directory is empty while metrics are enabled"},
		{name: "policies", reason: "what is given stays", change: func(c *Config) {
			c.SchedulePolicy, c.RetractionPolicy, c.Priority.Enabled, c.ScheduleConservativeness = "lpm", "priority", true, 0.25
		}, want: func(c *Config) {
			c.SchedulePolicy, c.RetractionPolicy, c.Priority.Enabled, c.ScheduleConservativeness = "lpm", "priority", true, 0.25
		}},
		{name: "eviction", reason: "unknown", change: func(c *Config) { c.Cache.EvictionPolicy = "rarest" }, err: `eviction policy is "rarest": use one of lru, lfu, fifo, mru, filo, priority, slru`},
		{name: "decode cache", reason: "there is none", change: func(c *Config) { c.Cache.EnableOnDecode = true }, err: "a prefix cache is wanted on a decode rank"},
		{name: "policy", reason: "unknown", change: func(c *Config) { c.SchedulePolicy = "lof" }, err: `schedule policy is "lof": use fcfs or lpm`},
		{name: "retraction", reason: "unknown", change: func(c *Config) { c.RetractionPolicy = "age" }, err: `retraction policy is "age": use length or priority`},
		{name: "retraction by priority", reason: "there are none", change: func(c *Config) { c.RetractionPolicy = "priority" }, err: "priority scheduling is off"},
		{name: "conservativeness", reason: "negative", change: func(c *Config) { c.ScheduleConservativeness = -1 }, err: "schedule conservativeness is -1"},
		{name: "hit window", reason: "negative", change: func(c *Config) { c.CacheHitRateWindow = -1 }, err: "cache hit rate window is -1ns"},
		{name: "threshold", reason: "negative", change: func(c *Config) { c.Priority.PreemptionThreshold = -1 }, err: "preemption threshold is -1: give 0 or more"},
		{name: "mixed", reason: "there are no chunks", change: func(c *Config) { c.EnableMixedChunk, c.ChunkedPrefillSize = true, -1 }, err: "mixed chunks are enabled"},
		{name: "request timeouts", reason: "negative", change: func(c *Config) { c.RequestRunningTimeout = -1 }, err: "request time-outs are 0s (waiting) and -1ns (running)"},
		{name: "several", reason: "all faults at once", change: func(c *Config) { c.PageSize, c.Threads = -1, -1 }, err: "threads is -1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := Config{ModelDir: "m"}
			tt.change(&cfg)
			got, err := cfg.Validate()
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("%s: error is %v, want %q", tt.reason, err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s: %v", tt.reason, err)
			}
			want := full
			tt.want(&want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
			if again, err := got.Validate(); err != nil || !cmp.Equal(again, got) {
				t.Errorf("%s: a valid configuration changes when it is validated again: %v", tt.reason, err)
			}
		})
	}
}

// FuzzChild: a child never panics on what comes as its configuration, and says what is wrong with it.
func FuzzChild(f *testing.F) {
	good, err := json.Marshal(Config{ModelDir: "/nonexistent"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(good))
	f.Add(`{"modelDir":"/nonexistent","pageSize":-1}`)
	f.Add(`{"modelDir":`)
	f.Add("")
	f.Fuzz(func(t *testing.T, line string) {
		var cfg Config
		if json.Unmarshal([]byte(strings.SplitN(line, "\n", 2)[0]), &cfg) == nil && cfg.ModelDir != "/nonexistent" {
			return // no file of this machine is a model for this test
		}
		var out bytes.Buffer
		if err := Child(context.Background(), strings.NewReader(line+"\n"), &out, nil); err == nil {
			t.Fatal("a rank without a model served")
		}
		var h hello
		if err := json.NewDecoder(&out).Decode(&h); err != nil || h.Error == "" || h.Serving {
			t.Errorf("the child says %+v, %v; want an error", h, err)
		}
	})
}

func TestChildWithoutParent(t *testing.T) {
	err := Child(context.Background(), strings.NewReader(""), io.Discard, nil)
	if err == nil || !strings.Contains(err.Error(), "a rank is started by serve") {
		t.Errorf("error is %v", err)
	}
}
