package semantics

import (
	"slices"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// Source says where a number is read.
type Source string

const (
	// FromMetrics is a family of GET /metrics.
	FromMetrics Source = "/metrics"
	// FromLoads is a field of GET /v1/loads, which the leader of a replica gives for each of its DP ranks.
	FromLoads Source = "/v1/loads"
)

// Kind says what a number does over time.
type Kind string

const (
	// Gauge goes up and down: its newest value counts.
	Gauge Kind = "gauge"
	// Counter grows until its process ends: only its increase over a time counts.
	Counter Kind = "counter"
	// Histogram is a set of counters by bucket: only their increases count, and quantiles of those.
	Histogram Kind = "histogram"
)

// Sentinel says which values stand for "no number". NaN and infinities are never numbers, and neither is a negative value,
// since nothing that an engine tells can be below 0.
type Sentinel string

const (
	// NoSentinel means that every sample should be a number.
	NoSentinel Sentinel = ""
	// MinusOneOnPrefill means that prefill engines report -1: they do not have it.
	MinusOneOnPrefill Sentinel = "-1 on prefill"
	// NaNWhenIdle means that the sample is NaN while nothing is computed.
	NaNWhenIdle Sentinel = "NaN when idle"
)

// WhenIdle says what a gauge reads after the last request has ended.
type WhenIdle string

const (
	// Truthful gauges are written by the idle report too, or read at the moment of the answer.
	Truthful WhenIdle = ""
	// Kept gauges hold the value of the last report with work until the next one, however long that takes. Such a value is
	// stale while nothing runs and nothing waits, and counts as 0 then.
	Kept WhenIdle = "kept"
	// Constant gauges are written once, when the engine starts.
	Constant WhenIdle = "constant"
)

// Fold says how several values become one.
type Fold string

const (
	// Sum adds: requests, tokens, bytes. Of counters and histograms it adds the increases.
	Sum Fold = "sum"
	// Mean averages, each value with the same weight: ratios, whose sum means nothing.
	Mean Fold = "mean"
	// Max takes the largest: times of the slowest.
	Max Fold = "max"
	// Same takes any: all have the same value.
	Same Fold = "same"
	// Never means that no fold tells anything; the values stand side by side.
	Never Fold = "never"
)

// Copies says what the ranks of one DP rank have, those that differ in tp_rank, pp_rank and moe_ep_rank alone.
type Copies string

const (
	// Repeated values tell the same requests again on every rank: one of them counts. Without
	// --enable-metrics-for-all-schedulers only one rank exports them.
	Repeated Copies = "repeated"
	// Own values belong to the rank and are folded as those of DP ranks are.
	Own Copies = "own"
	// NoRanks means that the number has no rank: a process of the replica tells it.
	NoRanks Copies = "none"
)

// Priorities says what the series of single priorities have to do with each other where priority scheduling is on.
type Priorities string

const (
	// TotalOnly series have priority="" if they have the label at all.
	TotalOnly Priorities = ""
	// Repeats means that priority="" is the total, and the series of the priorities repeat it: select priority="".
	Repeats Priorities = "repeats"
	// Parts means that each request is in the series of one priority, "" being that of requests without: add them up.
	Parts Priorities = "parts"
)

// Number is one row: what a number means.
type Number struct {
	// Name is the family as exposed, or the field of /v1/loads by its JSON name, "disaggregation." or "queues." before it.
	Name   string
	Source Source
	Kind   Kind
	// Unit in words: requests, tokens, seconds, ratio. Ratios are 1 at the limit, never percent unless the unit says so.
	Unit string
	// Owners are the roles whose engines have it.
	Owners   []v1alpha1.Role
	Sentinel Sentinel
	WhenIdle WhenIdle

	// Ranks folds over the DP ranks of a replica, Replicas over the replicas of a pool. Copies says which of the other ranks
	// count, Priorities which of the priorities.
	Ranks      Fold
	Copies     Copies
	Replicas   Fold
	Priorities Priorities

	// Labels are those besides where the series comes from; values of different labels are never folded silently.
	Labels []string
}

// Owned says whether engines of the role have the number.
func (n Number) Owned(role v1alpha1.Role) bool { return slices.Contains(n.Owners, role) }

// Numbers gives the registry: families in the order of the engine's table, then the fields of /v1/loads in theirs.
func Numbers() []Number {
	return slices.Concat(schedulerNumbers(), handoverNumbers(), frontNumbers(), processNumbers(), loadNumbers())
}

// Lookup finds a row by its source and name.
func Lookup(source Source, name string) (n Number, ok bool) {
	for _, n := range Numbers() {
		if n.Source == source && n.Name == name {
			return n, true
		}
	}
	return Number{}, false
}

// Roles that own numbers.
func all() []v1alpha1.Role {
	return []v1alpha1.Role{v1alpha1.RolePrefill, v1alpha1.RoleDecode, v1alpha1.RoleUnified}
}
func decoding() []v1alpha1.Role   { return []v1alpha1.Role{v1alpha1.RoleDecode, v1alpha1.RoleUnified} }
func prefilling() []v1alpha1.Role { return []v1alpha1.Role{v1alpha1.RolePrefill, v1alpha1.RoleUnified} }
func pairing() []v1alpha1.Role    { return []v1alpha1.Role{v1alpha1.RolePrefill, v1alpha1.RoleDecode} }
func prefill() []v1alpha1.Role    { return []v1alpha1.Role{v1alpha1.RolePrefill} }
func decode() []v1alpha1.Role     { return []v1alpha1.Role{v1alpha1.RoleDecode} }
func unified() []v1alpha1.Role    { return []v1alpha1.Role{v1alpha1.RoleUnified} }
