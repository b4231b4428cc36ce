package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Role is what the engines of a pool do for a request. Dynamic is refused, with the reason: see RoleDynamic.
// +kubebuilder:validation:Enum=Prefill;Decode;Unified;Dynamic
// +kubebuilder:validation:XValidation:rule="self != 'Dynamic'",message="role Dynamic is not served: an engine has the role that it is started with, and cannot change it while it holds requests. Make a Prefill and a Decode pool, each with autoscaling, or a Unified pool"
type Role string

const (
	// RolePrefill computes the prompt and hands its KV pages to a decode engine.
	RolePrefill Role = "Prefill"
	// RoleDecode receives KV pages and generates.
	RoleDecode Role = "Decode"
	// RoleUnified does both.
	RoleUnified Role = "Unified"
	// RoleDynamic would be engines that change between prefill and decode with the load. No resource has it: the API server
	// refuses it, since no engine can (docs/design/0013-roles-are-fixed.md).
	RoleDynamic Role = "Dynamic"
)

// EngineType gives the label value of the role: prefill, decode or unified.
func (r Role) EngineType() string {
	switch r {
	case RolePrefill:
		return "prefill"
	case RoleDecode:
		return "decode"
	case RoleDynamic:
		return "dynamic"
	default:
		return "unified"
	}
}

// InferenceService is one model served by pools of engines behind one router.
//
// Pods are named SERVICE-POOL-REPLICA-NODERANK and must stay DNS labels: 34 + 1 + 20 + 1 + 4 + 1 + 2 = 63 characters.
//
// +kubebuilder:object:root=true
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 34",message="metadata.name may have at most 34 characters, so that names of pods stay DNS labels; choose a shorter name"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="metadata.name must be a DNS label: lower-case letters, digits and '-', starting with a letter, for example chat"
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=slisvc
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Model",type=string,JSONPath=`.spec.model.name`
// +kubebuilder:printcolumn:name="Replicas",type=string,JSONPath=`.status.summary.replicas`
// +kubebuilder:printcolumn:name="Running",type=string,JSONPath=`.status.summary.running`
// +kubebuilder:printcolumn:name="Queued",type=string,JSONPath=`.status.summary.queued`
// +kubebuilder:printcolumn:name="Utilization",type=string,JSONPath=`.status.summary.utilization`
// +kubebuilder:printcolumn:name="Tokens/s",type=string,JSONPath=`.status.summary.throughput`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="KV",type=string,priority=1,JSONPath=`.status.summary.tokenUsage`,description="KV memory in use, of the pool that uses the most."
// +kubebuilder:printcolumn:name="Hits",type=string,priority=1,JSONPath=`.status.summary.hitRate`,description="Share of prompt tokens found in the prefix cache."
// +kubebuilder:printcolumn:name="Device-s/1k",type=string,priority=1,JSONPath=`.status.summary.cost`,description="Device-seconds per thousand tokens, by role."
// +kubebuilder:printcolumn:name="Metrics",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="MetricsFlowing")].status`
// +kubebuilder:printcolumn:name="Progressing",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Progressing")].status`
// +kubebuilder:printcolumn:name="URL",type=string,priority=1,JSONPath=`.status.url`
type InferenceService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   InferenceServiceSpec   `json:"spec"`
	Status InferenceServiceStatus `json:"status,omitempty"`
}

// InferenceServiceList is a list of InferenceService.
//
// +kubebuilder:object:root=true
type InferenceServiceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []InferenceService `json:"items"`
}

// InferenceServiceSpec is what a tenant asks for.
//
// +kubebuilder:validation:XValidation:rule="self.pools.exists(p, p.role == 'Unified') || (self.pools.exists(p, p.role == 'Prefill') && self.pools.exists(p, p.role == 'Decode'))",message="spec.pools needs either a pool with role Unified, or at least one with role Prefill and one with role Decode"
// +kubebuilder:validation:XValidation:rule="!(self.pools.exists(p, p.role == 'Unified') && self.pools.exists(p, p.role != 'Unified'))",message="spec.pools mixes role Unified with Prefill or Decode; make two InferenceServices instead"
// +kubebuilder:validation:XValidation:rule="(has(self.slo) && has(self.slo.ttft)) || self.pools.all(p, !has(p.autoscaling) || p.autoscaling.metrics.all(m, m.type != 'TTFT'))",message="autoscaling.metrics type TTFT is measured against spec.slo.ttft, which is not set; add for example slo: {ttft: {threshold: 500ms, objective: \"0.99\"}}"
// +kubebuilder:validation:XValidation:rule="(has(self.slo) && has(self.slo.itl)) || self.pools.all(p, !has(p.autoscaling) || p.autoscaling.metrics.all(m, m.type != 'ITL'))",message="autoscaling.metrics type ITL is measured against spec.slo.itl, which is not set; add for example slo: {itl: {threshold: 50ms, objective: \"0.99\"}}"
type InferenceServiceSpec struct {
	// Model is the model to serve.
	Model ModelSpec `json:"model"`

	// Tenant owns the service; metrics and dashboards are separated by it. By default the namespace.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$')",message="tenant must be a label value: letters, digits, '-', '_' and '.', starting and ending with a letter or digit, for example team-a"
	Tenant string `json:"tenant,omitempty"`

	// Engine is common to all pools.
	// +optional
	// +kubebuilder:default={}
	Engine EngineSpec `json:"engine,omitempty"`

	// Router is the entry of the service.
	// +optional
	// +kubebuilder:default={}
	Router RouterSpec `json:"router,omitempty"`

	// SLO is how fast the service has to be; alerts measure against it.
	// +optional
	SLO *SLOSpec `json:"slo,omitempty"`

	// Observability says how the metrics of the service are scraped, checked and shown.
	// +optional
	// +kubebuilder:default={}
	Observability ObservabilitySpec `json:"observability,omitempty"`

	// Rollout says whether new revisions come to the pools.
	// +optional
	Rollout RolloutSpec `json:"rollout,omitempty"`

	// Pools are the groups of engines by role.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Pools []PoolSpec `json:"pools"`
}

// ModelSpec names a model and says where its files are.
type ModelSpec struct {
	// Name is the served model name, as clients write it in requests.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9][A-Za-z0-9._/-]*$')",message="model.name may hold letters, digits, '.', '_', '/' and '-' and starts with a letter or digit, for example llama-3-8b"
	Name string `json:"name"`

	// URI is where the files in Hugging Face layout are: pvc://CLAIM/PATH or hostpath:///ABSOLUTE/PATH. The second is for
	// development, and refused unless the operator was started with --allow-host-access.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/.*)?$') || self.matches('^hostpath:///.+$')",message="model.uri must be pvc://CLAIM/PATH or hostpath:///ABSOLUTE/PATH, for example pvc://models/tiny"
	// +kubebuilder:validation:XValidation:rule="!self.contains('..')",message="model.uri may not contain '..'; write the path without it"
	URI string `json:"uri"`
}

// EngineSpec is the part of the engine that all pools share.
type EngineSpec struct {
	// Image of sluice-engine. By default the operator's --engine-image.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`

	// ImagePullPolicy of the engine and router containers. By default Kubernetes decides by the image's tag.
	// +optional
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`

	// Args are added after the operator's own arguments of `sluice-engine serve`, in SGLang's spelling.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.exists(a, ['--host', '--port', '--model-path', '--served-model-name', '--enable-metrics', '--disaggregation-mode', '--disaggregation-bootstrap-port', '--disaggregation-secret-file', '--drain-timeout'].exists(f, a == f || a.startsWith(f + '=')))",message="engine.args may not set --host, --port, --model-path, --served-model-name, --enable-metrics, --disaggregation-mode, --disaggregation-bootstrap-port, --disaggregation-secret-file or --drain-timeout: the operator does; use the fields of the resource"
	// +kubebuilder:validation:XValidation:rule="!self.exists(a, ['--tp-size', '--tp', '--tensor-parallel-size', '--pp-size', '--pp', '--pipeline-parallel-size', '--dp-size', '--dp', '--data-parallel-size', '--nnodes', '--node-rank', '--dist-init-addr', '--nccl-init-addr', '--dist-secret-file'].exists(f, a == f || a.startsWith(f + '=')))",message="engine.args may not set --tp-size, --pp-size, --dp-size, --nnodes, --node-rank, --dist-init-addr or --dist-secret-file, by none of their names: the operator does; use pools[].parallelism and pools[].ranksPerPod"
	// +kubebuilder:validation:XValidation:rule="!self.exists(a, ['--enable-trace', '--otlp-traces-endpoint', '--trace-modules'].exists(f, a == f || a.startsWith(f + '=')))",message="engine.args may not set --enable-trace, --otlp-traces-endpoint or --trace-modules: the operator does; use engine.tracing"
	// +kubebuilder:validation:XValidation:rule="!self.exists(a, a == '--api-key' || a.startsWith('--api-key='))",message="engine.args may not set --api-key: the operator reads the engines' load without one; check keys in front of the router"
	Args []string `json:"args,omitempty"`

	// Tracing makes the engines send spans of requests to a collector.
	// +optional
	Tracing *TracingSpec `json:"tracing,omitempty"`

	// Env is added to the engine container.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Env []corev1.EnvVar `json:"env,omitempty"`
}

// RouterPolicy is how the router picks engines.
// +kubebuilder:validation:Enum=LeastLoad;RoundRobin
type RouterPolicy string

const (
	// PolicyLeastLoad picks the engines with the least outstanding work.
	PolicyLeastLoad RouterPolicy = "LeastLoad"
	// PolicyRoundRobin takes engines in turn.
	PolicyRoundRobin RouterPolicy = "RoundRobin"
)

// RouterSpec describes the router Deployment and its Service.
type RouterSpec struct {
	// Replicas of the router.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	Replicas *int32 `json:"replicas,omitempty"`

	// Image of sluice-router. By default the operator's --router-image.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`

	// Policy by which engines are picked.
	// +optional
	// +kubebuilder:default=LeastLoad
	Policy RouterPolicy `json:"policy,omitempty"`

	// WakeUpSeconds is how long the router holds a request while a pool with minReplicas 0 has no ready engine; by default
	// 300. After it the client gets status 503.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	WakeUpSeconds *int32 `json:"wakeUpSeconds,omitempty"`

	// Resources of the router container.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`

	// KeysSecret names a Secret of the same namespace with the keys that the router asks for as bearer tokens: admin-api-key, which
	// it must have, for /workers and /debug/requests, and api-key for the routes that engines answer, which are open without
	// one. Routers read the keys when they start. Without a Secret all routes are open to whoever reaches the router.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	KeysSecret string `json:"keysSecret,omitempty"`

	// Service of the router.
	// +optional
	// +kubebuilder:default={}
	Service RouterServiceSpec `json:"service,omitempty"`
}

// RouterServiceSpec is the Service that clients call.
type RouterServiceSpec struct {
	// Type of the Service.
	// +optional
	// +kubebuilder:default=ClusterIP
	// +kubebuilder:validation:Enum=ClusterIP;NodePort;LoadBalancer
	Type corev1.ServiceType `json:"type,omitempty"`

	// Port of the Service.
	// +optional
	// +kubebuilder:default=8000
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
}

// PoolSpec is one group of engines with the same role and shape.
//
// +kubebuilder:validation:XValidation:rule="self.role == oldSelf.role",message="pools[].role is immutable; add a pool with another name and remove this one"
// +kubebuilder:validation:XValidation:rule="self.name != 'router'",message="pools[].name router is taken by the service's router; choose another, for example decode"
// +kubebuilder:validation:XValidation:rule="!has(self.autoscaling) || self.role != 'Prefill' || self.autoscaling.metrics.all(m, m.type != 'Utilization')",message="a Prefill pool reports no utilization (-1); scale it on type PrefillDelay or QueueLength instead"
// +kubebuilder:validation:XValidation:rule="!has(self.autoscaling) || self.role != 'Prefill' || self.autoscaling.metrics.all(m, m.type != 'TTFT' && m.type != 'ITL')",message="a Prefill pool sends no tokens to clients, so it has no TTFT and no ITL; scale it on type PrefillDelay, and the Decode pool on TTFT or ITL"
// +kubebuilder:validation:XValidation:rule="!has(self.autoscaling) || self.role != 'Decode' || self.autoscaling.metrics.all(m, m.type != 'PrefillDelay')",message="a Decode pool computes no prompts, so it has no PrefillDelay; scale it on type Utilization, TokenUsage or ITL, and the Prefill pool on PrefillDelay"
type PoolSpec struct {
	// Name of the pool within the service.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="pools[].name must be a DNS label: lower-case letters, digits and '-', starting with a letter, for example decode"
	Name string `json:"name"`

	// Role of the engines.
	Role Role `json:"role"`

	// Replicas wanted when the pool has no autoscaling.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1024
	Replicas *int32 `json:"replicas,omitempty"`

	EngineShape `json:",inline"`

	// Autoscaling scales the pool by itself; replicas is then only the start value.
	// +optional
	Autoscaling *AutoscalingSpec `json:"autoscaling,omitempty"`
}

// EngineShape is what a pool's engines look like; it is the same in PoolSpec and EnginePoolSpec.
//
// +kubebuilder:validation:XValidation:rule="self.parallelism.tensor * self.parallelism.pipeline <= 256",message="parallelism.tensor times parallelism.pipeline may be at most 256: so many ranks share a copy of the model"
// +kubebuilder:validation:XValidation:rule="!has(self.ranksPerPod) || ((self.parallelism.tensor * self.parallelism.pipeline * self.parallelism.data) % self.ranksPerPod == 0 && self.ranksPerPod % self.parallelism.data == 0)",message="ranksPerPod must divide tensor × pipeline × data and be a multiple of data, since each pod hosts the same ranks of every copy of the model; for tensor 4 and data 2 choose 2, 4 or 8"
// +kubebuilder:validation:XValidation:rule="!has(self.ranksPerPod) || self.parallelism.tensor * self.parallelism.pipeline * self.parallelism.data <= 100 * self.ranksPerPod",message="ranksPerPod is too small: a replica has at most 100 pods"
// +kubebuilder:object:generate=true
type EngineShape struct {
	// Parallelism is the rank layout of one replica.
	// +optional
	// +kubebuilder:default={}
	Parallelism Parallelism `json:"parallelism,omitempty"`

	// RanksPerPod is how many ranks one pod hosts; by default all of a replica. The pods of a replica start, serve and end
	// together; the first has the API.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16384
	RanksPerPod *int32 `json:"ranksPerPod,omitempty"`

	// KVCache sizes the KV pool.
	// +optional
	// +kubebuilder:default={}
	KVCache KVCacheSpec `json:"kvCache,omitempty"`

	// Scheduler sets batch limits.
	// +optional
	// +kubebuilder:default={}
	Scheduler SchedulerSpec `json:"scheduler,omitempty"`

	// Args are added after the service's engine.args.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.exists(a, ['--host', '--port', '--model-path', '--served-model-name', '--enable-metrics', '--disaggregation-mode', '--disaggregation-bootstrap-port', '--disaggregation-secret-file', '--drain-timeout'].exists(f, a == f || a.startsWith(f + '=')))",message="pools[].args may not set --host, --port, --model-path, --served-model-name, --enable-metrics, --disaggregation-mode, --disaggregation-bootstrap-port, --disaggregation-secret-file or --drain-timeout: the operator does; use the fields of the resource"
	// +kubebuilder:validation:XValidation:rule="!self.exists(a, ['--tp-size', '--tp', '--tensor-parallel-size', '--pp-size', '--pp', '--pipeline-parallel-size', '--dp-size', '--dp', '--data-parallel-size', '--nnodes', '--node-rank', '--dist-init-addr', '--nccl-init-addr', '--dist-secret-file'].exists(f, a == f || a.startsWith(f + '=')))",message="pools[].args may not set --tp-size, --pp-size, --dp-size, --nnodes, --node-rank, --dist-init-addr or --dist-secret-file, by none of their names: the operator does; use pools[].parallelism and pools[].ranksPerPod"
	// +kubebuilder:validation:XValidation:rule="!self.exists(a, ['--enable-trace', '--otlp-traces-endpoint', '--trace-modules'].exists(f, a == f || a.startsWith(f + '=')))",message="pools[].args may not set --enable-trace, --otlp-traces-endpoint or --trace-modules: the operator does; use engine.tracing"
	// +kubebuilder:validation:XValidation:rule="!self.exists(a, a == '--api-key' || a.startsWith('--api-key='))",message="pools[].args may not set --api-key: the operator reads the engines' load without one; check keys in front of the router"
	Args []string `json:"args,omitempty"`

	// Resources of the engine container.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`

	// Template is a strategic-merge overlay on the pod (a PodTemplateSpec), for what has no field of its own. It may not
	// set labels and annotations of inference.sluice.dev/, nor reach into the node unless the operator was started with
	// --allow-host-access.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	Template *runtime.RawExtension `json:"template,omitempty"`

	// DrainSeconds is how long a replica that leaves may take to finish its requests.
	// +optional
	// +kubebuilder:default=300
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	DrainSeconds *int32 `json:"drainSeconds,omitempty"`
}

// Parallelism is the rank layout of one replica: tensor * pipeline ranks share a copy of the model, and data copies lie behind
// one API. Whether a model can be divided so, the engine knows: one with 8 heads and tensor 3 ends with an error that the
// pool's condition Ready shows.
type Parallelism struct {
	// Tensor is the number of ranks that share each layer.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	Tensor int32 `json:"tensor,omitempty"`

	// Pipeline is the number of stages that the layers are cut into.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	Pipeline int32 `json:"pipeline,omitempty"`

	// Data is the number of copies of the model in a replica, each with tensor * pipeline ranks, its own requests and its own
	// KV pool.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	Data int32 `json:"data,omitempty"`

	// Expert is the number of groups that a stage's experts are spread over.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	// +kubebuilder:validation:XValidation:rule="self == 1",message="parallelism.expert must be 1: the engine has no expert parallelism"
	Expert int32 `json:"expert,omitempty"`
}

// KVCacheSpec sizes the paged KV pool of each rank.
//
// +kubebuilder:validation:XValidation:rule="!has(self.maxTotalTokens) || !has(self.pageSize) || self.maxTotalTokens >= self.pageSize",message="kvCache.maxTotalTokens must be at least kvCache.pageSize: a pool holds whole pages"
type KVCacheSpec struct {
	// PageSize is the number of tokens in a page.
	// +optional
	// +kubebuilder:default=16
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=256
	PageSize *int32 `json:"pageSize,omitempty"`

	// MaxTotalTokens is the capacity of the pool in tokens; by default the engine derives it from memory.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MaxTotalTokens *int32 `json:"maxTotalTokens,omitempty"`
}

// SchedulerSpec sets the limits of a rank's batches.
//
// +kubebuilder:validation:XValidation:rule="!has(self.maxRunningRequests) || !has(self.maxRunningRequestsUnderSLO) || self.maxRunningRequestsUnderSLO <= self.maxRunningRequests",message="scheduler.maxRunningRequestsUnderSLO must not exceed scheduler.maxRunningRequests"
type SchedulerSpec struct {
	// MaxRunningRequests is the most requests that decode together.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MaxRunningRequests *int32 `json:"maxRunningRequests,omitempty"`

	// MaxRunningRequestsUnderSLO is the cap against which utilization is measured; by default MaxRunningRequests.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MaxRunningRequestsUnderSLO *int32 `json:"maxRunningRequestsUnderSLO,omitempty"`

	// ChunkedPrefillTokens is the most prompt tokens computed in one step.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ChunkedPrefillTokens *int32 `json:"chunkedPrefillTokens,omitempty"`
}

// InferenceServiceStatus is what the operator sees.
type InferenceServiceStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// URL of the router inside the cluster.
	// +optional
	URL string `json:"url,omitempty"`

	// Pools in the order of spec.pools.
	// +optional
	// +listType=map
	// +listMapKey=name
	Pools []PoolStatus `json:"pools,omitempty"`

	// Observability tells of the monitors that were made.
	// +optional
	Observability *ObservabilityStatus `json:"observability,omitempty"`

	// Summary holds the printer columns.
	// +optional
	Summary *ServiceSummary `json:"summary,omitempty"`
}

// ServiceSummary holds values ready to print; several pools are separated by spaces as name=value.
type ServiceSummary struct {
	Replicas    string `json:"replicas,omitempty"`    // "prefill=1/1 decode=2/2", ready/allocated
	Running     string `json:"running,omitempty"`     // running requests, over all pools that decode
	Queued      string `json:"queued,omitempty"`      // requests waiting in any queue of any pool
	Utilization string `json:"utilization,omitempty"` // mean of the pools that report it, "0.42"; "-" when none
	Throughput  string `json:"throughput,omitempty"`  // generated tokens per second over all pools
	TokenUsage  string `json:"tokenUsage,omitempty"`  // KV memory in use, of the pool that uses the most; "-" when none tells
	HitRate     string `json:"hitRate,omitempty"`     // share of prompt tokens found in the cache, of the pool with the most
	Cost        string `json:"cost,omitempty"`        // device-seconds per thousand tokens by role, "prefill=0.12 decode=3.40"
}

// PoolStatus is the state of one pool within the service.
type PoolStatus struct {
	Name string `json:"name"`
	Role Role   `json:"role"`

	ReplicaCounts `json:",inline"`

	// Load of the pool, absent when no engine has a fresh sample.
	// +optional
	Load *PoolLoad `json:"load,omitempty"`

	// Cost is what the pool took and gave, absent until it had a pod.
	// +optional
	Cost *PoolCost `json:"cost,omitempty"`
}
