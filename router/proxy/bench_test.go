package proxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/router/discovery"
	"github.com/sluice-dev/sluice/router/fleet"
)

// BenchmarkAddedLatency compares a request through the router with the same request sent to an engine directly, in one
// run, alternating. Its metrics are the median and the 99th percentile of the difference's two sides, in microseconds:
// added = through the router - direct. Unified engines are used, so that the engine's own work is the same.
func BenchmarkAddedLatency(b *testing.B) {
	for _, bodyBytes := range []int{200, 20_000} {
		b.Run(fmt.Sprintf("body=%d", bodyBytes), func(b *testing.B) {
			s := newSet(b, 0, 0, 1)
			s.unified[0].instead = func(_ *engine, w http.ResponseWriter, _ *http.Request) bool {
				io.WriteString(w, `{"text":"abc"}`)
				return true
			}
			s.unified[0].got = make(chan received, 1<<20)
			rt := newRouter(b, routerOptions{engines: s.all})
			body := `{"prompt":"` + strings.Repeat("x", bodyBytes) + `","max_tokens":1}`
			measure(b, rt.url, s.unified[0].srv.URL, body)
		})
	}
}

// BenchmarkAddedLatencyPair is the same for a pair: the router sends two requests where the direct client sends one.
func BenchmarkAddedLatencyPair(b *testing.B) {
	s := newSet(b, 1, 1, 0)
	for _, e := range s.all {
		e.got = make(chan received, 1<<20)
		e.instead = func(_ *engine, w http.ResponseWriter, _ *http.Request) bool {
			io.WriteString(w, `{"text":"abc"}`)
			return true
		}
	}
	rt := newRouter(b, routerOptions{engines: s.all})
	measure(b, rt.url, s.decode[0].srv.URL, `{"prompt":"`+strings.Repeat("x", 200)+`","max_tokens":1}`)
}

func measure(b *testing.B, through, direct, body string) {
	transport := &http.Transport{DialContext: (&net.Dialer{}).DialContext}
	defer transport.CloseIdleConnections()
	once := func(url string) time.Duration {
		start := time.Now()
		resp, err := (&http.Client{Transport: transport}).Post(url+"/generate", "application/json", strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			b.Fatal(resp.Status)
		}
		return time.Since(start)
	}
	var router, plain []time.Duration
	for b.Loop() {
		router = append(router, once(through))
		plain = append(plain, once(direct))
	}
	slices.Sort(router)
	slices.Sort(plain)
	at := func(list []time.Duration, q float64) float64 {
		return float64(list[int(q*float64(len(list)-1))]) / float64(time.Microsecond)
	}
	b.ReportMetric(at(router, 0.5)-at(plain, 0.5), "added_p50_µs")
	b.ReportMetric(at(router, 0.99)-at(plain, 0.99), "added_p99_µs")
	b.ReportMetric(at(plain, 0.5), "direct_p50_µs")
}

// BenchmarkBody measures the edit of the body alone.
func BenchmarkBody(b *testing.B) {
	for _, n := range []int{200, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			body := []byte(`{"model":"m","prompt":"` + strings.Repeat("some words ", n/11) + `","stream":true,"temperature":0.5}`)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				l, err := objectLayout(body)
				if err != nil {
					b.Fatal(err)
				}
				withMeeting(body, l, meeting{host: "10.0.0.1", port: 8998, room: 1 << 60})
			}
		})
	}
}

// BenchmarkAcquire measures the pick alone, over as many engines as a large service has.
func BenchmarkAcquire(b *testing.B) {
	s := newSet(b, 0, 0, 0)
	rt := newRouter(b, routerOptions{engines: s.all})
	var engines []discovery.Engine
	for i := range 200 {
		role := discovery.Prefill
		if i%2 == 0 {
			role = discovery.Decode
		}
		engines = append(engines, discovery.Engine{ID: fmt.Sprint(i), Name: fmt.Sprint(i), Role: role, URL: "http://x", State: discovery.StateReady})
	}
	rt.fleet.Update(engines)
	b.ReportAllocs()
	for b.Loop() {
		acquireOnce(b, rt)
	}
}

func acquireOnce(b *testing.B, rt *router) {
	l, err := rt.fleet.Acquire(b.Context(), 100, &fleet.Avoid{}, 0)
	if err != nil {
		b.Fatal(err)
	}
	l.Prefill.Done(fleet.Succeeded)
	l.Decode.Done(fleet.Succeeded)
}
