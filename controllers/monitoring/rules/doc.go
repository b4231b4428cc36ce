// Package rules makes what Prometheus records and alerts on for one service: a PrometheusRule.
//
// It owns the recording rules (recording.go), which are correct over ranks, priorities and both spellings of names; the
// objectives of latency and what burning their budget means (slo.go); and the alerts (alerts.go), each with the numbers
// that it is about and a link to what to do. It names families of the engine's table and of the router only: a name that is
// in neither fails the build. It is pure and must not know a cluster; the inferenceservice controller calls Build and
// package optional takes the object to the API server.
//
// What all of it keeps to:
//   - every selector matches the service's namespace, tenant and name, so that nothing of another service counts;
//   - every recorded series and every alert has these three labels;
//   - a sentinel is no number: −1 and NaN are left out before anything is averaged;
//   - a quotient without a denominator is absent: no traffic is neither good nor bad, and fires nothing.
//
// operator.go has the alerts about the operator itself, which the chart installs; hack/chart calls Operator.
package rules
