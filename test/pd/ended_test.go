package pd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/test/harness"
)

// TestOperatorEndsOneHalf: what an operator ends at one engine of a pair ends so at the other, too: the same status for its
// client, the same outcome in the books, and no hand-over that failed.
func TestOperatorEndsOneHalf(t *testing.T) {
	o := engineOptions{model: tiny, pageSize: 16, chunk: 64, more: []string{"--enable-metrics"}}
	prefill, decode := startEngine(t, "prefill", o), startEngine(t, "decode", o)
	control := func(e *harness.Engine, path string, body map[string]any) {
		t.Helper()
		if err := harness.Post(t.Context(), e.URL+path, body, nil); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(ctx context.Context, e *harness.Engine, rid string, room int) <-chan error {
		result := make(chan error, 1)
		go func() {
			result <- harness.Post(ctx, e.URL+"/generate", map[string]any{
				"rid": rid, "input_ids": []int32{1, 2, 3, 4, 5, 6, 7}, "sampling_params": map[string]any{"temperature": 0, "max_new_tokens": 3, "ignore_eos": true},
				"bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.Bootstrap, "bootstrap_room": room,
			}, nil)
		}()
		return result
	}
	abort := func(e *harness.Engine, rid string) { control(e, "/abort_request", map[string]any{"rid": rid}) }
	goOn := func() {
		control(prefill, "/continue_generation", map[string]any{})
		control(decode, "/continue_generation", map[string]any{})
	}
	for i, tc := range []struct {
		name, reason string
		late         bool // the decode engine hears of the request only when the prefill engine has ended it
		end          func(rid string)
	}{
		{"abort at prefill", "the decode engine's pages wait for KV", false, func(rid string) { abort(prefill, rid) }},
		{"pause at prefill", "an abort of all", false, func(string) { control(prefill, "/pause_generation", map[string]any{"mode": "abort"}) }},
		{"abort at decode", "the prefill engine has yet to compute", false, func(rid string) { abort(decode, rid) }},
		{"pause at decode", "an abort of all", false, func(string) { control(decode, "/pause_generation", map[string]any{"mode": "abort"}) }},
		{"abort at prefill, decode is late", "the prefill engine remembers why the room is over", true, func(rid string) { abort(prefill, rid) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rid := fmt.Sprint("r", i)
			before := map[string]map[string]int{"prefill": endings(t, prefill), "decode": endings(t, decode)}
			var decoded <-chan error
			if !tc.late {
				control(prefill, "/pause_generation", map[string]any{"mode": "in_place"})
				decoded = ask(t.Context(), decode, rid, 100+i)
				standsIn(t, decode, rid, "decode_bootstrap")
			}
			prefilled := ask(t.Context(), prefill, rid, 100+i)
			if tc.late {
				standsIn(t, prefill, rid, "prefill_bootstrap")
			} else {
				standsIn(t, decode, rid, "decode_transferred")
				standsIn(t, prefill, rid, "prefill_waiting")
			}
			tc.end(rid)
			errs := map[string]error{"prefill": <-prefilled}
			if tc.late {
				decoded = ask(t.Context(), decode, rid, 100+i)
			}
			errs["decode"] = <-decoded
			goOn()
			for side, err := range errs {
				var status *harness.StatusError
				if !errors.As(err, &status) || status.Status != 503 || !strings.Contains(status.Body, `"aborted_operator"`) {
					t.Errorf("the client of %s got %v, want 503 and aborted_operator", side, err)
				}
			}
			for side, e := range map[string]*harness.Engine{"prefill": prefill, "decode": decode} {
				got := endings(t, e)
				for name, n := range before[side] {
					if got[name] -= n; got[name] == 0 {
						delete(got, name)
					}
				}
				if diff := cmp.Diff(map[string]int{"aborted_operator": 1}, got); diff != "" {
					t.Errorf("%s counts (-want +got):\n%s", side, diff)
				}
			}
		})
	}
	prefill.Idle(t)
	decode.Idle(t)
}

// endings reads how many requests have ended in each outcome, how many hand-overs have failed and how many laws were broken,
// of which there are some.
func endings(t *testing.T, e *harness.Engine) map[string]int {
	t.Helper()
	all := map[string]int{}
	for line := range strings.Lines(harness.Get(t, e.URL+"/metrics")) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		name, labels, _ := strings.Cut(series, "{")
		switch name {
		case "sluice_request_outcomes_total":
			_, rest, _ := strings.Cut(labels, `outcome="`)
			name, _, _ = strings.Cut(rest, `"`)
		case "sglang:num_transfer_failed_reqs_total", "sglang:num_bootstrap_failed_reqs_total", "sluice_ledger_violations_total":
		default:
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if n > 0 {
			all[name] += n
		}
	}
	return all
}
