// Package metrics is the engine's metrics. It owns the table of families (families.go), the memory-mapped store that the
// processes of a replica write to (store.go), the reader that merges the stores at a scrape (gatherer.go), and the
// listeners that turn the events of the scheduler (scheduler.go) and of the API process (front.go) into updates.
//
// It knows no request, queue or HTTP route; it must not measure anything itself: times come from the ledger, counts from
// their owners. Callers: a rank opens a Store and gives NewScheduler's Reporter to its scheduler; the API process opens a
// Store of its own, listens with Front and serves Handler on /metrics. The operator reads the table only.
package metrics
