package metrics

// ledgerViolations counts breaches of the conservation laws, by whoever keeps the sums.
var ledgerViolations = &Family{
	Name: "sluice_ledger_violations_total", Kind: Counter, Help: "Breaches of the conservation laws of docs/ledger.md; 0 unless the engine has a fault.",
	Unit: "breaches", Source: FromProcess, Labels: []string{"law"}, Engines: OnAll, SumOver: []string{"law"},
}

// The store about itself.
var (
	storeFaults = &Family{
		Name: "sluice_metrics_store_faults_total", Kind: Counter, Help: "Stores and series of stores that could not be read or written, by reason.",
		Unit: "faults", Source: FromStore, Labels: []string{"reason"}, Engines: OnAll, SumOver: []string{"reason"},
	}
	labelValuesRefused = &Family{
		Name: "sluice_metrics_label_values_refused_total", Kind: Counter, Unit: "updates", Source: FromProcess, Labels: []string{"family"}, Engines: OnAll, SumOver: []string{"family"},
		Help: "Updates whose label values were beyond --metrics-max-label-values and count under other, by family, or the first of those that share the labels.",
	}
	metricsSeries = &Family{
		Name: "sluice_metrics_series", Kind: Gauge, Help: "Series of this exposition: its lines that are not comments.",
		Unit: "series", Source: FromStore, Engines: OnAll, Merge: MostRecent,
	}
	storeWaiting = &Family{
		Name: "sluice_metrics_store_waiting_series", Kind: Gauge, Help: "Series that found no room in the stores and wait for it; those of ranks are not exposed until then.",
		Unit: "series", Source: FromStore, Engines: OnAll, Merge: MostRecent,
	}
	storeProcesses = &Family{
		Name: "sluice_metrics_store_processes", Kind: Gauge, Help: "Processes that wrote metrics, by whether they live.",
		Unit: "processes", Source: FromStore, Labels: []string{"state"}, Engines: OnAll, Merge: MostRecent,
	}
)

// storeFamilies are what every process tells about its sums, and the store about itself.
var storeFamilies = []*Family{
	ledgerViolations,
	labelValuesRefused,
	metricsSeries,
	storeFaults,
	storeProcesses,
	storeWaiting,
}
