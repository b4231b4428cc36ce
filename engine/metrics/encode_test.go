package metrics

import (
	"bytes"
	"math"
	"math/rand/v2"
	nethttp "net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
)

// formats are the content types of the syntaxes.
var formats = [syntaxes]expfmt.Format{plainText: expfmt.NewFormat(expfmt.TypeTextPlain), openMetrics: expfmt.NewFormat(expfmt.TypeOpenMetrics)}

// byReference writes families with the encoder of prometheus/common.
func byReference(t testing.TB, s syntax, families []*dto.MetricFamily) string {
	t.Helper()
	var buf bytes.Buffer
	e := expfmt.NewEncoder(&buf, formats[s])
	for _, f := range families {
		if err := e.Encode(f); err != nil {
			t.Fatal(err)
		}
	}
	return buf.String()
}

// filled gives a gatherer over an engine with several ranks that did everything once.
func filled(t testing.TB, engineType string, form ledger.Form, ranks int) *Gatherer {
	t.Helper()
	dir, clock := t.TempDir(), ledgertest.New()
	f := NewFront(openStore(t, dir, "api"), FrontLabels{ModelName: "tiny \"\\\n\u00e9", EngineType: engineType, Custom: []string{"team"}}, Buckets{}, clock)
	for rank := range ranks {
		m := NewScheduler(openStore(t, dir, "rank-"+strconv.Itoa(rank)), RankLabels{ModelName: "tiny \"\\\n\u00e9", EngineType: engineType, TPRank: rank}, clock)
		fill(m, f, form)
	}
	return newGatherer(t, dir)
}

// A whole exposition is what client_golang would have written.
func TestTextIsThatOfTheReference(t *testing.T) {
	for _, s := range []syntax{plainText, openMetrics} {
		g := filled(t, "decode", ledger.Decode, 12)
		families, err := g.Gather()
		if err != nil {
			t.Fatal(err)
		}
		text, err := g.appendText(nil, s, 0)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(byReference(t, s, families), string(text)); diff != "" {
			t.Errorf("syntax %d (-want +got):\n%s", s, diff)
		}
	}
}

// series gives a series of each kind with values and labels of the caller's.
func series(label string, value float64, counts, bounds []float64) []*mergedSeries {
	var out []*mergedSeries
	for _, f := range []*Family{promptTokens, tokenUsage, queueTime} {
		for _, labels := range [][]Label{nil, {{"a", label}}, {{"a", label}, {"b", label + "x"}}} {
			var b []float64
			if f.Kind == Histogram {
				b = bounds
			}
			m := newMerged(f, labels, b)
			m.seen, m.value = true, value
			for i := range m.counts {
				m.counts[i] = uint64(min(max(0, counts[i%len(counts)]), 1<<60))
			}
			out = append(out, m)
		}
	}
	return out
}

// sameAsReference compares the two encoders on single series.
func sameAsReference(t *testing.T, list []*mergedSeries) {
	t.Helper()
	for _, m := range list {
		for s := range syntaxes {
			f := m.family
			families := []*dto.MetricFamily{{Name: &f.Name, Help: &f.Help, Type: dtoType(f.Kind).Enum(), Metric: []*dto.Metric{m.metric()}}}
			for range 2 { // the second time from the template
				if diff := cmp.Diff(byReference(t, s, families), string(m.appendSeries(appendHead(nil, f, s), s))); diff != "" {
					t.Errorf("%s %v, syntax %d (-want +got):\n%s", f.Name, m.labels, s, diff)
				}
			}
			if got, want := m.lines(), strings.Count(byReference(t, s, families), "\n")-2; got != want {
				t.Errorf("%s has %d lines, not %d", f.Name, got, want)
			}
		}
	}
}

func TestSeriesAreThoseOfTheReference(t *testing.T) {
	bounds := []float64{0, 0.07500000000000001, 1, 2.5, 999999, 1e6, 1234567, 1e21}
	for _, v := range []float64{
		0, math.Copysign(0, -1), 1, -1, 0.1, -0.25, 5, 123456, 999999, 1e6, -1e6, 1000001, 1234567, 12345678.5, 1e20, 1e21, 1e22, 1 << 53, math.MaxFloat64,
		math.SmallestNonzeroFloat64, 1e-5, 0.0001, math.NaN(), math.Inf(1), math.Inf(-1),
	} {
		sameAsReference(t, series("x", v, []float64{v, 1, 999998, 1e6}, bounds))
	}
	for _, label := range []string{"", "a", `quote " slash \ end`, "line\nbreak\\n", "\u00e9\u4e16\U0001f600", "{},= ", "\x00\x7f"} {
		sameAsReference(t, series(label, 1, []float64{1}, bounds))
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		v := math.Float64frombits(r.Uint64())
		if r.IntN(2) == 0 {
			v = math.Trunc(r.NormFloat64() * math.Pow(10, float64(r.IntN(20))))
		}
		sameAsReference(t, series("x", v, []float64{float64(r.Uint64() >> r.IntN(64))}, []float64{math.Abs(r.NormFloat64())}))
	}
}

func FuzzSeries(f *testing.F) {
	f.Add("a\"\\\n", 1.5, 7.0, 0.1)
	f.Add("", math.Inf(1), 1e6, 1e6)
	f.Fuzz(func(t *testing.T, label string, value, count, bound float64) {
		if math.IsInf(bound, 1) {
			return // it is always there
		}
		sameAsReference(t, series(label, value, []float64{count}, []float64{bound}))
	})
}

// The handler answers as client_golang's, whatever a scraper asks for.
func TestNegotiation(t *testing.T) {
	g := filled(t, "unified", ledger.Unified, 2)
	reference := promhttp.HandlerFor(g, promhttp.HandlerOpts{EnableOpenMetrics: true})
	for _, c := range []struct {
		name, reason, accept, encoding string
		wantType, wantEncoding         string
	}{
		{"nothing", "text for people", "", "", "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", ""},
		{"browser", "no format of ours", "text/html,*/*", "gzip, deflate, br", "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", "gzip"},
		{"Prometheus", "it asks for OpenMetrics first", "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2", "gzip",
			"application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=allow-utf-8", "gzip"},
		{"older OpenMetrics", "", "application/openmetrics-text;version=0.0.1", "identity", "application/openmetrics-text; version=0.0.1; charset=utf-8; escaping=underscores", ""},
		{"protobuf", "by client_golang", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited", "", "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited; escaping=underscores", ""},
		{"dots", "this escape doubles underscores: by client_golang", "text/plain;version=0.0.4;escaping=dots", "", "text/plain; version=0.0.4; charset=utf-8; escaping=dots", ""},
		{"no gzip", "a weight of 0 forbids", "text/plain", "gzip;q=0", "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", ""},
		{"rather not", "identity weighs more", "text/plain", "gzip;q=0.5, identity", "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", ""},
		{"anything", "a star is identity too", "text/plain", "*;q=0.5, identity;q=0", "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			ask := func(h nethttp.Handler) (int, [2]string) {
				r := httptest.NewRequest(nethttp.MethodGet, "/metrics", nil)
				r.Header.Set("Accept", c.accept)
				r.Header.Set("Accept-Encoding", c.encoding)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				return w.Code, [2]string{w.Header().Get("Content-Type"), w.Header().Get("Content-Encoding")}
			}
			status, got := ask(Handler(g))
			if diff := cmp.Diff([2]string{c.wantType, c.wantEncoding}, got); diff != "" || status != nethttp.StatusOK {
				t.Errorf("%s: status %d (-want +got):\n%s", c.reason, status, diff)
			}
			if _, want := ask(reference); want != got {
				t.Errorf("client_golang answers %q, this handler %q", want, got)
			}
		})
	}
}

// The number of series is that of the lines, in every format.
func TestSeriesAreCounted(t *testing.T) {
	handler := Handler(filled(t, "prefill", ledger.Prefill, 3))
	for _, accept := range []string{"text/plain", "application/openmetrics-text", "text/plain;escaping=dots"} {
		r := httptest.NewRequest(nethttp.MethodGet, "/metrics", nil)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		lines, reported := 0, ""
		for line := range strings.Lines(w.Body.String()) {
			if strings.HasPrefix(line, "#") {
				continue
			}
			lines++
			if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); strings.ReplaceAll(name, "__", "_") == metricsSeries.Name {
				reported = strings.TrimSuffix(value, ".0")
			}
		}
		if strconv.Itoa(lines) != reported {
			t.Errorf("%s: %d lines, reported as %q", accept, lines, reported)
		}
	}
}
