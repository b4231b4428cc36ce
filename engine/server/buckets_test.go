package server

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/metrics"
)

// Every list of bounds is sorted, or refused with its flag and what to write instead.
func TestBucketFlags(t *testing.T) {
	for flag, list := range map[string]func(*metrics.Buckets) *[]float64{
		"bucket-time-to-first-token": func(b *metrics.Buckets) *[]float64 { return &b.TimeToFirstToken },
		"bucket-inter-token-latency": func(b *metrics.Buckets) *[]float64 { return &b.InterTokenLatency },
		"bucket-e2e-request-latency": func(b *metrics.Buckets) *[]float64 { return &b.E2ERequestLatency },
		"prompt-tokens-buckets":      func(b *metrics.Buckets) *[]float64 { return &b.PromptTokens },
		"generation-tokens-buckets":  func(b *metrics.Buckets) *[]float64 { return &b.GenerationTokens },
	} {
		for _, c := range []struct {
			name   string
			bounds []float64
			want   []float64
			err    string
		}{
			{"none", nil, nil, ""},
			{"sorted", []float64{0.1, 2}, []float64{0.1, 2}, ""},
			{"not sorted", []float64{5, 0, 0.07500000000000001}, []float64{0, 0.07500000000000001, 5}, ""},
			{"empty", []float64{}, nil, "at least one bound is needed: give numbers such as 0.1 0.5 1"},
			{"negative", []float64{1, -1}, nil, "bound -1 is negative: give 0 or more"},
			{"twice", []float64{2, 1, 2}, nil, "bound 2 is there twice: name it once"},
			{"infinite", []float64{1, math.Inf(1)}, nil, "bound +Inf is not finite: leave it out, +Inf is always there"},
			{"no number", []float64{math.NaN()}, nil, "bound NaN is not finite: leave it out, +Inf is always there"},
			{"too many", make([]float64, 513), nil, "513 bounds are too many; at most 512 are allowed"},
		} {
			t.Run(flag+" "+c.name, func(t *testing.T) {
				cfg := Default()
				cfg.ModelPath = "/m"
				*list(&cfg.Buckets) = c.bounds
				got, err := cfg.Validate()
				if c.err != "" {
					if err == nil || !strings.HasPrefix(err.Error(), "--"+flag+" ") || !strings.HasSuffix(err.Error(), c.err) {
						t.Errorf("the error is %v, want %q of --%s", err, c.err, flag)
					}
					return
				}
				if diff := cmp.Diff(c.want, *list(&got.Buckets)); diff != "" || err != nil {
					t.Errorf("%v (-want +got):\n%s", err, diff)
				}
			})
		}
	}
}
