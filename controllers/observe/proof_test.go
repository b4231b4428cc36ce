package observe

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// whole is the series of a decode rank that has everything.
func whole() RankSeries {
	r := RankSeries{Families: map[string]bool{}}
	for _, name := range Required(v1alpha1.RoleDecode) {
		r.Families[name] = true
	}
	return r
}

// without is whole without some families.
func without(names ...string) RankSeries {
	r := whole()
	for _, name := range names {
		delete(r.Families, name)
	}
	return r
}

// TestProve is the table of causes. The pod d-0-0 hosts the DP ranks 0 and 1; now is 10 minutes after the epoch.
func TestProve(t *testing.T) {
	now := epoch.Add(10 * time.Minute)
	const interval = 15 * time.Second
	pod := ExpectedPod{
		Name: "d-0-0", Ranks: []RankID{{}, {DP: 1}}, Since: epoch,
		Labels: map[string]string{"tenant": "acme", "pool": "decode"},
	}
	read := func(change ...func(*PodReading)) map[string]PodReading {
		r := PodReading{Taken: now.Add(-interval), Exposition: Exposition{Ranks: map[RankID]RankSeries{{}: whole(), {DP: 1}: whole()}}}
		for _, c := range change {
			c(&r)
		}
		return map[string]PodReading{pod.Name: r}
	}
	stored := func(change ...func(*Stored)) *Stored {
		rank := func() StoredRank {
			return StoredRank{Families: whole().Families, Labels: map[string]string{"tenant": "acme", "pool": "decode"}, Newest: now.Add(-interval)}
		}
		s := &Stored{
			Taken: now, ScrapePools: true, Monitored: true, Up: map[string]StoredUp{pod.Name: {Up: true}},
			Ranks: map[string]map[RankID]StoredRank{pod.Name: {{}: rank(), {DP: 1}: rank()}}, Unranked: map[string]bool{},
		}
		for _, c := range change {
			c(s)
		}
		return s
	}
	down := func(lastError string) func(*Stored) {
		return func(s *Stored) { s.Up[pod.Name] = StoredUp{LastError: lastError} }
	}
	fails := func(err string, timedOut bool) func(*PodReading) {
		return func(r *PodReading) { r.Err, r.Failures, r.TimedOut = errors.New(err), failuresInRow, timedOut }
	}
	absent := pod
	absent.Absent = "the pod is Pending"
	young := pod
	young.Since = now.Add(-interval)

	for _, tc := range []struct {
		name   string
		reason string
		pod    *ExpectedPod
		pods   map[string]PodReading
		stored *Stored
		want   []string
		again  time.Duration

		noMonitor bool
	}{
		{name: "Whole", reason: "nothing is missing", pods: read()},
		{name: "WholeStored", reason: "neither in Prometheus", pods: read(), stored: stored()},
		{name: "Young", reason: "it was not scraped yet", pod: &young, again: interval},
		{name: "NeverReached", reason: "its grace is over", want: []string{"d-0-0/0 (TargetDown: it was not reached yet)", "d-0-0/1 (TargetDown: it was not reached yet)"}},
		{name: "NoTarget", reason: "the pod does not run", pod: &absent, pods: read(),
			want: []string{"d-0-0/0 (NoTarget: the pod is Pending)", "d-0-0/1 (NoTarget: the pod is Pending)"}},
		{name: "NoTargetStored", reason: "whatever Prometheus still has", pod: &absent, pods: read(), stored: stored(),
			want: []string{"d-0-0/0 (NoTarget: the pod is Pending)", "d-0-0/1 (NoTarget: the pod is Pending)"}},
		{name: "OneFailure", reason: "one is no proof", pods: read(func(r *PodReading) { r.Err, r.Failures = errors.New("refused"), 1 })},
		{name: "TargetDown", reason: "two are", pods: read(fails("/metrics: dial: connection refused", false)),
			want: []string{"d-0-0/0 (TargetDown: /metrics: dial: connection refused)", "d-0-0/1 (TargetDown: /metrics: dial: connection refused)"}},
		{name: "TargetDownAtOnce", reason: "what Prometheus stored a moment ago does not hide it", pods: read(fails("/metrics answers with status 500", false)), stored: stored(),
			want: []string{"d-0-0/0 (TargetDown: /metrics answers with status 500)", "d-0-0/1 (TargetDown: /metrics answers with status 500)"}},
		{name: "OperatorLockedOut", reason: "Prometheus gets through where the operator does not", pods: read(fails("/metrics does not answer in time", true), func(r *PodReading) {
			r.FailedSince = now.Add(-2 * interval)
		}), stored: stored()},
		{name: "Stopped", reason: "what Prometheus stored before does not say that the operator is locked out", pods: read(fails("/metrics does not answer in time", true), func(r *PodReading) {
			r.FailedSince = now.Add(-interval / 2)
		}), stored: stored(),
			want: []string{"d-0-0/0 (TargetDown: /metrics does not answer in time)", "d-0-0/1 (TargetDown: /metrics does not answer in time)"}},
		{name: "Stale", reason: "the operator's scrapes have stopped", pods: read(func(r *PodReading) { r.Taken = now.Add(-staleAfter*interval - 1) }),
			want: []string{"d-0-0/0 (Stale: the operator's newest scrape is older than 1m0s)", "d-0-0/1 (Stale: the operator's newest scrape is older than 1m0s)"}},
		{name: "RankMissing", reason: "one rank's exporter has ended", pods: read(func(r *PodReading) { delete(r.Exposition.Ranks, RankID{DP: 1}) }), stored: stored(),
			want: []string{"d-0-0/1 (RankMissing: the pod exports no series of it)"}},
		{name: "FamilyMissing", reason: "a rank has not all", pods: read(func(r *PodReading) {
			r.Exposition.Ranks[RankID{}] = without("sglang:token_usage", "sglang:queue_time_seconds_count")
		}), want: []string{"d-0-0/0 (FamilyMissing: sglang:token_usage, sglang:queue_time_seconds)"}},
		{name: "FamiliesMissing", reason: "a message is bounded", pods: read(func(r *PodReading) {
			r.Exposition.Ranks[RankID{}] = RankSeries{Families: map[string]bool{"sglang:token_usage": true}}
		}), want: []string{"d-0-0/0 (FamilyMissing: sglang:num_running_reqs, sglang:num_queue_reqs, sglang:utilization and 6 more)"}},
		{name: "MonitorSelectorMismatch", reason: "Prometheus has another monitor", pods: read(), stored: stored(func(s *Stored) { s.Monitored, s.Up = false, nil }),
			want: []string{
				"d-0-0/0 (MonitorSelectorMismatch: Prometheus has not taken the pool's monitor; compare its selectors with the monitor's labels and namespace)",
				"d-0-0/1 (MonitorSelectorMismatch: Prometheus has not taken the pool's monitor; compare its selectors with the monitor's labels and namespace)",
			}},
		{name: "MonitorUnknown", reason: "what answers like Prometheus may not know its monitors", pods: read(), stored: stored(func(s *Stored) { s.ScrapePools, s.Monitored, s.Up = false, false, nil }),
			want: []string{
				"d-0-0/0 (MonitorSelectorMismatch: Prometheus has no target of the pool; compare its selectors with the monitor's labels and namespace)",
				"d-0-0/1 (MonitorSelectorMismatch: Prometheus has no target of the pool; compare its selectors with the monitor's labels and namespace)",
			}},
		{name: "MonitorGone", reason: "for five minutes Prometheus answers for what it scrapes no more, with fresh samples at first", pods: read(), stored: stored(func(s *Stored) {
			s.Monitored, s.Unmonitored = false, now.Add(-time.Second)
			s.Up[pod.Name] = StoredUp{Up: true, Newest: now.Add(-2 * time.Second)}
		}),
			want: []string{
				"d-0-0/0 (MonitorSelectorMismatch: Prometheus has not taken the pool's monitor; compare its selectors with the monitor's labels and namespace)",
				"d-0-0/1 (MonitorSelectorMismatch: Prometheus has not taken the pool's monitor; compare its selectors with the monitor's labels and namespace)",
			}},
		{name: "MonitorGoneWhileDown", reason: "neither is a target that was down", pods: read(), stored: stored(down("context deadline exceeded"), func(s *Stored) {
			s.Monitored, s.Unmonitored = false, now.Add(-time.Second)
		}),
			want: []string{
				"d-0-0/0 (MonitorSelectorMismatch: Prometheus has not taken the pool's monitor; compare its selectors with the monitor's labels and namespace)",
				"d-0-0/1 (MonitorSelectorMismatch: Prometheus has not taken the pool's monitor; compare its selectors with the monitor's labels and namespace)",
			}},
		{name: "ScrapedByAnother", reason: "a configuration of somebody's own scrapes the pods", pods: read(), stored: stored(func(s *Stored) {
			s.Monitored, s.Unmonitored = false, now.Add(-time.Minute)
			s.Up[pod.Name] = StoredUp{Up: true, Newest: now.Add(-time.Second)}
		})},
		{name: "AnotherStopped", reason: "it did, and does so no more", pods: read(), stored: stored(func(s *Stored) {
			s.Monitored, s.Unmonitored = false, now.Add(-time.Hour)
			s.Up[pod.Name] = StoredUp{Up: true, Newest: now.Add(-staleSample - time.Second)}
		}),
			want: []string{
				"d-0-0/0 (MonitorSelectorMismatch: Prometheus has not taken the pool's monitor; compare its selectors with the monitor's labels and namespace)",
				"d-0-0/1 (MonitorSelectorMismatch: Prometheus has not taken the pool's monitor; compare its selectors with the monitor's labels and namespace)",
			}},
		{name: "NoMonitor", reason: "the pool is to be scraped by somebody's own configuration", noMonitor: true, pods: read(), stored: stored(func(s *Stored) { s.Monitored, s.Up = false, nil }),
			want: []string{
				"d-0-0/0 (NoTarget: Prometheus has no target for the pod, and observability.monitor None makes it none; see the configuration that is to scrape it)",
				"d-0-0/1 (NoTarget: Prometheus has no target for the pod, and observability.monitor None makes it none; see the configuration that is to scrape it)",
			}},
		{name: "NothingFound", reason: "the monitor is taken, and nothing is behind it", pods: read(), stored: stored(func(s *Stored) { s.Up = nil }),
			want: []string{
				"d-0-0/0 (NoTarget: Prometheus has taken the monitor and finds no target of the pool; see whether it may list endpointslices and pods of the namespace)",
				"d-0-0/1 (NoTarget: Prometheus has taken the monitor and finds no target of the pool; see whether it may list endpointslices and pods of the namespace)",
			}},
		{name: "NoTargetInPrometheus", reason: "the monitor is taken, the pod is not found", pods: read(), stored: stored(func(s *Stored) { s.Up = map[string]StoredUp{"d-1-0": {Up: true}} }),
			want: []string{"d-0-0/0 (NoTarget: Prometheus has no target for the pod)", "d-0-0/1 (NoTarget: Prometheus has no target for the pod)"}},
		{name: "PolicyBlocks", reason: "the operator reaches what Prometheus does not", pods: read(), stored: stored(down(`Get "http://10.0.0.1:30000/metrics": context deadline exceeded`)),
			want: []string{
				"d-0-0/0 (PolicyBlocks: the operator reaches it and Prometheus does not: context deadline exceeded)",
				"d-0-0/1 (PolicyBlocks: the operator reaches it and Prometheus does not: context deadline exceeded)",
			}},
		{name: "ReachedBefore", reason: "the operator's newest scrape is from before the target went down", pods: read(),
			stored: stored(func(s *Stored) {
				s.Up[pod.Name] = StoredUp{LastError: "context deadline exceeded", Down: now.Add(-interval)}
			}),
			want: []string{"d-0-0/0 (TargetDown: up is 0: context deadline exceeded)", "d-0-0/1 (TargetDown: up is 0: context deadline exceeded)"}, again: interval},
		{name: "UpIsZero", reason: "the answer is at fault, not the way", pods: read(), stored: stored(down("sample limit exceeded")),
			want: []string{"d-0-0/0 (TargetDown: up is 0: sample limit exceeded)", "d-0-0/1 (TargetDown: up is 0: sample limit exceeded)"}, again: interval},
		{name: "BothFail", reason: "neither reaches it: it is down", pods: read(fails("/metrics: dial: connection refused", false)), stored: stored(down("connection refused")),
			want: []string{"d-0-0/0 (TargetDown: /metrics: dial: connection refused)", "d-0-0/1 (TargetDown: /metrics: dial: connection refused)"}},
		{name: "NotStored", reason: "up, and the rank's series are not there", pods: read(), stored: stored(func(s *Stored) { delete(s.Ranks[pod.Name], RankID{}) }),
			want: []string{"d-0-0/0 (RankMissing: Prometheus has no series of it)"}},
		{name: "LabelMissing", reason: "series that name no rank", pods: read(), stored: stored(func(s *Stored) { s.Ranks, s.Unranked[pod.Name] = nil, true }),
			want: []string{"d-0-0/0 (LabelMissing: series of the pod have no tp_rank and pp_rank)", "d-0-0/1 (LabelMissing: series of the pod have no tp_rank and pp_rank)"}},
		{name: "LabelWrong", reason: "series of another tenant", pods: read(), stored: stored(func(s *Stored) { s.Ranks[pod.Name][RankID{}].Labels["tenant"] = "victim" }),
			want: []string{`d-0-0/0 (LabelMissing: tenant is "victim", want "acme")`}},
		{name: "StaleStored", reason: "Prometheus' newest sample is old", pods: read(), stored: stored(func(s *Stored) {
			r := s.Ranks[pod.Name][RankID{}]
			r.Newest = now.Add(-staleSample - time.Second)
			s.Ranks[pod.Name][RankID{}] = r
		}), want: []string{"d-0-0/0 (Stale: the newest sample in Prometheus is older than 2m0s)"}},
		{name: "FamilyNotStored", reason: "a relabelling or a limit drops one", pods: read(), stored: stored(func(s *Stored) { delete(s.Ranks[pod.Name][RankID{}].Families, "sglang:utilization") }),
			want: []string{"d-0-0/0 (FamilyMissing: not in Prometheus: sglang:utilization)"}},
		{name: "YoungForPrometheus", reason: "its discovery takes a while", pod: func() *ExpectedPod { p := pod; p.Since = now.Add(-storedGrace + 1); return &p }(),
			pods: read(), stored: stored(func(s *Stored) { s.Up = nil }), again: 1},
		{name: "PrometheusDown", reason: "that is not the ranks' fault", pods: read(), stored: &Stored{Taken: now, Err: errors.New("refused")}},
		{name: "OldAnswer", reason: "an answer of long ago says nothing", pods: read(), stored: stored(func(s *Stored) { s.Taken, s.Up = now.Add(-storedFor*interval-1), nil })},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := pod
			if tc.pod != nil {
				p = *tc.pod
			}
			findings, again := Prove(v1alpha1.RoleDecode, []ExpectedPod{p}, PoolProof{Pods: tc.pods, Stored: tc.stored, Interval: interval, NoMonitor: tc.noMonitor}, now)
			var got []string
			for _, f := range findings {
				got = append(got, f.String())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || again != tc.again {
				t.Errorf("%s; again after %s, want %s (-want +got):\n%s", tc.reason, again, tc.again, diff)
			}
		})
	}
}

func TestFrozen(t *testing.T) {
	at := func(i int) time.Time { return epoch.Add(time.Duration(i) * 15 * time.Second) }
	// step is one scrape of a pod with one rank.
	type step struct {
		running, waiting, handover, paused, tokens, iterations, inFlight float64

		role v1alpha1.Role
	}
	// turning are scrapes of a loop that turns without a result.
	turning := func(s step, n int) (steps []step) {
		for i := range n {
			s.iterations = float64(i)
			steps = append(steps, s)
		}
		return steps
	}
	still := func(s step, n int) (steps []step) {
		for range n {
			steps = append(steps, s)
		}
		return steps
	}
	for _, tc := range []struct {
		name   string
		reason string
		steps  []step
		want   []FrozenRank
	}{
		{"Works", "tokens grow", []step{{running: 1, tokens: 1}, {running: 1, tokens: 2}, {running: 1, tokens: 3}, {running: 1, tokens: 4}, {running: 1, tokens: 5}, {running: 1, tokens: 6}}, nil},
		{"Idle", "nothing to do", still(step{tokens: 5, iterations: 3}, 9), nil},
		{"Frozen", "requests run and no token comes", still(step{running: 2, waiting: 1, tokens: 5}, 5), []FrozenRank{{Since: at(0), Held: "2 running, 1 waiting"}}},
		{"NotYet", "a long step", still(step{running: 2, tokens: 5}, 4), nil},
		{"LoopTurns", "a loop that turns without a result is frozen too", []step{
			{running: 1, iterations: 1}, {running: 1, iterations: 2}, {running: 1, iterations: 3}, {running: 1, iterations: 4}, {running: 1, iterations: 5},
		}, []FrozenRank{{Since: at(0), Held: "1 running, 0 waiting"}}},
		{"Later", "it counts from when it stopped", append([]step{{running: 1, tokens: 1}, {running: 1, tokens: 2}}, still(step{running: 1, tokens: 3}, 5)...), []FrozenRank{{Since: at(2), Held: "1 running, 0 waiting"}}},
		{"IdleBetween", "work must be there all the time", append(append(still(step{running: 1, tokens: 3}, 4), step{tokens: 3}), still(step{running: 1, tokens: 3}, 3)...), nil},
		{"Paused", "generation is paused", still(step{running: 2, paused: 2, tokens: 5}, 9), nil},
		{"NotTaken", "a scheduler that takes nothing in", still(step{inFlight: 3, tokens: 5, iterations: 7}, 5), []FrozenRank{{Since: at(0), Held: "3 in its API process"}}},
		{"WaitsForPeer", "a hand-over waits for the other engine", still(step{inFlight: 3, handover: 3, tokens: 5, iterations: 7}, 9), nil},
		{"BehindHandovers", "hand-overs to a decode engine that does not come hold the memory", turning(step{waiting: 2, handover: 3, tokens: 5, role: v1alpha1.RolePrefill}, 9), nil},
		{"StandsBehindHandovers", "its own loop stands", still(step{waiting: 2, handover: 3, tokens: 5, role: v1alpha1.RolePrefill}, 5), []FrozenRank{{Since: at(0), Held: "0 running, 2 waiting"}}},
		{"ComputesBehindHandovers", "its own batch never ends", turning(step{running: 1, handover: 3, tokens: 5, role: v1alpha1.RolePrefill}, 5), []FrozenRank{{Since: at(0), Held: "1 running, 0 waiting"}}},
		{"DecodeBehindHandovers", "what waits on a decode engine has its memory", turning(step{waiting: 2, handover: 3, tokens: 5, role: v1alpha1.RoleDecode}, 5), []FrozenRank{{Since: at(0), Held: "0 running, 2 waiting"}}},
		{"Restarted", "fewer tokens are another process", append(still(step{running: 1, tokens: 9}, 4), still(step{running: 1, tokens: 2}, 4)...), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var w frozenWatch
			var got []FrozenRank
			for i, s := range tc.steps {
				got = w.see(Exposition{InFlight: s.inFlight, Ranks: map[RankID]RankSeries{{}: {
					Running: s.running, Waiting: s.waiting, Handover: s.handover, Paused: s.paused, Tokens: s.tokens, Iterations: s.iterations,
				}}}, s.role, at(i))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got), %s:\n%s", tc.reason, diff)
			}
		})
	}
}
