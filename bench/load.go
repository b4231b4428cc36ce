package bench

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Arrivals is the process that spaces the requests of an open loop.
type Arrivals string

const (
	// Poisson arrivals are independent of each other: what many separate users make.
	Poisson Arrivals = "poisson"
	// Constant arrivals are evenly spaced.
	Constant Arrivals = "constant"
	// Gamma arrivals have gaps of a gamma distribution whose shape is the burstiness: below 1 they come in bursts, as in
	// recorded traces, 1 is Poisson, above 1 they are more regular.
	Gamma Arrivals = "gamma"
)

// Load is what is to be sent, apart from where to. Equal loads have equal plans.
type Load struct {
	// Requests and Duration bound the run: no request starts beyond either. 0: no such bound; one must be given.
	Requests int           `json:"requests,omitempty"`
	Duration time.Duration `json:"duration_ns,omitempty"`

	// Rate is requests per second of an open loop; 0 makes a closed loop.
	Rate       float64  `json:"rate,omitempty"`
	Arrivals   Arrivals `json:"arrivals,omitempty"`
	Burstiness float64  `json:"burstiness,omitempty"`
	// Concurrency is the number of requests that a closed loop keeps in flight. In an open loop it bounds them; a request
	// that waits for this bound is late, and its latencies say so. 0: no bound.
	Concurrency int `json:"concurrency,omitempty"`

	Input  Dist     `json:"-"` // tokens of a prompt
	Output Dist     `json:"-"` // tokens of an answer
	Corpus []Prompt `json:"-"` // prompts to send instead of made ones, in order and over again

	// PrefixRatio is the share of a made prompt that it has in common with the others of its group; 0 <= PrefixRatio <= 1.
	PrefixRatio  float64 `json:"prefix_ratio,omitempty"`
	PrefixGroups int     `json:"prefix_groups,omitempty"` // groups, each as likely

	Priorities Priorities `json:"priorities,omitempty"` // none: no priority is sent

	// CancelShare of the requests are dropped by the client, after so many milliseconds, or output chunks when CancelChunks
	// has a kind.
	CancelShare  float64 `json:"cancel_share,omitempty"`
	CancelMillis Dist    `json:"-"`
	CancelChunks Dist    `json:"-"`

	Seed uint64 `json:"seed"`
}

// Priority is one value of the field "priority" and how often it is drawn, in proportion to the other weights.
type Priority struct {
	Value  int     `json:"value"`
	Weight float64 `json:"weight"`
}

// Priorities are drawn by weight.
type Priorities []Priority

// ParsePriorities reads "0:0.9,10:0.1"; a value without a weight weighs 1.
func ParsePriorities(text string) (Priorities, error) {
	var list Priorities
	for field := range strings.SplitSeq(text, ",") {
		value, weight, weighted := strings.Cut(strings.TrimSpace(field), ":")
		p := Priority{Weight: 1}
		var err error
		if p.Value, err = strconv.Atoi(value); err != nil {
			return nil, fmt.Errorf("%q in %q is no priority: give whole numbers, each with a weight, as in 0:0.9,10:0.1", value, text)
		}
		if weighted {
			if p.Weight, err = strconv.ParseFloat(weight, 64); err != nil || !(p.Weight > 0) || math.IsInf(p.Weight, 0) {
				return nil, fmt.Errorf("%q in %q is no weight: give a number above 0", weight, text)
			}
		}
		list = append(list, p)
	}
	return list, nil
}

// Open says whether requests start by the clock, whatever the server does.
func (l *Load) Open() bool { return l.Rate > 0 }

// Validate names the first flag that is wrong.
func (l *Load) Validate() error {
	share := func(v float64) bool { return v >= 0 && v <= 1 }
	switch {
	case l.Requests < 0:
		return fmt.Errorf("--num-prompts is %d: give 1 or more", l.Requests)
	case l.Duration < 0:
		return fmt.Errorf("--duration is %v: give a time above 0", l.Duration)
	case l.Requests == 0 && l.Duration == 0:
		return fmt.Errorf("--num-prompts and --duration are both 0: give at least one, or the run would never end")
	case l.Rate < 0 || math.IsNaN(l.Rate) || math.IsInf(l.Rate, 0):
		return fmt.Errorf("--request-rate is %v: give requests per second, or leave it out for a closed loop", l.Rate)
	case l.Concurrency < 0:
		return fmt.Errorf("--max-concurrency is %d: give 1 or more", l.Concurrency)
	case !l.Open() && l.Concurrency == 0:
		return fmt.Errorf("neither --request-rate nor --max-concurrency is given: a rate makes an open loop, a concurrency a closed one")
	case l.Open() && l.Arrivals != Poisson && l.Arrivals != Constant && l.Arrivals != Gamma:
		return fmt.Errorf("--arrivals is %q: give poisson, constant or gamma", l.Arrivals)
	case l.Open() && l.Arrivals == Gamma && !(l.Burstiness > 0 && l.Burstiness <= 1e6):
		return fmt.Errorf("--burstiness is %v: give a number above 0 (below 1: bursts, 1: Poisson, above 1: regular)", l.Burstiness)
	case !share(l.PrefixRatio):
		return fmt.Errorf("--prefix-ratio is %v: give a share of the prompt from 0 to 1", l.PrefixRatio)
	case l.PrefixRatio > 0 && l.PrefixGroups < 1:
		return fmt.Errorf("--prefix-groups is %d: give 1 or more", l.PrefixGroups)
	case l.PrefixRatio > 0 && len(l.Corpus) > 0:
		return fmt.Errorf("--prefix-ratio is for made prompts: leave it or --prompts out")
	case !share(l.CancelShare):
		return fmt.Errorf("--cancel is %v: give a share of the requests from 0 to 1", l.CancelShare)
	}
	return nil
}
