package v1alpha1

// TracingSpec says whether and where the engines of a service send spans of its requests. The level and the modules are applied
// to running engines; another endpoint rolls the engines out anew, as does turning tracing on or off. Set level 0 to have it
// ready and pay nothing.
type TracingSpec struct {
	// Endpoint is the OpenTelemetry collector: host:port without TLS, or a URL, https://host:4317. Spans go over gRPC; for HTTP
	// set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf in engine.env.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^(https?://)?([A-Za-z0-9._-]+|\\\\[[0-9A-Fa-f:.]+\\\\]):[0-9]{1,5}$') || self.matches('^https?://([A-Za-z0-9._-]+|\\\\[[0-9A-Fa-f:.]+\\\\])(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?$')",message="engine.tracing.endpoint must be host:port, or a URL such as https://collector.observability.svc:4317, without user and query"
	Endpoint string `json:"endpoint"`

	// Level of requests that begin: 0 no spans, 1 the stages of a request, 2 also short ones, 3 also every chunk and decode step,
	// 4 also what a step costs the CPU.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4
	Level *int32 `json:"level,omitempty"`

	// Modules whose requests are traced: request, the requests of clients. By default that. Without it the level counts as 0.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:Enum=request;mooncake
	Modules []string `json:"modules,omitempty"`
}

// TracingStatus is what the engines of a pool were told.
type TracingStatus struct {
	// Level that every ready engine of the pool has.
	Level int32 `json:"level"`
}
