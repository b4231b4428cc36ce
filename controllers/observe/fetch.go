package observe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/sluice-dev/sluice/engine/loads"
)

// outcome is the result of a poll as a label.
type outcome string

const (
	outcomeOK        outcome = "ok"
	outcomeTimeout   outcome = "timeout"   // no whole answer within the time-out
	outcomeConnect   outcome = "connect"   // no connection, or it broke
	outcomeStatus    outcome = "status"    // an answer other than 200, redirects included
	outcomeTooLarge  outcome = "too_large" // more bytes than the limit
	outcomeMalformed outcome = "malformed" // not a /v1/loads answer
)

func outcomes() []outcome {
	return []outcome{outcomeOK, outcomeTimeout, outcomeConnect, outcomeStatus, outcomeTooLarge, outcomeMalformed}
}

// maxRanks is how many DP ranks an answer may hold.
const maxRanks = 1024

// newClient makes the HTTP client of a poller: no proxy, since pods are reached directly, and no redirect, since an
// engine must not send the operator elsewhere.
func newClient(timeout, keepIdle time.Duration, connections int) *http.Client {
	return &http.Client{
		Timeout: timeout,
		Transport: &http.Transport{
			DialContext:            (&net.Dialer{Timeout: timeout}).DialContext,
			MaxConnsPerHost:        2,
			MaxIdleConnsPerHost:    1,
			MaxIdleConns:           16 * connections,
			IdleConnTimeout:        keepIdle,
			ResponseHeaderTimeout:  timeout,
			MaxResponseHeaderBytes: 64 << 10,
			DisableCompression:     true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// fetch asks one engine for its loads. The ranks ascend and are unique. Errors are short and stable: they go into
// conditions.
func fetch(ctx context.Context, client *http.Client, url string, limitBytes int64) ([]loads.Load, outcome, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, outcomeMalformed, fmt.Errorf("poll %s: %w", url, err)
	}
	const path = "/v1/loads"
	request.Header.Set("Accept", "application/json")
	response, err := client.Do(request)
	if err != nil {
		result := transportOutcome(err)
		return nil, result, transportError(path, result, err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		_, _ = io.CopyN(io.Discard, response.Body, 4<<10) // keeps the connection when the body is short
		return nil, outcomeStatus, fmt.Errorf("%s answers with status %d", path, response.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, limitBytes+1))
	if err != nil {
		result := transportOutcome(err)
		return nil, result, transportError(path, result, err)
	}
	if int64(len(body)) > limitBytes {
		return nil, outcomeTooLarge, fmt.Errorf("%s: the body is larger than %d bytes", path, limitBytes)
	}
	ranks, err := parse(body)
	if err != nil {
		return nil, outcomeMalformed, fmt.Errorf("%s: %w", path, err)
	}
	return ranks, outcomeOK, nil
}

func transportOutcome(err error) outcome {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return outcomeTimeout
	}
	return outcomeConnect
}

// rankAnswer is a rank's load in which fields that must not be taken for 0 when they are missing can be told from 0: they
// hide those of the embedded load.
type rankAnswer struct {
	loads.Load
	DPRank      *int     `json:"dp_rank"`
	Running     *int     `json:"num_running_reqs"`
	Waiting     *int     `json:"num_waiting_reqs"`
	TokenUsage  *float64 `json:"token_usage"`
	Throughput  *float64 `json:"gen_throughput"`
	Utilization *float64 `json:"utilization"`
	HitRate     *float64 `json:"cache_hit_rate"`

	// These hold -1 where they are missing, which is no number either.
	Uncached    *int   `json:"num_waiting_uncached_tokens"`
	PrefillDone *int64 `json:"total_prefill_uncached_tokens"`
	PrefillBusy *int64 `json:"total_prefill_busy_us"`
}

// parse reads the body of /v1/loads. A field that drained checks and sums rest on must be there and not negative; a
// ratio that is missing or null becomes NaN and a number of tokens -1, which are never numbers.
func parse(body []byte) ([]loads.Load, error) {
	var answer struct {
		Loads []rankAnswer `json:"loads"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if len(answer.Loads) == 0 {
		return nil, errors.New("loads is empty, want one entry per DP rank")
	}
	if len(answer.Loads) > maxRanks {
		return nil, fmt.Errorf("loads has %d entries, want at most %d", len(answer.Loads), maxRanks)
	}
	ranks := make([]loads.Load, len(answer.Loads))
	for i := range ranks {
		has := answer.Loads[i]
		ranks[i] = has.Load
		for _, field := range []struct {
			name string
			seen *int
			to   *int
		}{
			{"dp_rank", has.DPRank, &ranks[i].DPRank},
			{"num_running_reqs", has.Running, &ranks[i].NumRunningReqs},
			{"num_waiting_reqs", has.Waiting, &ranks[i].NumWaitingReqs},
		} {
			if field.seen == nil {
				return nil, fmt.Errorf("loads[%d].%s is missing", i, field.name)
			}
			if *field.seen < 0 || *field.seen > maxNumber {
				return nil, fmt.Errorf("loads[%d].%s is %d, want 0 to %.0f", i, field.name, *field.seen, maxNumber)
			}
			*field.to = *field.seen
		}
		if section := badQueue(ranks[i]); section != "" {
			return nil, fmt.Errorf("loads[%d].%s has a queue that is negative or above %.0f", i, section, maxNumber)
		}
		for _, ratio := range []struct {
			seen *float64
			to   *float64
		}{{has.TokenUsage, &ranks[i].TokenUsage}, {has.Throughput, &ranks[i].GenThroughput}, {has.Utilization, &ranks[i].Utilization}, {has.HitRate, &ranks[i].CacheHitRate}} {
			*ratio.to = math.NaN()
			if ratio.seen != nil {
				*ratio.to = *ratio.seen
			}
		}
		ranks[i].NumWaitingUncached = orMinusOne(has.Uncached)
		ranks[i].TotalPrefillUncached = orMinusOne(has.PrefillDone)
		ranks[i].TotalPrefillBusyMicro = orMinusOne(has.PrefillBusy)
	}
	slices.SortFunc(ranks, func(a, b loads.Load) int { return a.DPRank - b.DPRank })
	for i := range len(ranks) - 1 {
		if ranks[i].DPRank == ranks[i+1].DPRank {
			return nil, fmt.Errorf("dp_rank %d is there twice", ranks[i].DPRank)
		}
	}
	return ranks, nil
}

func orMinusOne[T int | int64](seen *T) T {
	if seen == nil {
		return -1
	}
	return *seen
}

// badQueue names the section that holds an impossible queue length; empty when none does.
func badQueue(r loads.Load) (section string) {
	bad := func(lengths ...int) bool { return slices.Min(lengths) < 0 || slices.Max(lengths) > maxNumber }
	if d := r.Disaggregation; d != nil && bad(d.PrefillBootstrapQueueReqs, d.PrefillInflightQueueReqs,
		d.DecodePreallocQueueReqs, d.DecodeTransferQueueReqs, d.DecodeRetractedQueueReqs) {
		return "disaggregation"
	}
	if q := r.Queues; q != nil && bad(q.Waiting, q.Grammar, q.Paused, q.Retracted, q.PreallocReady) {
		return "queues"
	}
	return ""
}

// transportError says why there was no answer of a path without addresses and ports, which differ from attempt to attempt.
func transportError(path string, result outcome, err error) error {
	if result == outcomeTimeout {
		return errors.New(path + " does not answer in time")
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return fmt.Errorf("%s: %s: %w", path, op.Op, op.Err)
	}
	if inner := errors.Unwrap(err); inner != nil {
		err = inner // of *url.Error, which names the URL
	}
	return fmt.Errorf("%s: %w", path, err)
}
