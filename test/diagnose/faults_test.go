package diagnose

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/plugin/diagnosis"
	"github.com/sluice-dev/sluice/test/harness"
)

func start(t *testing.T, model string, env []string, args ...string) *harness.Engine {
	t.Helper()
	harness.NoteSources(t, "../..")
	return programs.StartEngine(t, "", env, append([]string{"--model-path", model}, args...)...)
}

// expect asserts the conclusion, and that each number which has a bound is beyond it.
func expect(t *testing.T, r diagnosis.Report, want diagnosis.Cause) {
	t.Helper()
	if r.Cause != want {
		t.Fatalf("it is %s: %s; want %s", r.Cause, r.Conclusion.Says, want)
	}
	if len(r.Conclusion.Evidence) == 0 || r.Conclusion.Do == "" {
		t.Errorf("the conclusion has no numbers or says nothing to do: %+v", r.Conclusion)
	}
	for _, e := range r.Conclusion.Evidence {
		if e.Bound != "" && !e.Beyond {
			t.Errorf("a number does not speak for the conclusion: %s", e)
		}
	}
}

func TestNothingWrong(t *testing.T) {
	e := start(t, tiny, nil, "--dp-size", "2", "--load-balance-method", "round_robin")
	expect(t, diagnose(t, e), diagnosis.NoRequests)
	ask(t, e.URL, 4, func(client, turn int) map[string]any {
		body := generate(client, turn, 20, 60)
		body["routed_dp_rank"] = client % 2
		return body
	})
	busy(t, e, 2)
	// Others on the machine may really starve a rank for a while.
	report := diagnose(t, e)
	for range 4 {
		if report.Cause != diagnosis.NothingWrong {
			report = diagnose(t, e)
		}
	}
	expect(t, report, diagnosis.NothingWrong)
}

func TestQueueBound(t *testing.T) {
	e := start(t, tiny, nil, "--max-running-requests", "1")
	ask(t, e.URL, 8, func(client, turn int) map[string]any { return generate(client, turn, 20, 100) })
	busy(t, e, 8)
	expect(t, diagnose(t, e), diagnosis.QueueBound)
}

func TestRetraction(t *testing.T) {
	e := start(t, tiny, nil, "--max-total-tokens", "640", "--page-size", "8", "--schedule-conservativeness", "0.1")
	ask(t, e.URL, 8, func(client, turn int) map[string]any { return generate(client, turn, 20, 200) })
	busy(t, e, 8)
	expect(t, diagnose(t, e), diagnosis.Retraction)
}

func TestUnevenRouting(t *testing.T) {
	e := start(t, tiny, nil, "--dp-size", "2")
	ask(t, e.URL, 8, func(client, turn int) map[string]any {
		body := generate(client, turn, 20, 100)
		body["routed_dp_rank"] = 1
		return body
	})
	busy(t, e, 8)
	r := diagnose(t, e)
	expect(t, r, diagnosis.UnevenRouting)
	if !strings.Contains(r.Conclusion.Where, "DP rank 1") {
		t.Errorf("it is not where the requests are: %s", r.Conclusion.Where)
	}
}

// TestSlowRank: one of two ranks, and one of two replicas, gets a fifth of the time.
func TestSlowRank(t *testing.T) {
	t.Run("rank", func(t *testing.T) {
		e := start(t, tiny, nil, "--dp-size", "2")
		pid := rank(t, e, 1)
		ask(t, e.URL, 8, func(client, turn int) map[string]any {
			body := generate(client, turn, 20, 100)
			body["routed_dp_rank"] = client % 2
			return body
		})
		busy(t, e, 8)
		throttle(t, pid, 20*time.Millisecond, 80*time.Millisecond)
		r := diagnose(t, e)
		expect(t, r, diagnosis.SlowRank)
		if !strings.Contains(r.Conclusion.Where, "DP rank 1") {
			t.Errorf("it is not the rank that is throttled: %s", r.Conclusion.Where)
		}
	})
	t.Run("replica", func(t *testing.T) {
		engines := []*harness.Engine{start(t, tiny, nil), start(t, tiny, nil)}
		pid := rank(t, engines[0], 0)
		for _, e := range engines {
			ask(t, e.URL, 4, func(client, turn int) map[string]any { return generate(client, turn, 20, 100) })
			busy(t, e, 4)
		}
		throttle(t, pid, 20*time.Millisecond, 80*time.Millisecond)
		r := diagnose(t, engines...)
		expect(t, r, diagnosis.SlowRank)
		if !strings.Contains(r.Conclusion.Where, "chat-main-0-0") {
			t.Errorf("it is not the replica that is throttled: %s", r.Conclusion.Where)
		}
	})
}

// rank finds the process of a data-parallel rank: the one that computes when the rank has the only request.
func rank(t *testing.T, e *harness.Engine, dp int) (pid int) {
	t.Helper()
	children := harness.Children(e.PID())
	if len(children) == 0 {
		t.Fatal("the engine has no ranks")
	}
	before := map[int]int{}
	for _, child := range children {
		before[child] = ticks(t, child)
	}
	body := generate(0, 0, 20, 2000)
	if dp > 0 {
		body["routed_dp_rank"] = dp
	}
	if err := harness.Post(t.Context(), e.URL+"/generate", body, nil); err != nil {
		t.Fatal(err)
	}
	most := -1
	for _, child := range children {
		if used := ticks(t, child) - before[child]; used > most {
			most, pid = used, child
		}
	}
	return pid
}

// ticks is the CPU time of a process.
func ticks(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	user, err := strconv.Atoi(fields[11])
	if err != nil {
		t.Fatal(err)
	}
	system, err := strconv.Atoi(fields[12])
	if err != nil {
		t.Fatal(err)
	}
	return user + system
}

// TestFrontEnd: long prompts that the cache knows cost the ranks little and the API process much, which gets a quarter of the time.
func TestFrontEnd(t *testing.T) {
	e := start(t, lanky, []string{"GOMAXPROCS=1"}, "--max-total-tokens", "100000")
	text := strings.Repeat("The boats go out to sea before the sun is up. ", 300)
	body := func(client, turn int) map[string]any {
		return map[string]any{"text": text + fmt.Sprint(client, turn), "sampling_params": map[string]any{"temperature": 0, "max_new_tokens": 1}}
	}
	if err := harness.Post(t.Context(), e.URL+"/generate", body(0, 0), nil); err != nil { // the cache has it now
		t.Fatal(err)
	}
	ask(t, e.URL, 16, body)
	throttle(t, e.PID(), 20*time.Millisecond, 60*time.Millisecond)
	expect(t, diagnose(t, e), diagnosis.FrontEnd)
}
