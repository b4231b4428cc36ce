// Package monitoring makes Prometheus scrape the engines of a pool and the router of a service.
//
// It owns the monitors (PoolMonitor, RouterMonitor), how many series they let in (Budget), and the way of objects of other
// operators' kinds to the cluster (Applier), which copes with a cluster that lacks a kind, or gets it later, without a
// restart, and which notices when somebody changes such an object. It must not know what the engines say or how
// Prometheus stores it. The inferenceservice controller applies the monitors of every service, watches Applier.Source,
// and turns the results into the condition MonitoringProvisioned (Provisioned) and into the status (Status).
//
// Who says what about a series: the engine, for the labels that it exports itself (engine_type, model_name, tp_rank and
// so on), since a monitor honours labels; the pod's labels, for series on which the engine puts none (go_*, process_*,
// HTTP, and Prometheus' own up and scrape_*); and constants in the monitor, for namespace, tenant, inference_service,
// pool and job, which overwrite whatever an engine claims. What an engine can forge is thus confined to its own pool, and
// to the names that engines export. Every series of a service, the router's too, has the same keys; on those of a process
// that serves several ranks the rank's labels are "all".
package monitoring
