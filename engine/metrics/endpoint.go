package metrics

import (
	nethttp "net/http"
	"strconv"
	"strings"
)

// endpointSeries are the series of one endpoint and method.
type endpointSeries struct {
	requests CounterSeries
	active   GaugeSeries
}

// endpoint gives the labels of a route: an empty one and those beyond the cap are "unmatched", unknown methods "other".
func (f *Front) endpoint(endpoint, method string) (key string, labels []Label) {
	if endpoint == "" {
		endpoint = UnmatchedEndpoint
	}
	switch method {
	case nethttp.MethodGet, nethttp.MethodHead, nethttp.MethodPost, nethttp.MethodPut, nethttp.MethodPatch, nethttp.MethodDelete,
		nethttp.MethodConnect, nethttp.MethodOptions, nethttp.MethodTrace:
	default:
		method = OtherLabel
	}
	return endpoint + "\x00" + method, override([]Label{{"endpoint", endpoint}, {"method", method}}, extraMap(f.extra))
}

func extraMap(labels []Label) map[string]string {
	m := make(map[string]string, len(labels))
	for _, l := range labels {
		m[l.Name] = l.Value
	}
	return m
}

func (f *Front) endpointSeries(endpoint, method string) *endpointSeries {
	key, labels := f.endpoint(endpoint, method)
	return f.http.get(key, func(full bool) *endpointSeries {
		if full {
			_, labels = f.endpoint("", OtherLabel)
		}
		return &endpointSeries{f.backend.Counter(httpRequests, labels), f.backend.Gauge(httpActive, labels)}
	})
}

// RequestStarted counts an HTTP request that came in; endpoint is its route's pattern, empty when none matches.
func (f *Front) RequestStarted(endpoint, method string) {
	e := f.endpointSeries(endpoint, method)
	e.requests.Add(1)
	e.active.Add(1, f.now())
}

// ResponseStarted counts the answer of a request by its status.
func (f *Front) ResponseStarted(endpoint, method string, status int) {
	code := strconv.Itoa(status)
	if status < firstStatus || status > lastStatus {
		code = OtherLabel
	}
	key, labels := f.endpoint(endpoint, method)
	f.status.get(key+"\x00"+code, func(full bool) CounterSeries {
		if full {
			_, labels = f.endpoint("", OtherLabel)
			code = OtherLabel
		}
		return f.backend.Counter(httpResponses, append(labels, Label{"status_code", code}))
	}).Add(1)
}

// RequestEnded says that a request that was started is over, however it went.
func (f *Front) RequestEnded(endpoint, method string) {
	f.endpointSeries(endpoint, method).active.Add(-1, f.now())
}

func (f *Front) now() int64 { return f.clock.Wall(f.clock.Now()) }

const (
	firstStatus = 100
	lastStatus  = 599
)

// Middleware counts the requests that next handles. route gives the pattern of a request's route, empty when none
// matches. A panic of next passes through and counts no response unless one had begun.
func (f *Front) Middleware(route func(*nethttp.Request) string, next nethttp.Handler) nethttp.Handler {
	return nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		endpoint, method := route(r), r.Method
		f.RequestStarted(endpoint, method)
		defer f.RequestEnded(endpoint, method)
		cw := &countingWriter{ResponseWriter: w, begin: func(status int) { f.ResponseStarted(endpoint, method, status) }}
		next.ServeHTTP(cw, r)
		if !cw.begun {
			cw.started(nethttp.StatusOK)
		}
	})
}

// MuxRoute gives the route function of a mux: the path of the pattern that a request matches.
func MuxRoute(mux *nethttp.ServeMux) func(*nethttp.Request) string {
	return func(r *nethttp.Request) string {
		_, pattern := mux.Handler(r)
		if _, path, ok := strings.Cut(pattern, " "); ok {
			return path
		}
		return pattern
	}
}

// countingWriter tells the status when an answer begins.
type countingWriter struct {
	nethttp.ResponseWriter
	begun bool
	begin func(status int)
}

func (w *countingWriter) started(status int) {
	if !w.begun && (status >= nethttp.StatusOK || status == nethttp.StatusSwitchingProtocols) {
		w.begun = true
		w.begin(status)
	}
}

func (w *countingWriter) WriteHeader(status int) {
	w.started(status)
	w.ResponseWriter.WriteHeader(status)
}

func (w *countingWriter) Write(data []byte) (int, error) {
	w.started(nethttp.StatusOK)
	return w.ResponseWriter.Write(data)
}

// Unwrap lets http.ResponseController reach the writer below.
func (w *countingWriter) Unwrap() nethttp.ResponseWriter { return w.ResponseWriter }
