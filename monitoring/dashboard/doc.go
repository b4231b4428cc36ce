// Package dashboard builds the Grafana dashboard of engines.
//
// It owns which panels there are, what each asks of Prometheus and how it shows the answer, and builds them for a reader:
// Options say which data source, which labels tell replicas apart, and which constants go into every query, so that the same
// panels serve somebody with one engine and a tenant who may see only their own. It knows the table of metric families and
// nothing else of the engine, and the names of the router's; a query that names a family outside of the table fails the
// build. It must not talk to Grafana, Prometheus or a cluster.
//
// What the queries keep to (query.go):
//   - a family is found under its name and under the name that some gateways and scrapers make of it, with "_" for ":";
//   - series of ranks that tell the same thing twice are taken once, and only then added over data-parallel ranks;
//   - totals leave the series of single priorities out, which repeat what the totals count;
//   - a mean is a sum over a sum, never a mean of means; a quotient without a denominator is absent, not NaN.
//
// The dashboard of the operator (operator.go) is built of the same panels, over the operator's own families; hack/chart writes it
// into the chart.
//
// hack/dashboard writes the checked-in dashboard of monitoring/grafana with it; the operator's dashboards of tenants are
// built by the same call.
package dashboard
