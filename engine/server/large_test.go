package server

import (
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// largeContext is a context that the longest requests of these tests fit.
const largeContext = 4 << 20

func newLargeBench(t testing.TB) *bench {
	t.Helper()
	b := newBench(t, func(c *Config, r *scriptedRank) {
		c.MaxBodyBytes = 64 << 20
		r.info.ContextLength, r.info.MaxTotalNumTokens = largeContext, largeContext
	})
	return b
}

// largeBodies make requests of n parts: what a part is says the name.
var largeBodies = []struct {
	name, path string
	body       func(n int) string
}{
	{"messages", "/v1/chat/completions", func(n int) string {
		return `{"max_tokens":2,"messages":[` + strings.TrimSuffix(strings.Repeat(`{"role":"user","content":"Hi"},`, n), ",") + `]}`
	}},
	{"content parts", "/v1/chat/completions", func(n int) string {
		return `{"max_tokens":2,"messages":[{"role":"user","content":[` + strings.TrimSuffix(strings.Repeat(`{"type":"text","text":"Hi "},`, n), ",") + `]}]}`
	}},
	{"words of a chat", "/v1/chat/completions", func(n int) string {
		return `{"max_tokens":2,"messages":[{"role":"user","content":"` + strings.Repeat("boat ", n) + `"}]}`
	}},
	{"words", "/v1/completions", func(n int) string { return `{"max_tokens":2,"prompt":"` + strings.Repeat("boat ", n) + `"}` }},
	{"one word", "/generate", func(n int) string {
		return `{"text":"` + strings.Repeat("boat", n) + `","sampling_params":{"max_new_tokens":2}}`
	}},
	{"tokens", "/generate", func(n int) string {
		return `{"input_ids":[1` + strings.Repeat(",2", n) + `],"sampling_params":{"max_new_tokens":2}}`
	}},
	{"fields", "/generate", func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `"x%d":%d,`, i, i)
		}
		return `{` + b.String() + `"input_ids":[1],"sampling_params":{"max_new_tokens":2}}`
	}},
}

// TestLargeRequestsGrowLinearly: what a request allocates grows with its size and not with the square of it.
func TestLargeRequestsGrowLinearly(t *testing.T) {
	b := newLargeBench(t)
	for _, tc := range largeBodies {
		t.Run(tc.name, func(t *testing.T) {
			bytes := func(n int) float64 {
				body := tc.body(n)
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				if got := b.call(http.MethodPost, tc.path, body); got.Code != http.StatusOK {
					t.Fatalf("%d: status %d: %.500s", n, got.Code, got.Body)
				}
				runtime.ReadMemStats(&after)
				return float64(after.TotalAlloc - before.TotalAlloc)
			}
			bytes(100) // what is made once
			small, large := bytes(300), bytes(3000)
			if large > 20*small {
				t.Errorf("300 take %.0f bytes, 3000 take %.0f", small, large)
			}
		})
	}
}

// BenchmarkLargeRequests tells the time of a part of a request, which must not grow with their number.
func BenchmarkLargeRequests(b *testing.B) {
	s := newLargeBench(b)
	for _, tc := range largeBodies {
		for _, n := range []int{1000, 10_000, 100_000} {
			b.Run(tc.name+"/"+strconv.Itoa(n), func(b *testing.B) {
				body := tc.body(n)
				b.ReportAllocs()
				for b.Loop() {
					if got := s.call(http.MethodPost, tc.path, body); got.Code != http.StatusOK {
						b.Fatalf("status %d: %.500s", got.Code, got.Body)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/part")
			})
		}
	}
}

// TestLargeAnswersGrowLinearly: the same of answers of many pieces, whole and streamed, with a stop that never comes. The
// stream of /generate repeats the text so far in each event, as SGLang's does, and is not among them.
func TestLargeAnswersGrowLinearly(t *testing.T) {
	for _, tc := range []struct{ name, path, body string }{
		{"whole", "/generate", `{"input_ids":[1],"sampling_params":{"max_new_tokens":1000000,"stop":"never","no_stop_trim":true}}`},
		{"whole chat", "/v1/chat/completions", `{"messages":[{"role":"user","content":"Hi"}],"max_tokens":1000000,"stop":["never"]}`},
		{"streamed chat", "/v1/chat/completions", `{"messages":[{"role":"user","content":"Hi"}],"max_tokens":1000000,"stop":["never"],"stream":true}`},
		{"streamed", "/v1/completions", `{"prompt":[1],"max_tokens":1000000,"stream":true}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bytes := func(n int) float64 {
				b := newLargeBench(t)
				pieces := make([]string, n)
				for i := range pieces {
					pieces[i] = "boat "
				}
				b.rank.script = b.say(length(), pieces...)
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				if got := b.call(http.MethodPost, tc.path, tc.body); got.Code != http.StatusOK || strings.Contains(got.Body.String(), `"error"`) {
					t.Fatalf("%d: status %d: %.500s", n, got.Code, got.Body)
				}
				runtime.ReadMemStats(&after)
				return float64(after.TotalAlloc - before.TotalAlloc)
			}
			bytes(100)
			small, large := bytes(300), bytes(3000)
			if large > 20*small {
				t.Errorf("300 pieces take %.0f bytes, 3000 take %.0f", small, large)
			}
		})
	}
}
