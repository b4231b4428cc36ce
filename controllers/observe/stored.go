package observe

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

const (
	// staleSample is how old the newest sample in Prometheus may be: with the longest usual interval of 30 s, three that
	// failed.
	staleSample = 2 * time.Minute

	// storedFor is how many intervals an answer of Prometheus counts.
	storedFor = 4
)

// usable says whether there is an answer of Prometheus to go by.
func (s *Stored) usable() bool { return s != nil && s.Err == nil }

// down says since when targets are down: since the answer before, where they were down in it.
func (s *Stored) down(before *Stored) {
	for pod, up := range s.Up {
		if up.Up {
			continue
		}
		up.Down = s.Taken
		if before.usable() {
			if was, there := before.Up[pod]; there && !was.Up {
				up.Down = was.Down
			}
		}
		s.Up[pod] = up
	}
}

// proveStored looks at what Prometheus has of a rank. reached is when the operator itself got the rank's series; zero: it
// did not.
func proveStored(role v1alpha1.Role, pod ExpectedPod, rank RankID, reached time.Time, proof PoolProof, now time.Time) (f Finding, found bool) {
	s := proof.Stored
	if !s.usable() || now.Sub(s.Taken) > storedFor*proof.Interval {
		return Finding{}, false
	}
	// A pod that has just become ready was not scraped yet, and Prometheus learns of it some time later.
	if now.Sub(pod.Since) < storedGrace && pod.Absent == "" {
		return Finding{}, false
	}
	at := func(cause Cause, detail string) (Finding, bool) { return Finding{pod.Name, rank, cause, detail}, true }
	up, isTarget := s.Up[pod.Name]
	series, stored := s.Ranks[pod.Name][rank]
	switch {
	case pod.Absent != "":
		return at(CauseNoTarget, pod.Absent)
	case !isTarget && s.ScrapePools && !s.Monitored:
		return at(CauseMonitorSelectorMismatch, "Prometheus has not taken the pool's monitor; compare its selectors with the monitor's labels and namespace")
	case !isTarget && !s.ScrapePools && len(s.Up) == 0:
		return at(CauseMonitorSelectorMismatch, "Prometheus has no target of the pool; compare its selectors with the monitor's labels and namespace")
	case !isTarget:
		return at(CauseNoTarget, "Prometheus has no target for the pod")
	case !up.Up && reached.After(up.Down) && blocked(up.LastError):
		// What the operator reached before the target went down says nothing about the way to it.
		return at(CausePolicyBlocks, "the operator reaches it and Prometheus does not; look for a NetworkPolicy"+because(up.LastError))
	case !up.Up:
		return at(CauseTargetDown, "up is 0"+because(up.LastError))
	case !stored && s.Unranked[pod.Name]:
		return at(CauseLabelMissing, "series of the pod have no tp_rank and pp_rank")
	case !stored:
		return at(CauseRankMissing, "Prometheus has no series of it")
	case series.stale(now) && s.ScrapePools && !s.Monitored:
		// Of a target that it was told to forget, Prometheus gives the last samples for some minutes.
		return at(CauseMonitorSelectorMismatch, "Prometheus has not taken the pool's monitor any more; compare its selectors with the monitor's labels and namespace")
	case series.stale(now):
		return at(CauseStale, "the newest sample in Prometheus is older than "+staleSample.String())
	}
	for _, name := range targetLabels() {
		if want, known := pod.Labels[name]; known && series.Labels[name] != want {
			return at(CauseLabelMissing, fmt.Sprintf("%s is %q, want %q", name, series.Labels[name], want))
		}
	}
	lacks := RankSeries{Families: series.Families}
	if names := lacks.missing(role); len(names) > 0 {
		return at(CauseFamilyMissing, "not in Prometheus: "+listed(names))
	}
	return Finding{}, false
}

// stale says whether the newest sample is too old to go by.
func (r StoredRank) stale(now time.Time) bool {
	return !r.Newest.IsZero() && now.Sub(r.Newest) > staleSample
}

// storedGrace is how long Prometheus may take to scrape a pod that became ready: its discovery, and an interval.
const storedGrace = 90 * time.Second

// blocked says whether the last error of a scrape is one of the way to the target, rather than of its answer. Where
// Prometheus tells none, the way is what is left when the operator gets through.
func blocked(lastError string) bool {
	if lastError == "" {
		return true
	}
	return slices.ContainsFunc([]string{"timeout", "deadline exceeded", "refused", "no route", "unreachable", "reset by peer", "EOF", "not permitted"},
		func(part string) bool { return strings.Contains(lastError, part) })
}

// because adds the last error of a scrape, without the address that stands before what happened.
func because(lastError string) string {
	if lastError == "" {
		return ""
	}
	if i := strings.LastIndex(lastError, "\": "); i >= 0 {
		lastError = lastError[i+3:]
	}
	if len(lastError) > 120 {
		lastError = strings.ToValidUTF8(lastError[:120], "") + "…"
	}
	return ": " + lastError
}
