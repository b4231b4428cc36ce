package bench

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// brief is what these tests look at in a record.
type brief struct {
	Server, Index, Round int
	Start, Sent, End     time.Duration
	Outcome              Outcome
}

func briefs(result Result) []brief {
	var list []brief
	for _, r := range result.Records {
		list = append(list, brief{r.Server, r.Index, r.Round, r.Start, r.Sent, r.End, r.Outcome})
	}
	return list
}

// TestOpenLoop stalls a server: the requests that wait for a place are late, and their latencies say so.
func TestOpenLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &scripted{script: func(n int, _ map[string]any) []step {
			if n == 1 {
				return completion(1, 1000*ms, 0)
			}
			return completion(1, 10*ms, 0)
		}}
		run := Run{
			Load:    Load{Requests: 4, Rate: 10, Arrivals: Constant, Concurrency: 1, Output: Dist{Kind: Fixed, A: 1}},
			Clients: []*Client{server.client(Completions)},
		}
		result := run.Do(t.Context())
		want := []brief{
			{Index: 0, Start: 0, Sent: 0, End: 10 * ms, Outcome: Completed},
			{Index: 1, Start: 100 * ms, Sent: 100 * ms, End: 1100 * ms, Outcome: Completed},
			{Index: 2, Start: 200 * ms, Sent: 1100 * ms, End: 1110 * ms, Outcome: Completed},
			{Index: 3, Start: 300 * ms, Sent: 1110 * ms, End: 1120 * ms, Outcome: Completed},
		}
		if diff := cmp.Diff(want, briefs(result)); diff != "" {
			t.Errorf("latency counts from when a request was due (-want +got):\n%s", diff)
		}
		if ttft, _ := result.Records[2].TTFT(); ttft != 910*ms {
			t.Errorf("TTFT of the third is %v, want 910ms", ttft)
		}
		if diff := cmp.Diff([]time.Duration{1120 * ms}, result.Busy); diff != "" || result.Interrupted {
			t.Errorf("busy (-want +got):\n%s", diff)
		}
	})
}

func TestOpenLoopWithoutBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &scripted{script: steady(completion(1, time.Second, 0))}
		run := Run{Load: Load{Requests: 5, Rate: 10, Arrivals: Constant}, Clients: []*Client{server.client(Completions)}}
		result := run.Do(t.Context())
		for i, r := range result.Records {
			if at := time.Duration(i) * 100 * ms; r.Start != at || r.Sent != at {
				t.Errorf("request %d starts at %v and is sent at %v, want %v", i, r.Start, r.Sent, at)
			}
		}
		if server.top != 5 {
			t.Errorf("%d in flight at most, want all 5", server.top)
		}
	})
}

func TestClosedLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &scripted{script: steady(completion(3, 40*ms, 30*ms))} // 100 ms each
		run := Run{Load: Load{Requests: 9, Concurrency: 4}, Clients: []*Client{server.client(Completions)}}
		result := run.Do(t.Context())
		if server.top != 4 || len(result.Records) != 9 {
			t.Errorf("%d in flight at most and %d records, want 4 and 9", server.top, len(result.Records))
		}
		for _, r := range result.Records {
			if r.Start != r.Sent || r.E2E() != 100*ms {
				t.Errorf("request %d is due at %v, sent at %v and takes %v", r.Index, r.Start, r.Sent, r.E2E())
			}
		}
		if result.Busy[0] != 300*ms {
			t.Errorf("busy for %v, want three times 100ms", result.Busy[0])
		}
		want := Status{Planned: 9, Completed: 9, OutputTokens: 27}
		got := run.Status()
		got.Started = time.Time{}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("status (-want +got):\n%s", diff)
		}
	})
}

func TestClosedLoopEndsWithTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &scripted{script: steady(completion(1, 100*ms, 0))}
		run := Run{Load: Load{Duration: 60 * time.Second, Concurrency: 2}, Clients: []*Client{server.client(Completions)}}
		result := run.Do(t.Context())
		if len(result.Records) != 1200 { // more than one block of the plan
			t.Errorf("%d requests, want 1200", len(result.Records))
		}
		for _, r := range result.Records {
			if r.Start >= 60*time.Second || r.Outcome != Completed {
				t.Errorf("request %d starts at %v and ends as %s", r.Index, r.Start, r.Outcome)
			}
		}
	})
}

func TestInterruption(t *testing.T) {
	for name, load := range map[string]Load{
		"closed":  {Requests: 100, Concurrency: 3},
		"open":    {Requests: 100, Rate: 10, Arrivals: Constant},
		"bounded": {Requests: 100, Rate: 100, Arrivals: Constant, Concurrency: 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &scripted{script: steady(completion(2, 200*ms, 100*ms))}
				run := Run{Load: load, Clients: []*Client{server.client(Completions)}}
				ctx, end := context.WithTimeout(t.Context(), 450*ms)
				defer end()
				result := run.Do(ctx)
				ended := map[Outcome]int{}
				for _, r := range result.Records {
					ended[r.Outcome]++
					if r.End > 450*ms {
						t.Errorf("request %d ends at %v", r.Index, r.End)
					}
				}
				if !result.Interrupted || ended[Completed] < 2 || ended[Interrupted] < 3 || len(ended) != 2 {
					t.Errorf("interrupted %v, outcomes %v", result.Interrupted, ended)
				}
				synctest.Wait()
				if server.now != 0 {
					t.Errorf("%d requests are still worked on", server.now)
				}
			})
		})
	}
}

func TestPairs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fast, slow := &scripted{script: steady(completion(1, 10*ms, 0))}, &scripted{script: steady(completion(1, 20*ms, 0))}
		run := Run{
			Load:    Load{Requests: 3, Rate: 5, Arrivals: Constant, Input: Dist{Kind: Fixed, A: 6}},
			Clients: []*Client{fast.client(Completions), slow.client(Completions)}, Alternate: ByRequest,
		}
		result := run.Do(t.Context())
		want := []brief{
			{0, 0, 0, 0, 0, 10 * ms, Completed},
			{1, 0, 0, 100 * ms, 100 * ms, 120 * ms, Completed},
			{1, 1, 1, 200 * ms, 200 * ms, 220 * ms, Completed},
			{0, 1, 1, 300 * ms, 300 * ms, 310 * ms, Completed},
			{0, 2, 2, 400 * ms, 400 * ms, 410 * ms, Completed},
			{1, 2, 2, 400 * ms, 400 * ms, 420 * ms, Completed},
		}
		if diff := cmp.Diff(want, briefs(result)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		for i := range fast.requests {
			if diff := cmp.Diff(fast.requests[i], slow.requests[i]); diff != "" {
				t.Errorf("the servers got different requests:\n%s", diff)
			}
		}
	})
}

func TestRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := &scripted{script: steady(completion(1, 10*ms, 0))}, &scripted{script: steady(completion(1, 30*ms, 0))}
		run := Run{
			Load:    Load{Requests: 5, Concurrency: 2},
			Clients: []*Client{one.client(Completions), two.client(Completions)}, Alternate: ByRound, RoundLength: 2,
		}
		result := run.Do(t.Context())
		type turn struct {
			Server, Round int
			Start         time.Duration
		}
		var got []turn
		for _, r := range result.Records {
			got = append(got, turn{r.Server, r.Round, r.Start})
		}
		want := []turn{
			{0, 0, 0}, {0, 0, 0}, {1, 0, 10 * ms}, {1, 0, 10 * ms},
			{1, 1, 40 * ms}, {1, 1, 40 * ms}, {0, 1, 70 * ms}, {0, 1, 70 * ms},
			{0, 2, 80 * ms}, {1, 2, 90 * ms},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("turns (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]time.Duration{30 * ms, 90 * ms}, result.Busy); diff != "" {
			t.Errorf("busy (-want +got):\n%s", diff)
		}
	})
}

// TestRoundsOfAnOpenLoop starts the clock of each round anew.
func TestRoundsOfAnOpenLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := &scripted{script: steady(completion(1, 10*ms, 0))}, &scripted{script: steady(completion(1, 10*ms, 0))}
		run := Run{
			Load:    Load{Requests: 4, Rate: 10, Arrivals: Constant},
			Clients: []*Client{one.client(Completions), two.client(Completions)}, Alternate: ByRound, RoundLength: 2,
		}
		var got []time.Duration
		for _, r := range run.Do(t.Context()).Records {
			got = append(got, r.Start)
		}
		want := []time.Duration{0, 100 * ms, 110 * ms, 210 * ms, 220 * ms, 320 * ms, 330 * ms, 430 * ms}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
