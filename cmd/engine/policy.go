package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/spf13/pflag"
)

// policyFlags declares the flags that say whom the scheduler serves first and for how long.
func policyFlags(f *pflag.FlagSet, r *rank.Config) {
	f.Var(oneOf(&r.SchedulePolicy, "fcfs", "lpm"), "schedule-policy", "order of the waiting queue: fcfs, or lpm (longest cached prefix first)")
	f.Float64Var(&r.ScheduleConservativeness, "schedule-conservativeness", r.ScheduleConservativeness, "more admits fewer requests at once, so that fewer are retracted")
	f.Var(oneOf(&r.RetractionPolicy, "length", "priority"), "retraction-policy", "who loses its KV first when memory is short: length (short answer, long prompt) or priority")
	f.BoolVar(&r.EnableMixedChunk, "enable-mixed-chunk", false, "compute chunks of prompts together with decodes")

	f.BoolVar(&r.DisableOverlapSchedule, "disable-overlap-schedule", false, "decide a step only when the results of the one before are known, instead of while it is computed")

	f.BoolVar(&r.Cache.Disable, "disable-radix-cache", false, "compute every prompt whole instead of sharing beginnings")
	f.Var(oneOf(&r.Cache.EvictionPolicy, "lru", "lfu", "fifo", "mru", "filo", "priority", "slru"), "radix-eviction-policy", "what leaves the prefix cache first when memory is short")
	f.BoolVar(&r.Cache.EnableOnDecode, "disaggregation-decode-enable-radix-cache", false, "refused: a decode engine has no prefix cache, the prefill engines have")

	f.BoolVar(&r.EnableStreamingSession, "enable-streaming-session", false, "let sessions keep their KV between turns")
	f.IntVar(&r.MaxSessionTokens, "max-session-tokens", r.MaxSessionTokens, "tokens that all sessions together remember, in the memory of every rank, 4 bytes each; more turns are refused")
	f.Var((*seconds)(&r.SessionTimeout), "session-timeout", "longest time without a turn of a session that names none itself")

	f.BoolVar(&r.Priority.Enabled, "enable-priority-scheduling", false, "serve requests in the order of their priority, higher values first")
	f.Var(optional{&r.Priority.Default}, "default-priority-value", "priority of requests that bring none (default: they come after all others, also after 0)")
	f.BoolVar(&r.Priority.LowFirst, "schedule-low-priority-values-first", false, "lower priority values are more urgent")
	f.IntVar(&r.Priority.PreemptionThreshold, "priority-scheduling-preemption-threshold", r.Priority.PreemptionThreshold, "a waiting request preempts running ones whose priority is lower by more than this; 0 for any that is lower")
	f.BoolVar(&r.Priority.DisablePreemption, "disable-priority-preemption", false, "never take a running request's place for a more urgent one")
	f.BoolVar(&r.Priority.AbortWhenDisabled, "abort-on-priority-when-disabled", false, "refuse requests with a priority while priority scheduling is off")

	f.Var((*seconds)(&r.RequestWaitingTimeout), "request-waiting-timeout", "longest stay in the waiting queue; 0: SGLANG_REQ_WAITING_TIMEOUT, else no limit")
	f.Var((*seconds)(&r.RequestRunningTimeout), "request-running-timeout", "longest time from a request's first step on; 0: SGLANG_REQ_RUNNING_TIMEOUT, else no limit")
}

// defaultRetractInterval is the number of decode steps between two retractions that SGLANG_TEST_RETRACT asks for.
const defaultRetractInterval = 3

// readPolicyEnvironment fills in what comes from the environment; flags win over it.
func readPolicyEnvironment(r *rank.Config, lookup func(string) (string, bool)) error {
	for _, v := range []struct {
		name string
		to   *time.Duration
	}{
		{"SGLANG_REQ_WAITING_TIMEOUT", &r.RequestWaitingTimeout},
		{"SGLANG_REQ_RUNNING_TIMEOUT", &r.RequestRunningTimeout},
	} {
		text, set := lookup(v.name)
		if !set || *v.to != 0 {
			continue
		}
		number, err := strconv.ParseFloat(text, 64)
		if err != nil || !(number < 1e9) {
			return fmt.Errorf("%s is %q: give seconds; 0 or less for no limit", v.name, text)
		}
		*v.to = time.Duration(max(number, 0) * float64(time.Second))
	}
	if text, set := lookup("SGLANG_CACHE_HIT_RATE_WINDOW_SECONDS"); set {
		number, err := strconv.ParseFloat(text, 64)
		if err != nil || !(number > 0 && number < 1e9) {
			return fmt.Errorf("SGLANG_CACHE_HIT_RATE_WINDOW_SECONDS is %q: give seconds, more than 0", text)
		}
		r.CacheHitRateWindow = time.Duration(number * float64(time.Second))
	}
	for _, name := range []string{"SLUICE_TEST_REQUEST_TIME_STATS", "SGLANG_TEST_REQUEST_TIME_STATS"} {
		text, set := lookup(name)
		if !set {
			continue
		}
		var err error
		if r.AssertTimes, err = strconv.ParseBool(text); err != nil {
			return fmt.Errorf("%s is %q: give true or false", name, text)
		}
		break
	}
	text, set := lookup("SGLANG_TEST_RETRACT")
	if !set {
		return nil
	}
	retract, err := strconv.ParseBool(text)
	if err != nil {
		return fmt.Errorf("SGLANG_TEST_RETRACT is %q: give true or false", text)
	}
	if !retract {
		return nil
	}
	r.TestRetractSteps = defaultRetractInterval
	if text, set := lookup("SGLANG_TEST_RETRACT_INTERVAL"); set {
		if r.TestRetractSteps, err = strconv.Atoi(text); err != nil || r.TestRetractSteps < 1 {
			return fmt.Errorf("SGLANG_TEST_RETRACT_INTERVAL is %q: give decode steps, at least 1", text)
		}
	}
	return nil
}

// choice is a flag value that is one of some words.
type choice struct {
	to    *string
	words []string
}

func oneOf(to *string, words ...string) *choice { return &choice{to: to, words: words} }

func (c *choice) String() string {
	if c.to == nil {
		return ""
	}
	return *c.to
}

func (c *choice) Type() string { return "name" }

func (c *choice) Set(text string) error {
	if !slices.Contains(c.words, text) {
		return errors.New("use " + strings.Join(c.words, " or "))
	}
	*c.to = text
	return nil
}

// optional is a flag value that is a number, or absent.
type optional struct{ to **int }

func (o optional) String() string {
	if o.to == nil || *o.to == nil {
		return ""
	}
	return strconv.Itoa(**o.to)
}

func (o optional) Type() string { return "int" }

func (o optional) Set(text string) error {
	number, err := strconv.Atoi(text)
	if err != nil {
		return errors.New("give a whole number")
	}
	*o.to = &number
	return nil
}
