package rank

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/metrics"
	"github.com/sluice-dev/sluice/engine/profile"
	"github.com/sluice-dev/sluice/engine/request"
)

// TestPause: while a rank is paused nothing comes, what was sent waits, and afterwards the answers are the same.
func TestPause(t *testing.T) {
	for _, k := range startKinds {
		t.Run(k.name, func(t *testing.T) {
			dir := seededModel(t)
			undisturbed, _, err := readAll(waiting(t), submit(t, startClient(t, k, testConfig(dir)), newRequest("a", prompt(20), 400)))
			if err != nil {
				t.Fatal(err)
			}
			for _, mode := range []request.PauseMode{request.PauseInPlace, request.PauseRetract} {
				c := startClient(t, k, testConfig(dir))
				a := submit(t, c, newRequest("a", prompt(20), 400))
				first, err := a.Recv(waiting(t))
				if err != nil {
					t.Fatal(err)
				}
				if err := c.Pause(waiting(t), mode); err != nil {
					t.Fatal(err)
				}
				b := submit(t, c, newRequest("b", prompt(5), 1))
				l := loadOf(t, c)
				for deadline := waiting(t); l.Queues.Waiting == 0 && deadline.Err() == nil; { // it is on its way
					l = loadOf(t, c)
				}
				if l.Queues.Paused != l.NumRunningReqs || mode == request.PauseRetract && l.NumRunningReqs > 0 || l.Queues.Waiting < 1 {
					t.Errorf("%s: load in the pause is %+v, queues %+v", mode, l, l.Queues)
				}
				if err := c.Flush(waiting(t)); err == nil {
					t.Errorf("%s: a flush in the pause succeeds", mode)
				}
				if err := c.Continue(waiting(t)); err != nil {
					t.Fatal(err)
				}
				rest, f, err := readOn(waiting(t), a, first)
				if err != nil || f.Type != request.FinishLength {
					t.Fatalf("%s: the answer ends with %v, %v", mode, f, err)
				}
				if diff := cmp.Diff(undisturbed, rest); diff != "" {
					t.Errorf("%s (-undisturbed +paused):\n%s", mode, diff)
				}
				if _, f, err := readAll(waiting(t), b); err != nil || f.Type != request.FinishLength {
					t.Errorf("%s: what came in the pause ends with %v, %v", mode, f, err)
				}
			}
			c := startClient(t, k, testConfig(dir))
			a := submit(t, c, newRequest("a", prompt(20), 400))
			first, err := a.Recv(waiting(t))
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Pause(waiting(t), request.PauseAbort); err != nil {
				t.Fatal(err)
			}
			if _, f, err := readOn(waiting(t), a, first); err != nil || f.Outcome != request.OutcomeAbortedOperator && f.Outcome != request.OutcomeLength {
				t.Errorf("after a pause that aborts the answer ends with %v, %v", f, err)
			}
			if err := c.Pause(waiting(t), "soft"); err == nil || !strings.Contains(err.Error(), "use abort, retract or in_place") {
				t.Errorf("an unknown mode: %v", err)
			}
		})
	}
}

// TestTimelinesOfTheLiving: where the requests that live are stuck, of more than one question can be about.
func TestTimelinesOfTheLiving(t *testing.T) {
	for _, k := range startKinds {
		t.Run(k.name, func(t *testing.T) {
			c := startClient(t, k, testConfig(seededModel(t)))
			if err := c.Pause(waiting(t), request.PauseInPlace); err != nil {
				t.Fatal(err)
			}
			rids := []string{"a"}
			for i := range 2 * timelinesAtOnce {
				rids = append(rids, fmt.Sprint("unknown", i))
			}
			rids = append(rids, "b")
			a, b := submit(t, c, newRequest("a", prompt(20), 2)), submit(t, c, newRequest("b", prompt(8), 2))
			var found map[string]*ledger.Record
			for deadline := waiting(t); len(found) < 2; { // they are on their way
				var err error
				if found, err = c.Timelines(deadline, rids); err != nil {
					t.Fatal(err)
				}
			}
			for rid, r := range found {
				if err := r.Check(); err != nil || r.Stage != ledger.StagePrefillWaiting || r.Form != ledger.Unified {
					t.Errorf("%s is %+v, %v", rid, r, err)
				}
			}
			if err := c.Continue(waiting(t)); err != nil {
				t.Fatal(err)
			}
			for _, s := range []*Stream{a, b} {
				if _, _, err := readAll(waiting(t), s); err != nil {
					t.Fatal(err)
				}
			}
			if found, err := c.Timelines(waiting(t), rids); len(found) != 0 || err != nil {
				t.Errorf("after their ends: %v, %v", found, err)
			}
		})
	}
}

// TestProfileOfSteps: a rank records from a step on, for so many steps, and ends that by itself.
func TestProfileOfSteps(t *testing.T) {
	for _, k := range startKinds {
		t.Run(k.name, func(t *testing.T) {
			dir := t.TempDir()
			c := startClient(t, k, testConfig(seededModel(t)))
			if err := c.StartProfile(waiting(t), profile.Options{Dir: dir, Name: "p", CPU: true, Memory: true, FromStep: 3, Steps: 4}); err != nil {
				t.Fatal(err)
			}
			if _, _, err := readAll(waiting(t), submit(t, c, newRequest("a", prompt(20), 10))); err != nil {
				t.Fatal(err)
			}
			if newest, err := c.AwaitStep(waiting(t), 6); newest < 6 || err != nil {
				t.Errorf("%d steps are over, %v, want 6 at least", newest, err)
			}
			var files []string
			for deadline := waiting(t); len(files) == 0; {
				files, _ = filepath.Glob(filepath.Join(dir, "*.heap.pprof"))
				if err := deadline.Err(); err != nil {
					t.Fatal("it does not end by itself")
				}
			}
			if files, err := c.StopProfile(waiting(t)); len(files) != 2 || err != nil {
				t.Errorf("the files are %v, %v", files, err)
			}
			if files, err := c.StopProfile(waiting(t)); err == nil {
				t.Errorf("a second end gives %v", files)
			}
			if err := c.StartProfile(waiting(t), profile.Options{Dir: dir, Name: "q", Memory: true, FromStep: 1 << 40}); err != nil {
				t.Fatal(err) // it waits when the rank ends
			}
		})
	}
}

func TestRequestTimeouts(t *testing.T) {
	for _, k := range startKinds {
		t.Run(k.name, func(t *testing.T) {
			cfg := testConfig(seededModel(t))
			cfg.MaxRunningRequests, cfg.RequestRunningTimeout, cfg.RequestWaitingTimeout = 1, time.Microsecond, time.Microsecond
			c := startClient(t, k, cfg)
			running, queued := submit(t, c, newRequest("a", prompt(8), 400)), submit(t, c, newRequest("b", prompt(8), 400))
			for _, s := range []*Stream{running, queued} {
				if _, f, err := readAll(waiting(t), s); err != nil || f.Outcome != request.OutcomeTimeout {
					t.Errorf("a request that may take a microsecond ends with %v, %v", f, err)
				}
			}
		})
	}
}

// TestPriorities: priorities reach the scheduler and its metrics.
func TestPriorities(t *testing.T) {
	for _, k := range startKinds {
		t.Run(k.name, func(t *testing.T) {
			cfg := testConfig(seededModel(t))
			cfg.Priority = PriorityConfig{Enabled: true, Default: new(2), PreemptionThreshold: 1000}
			cfg.MaxRunningRequests, cfg.MaxQueuedRequests = 1, 1
			dir := t.TempDir()
			cfg.Metrics = MetricsConfig{Enabled: true, Dir: dir}
			c := startClient(t, k, cfg)
			if err := c.Pause(waiting(t), request.PauseInPlace); err != nil {
				t.Fatal(err)
			}
			streams := map[string]*Stream{"default": submit(t, c, newRequest("default", prompt(8), 1))}
			equal, urgent := newRequest("equal", prompt(8), 1), newRequest("urgent", prompt(8), 6)
			equal.Priority, urgent.Priority = new(2), new(3)
			streams["equal"], streams["urgent"] = submit(t, c, equal), submit(t, c, urgent) // in this order on one connection
			for rid, want := range map[string]request.Outcome{"equal": request.OutcomeRefused, "default": request.OutcomePreempted} {
				if _, f, err := readAll(waiting(t), streams[rid]); err != nil || f.Outcome != want {
					t.Errorf("request %s ends with %v, %v, want %s", rid, f, err, want)
				}
			}
			if err := c.Continue(waiting(t)); err != nil {
				t.Fatal(err)
			}
			if _, f, err := readAll(waiting(t), streams["urgent"]); err != nil || f.Outcome != request.OutcomeLength {
				t.Errorf("the urgent request ends with %v, %v", f, err)
			}
			g := metrics.NewGatherer(dir)
			defer func() {
				if err := g.Close(); err != nil {
					t.Error(err)
				}
			}()
			families, err := g.Gather()
			if err != nil {
				t.Fatal(err)
			}
			seen := map[string]bool{}
			for _, f := range families {
				if f.GetName() != "sglang:num_running_reqs" { // reported after its prefill; its wait may pass between two reports
					continue
				}
				for _, m := range f.GetMetric() {
					for _, l := range m.GetLabel() {
						if l.GetName() == "priority" {
							seen[l.GetValue()] = true
						}
					}
				}
			}
			if !seen[""] || !seen["3"] {
				t.Errorf("priorities of running requests in the metrics are %v, want the total and 3 at least", seen)
			}
		})
	}
}
