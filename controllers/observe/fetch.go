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

// fetch asks one engine for its loads. The ranks ascend and are unique.
func fetch(ctx context.Context, client *http.Client, url string, limitBytes int64) ([]loads.Load, outcome, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, outcomeMalformed, fmt.Errorf("poll %s: %w", url, err)
	}
	request.Header.Set("Accept", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return nil, transportOutcome(err), fmt.Errorf("poll: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		_, _ = io.CopyN(io.Discard, response.Body, 4<<10) // keeps the connection when the body is short
		return nil, outcomeStatus, fmt.Errorf("poll %s: status %d, want 200", url, response.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, limitBytes+1))
	if err != nil {
		return nil, transportOutcome(err), fmt.Errorf("poll %s: read the body: %w", url, err)
	}
	if int64(len(body)) > limitBytes {
		return nil, outcomeTooLarge, fmt.Errorf("poll %s: the body is larger than %d bytes", url, limitBytes)
	}
	ranks, err := parse(body)
	if err != nil {
		return nil, outcomeMalformed, fmt.Errorf("poll %s: %w", url, err)
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

// parse reads the body of /v1/loads. A field that drained checks and sums rest on must be there and not negative; a
// ratio that is missing or null becomes NaN, which is never a number.
func parse(body []byte) ([]loads.Load, error) {
	var response loads.Response
	if err := json.Unmarshal(body, &response); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	var presence struct {
		Loads []struct {
			DPRank      *int     `json:"dp_rank"`
			Running     *int     `json:"num_running_reqs"`
			Waiting     *int     `json:"num_waiting_reqs"`
			TokenUsage  *float64 `json:"token_usage"`
			Throughput  *float64 `json:"gen_throughput"`
			Utilization *float64 `json:"utilization"`
		} `json:"loads"`
	}
	if err := json.Unmarshal(body, &presence); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	ranks := response.Loads
	if len(ranks) == 0 {
		return nil, errors.New("loads is empty, want one entry per DP rank")
	}
	if len(ranks) > maxRanks {
		return nil, fmt.Errorf("loads has %d entries, want at most %d", len(ranks), maxRanks)
	}
	for i := range ranks {
		has := presence.Loads[i]
		for _, field := range []struct {
			name  string
			value *int
		}{{"dp_rank", has.DPRank}, {"num_running_reqs", has.Running}, {"num_waiting_reqs", has.Waiting}} {
			if field.value == nil {
				return nil, fmt.Errorf("loads[%d].%s is missing", i, field.name)
			}
			if *field.value < 0 || *field.value > maxNumber {
				return nil, fmt.Errorf("loads[%d].%s is %d, want 0 to %.0f", i, field.name, *field.value, maxNumber)
			}
		}
		if section := badQueue(ranks[i]); section != "" {
			return nil, fmt.Errorf("loads[%d].%s has a queue that is negative or above %.0f", i, section, maxNumber)
		}
		for _, ratio := range []struct {
			seen *float64
			to   *float64
		}{{has.TokenUsage, &ranks[i].TokenUsage}, {has.Throughput, &ranks[i].GenThroughput}, {has.Utilization, &ranks[i].Utilization}} {
			if ratio.seen == nil {
				*ratio.to = math.NaN()
			}
		}
	}
	slices.SortFunc(ranks, func(a, b loads.Load) int { return a.DPRank - b.DPRank })
	for i := range len(ranks) - 1 {
		if ranks[i].DPRank == ranks[i+1].DPRank {
			return nil, fmt.Errorf("dp_rank %d is there twice", ranks[i].DPRank)
		}
	}
	return ranks, nil
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
