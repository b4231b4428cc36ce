package metrics

import (
	nethttp "net/http"
	"strconv"
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
	return f.http.get(key, "", func(full bool) *endpointSeries {
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
	f.status.get(key+"\x00"+code, "", func(full bool) CounterSeries {
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
