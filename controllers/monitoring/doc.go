// Package monitoring makes Prometheus scrape the engines of a pool.
//
// It owns the ServiceMonitor of a pool (BuildServiceMonitor) and its way to the cluster (Applier), which copes with a
// cluster that has no ServiceMonitor resource, or gets it later, without a restart. It must not know what the engines
// say or how Prometheus stores it. The inferenceservice controller calls both for every pool, watches Applier.Source,
// and turns the results into the condition MonitoringProvisioned (Provisioned).
//
// Who says what about a series: the engine, for the labels that it exports itself (engine_type, model_name, tp_rank and
// so on), since the monitor honours labels; the pod's labels, for series on which the engine puts none (go_*,
// process_*, http_*, and Prometheus' own up and scrape_*); and constants in the monitor, for namespace, tenant,
// inference_service and pool, which overwrite whatever an engine claims. What an engine can forge is thus confined to
// its own pool.
package monitoring
