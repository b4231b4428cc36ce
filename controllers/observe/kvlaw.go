package observe

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// kvHistory is how many readings of a pod are kept: enough to find one before and one after a moment two intervals ago.
const kvHistory = 8

// kvReading is what a pod said of its hand-overs at one moment. Counters never fall while the pod lives.
type kvReading struct {
	at             time.Time
	sent, received KVBytes
}

// kvPod is a pod of a service that hands over or receives.
type kvPod struct {
	name    string
	uid     types.UID
	role    v1alpha1.Role
	history []kvReading // oldest first
}

// KVVerdict says whether the hand-overs of a service add up. Bytes count since Since.
type KVVerdict struct {
	// Judged: there were readings enough.
	Judged bool
	// Broken says which law does not hold, with its numbers; empty while both do. It stays until the set of pods changes.
	Broken string
	// Since is when the set of pods was last another.
	Since time.Time
	// Sent, Failed and Received are bytes of hand-overs that ended well at the sender, otherwise at the sender, and well at
	// the receiver.
	Sent, Failed, Received float64
}

// kvLaw compares what the prefill engines of a service say that they delivered with what its decode engines say that they
// received. Bytes count when a hand-over has ended: a receiver calls it done once it has everything, its sender once the
// receiver has acknowledged that. Let S(t), F(t) and R(t) be the bytes of hand-overs that had ended by t: done at the
// sender, failed at the sender, done at the receiver. Bytes in flight are those that the receiver has and the sender waits
// to hear of. At every moment
//
//	S(t) <= R(t) + c                nothing is delivered that was not received
//	R(t - settle) + c <= S(t) + F(t)   what was received is accounted for within settle
//
// for a constant c that is 0 unless an engine started anew. Pods are not read at the same time, so for a moment x let S(≤x)
// be the sum of each pod's newest reading not after x, and S(≥x) that of the oldest not before x. Counters do not fall, so
// S(≤x) <= S(x) <= S(≥x), and with
//
//	U(x) = S(≥x) - R(≤x-settle)       L(x) = S(≤x) - R(≥x)
//	V(x) = S(≥x) + F(≥x) - R(≤x-settle)   M(x) = S(≤x) + F(≤x) - R(≥x)
//
// c <= U(x) and L(x) <= c at every x, and V never falls below an earlier M. So both laws hold only if
//
//	L(x) <= min over y <= x of U(y)
//	V(x) >= max over y <= x of M(y)
//
// Whatever the skew, a sound service fulfils them, and a loss shows as soon as less than it was handed over between two
// scrapes, at the latest when traffic pauses for three intervals.
type kvLaw struct {
	members string  // names and UIDs of the pods
	minU    float64 // min of U so far
	maxM    float64 // max of M so far
	base    kvTotals
	verdict KVVerdict
}

type kvTotals struct{ sent, failed, received float64 }

// kvSlack is how many bytes rounding of large counters may make, as a share of them.
const kvSlack = 1e-9

// judge looks at the readings up to now. A change of the set of pods begins anew: the counters of a pod that is gone are
// gone too.
func (l *kvLaw) judge(pods []kvPod, now time.Time, interval time.Duration) {
	var members strings.Builder
	senders, receivers := 0, 0
	for _, p := range pods {
		fmt.Fprintf(&members, "%s %s,", p.name, p.uid)
		if p.role == v1alpha1.RolePrefill {
			senders++
		} else {
			receivers++
		}
	}
	if members.String() != l.members {
		*l = kvLaw{members: members.String(), verdict: KVVerdict{Since: now}}
	}
	if senders == 0 || receivers == 0 {
		return
	}
	x := now.Add(-2 * interval)
	before, okBefore := sums(pods, func(h []kvReading) (kvReading, bool) { return newestUpTo(h, x) })
	after, okAfter := sums(pods, func(h []kvReading) (kvReading, bool) { return oldestFrom(h, x) })
	settled, okSettled := sums(pods, func(h []kvReading) (kvReading, bool) { return newestUpTo(h, x.Add(-interval)) })
	if !okBefore || !okAfter || !okSettled {
		return
	}
	u, v := after.sent-settled.received, after.sent+after.failed-settled.received
	low, m := before.sent-after.received, before.sent+before.failed-after.received
	if !l.verdict.Judged {
		l.verdict.Judged, l.minU, l.maxM, l.base = true, u, m, before
	}
	l.minU, l.maxM = min(l.minU, u), max(l.maxM, m)
	l.verdict.Sent, l.verdict.Failed, l.verdict.Received = after.sent-l.base.sent, after.failed-l.base.failed, after.received-l.base.received
	slack := kvSlack * max(after.sent, after.received)
	switch {
	case l.verdict.Broken != "":
	case low > l.minU+slack:
		l.verdict.Broken = fmt.Sprintf("prefill engines delivered %.0f bytes more than decode engines received", low-l.minU)
	case v < l.maxM-slack:
		l.verdict.Broken = fmt.Sprintf("decode engines received %.0f bytes that prefill engines neither delivered nor gave up", l.maxM-v)
	}
}

// sums adds one reading of each pod; false when a pod has none, or does not export what it has to say.
func sums(pods []kvPod, pick func([]kvReading) (kvReading, bool)) (t kvTotals, ok bool) {
	for _, p := range pods {
		r, ok := pick(p.history)
		if !ok {
			return kvTotals{}, false
		}
		if p.role == v1alpha1.RolePrefill && !r.sent.Known || p.role != v1alpha1.RolePrefill && !r.received.Known {
			return kvTotals{}, false
		}
		if p.role == v1alpha1.RolePrefill {
			t.sent, t.failed = t.sent+r.sent.Done, t.failed+r.sent.Failed
		} else {
			t.received += r.received.Done
		}
	}
	return t, true
}

func newestUpTo(history []kvReading, x time.Time) (kvReading, bool) {
	for _, r := range slices.Backward(history) {
		if !r.at.After(x) {
			return r, true
		}
	}
	return kvReading{}, false
}

func oldestFrom(history []kvReading, x time.Time) (kvReading, bool) {
	for _, r := range history {
		if !r.at.Before(x) {
			return r, true
		}
	}
	return kvReading{}, false
}
