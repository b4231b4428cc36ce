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

// newest gives when Prometheus last scraped a rank, by the operator's clock; zero where there is no answer to go by.
func (s *Stored) newest(pod string, rank RankID) time.Time {
	if !s.usable() {
		return time.Time{}
	}
	return s.Ranks[pod][rank].Newest
}

// follow relates an answer to the one before: since when targets are down, and since when the pool's monitor is not taken.
func (s *Stored) follow(before *Stored) {
	s.followMonitor(before)
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

func (s *Stored) followMonitor(before *Stored) {
	told := before != nil && before.Told
	switch {
	case !s.usable() || !s.ScrapePools:
		if s.Told = told; told {
			s.Unmonitored = before.Unmonitored
		}
		return
	case s.Monitored:
		s.Unmonitored = time.Time{}
	case told && !before.Unmonitored.IsZero():
		s.Unmonitored = before.Unmonitored
	case told:
		s.Unmonitored = s.Taken
	default:
		// What the first answer finds may be scraped by a configuration of somebody's own.
		s.Unmonitored = s.Taken.Add(-staleSample)
	}
	s.Told = true
}

// answerSkew is how much longer one answer of Prometheus may take than another.
const answerSkew = 5 * time.Second

// forgotten says whether Prometheus still answers for a target that it does not scrape any more, as it does for five minutes
// after its configuration lost the monitor: the pool's monitor is not taken, and the target was not scraped since. One that
// a configuration of somebody's own scrapes has newer samples.
func (s *Stored) forgotten(up StoredUp) bool {
	return s.ScrapePools && !s.Monitored && (!up.Newest.After(s.Unmonitored.Add(answerSkew)) || s.Taken.Sub(up.Newest) > staleSample)
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
	isTarget = isTarget && !s.forgotten(up)
	series, stored := s.Ranks[pod.Name][rank]
	switch {
	case pod.Absent != "":
		return at(CauseNoTarget, pod.Absent)
	case !isTarget && proof.NoMonitor:
		return at(CauseNoTarget, "Prometheus has no target for the pod, and observability.monitor None makes it none; see the configuration that is to scrape it")
	case !isTarget && s.ScrapePools && !s.Monitored:
		return at(CauseMonitorSelectorMismatch, "Prometheus has not taken the pool's monitor; compare its selectors with the monitor's labels and namespace")
	case !isTarget && !s.ScrapePools && len(s.Up) == 0:
		return at(CauseMonitorSelectorMismatch, "Prometheus has no target of the pool; compare its selectors with the monitor's labels and namespace")
	case !isTarget && s.Monitored && len(s.Up) == 0:
		return at(CauseNoTarget, "Prometheus has taken the monitor and finds no target of the pool; see whether it may list endpointslices and pods of the namespace")
	case !isTarget:
		return at(CauseNoTarget, "Prometheus has no target for the pod")
	case !up.Up && reached.After(up.Down) && blocked(up.LastError):
		// What the operator reached before the target went down says nothing about the way to it.
		return at(CausePolicyBlocks, "the operator reaches it and Prometheus does not"+because(up.LastError))
	case !up.Up:
		return at(CauseTargetDown, "up is 0"+because(up.LastError))
	case !stored && s.Unranked[pod.Name]:
		return at(CauseLabelMissing, "series of the pod have no tp_rank and pp_rank")
	case !stored:
		return at(CauseRankMissing, "Prometheus has no series of it")
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
	return ": " + clipped(lastError)
}

// clipped bounds a text that goes into a condition.
func clipped(text string) string {
	if len(text) > 120 {
		return strings.ToValidUTF8(text[:120], "") + "…"
	}
	return text
}
