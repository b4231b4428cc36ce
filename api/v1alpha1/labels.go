package v1alpha1

// Label keys on everything the operator creates. Values are label-safe; a value that does not fit is shortened with
// a hash suffix by the plan package.
const (
	// LabelPrefix is the prefix of every key below.
	LabelPrefix = "inference.sluice.dev/"

	LabelService    = LabelPrefix + "service"     // name of the InferenceService
	LabelPool       = LabelPrefix + "pool"        // name of the pool within the service
	LabelRole       = LabelPrefix + "role"        // Prefill, Decode, Unified, Dynamic
	LabelEngineType = LabelPrefix + "engine-type" // prefill, decode, unified, dynamic
	LabelReplica    = LabelPrefix + "replica"     // ordinal of the replica within the pool
	LabelNodeRank   = LabelPrefix + "node-rank"   // which pod of the replica, 0 is the leader
	LabelRevision   = LabelPrefix + "revision"    // hash of the pod template inputs
	LabelTenant     = LabelPrefix + "tenant"      // spec.tenant, by default the namespace
	LabelModel      = LabelPrefix + "model"       // spec.model.name

	// The five below are set only on a pod that hosts exactly one rank.
	LabelRank      = LabelPrefix + "rank"
	LabelTPRank    = LabelPrefix + "tp-rank"
	LabelPPRank    = LabelPrefix + "pp-rank"
	LabelDPRank    = LabelPrefix + "dp-rank"
	LabelMoEEPRank = LabelPrefix + "moe-ep-rank"

	// LabelComponent tells what a managed object is or belongs to: engine, router, rules or dashboards.
	LabelComponent = LabelPrefix + "component"

	// LabelDraining is "true" on an engine pod from the moment that it carries AnnotationDraining. The selector of a pool's
	// scale subresource leaves such pods out, so that an autoscaler divides the load among the replicas that stay.
	LabelDraining = LabelPrefix + "draining"

	// LabelLLMDRole lets llm-d schedulers recognise the role: prefill, decode or both.
	LabelLLMDRole = "llm-d.ai/role"
)

// Annotation keys.
const (
	// AnnotationDraining on an engine pod holds the RFC 3339 time at which admission to it stopped. The router sends
	// it no new request; the operator deletes the pod when its queues are empty or the drain deadline is over.
	AnnotationDraining = LabelPrefix + "draining"

	// AnnotationRestarts on an engine pod counts the failures in a row of its replica before this pod was made, in
	// decimal. The delay before the next replacement grows with it.
	AnnotationRestarts = LabelPrefix + "restarts"

	// AnnotationLayout on an engine pod holds the rank layout of its replica, "tensor=2,pipeline=1,data=2,nodes=2"; absent
	// when the replica has one rank. During a roll-out it differs from what the pool wants.
	AnnotationLayout = LabelPrefix + "layout"

	// AnnotationHistory on an EnginePool holds what its engines were made from before, as JSON; package plan writes and reads it.
	AnnotationHistory = LabelPrefix + "history"

	// AnnotationScaled on an EnginePool holds, as JSON, the newest decision of the operator about its demand: who, from, to,
	// and the reason. The status copies it into lastDecisions.
	AnnotationScaled = LabelPrefix + "scaled"

	// AnnotationApplied on an object that the operator applied holds the hash of what was applied, so that an object
	// that is as it should be is not written again.
	AnnotationApplied = LabelPrefix + "applied"
)

// Values of LabelComponent.
const (
	ComponentEngine = "engine"
	ComponentRouter = "router"

	// ComponentRules and ComponentDashboards are what Prometheus and Grafana get.
	ComponentRules      = "rules"
	ComponentDashboards = "dashboards"

	// ComponentMetricsAPI marks the APIServices of the custom metrics API that belong to this operator. It fills the CA
	// bundle into those alone.
	ComponentMetricsAPI = "metrics-api"
)

// Names of the container ports of an engine pod; the router and the monitors find ports by these names.
const (
	PortHTTP      = "http"      // OpenAI and SGLang API, /metrics
	PortBootstrap = "bootstrap" // PD bootstrap server, prefill pods only
)

// Default port numbers.
const (
	DefaultEnginePort    = 30000
	DefaultBootstrapPort = 8998
	DefaultRouterPort    = 8000
)
