package observe

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// Cause is why the series of a rank do not arrive.
type Cause string

// The causes, in the order in which a condition names one when there are several.
const (
	// CauseNoTarget: there is nothing to scrape: the pod does not run, or Prometheus has found no target for it.
	CauseNoTarget Cause = "NoTarget"
	// CauseMonitorSelectorMismatch: Prometheus has not taken the pool's monitor: its selectors do not match the monitor's
	// labels or namespace.
	CauseMonitorSelectorMismatch Cause = "MonitorSelectorMismatch"
	// CausePolicyBlocks: the operator reaches the engine and Prometheus does not, as where a NetworkPolicy is in the way.
	CausePolicyBlocks Cause = "PolicyBlocks"
	// CauseTargetDown: the engine does not answer, or with something else than metrics.
	CauseTargetDown Cause = "TargetDown"
	// CauseStale: the newest samples are old.
	CauseStale Cause = "Stale"
	// CauseRankMissing: the pod answers, without a series of the rank.
	CauseRankMissing Cause = "RankMissing"
	// CauseFamilyMissing: the rank has series, without all of those that it must have.
	CauseFamilyMissing Cause = "FamilyMissing"
	// CauseLabelMissing: the series are stored with other labels than the monitor sets.
	CauseLabelMissing Cause = "LabelMissing"
)

// Causes lists the causes in their order.
func Causes() []Cause {
	return []Cause{
		CauseNoTarget, CauseMonitorSelectorMismatch, CausePolicyBlocks, CauseTargetDown, CauseStale, CauseRankMissing, CauseFamilyMissing, CauseLabelMissing,
	}
}

// ExpectedPod is a pod that must export the series of some ranks.
type ExpectedPod struct {
	Name string
	// Ranks that write metrics.
	Ranks []RankID
	// Absent says why the pod cannot be scraped; empty: it runs.
	Absent string
	// Since is when the pod became a target; it has a grace from then on.
	Since time.Time
	// Labels that every series of the pod has in Prometheus.
	Labels map[string]string
}

// Finding is a rank whose series do not arrive.
type Finding struct {
	Pod    string
	Rank   RankID
	Cause  Cause
	Detail string // what was seen, stable while it lasts
}

func (f Finding) String() string {
	text := fmt.Sprintf("%s/%s (%s", f.Pod, f.Rank, f.Cause)
	if f.Detail != "" {
		text += ": " + f.Detail
	}
	return text + ")"
}

// PoolProof is what is known of the series of a pool's pods at one moment.
type PoolProof struct {
	// Pods by name: what the operator itself read.
	Pods map[string]PodReading
	// Stored is what Prometheus has; nil when no Prometheus is known, or it was not asked yet.
	Stored *Stored
	// Interval between two scrapes of a pod by the operator.
	Interval time.Duration
	// NoMonitor: the pool has none by its spec, so that somebody's own configuration has to scrape it.
	NoMonitor bool
}

// staleAfter is how many intervals old the newest samples may be.
const staleAfter = 4

// failuresInRow is how many scrapes must fail before a target is down: one may have met a pod that restarts its server.
const failuresInRow = 2

// Grace is how long a pod may take to be scraped for the first time.
func (p PoolProof) Grace() time.Duration { return 2 * p.Interval }

// Prove compares what must be there with what is: expected ranks × families of the role, against what the operator read and,
// where there is a Prometheus, against what that stored. again is when a pod's grace ends; 0 is never.
func Prove(role v1alpha1.Role, expected []ExpectedPod, proof PoolProof, now time.Time) (findings []Finding, again time.Duration) {
	for _, pod := range expected {
		reading, read := proof.Pods[pod.Name]
		grace := pod.Since.Add(proof.Grace()).Sub(now)
		if pod.Absent == "" && grace > 0 && (!read || reading.Taken.IsZero()) {
			if again == 0 || grace < again {
				again = grace
			}
			continue
		}
		for _, rank := range pod.Ranks {
			direct, isDirect := proveDirect(role, pod, rank, reading, proof, now)
			var reached time.Time
			if !isDirect {
				reached = reading.Taken
			}
			stored, isStored := proveStored(role, pod, rank, reached, proof, now)
			if grace := pod.Since.Add(storedGrace).Sub(now); grace > 0 && pod.Absent == "" && proof.Stored.usable() && (again == 0 || grace < again) {
				again = grace // what is wrong by then may be no news to anybody
			}
			if isStored && stored.Cause == CauseTargetDown && !isDirect && (again == 0 || proof.Interval < again) {
				again = proof.Interval // the operator's next scrape tells whether the target is down or the way to it blocked
			}
			// An operator that is locked out says nothing about the engine while Prometheus gets through, which a sample proves
			// that is newer than the operator's first failure.
			lockedOut := isDirect && direct.Cause == CauseTargetDown && reading.TimedOut && !isStored &&
				proof.Stored.newest(pod.Name, rank).After(reading.FailedSince)
			switch {
			case isDirect && !lockedOut:
				findings = append(findings, direct)
			case isStored:
				findings = append(findings, stored)
			}
		}
	}
	slices.SortFunc(findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(slices.Index(Causes(), a.Cause), slices.Index(Causes(), b.Cause)), cmp.Compare(a.Pod, b.Pod), a.Rank.compare(b.Rank))
	})
	return findings, again
}

// proveDirect looks at what the operator read.
func proveDirect(role v1alpha1.Role, pod ExpectedPod, rank RankID, reading PodReading, proof PoolProof, now time.Time) (f Finding, found bool) {
	at := func(cause Cause, detail string) (Finding, bool) { return Finding{pod.Name, rank, cause, detail}, true }
	switch {
	case pod.Absent != "":
		return at(CauseNoTarget, pod.Absent)
	case reading.Err != nil && (reading.Failures >= failuresInRow || reading.Taken.IsZero()):
		return at(CauseTargetDown, reading.Err.Error())
	case reading.Taken.IsZero():
		return at(CauseTargetDown, "it was not reached yet")
	case now.Sub(reading.Taken) > staleAfter*proof.Interval:
		return at(CauseStale, "the operator's newest scrape is older than "+(staleAfter*proof.Interval).String())
	}
	series, there := reading.Exposition.Ranks[rank]
	if !there {
		return at(CauseRankMissing, "the pod exports no series of it")
	}
	if names := series.missing(role); len(names) > 0 {
		return at(CauseFamilyMissing, listed(names))
	}
	return Finding{}, false
}

// namedFamilies is how many families a detail names.
const namedFamilies = 3

func listed(names []string) string {
	if more := len(names) - namedFamilies; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:namedFamilies], ", "), more)
	}
	return strings.Join(names, ", ")
}
