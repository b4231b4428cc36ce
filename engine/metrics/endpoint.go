package metrics

import (
	nethttp "net/http"
	"strconv"
)

// route is what tells the series of HTTP requests apart.
type route struct {
	endpoint string // a route's pattern, or UnmatchedEndpoint
	method   string // one that HTTP knows, or OtherLabel
}

// unmatched is where everything beyond the cap counts.
var unmatched = route{UnmatchedEndpoint, OtherLabel}

// answer is what tells the series of HTTP answers apart.
type answer struct {
	route
	status int // 0: one that HTTP does not know
}

// endpointSeries are the series of one endpoint and method.
type endpointSeries struct {
	requests CounterSeries
	active   GaugeSeries
}

// routeOf gives the route of a request; endpoint is empty when none matches.
func routeOf(endpoint, method string) route {
	if endpoint == "" {
		endpoint = UnmatchedEndpoint
	}
	switch method {
	case nethttp.MethodGet, nethttp.MethodHead, nethttp.MethodPost, nethttp.MethodPut, nethttp.MethodPatch, nethttp.MethodDelete,
		nethttp.MethodConnect, nethttp.MethodOptions, nethttp.MethodTrace:
	default:
		method = OtherLabel
	}
	return route{endpoint, method}
}

// routeLabels gives the labels of a route's series.
func (f *Front) routeLabels(r route) []Label {
	return override([]Label{{"endpoint", r.endpoint}, {"method", r.method}}, extraMap(f.extra))
}

func extraMap(labels []Label) map[string]string {
	m := make(map[string]string, len(labels))
	for _, l := range labels {
		m[l.Name] = l.Value
	}
	return m
}

func (f *Front) endpointSeries(endpoint, method string) *endpointSeries {
	r := routeOf(endpoint, method)
	return f.http.get(r, "", func(full bool) *endpointSeries {
		if full {
			r = unmatched
		}
		labels := f.routeLabels(r)
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
	if status < firstStatus || status > lastStatus {
		status = 0
	}
	a := answer{routeOf(endpoint, method), status}
	f.status.get(a, "", func(full bool) CounterSeries {
		if full {
			a = answer{route: unmatched}
		}
		code := OtherLabel
		if a.status != 0 {
			code = strconv.Itoa(a.status)
		}
		return f.backend.Counter(httpResponses, append(f.routeLabels(a.route), Label{"status_code", code}))
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
