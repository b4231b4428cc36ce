package v1alpha1

// Condition types of an InferenceService and, where noted, of an EnginePool. Each says what True, False and Unknown mean.
const (
	// ConditionReady (both): True when every pool has at least one ready replica, or sleeps until the next request with
	// reason Asleep (minReplicas 0), and the router serves; False with the reason that stands in the way; Unknown before the
	// first observation.
	ConditionReady = "Ready"

	// ConditionProgressing (both): True while replicas are created, updated, drained or deleted; False when actual equals
	// allocated and updated.
	ConditionProgressing = "Progressing"

	// ConditionRouterReady (service): True when at least one router pod is ready; False otherwise.
	ConditionRouterReady = "RouterReady"

	// ConditionMetricsFlowing (both): True when every rank of every replica that serves has a fresh sample of its load and
	// exports the series of its role and, where the operator knows the Prometheus, these are stored there, fresh and with
	// their labels. False names the ranks for which that is not so, with the likely cause, which is the reason: NoTarget,
	// MonitorSelectorMismatch, PolicyBlocks, TargetDown, Stale, RankMissing, FamilyMissing or LabelMissing, or RanksMissing
	// where it is the load. Unknown while no replica has served, or while that Prometheus does not answer.
	ConditionMetricsFlowing = "MetricsFlowing"

	// ConditionMonitoringProvisioned (service): True when a ServiceMonitor exists for every pool; False when the API refused
	// one; Unknown when the cluster has no ServiceMonitor resource.
	ConditionMonitoringProvisioned = "MonitoringProvisioned"

	// ConditionLedgerConsistent (both): True when no living engine's ledger broke a law of its own and, of a service, the KV
	// that prefill engines sent is what decode engines received. False with the law, the engine and the numbers. Unknown
	// when nothing is left that could tell; absent until an engine's metrics were read.
	ConditionLedgerConsistent = "LedgerConsistent"

	// ConditionDegraded (both): True when a rank holds work and does none: its counters stand still while its queues are not
	// empty. False when every rank that has work moves. Unknown when nothing is left that could tell; absent until an
	// engine's metrics were read.
	ConditionDegraded = "Degraded"

	// ConditionDashboardsProvisioned (service): True when every dashboard of the service's tenant in its namespace exists;
	// False when the API server refused one, or another has its name; Unknown with the reason Disabled when
	// spec.observability.dashboards turns them off.
	ConditionDashboardsProvisioned = "DashboardsProvisioned"

	// ConditionTracingApplied (both): True when every ready engine traces at the level of spec.engine.tracing; False names the
	// engines that do not, and why; absent where no tracing is asked for and while no engine was ready.
	ConditionTracingApplied = "TracingApplied"

	// ConditionScalingActive (both): True when the HorizontalPodAutoscaler of each pool with autoscaling reads a number;
	// False with the reason (sentinel, stale, partial or missing sample, or the HPA's own); absent where no pool scales.
	ConditionScalingActive = "ScalingActive"
)
