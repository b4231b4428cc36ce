package view

// Status is the document of `status` and of `top -o json`.
type Status struct {
	Kind     string    `json:"kind"`     // "Status"
	Time     string    `json:"time"`     // when it was read, RFC 3339, UTC
	Services []Service `json:"services"` // by namespace and name
}

// Service is one InferenceService.
type Service struct {
	Namespace  string      `json:"namespace"`
	Name       string      `json:"name"`
	Model      string      `json:"model"`
	Tenant     string      `json:"tenant"`
	URL        string      `json:"url"`   // of the router inside the cluster; "" before there is one
	Ready      bool        `json:"ready"` // its condition Ready is True
	Paused     bool        `json:"paused"`
	Conditions []Condition `json:"conditions"`
	Router     Router      `json:"router"`
	Pools      []Pool      `json:"pools"` // in the order of spec.pools
	Notes      []string    `json:"notes"` // what could not be read, and why
}

// Condition is a condition of the service.
type Condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"` // True, False or Unknown
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Since   string `json:"since"` // RFC 3339, UTC
	Words   string `json:"words"` // what that means, as a sentence without its message
}

// Router counts the router's pods.
type Router struct {
	Replicas int `json:"replicas"`
	Ready    int `json:"ready"`

	hidden bool // its pods may not be listed
}

// Pool is one pool of a service.
type Pool struct {
	Name      string    `json:"name"`
	Role      string    `json:"role"`
	Revision  string    `json:"revision"`
	Demand    int32     `json:"demand"`    // replicas that are asked for
	Allocated int32     `json:"allocated"` // replicas that are granted
	Replicas  int32     `json:"replicas"`  // that exist, draining ones included
	Ready     int32     `json:"ready"`
	Updated   int32     `json:"updated"` // of the newest revision
	Draining  int32     `json:"draining"`
	Load      Load      `json:"load"` // over the ranks that answered
	Members   []Replica `json:"members"`

	// LoadSource says who told Load: "engines", which were asked just now; "status", what the operator saw, where the user may not
	// ask engines; "" when nobody did. LoadAsOf is when the operator saw it first, RFC 3339, UTC; "" for another source.
	LoadSource string `json:"load_source"`
	LoadAsOf   string `json:"load_as_of"`
}

// Replica is one copy of the model.
type Replica struct {
	Ordinal  int32  `json:"ordinal"`
	State    string `json:"state"` // ready, starting, not ready, failed, draining or ending
	Detail   string `json:"detail"`
	Revision string `json:"revision"`
	Updated  bool   `json:"updated"` // it has the pool's newest revision
	Pods     []Pod  `json:"pods"`
	Ranks    []Rank `json:"ranks"`
	Note     string `json:"note"` // why the ranks have no load; "" when they have
}

// Pod is a pod of a replica.
type Pod struct {
	Name     string `json:"name"`
	NodeRank int32  `json:"node_rank"`
	Node     string `json:"node"`
	IP       string `json:"ip"`
	Restarts int32  `json:"restarts"` // failures in a row of the replica before this pod
}

// Rank is one scheduler process and the load of its data-parallel group; ranks of one group tell the same.
type Rank struct {
	Rank   *int32 `json:"rank"` // null: the engine reports a group that the plan does not know
	TP     int32  `json:"tp_rank"`
	PP     int32  `json:"pp_rank"`
	DP     int32  `json:"dp_rank"`
	MoEEP  int32  `json:"moe_ep_rank"`
	Pod    string `json:"pod"`
	Load   *Load  `json:"load"`   // null: it did not answer
	Leader bool   `json:"leader"` // the first of its data-parallel group: the one whose load is counted
}

// Load is what a rank is busy with, or several together: counts and throughput are added, ratios are means over the ranks that
// have them. A null is a value that this role does not report.
type Load struct {
	Running       int64    `json:"running"` // requests
	Waiting       int64    `json:"waiting"` // requests in all queues before that
	UsedTokens    int64    `json:"used_tokens"`
	TokenCapacity int64    `json:"token_capacity"`
	TokenUsage    *float64 `json:"token_usage"` // 0 to 1
	Utilization   *float64 `json:"utilization"` // 1: as much as the cap of running requests or the memory allows
	Throughput    *float64 `json:"gen_throughput"`
	CacheHitRate  *float64 `json:"cache_hit_rate"`
	Queues        Queues   `json:"queues"`
	Ranks         int      `json:"ranks"`    // data-parallel groups that answered
	Expected      int      `json:"expected"` // data-parallel groups that there are
}

// Queues are requests by what they wait for.
type Queues struct {
	Waiting          int64 `json:"waiting"`
	Grammar          int64 `json:"grammar"`
	Paused           int64 `json:"paused"`
	Retracted        int64 `json:"retracted"`
	PrefillBootstrap int64 `json:"prefill_bootstrap"`
	PrefillInflight  int64 `json:"prefill_inflight"`
	DecodePrealloc   int64 `json:"decode_prealloc"`
	DecodeTransfer   int64 `json:"decode_transfer"`
}
