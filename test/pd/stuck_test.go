package pd

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"testing"

	"github.com/sluice-dev/sluice/test/harness"
)

// TestStagesWhileStuck: /debug/requests shows where the rank has a request for as long as it is stuck there: on a unified engine, and
// on the halves of a pair while a peer is missing and while it does not compute.
func TestStagesWhileStuck(t *testing.T) {
	o := engineOptions{model: tiny, pageSize: 16, chunk: 64}
	prefill, decode, unified := startEngine(t, "prefill", o), startEngine(t, "decode", o), startEngine(t, "", o)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	control := func(e *harness.Engine, path string, body map[string]any) {
		t.Helper()
		if err := harness.Post(ctx, e.URL+path, body, nil); err != nil {
			t.Fatal(err)
		}
	}
	var asking sync.WaitGroup
	ask := func(e *harness.Engine, rid string, room int) {
		body := map[string]any{
			"rid": rid, "input_ids": []int32{1, 2, 3, 4, 5, 6, 7}, "sampling_params": map[string]any{"temperature": 0, "max_new_tokens": 3, "ignore_eos": true},
		}
		if room > 0 {
			body["bootstrap_host"], body["bootstrap_port"], body["bootstrap_room"] = "127.0.0.1", prefill.Bootstrap, room
		}
		asking.Go(func() {
			if err := harness.Post(ctx, e.URL+"/generate", body, nil); err != nil {
				t.Errorf("request %s: %v", rid, err)
			}
		})
	}
	paused := map[string]any{"mode": "in_place"}
	control(unified, "/pause_generation", paused)
	ask(unified, "alone", 0)
	standsIn(t, unified, "alone", "prefill_waiting")
	control(unified, "/continue_generation", map[string]any{})

	control(prefill, "/pause_generation", paused)
	ask(decode, "half", 1)
	standsIn(t, decode, "half", "decode_bootstrap")
	ask(prefill, "half", 1)
	standsIn(t, decode, "half", "decode_transferred")
	standsIn(t, prefill, "half", "prefill_waiting")
	control(prefill, "/continue_generation", map[string]any{})

	ask(prefill, "early", 2)
	standsIn(t, prefill, "early", "prefill_bootstrap")
	ask(decode, "early", 2)
	asking.Wait()
}

// standsIn waits until an engine shows that the rank has a request in a stage.
func standsIn(t *testing.T, e *harness.Engine, rid, stage string) {
	t.Helper()
	harness.Eventually(t, rid+" is shown in "+stage, func() bool {
		answer, err := http.Get(e.URL + "/debug/requests/" + rid) //nolint:noctx // the test's own
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		var r record
		if answer.StatusCode != http.StatusOK { // it is on its way
			return false
		}
		if err := json.NewDecoder(answer.Body).Decode(&r); err != nil {
			t.Fatal(err)
		}
		return r.InFlight && r.Rank != nil && r.Rank.Stage == stage
	})
}
