// Package contract checks expositions against the metrics that SGLang exposes, so that dashboards, routers and habits
// carry over. It owns the reading of the list (engine/metrics/testdata/contract.txt) and of a text exposition, and the
// comparison. It must not know the engine's own table: what it looks at is what a scraper sees. The tests of
// engine/metrics and hack/checkmetrics call it.
package contract
