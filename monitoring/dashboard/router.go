package dashboard

import "github.com/sluice-dev/sluice/engine/metrics"

// fromRouter is the source of a router's series: they have labels of targets and their own.
const fromRouter metrics.Source = 255

// routerFamilies are those of a router that the dashboard asks for. A test compares them with the router's own table, which
// comes with the router and is not imported here.
var routerFamilies = map[string]*metrics.Family{
	"sluice_router_requests_total":             {Kind: metrics.Counter, Labels: []string{"route", "code", "outcome"}},
	"sluice_router_in_flight_requests":         {Kind: metrics.Gauge, Labels: []string{"route"}},
	"sluice_router_request_duration_seconds":   {Kind: metrics.Histogram, Labels: []string{"route", "outcome"}},
	"sluice_router_time_to_first_byte_seconds": {Kind: metrics.Histogram, Labels: []string{"route"}},
	"sluice_router_added_latency_seconds":      {Kind: metrics.Histogram, Labels: []string{"route"}},
	"sluice_router_queue_wait_seconds":         {Kind: metrics.Histogram},
	"sluice_router_retries_total":              {Kind: metrics.Counter, Labels: []string{"reason"}},
	"sluice_router_picks_total":                {Kind: metrics.Counter, Labels: []string{"role"}},
	"sluice_router_quarantines_total":          {Kind: metrics.Counter, Labels: []string{"role"}},
	"sluice_router_engines":                    {Kind: metrics.Gauge, Labels: []string{"role", "state"}},
	"sluice_router_draining":                   {Kind: metrics.Gauge},
	"sluice_router_waiting_requests":           {Kind: metrics.Gauge, Labels: []string{"role"}},
}

// routerFamily finds a family of the router.
func routerFamily(name string) (*metrics.Family, bool) {
	f, ok := routerFamilies[name]
	if !ok {
		return nil, false
	}
	named := *f
	named.Name, named.Source = name, fromRouter
	return &named, true
}

func routerPanels(q *queries) []panel {
	const none = "no router is scraped, or it had no request"
	const choice = " Engines that are chosen above do not choose among routers."
	times := func(family string) []target {
		return []target{
			{q.quantile(0.99, family, nil), "P99"},
			{q.quantile(0.5, family, nil), "P50"},
			{q.mean(family, nil), "Avg"},
		}
	}
	return []panel{
		{
			title: "Routed Requests", unit: reqPerSec, look: stacked, empty: none, help: "Requests that ended, by status and outcome; 499 is a client that left." + choice,
			targets: []target{{q.rate("sluice_router_requests_total", []string{"code", "outcome"}), "{{code}} {{outcome}}"}},
		},
		{
			title: "Requests in the Router", unit: number, empty: none, help: "Requests that have begun and not ended, by route; those of them that wait for a ready engine of a role that has none.",
			targets: []target{
				{q.total("sluice_router_in_flight_requests", []string{"route"}), "{{route}}"},
				{q.total("sluice_router_waiting_requests", []string{"role"}), "waiting for {{role}}"},
			},
		},
		{
			title: "Time of a Routed Request", unit: seconds, empty: none, help: "From a request's header to the end of its answer.",
			targets: times("sluice_router_request_duration_seconds"),
		},
		{
			title: "First Byte through the Router", unit: seconds, empty: none, help: "From a request's header to the first byte of its answer. The engines' TTFT lies within.",
			targets: times("sluice_router_time_to_first_byte_seconds"),
		},
		{
			title: "Added by the Router", unit: seconds, empty: none, warn: 0.002, bad: 0.01, help: "The router's own work on a request, without the wait for a usable engine.",
			targets: times("sluice_router_added_latency_seconds"),
		},
		{
			title: "Wait for a Usable Engine", unit: seconds, empty: none, help: "Long while engines of a role are missing, draining or set aside.",
			targets: times("sluice_router_queue_wait_seconds"),
		},
		{
			title: "Retries and Engines Set Aside", unit: perSec, empty: none, warn: 0.01, bad: 1, help: "Attempts on another engine before the first byte, by why, and engines set aside for a moment after a failure.",
			targets: []target{
				{q.rate("sluice_router_retries_total", []string{"reason"}), "retry {{reason}}"},
				{q.rate("sluice_router_quarantines_total", []string{"role"}), "set aside {{role}}"},
			},
		},
		{
			title: "Picks", unit: perSec, empty: none, help: "Requests sent to engines, by role.",
			targets: []target{{q.rate("sluice_router_picks_total", []string{"role"}), "{{role}}"}},
		},
		{
			title: "Engines that the Router Knows", unit: number, empty: none, help: "By role and state, as the router that knows most of them sees it.",
			targets: []target{{q.highest("sluice_router_engines", []string{"role", "state"}), "{{role}} {{state}}"}},
		},
		{
			title: "Routers that Drain", unit: number, empty: none, help: "Routers that refuse health checks and finish what they have.",
			targets: []target{{q.total("sluice_router_draining", nil), "draining"}},
		},
	}
}
