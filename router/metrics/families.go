package metrics

// Kind of a family.
type Kind string

// The kinds.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// Family is one row of the table.
type Family struct {
	Name    string
	Kind    Kind
	Help    string
	Labels  []string
	Buckets []float64 // seconds, histograms only
}

var (
	overheadBuckets = []float64{0.00005, 0.0001, 0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1}
	waitBuckets     = []float64{0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}
	requestBuckets  = []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
)

// The families.
var (
	requests    = Family{"sluice_router_requests_total", Counter, "Requests that ended, by route, status code (499: the client went before its answer) and outcome.", []string{"route", "code", "outcome"}, nil}
	inFlight    = Family{"sluice_router_in_flight_requests", Gauge, "Requests that have begun and not ended.", []string{"route"}, nil}
	duration    = Family{"sluice_router_request_duration_seconds", Histogram, "Time from the request's header to the end of its answer.", []string{"route", "outcome"}, requestBuckets}
	firstByte   = Family{"sluice_router_time_to_first_byte_seconds", Histogram, "Time from the request's header to the first byte of its answer.", []string{"route"}, requestBuckets}
	overhead    = Family{"sluice_router_added_latency_seconds", Histogram, "The router's own work from the request's last byte to handing it to the engines, without the wait for a usable engine.", []string{"route"}, overheadBuckets}
	queueWait   = Family{"sluice_router_queue_wait_seconds", Histogram, "Wait of a request for a usable engine, once an attempt.", nil, waitBuckets}
	retries     = Family{"sluice_router_retries_total", Counter, "Attempts on another engine before the first byte, by why the one before failed.", []string{"reason"}, nil}
	picks       = Family{"sluice_router_picks_total", Counter, "Requests sent to engines, by role.", []string{"role"}, nil}
	quarantines = Family{"sluice_router_quarantines_total", Counter, "Engines set aside for a moment after a failure, by role.", []string{"role"}, nil}
	engines     = Family{"sluice_router_engines", Gauge, "Engines known, by role and state.", []string{"role", "state"}, nil}
	waiting     = Family{"sluice_router_waiting_requests", Gauge, "Requests that wait for a ready engine of a role that has none.", []string{"role"}, nil}
	draining    = Family{"sluice_router_draining", Gauge, "1 while the router refuses health checks and finishes what it has.", nil, nil}
)

// Families lists the table.
func Families() []Family {
	return []Family{requests, inFlight, duration, firstByte, overhead, queueWait, retries, picks, quarantines, engines, waiting, draining}
}
