package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PoolLoad is the load of a pool's ranks at one time. Ratios are decimal strings with two digits, so that equal loads
// compare equal. What is no number, such as the utilization of a prefill engine, is absent.
type PoolLoad struct {
	// Utilization over the ranks; absent on a pool that reports none (prefill).
	// +optional
	Utilization *Spread `json:"utilization,omitempty"`
	// TokenUsage over the ranks: locked KV tokens over capacity.
	// +optional
	TokenUsage *Spread `json:"tokenUsage,omitempty"`
	// CacheHitRate over the ranks: the share of prompt tokens found in the prefix cache of late; absent on a pool that computes
	// no prompts (decode).
	// +optional
	CacheHitRate *Spread `json:"cacheHitRate,omitempty"`

	RunningRequests int64 `json:"runningRequests"` // over all ranks
	WaitingRequests int64 `json:"waitingRequests"` // scheduler waiting queues

	// GrammarRequests wait for their grammar to be compiled, PausedRequests for generation to go on, and RetractedRequests, on a
	// unified pool, lost their pages and wait to be computed again. Absent when there is none.
	// +optional
	GrammarRequests int64 `json:"grammarRequests,omitempty"`
	// +optional
	PausedRequests int64 `json:"pausedRequests,omitempty"`
	// +optional
	RetractedRequests int64 `json:"retractedRequests,omitempty"`

	// PD queues, present by role.
	// +optional
	PrefillBootstrapQueue *int64 `json:"prefillBootstrapQueue,omitempty"`
	// +optional
	PrefillInflightQueue *int64 `json:"prefillInflightQueue,omitempty"`
	// +optional
	DecodePreallocQueue *int64 `json:"decodePreallocQueue,omitempty"`
	// +optional
	DecodeTransferQueue *int64 `json:"decodeTransferQueue,omitempty"`
	// +optional
	DecodeRetractedQueue *int64 `json:"decodeRetractedQueue,omitempty"`

	// GenThroughput is generated tokens per second over all ranks.
	GenThroughput string `json:"genThroughput"`

	// MostLoaded is the rank with the most requests, running and in every queue: "POD/DPRANK". Absent when none has any.
	// +optional
	MostLoaded string `json:"mostLoaded,omitempty"`

	// Slowest is the rank that generates the fewest tokens per second and running request. Absent unless two ranks or more
	// generate and one is slower than the others.
	// +optional
	Slowest *SlowRank `json:"slowest,omitempty"`

	// Ranks is how many ranks the numbers come from, ExpectedRanks how many the plan expects.
	Ranks         int32 `json:"ranks"`
	ExpectedRanks int32 `json:"expectedRanks"`

	// SampleTime is the time of the oldest sample in these numbers. It is not written anew while they stay the same.
	// +optional
	SampleTime *metav1.Time `json:"sampleTime,omitempty"`
}

// Spread is the distribution of a value over ranks.
type Spread struct {
	Min  string `json:"min"`
	Mean string `json:"mean"`
	Max  string `json:"max"`
	// MaxAt is the pod and DP rank that has Max: "POD/DPRANK".
	// +optional
	MaxAt string `json:"maxAt,omitempty"`
}

// SlowRank names a rank that is slower than the others.
type SlowRank struct {
	// At is the pod and DP rank: "POD/DPRANK".
	At string `json:"at"`
	// TokensPerSecond that each of its running requests gets, and Mean, what those of all ranks get.
	TokensPerSecond string `json:"tokensPerSecond"`
	Mean            string `json:"mean"`
}

// RankLoad is the load of one DP rank at one time: of a copy of the model, whose tensor and pipeline ranks compute the same
// requests. What is no number is absent.
type RankLoad struct {
	// Pod that answers for the rank: the leader of its replica.
	Pod string `json:"pod"`
	// DPRank is the copy of the model within the replica, from 0.
	DPRank int32 `json:"dpRank"`
	// Draining: the replica takes no new requests.
	// +optional
	Draining bool `json:"draining,omitempty"`

	RunningRequests int64 `json:"runningRequests"`
	WaitingRequests int64 `json:"waitingRequests"` // in every queue of the rank

	// +optional
	Utilization string `json:"utilization,omitempty"`
	// +optional
	TokenUsage string `json:"tokenUsage,omitempty"`
	// +optional
	CacheHitRate string `json:"cacheHitRate,omitempty"`
	// GenThroughput is generated tokens per second.
	// +optional
	GenThroughput string `json:"genThroughput,omitempty"`

	// SampleTime is when the rank was asked. It is not written anew while the numbers of the pool's ranks stay the same.
	SampleTime metav1.Time `json:"sampleTime"`
}

// PoolCost is what a pool took and gave since a time. Its numbers are those of AsOf; they are not written anew while the pool
// idles, so a reader adds Devices for each second since AsOf.
//
// What is counted survives the operator: it goes on from the written totals, and with devices also for the time in which no
// operator ran. Tokens of the seconds between the last write and the next operator's first sample are not counted, unless
// their engine started after that write.
type PoolCost struct {
	// Device is what is counted: the resource that the pods request, such as nvidia.com/gpu; or "rank" where they request
	// none, and then each rank counts as one.
	Device string `json:"device"`

	// Devices that the pool's pods held at AsOf: from when a pod has its node until it has ended.
	Devices int64 `json:"devices"`

	// DeviceSeconds that they were held for, all in all, until AsOf.
	DeviceSeconds int64 `json:"deviceSeconds"`

	// PromptTokens that were computed, without those found in a cache, and GeneratedTokens.
	PromptTokens    int64 `json:"promptTokens"`
	GeneratedTokens int64 `json:"generatedTokens"`

	// DeviceSecondsPer1kTokens is what a thousand tokens took: on a prefill pool of prompt tokens, on a decode pool of
	// generated ones, else of both. Absent while there is no token.
	// +optional
	DeviceSecondsPer1kTokens string `json:"deviceSecondsPer1kTokens,omitempty"`

	// Since is when the pool began to hold devices of this kind, AsOf the time up to which is counted.
	Since metav1.Time `json:"since"`
	AsOf  metav1.Time `json:"asOf"`
}
