package metrics

import (
	"bytes"
	nethttp "net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/sluice-dev/sluice/internal/scrapers"
)

// Handler serves the exposition: the stores, and go_* and process_* of this process. It answers as client_golang's handler
// does, with the same formats and encodings. That one also serves the formats that are rarely asked for; the text format
// and OpenMetrics are written here, because an engine of many ranks has tens of thousands of lines. So few scrapes are answered
// at once, and those who do not read are cut off: see scrapers.Limit.
func Handler(g *Gatherer) nethttp.Handler {
	own := prometheus.NewRegistry()
	own.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	e := &exposition{stores: g, own: own}
	rest := promhttp.HandlerFor(e, promhttp.HandlerOpts{EnableOpenMetrics: true})
	return scrapers.Limit(nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		format := expfmt.NegotiateIncludingOpenMetrics(r.Header)
		// No name here needs an escape but in this scheme, which doubles underscores.
		if format.ToEscapingScheme() == model.DotsEscaping {
			rest.ServeHTTP(w, r)
			return
		}
		switch format.FormatType() {
		case expfmt.TypeTextPlain:
			e.serve(w, r, plainText, format)
		case expfmt.TypeOpenMetrics:
			e.serve(w, r, openMetrics, format)
		default:
			rest.ServeHTTP(w, r)
		}
	}), scrapers.Most)
}

// exposition is all that /metrics serves.
type exposition struct {
	stores  *Gatherer
	own     *prometheus.Registry // of families whose names come before those of the stores
	buffers sync.Pool            // of *buffers
	zips    sync.Pool            // of *gzipper
}

// buffers are what a scrape writes to: a few megabytes, kept until the scraper has read them, or until they are compressed.
type buffers struct {
	own  bytes.Buffer
	text []byte
}

var _ prometheus.Gatherer = (*exposition)(nil)

// Gather gives the families for formats that are not text.
func (e *exposition) Gather() ([]*dto.MetricFamily, error) {
	own, err := e.own.Gather()
	if err != nil {
		return nil, err
	}
	stores, err := e.stores.gather(countLines(own))
	return slices.Concat(own, stores), err
}

func (e *exposition) serve(w nethttp.ResponseWriter, r *nethttp.Request, s syntax, format expfmt.Format) {
	b, _ := e.buffers.Get().(*buffers)
	if b == nil {
		b = &buffers{}
	}
	if err := e.write(b, s, format); err != nil {
		e.buffers.Put(b)
		nethttp.Error(w, "gather the metrics: "+err.Error(), nethttp.StatusInternalServerError)
		return
	}
	body := b.text
	if takesGzip(r.Header) {
		body = e.compress(b.text)
		e.buffers.Put(b)
		w.Header().Set("Content-Encoding", "gzip")
	} else {
		defer e.buffers.Put(b)
	}
	w.Header().Set("Content-Type", string(format))
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // the scraper has gone
}

// compress gives the compressed text, of which nothing else holds a part.
func (e *exposition) compress(text []byte) []byte {
	z, _ := e.zips.Get().(*gzipper)
	if z == nil {
		z = &gzipper{}
	}
	defer e.zips.Put(z)
	return bytes.Clone(z.compress(text))
}

// write fills b.text.
func (e *exposition) write(b *buffers, s syntax, format expfmt.Format) error {
	own, err := e.own.Gather()
	if err != nil {
		return err
	}
	b.own.Reset()
	encoder := expfmt.NewEncoder(&b.own, format)
	for _, f := range own {
		if err := encoder.Encode(f); err != nil {
			return err
		}
	}
	b.text = append(b.text[:0], b.own.Bytes()...)
	if b.text, err = e.stores.appendText(b.text, s, countLines(own)); err != nil {
		return err
	}
	if s == openMetrics {
		b.text = append(b.text, "# EOF\n"...)
	}
	return nil
}

// countLines counts the samples of families.
func countLines(families []*dto.MetricFamily) (lines int) {
	for _, f := range families {
		for _, m := range f.GetMetric() {
			switch {
			case m.Histogram != nil:
				lines += len(m.Histogram.GetBucket()) + 3 // +Inf, sum, count
			case m.Summary != nil:
				lines += len(m.Summary.GetQuantile()) + 2
			default:
				lines++
			}
		}
	}
	return lines
}

// takesGzip reports whether a client prefers gzip to no compression.
func takesGzip(h nethttp.Header) bool {
	best := map[string]float64{"gzip": 0, "identity": 0}
	for _, header := range h.Values("Accept-Encoding") {
		for spec := range strings.SplitSeq(header, ",") {
			coding, parameters, _ := strings.Cut(spec, ";")
			q := 1.0
			if weight, ok := strings.CutPrefix(strings.ReplaceAll(strings.ToLower(parameters), " ", ""), "q="); ok {
				v, err := strconv.ParseFloat(weight, 64)
				if err != nil {
					continue
				}
				q = v
			}
			switch coding = strings.ToLower(strings.TrimSpace(coding)); coding {
			case "gzip", "identity":
				best[coding] = max(best[coding], q)
			case "*":
				best["gzip"], best["identity"] = max(best["gzip"], q), max(best["identity"], q)
			}
		}
	}
	return best["gzip"] > best["identity"]
}
