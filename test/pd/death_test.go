package pd

import (
	"context"
	"errors"
	"net/http"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/sluice-dev/sluice/test/harness"
)

// TestDeath kills an engine, or only its rank, in the middle of a transfer. The client must get an error, the survivor
// must free everything, and the service must work again when the engine is back.
func TestDeath(t *testing.T) {
	o := engineOptions{model: slow, pageSize: 16, chunk: 64}
	prompt := slices.Repeat([]int32{11, 22, 33, 44}, 750)
	for _, tc := range []struct {
		name   string
		victim string
		rank   bool
	}{
		{"prefill engine", "prefill", false},
		{"prefill rank", "prefill", true},
		{"decode engine", "decode", false},
		{"decode rank", "decode", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			engines := map[string]*harness.Engine{"prefill": startEngine(t, "prefill", o), "decode": startEngine(t, "decode", o)}
			prefill, decode := engines["prefill"], engines["decode"]
			router := startRouter(t, []*harness.Engine{prefill}, []*harness.Engine{decode}, "--queue-timeout", "100ms")
			victim, survivor := prefill, decode
			if tc.victim == "decode" {
				victim, survivor = decode, prefill
			}
			result := make(chan error, 1)
			go func() {
				_, err := generate(t.Context(), router, prompt, 4)
				result <- err
			}()
			// The transfer is under way when the decode engine has given pages and the prefill engine holds some.
			harness.Eventually(t, "a transfer", func() bool {
				select {
				case err := <-result:
					t.Fatalf("the request ended before anybody was killed: %v", err)
				default:
				}
				d, err1 := load(decode)
				p, err2 := load(prefill)
				return err1 == nil && err2 == nil && d.Disaggregation.DecodeTransferQueueReqs == 1 && p.NumUsedTokens >= 128
			})
			if tc.rank {
				ranks := harness.Children(victim.PID())
				if len(ranks) != 1 {
					t.Fatalf("the engine has the children %v, want one rank", ranks)
				}
				process, err := os.FindProcess(ranks[0])
				if err != nil {
					t.Fatal(err)
				}
				if err := process.Signal(syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				<-victim.Ended() // a dead rank ends the replica
			} else {
				victim.Kill()
			}
			var status *harness.StatusError
			if err := <-result; !errors.As(err, &status) || status.Status < http.StatusInternalServerError {
				t.Errorf("the client got %v, want an HTTP status from 500 on", err)
			}
			survivor.Idle(t)

			victim.Run(t)
			short := prompt[:40]
			var again harness.Answer
			harness.Eventually(t, "the service works again", func() bool {
				var err error
				again, err = generate(t.Context(), router, short, 4)
				return err == nil
			})
			if len(again.OutputIDs) != 4 {
				t.Errorf("the answer afterwards has %d tokens, want 4", len(again.OutputIDs))
			}
			prefill.Idle(t)
			decode.Idle(t)
		})
	}
}

// TestClientGoes cancels a request in the middle of a transfer: both sides must free everything.
func TestClientGoes(t *testing.T) {
	o := engineOptions{model: slow, pageSize: 16, chunk: 64}
	prefill, decode := startEngine(t, "prefill", o), startEngine(t, "decode", o)
	router := startRouter(t, []*harness.Engine{prefill}, []*harness.Engine{decode})
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := generate(ctx, router, slices.Repeat([]int32{11, 22, 33, 44}, 750), 4)
		result <- err
	}()
	harness.Eventually(t, "a transfer", func() bool {
		d, err1 := load(decode)
		p, err2 := load(prefill)
		return err1 == nil && err2 == nil && d.Disaggregation.DecodeTransferQueueReqs == 1 && p.NumUsedTokens >= 128
	})
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("the client got %v", err)
	}
	prefill.Idle(t)
	decode.Idle(t)
}

// TestRetry kills one of two decode engines in the middle of a transfer: the client must get its answer from the other.
func TestRetry(t *testing.T) {
	o := engineOptions{model: slow, pageSize: 16, chunk: 64}
	prefill := startEngine(t, "prefill", o)
	decodes := []*harness.Engine{startEngine(t, "decode", o), startEngine(t, "decode", o)}
	router := startRouter(t, []*harness.Engine{prefill}, decodes)
	prompt := slices.Repeat([]int32{11, 22, 33, 44}, 400)
	type result struct {
		a   harness.Answer
		err error
	}
	results := make(chan result, 1)
	go func() {
		a, err := generate(t.Context(), router, prompt, 4)
		results <- result{a, err}
	}()
	var victim *harness.Engine
	harness.Eventually(t, "a transfer", func() bool {
		for _, d := range decodes {
			if l, err := load(d); err == nil && l.Disaggregation.DecodeTransferQueueReqs == 1 {
				victim = d
			}
		}
		return victim != nil
	})
	victim.Kill()
	r := <-results
	if r.err != nil {
		t.Fatalf("the client got %v, want the other engine's answer", r.err)
	}
	want, err := generate(t.Context(), router, prompt, 4)
	if err != nil || !slices.Equal(want.OutputIDs, r.a.OutputIDs) {
		t.Errorf("the answer after the retry is %v, undisturbed it is %v (%v)", r.a.OutputIDs, want.OutputIDs, err)
	}
}
