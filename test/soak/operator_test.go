package soak

import (
	"context"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/sluice-dev/sluice/test/harness"
)

// operator does what is done to an engine that is in use.
type operator struct {
	*world
	rng    *rand.Rand
	pauses int
}

// pauseModes are tried in turn.
var pauseModes = []string{"retract", "in_place", "abort"}

// act waits for a moment and does one thing.
func (o *operator) act(ctx context.Context) {
	select {
	case <-time.After(time.Duration(100+o.rng.IntN(500)) * time.Millisecond):
	case <-ctx.Done():
		return
	}
	switch o.rng.IntN(3) {
	case 0:
		o.pause(pauseModes[o.pauses%len(pauseModes)])
		o.pauses++
	case 1:
		o.flush()
	default:
		o.look()
	}
}

func (o *operator) pause(mode string) {
	if err := harness.Post(o.t.Context(), o.engine.URL+"/pause_generation", map[string]any{"mode": mode}, nil); err != nil {
		o.t.Errorf("pause %s: %v", mode, err)
	}
	<-time.After(time.Duration(o.rng.IntN(200)) * time.Millisecond)
	if err := harness.Post(o.t.Context(), o.engine.URL+"/continue_generation", map[string]any{}, nil); err != nil {
		o.t.Errorf("continue: %v", err)
	}
	o.count("paused " + mode)
}

// flush is refused while requests live, which in the storm is nearly always.
func (o *operator) flush() {
	answer, err := http.Post(o.engine.URL+"/flush_cache", "application/json", nil)
	if err != nil {
		o.t.Errorf("flush: %v", err)
		return
	}
	answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
		o.count("flushed")
	case http.StatusBadRequest:
		o.count("flush refused")
	default:
		o.t.Errorf("flush: status %d", answer.StatusCode)
	}
}

// look reads what monitoring reads; the pools must balance at any moment.
func (o *operator) look() {
	list, err := o.engine.Loads()
	if err != nil {
		o.t.Errorf("loads: %v", err)
	}
	for _, l := range list {
		if l.NumUsedTokens < 0 || l.NumUsedTokens > l.MaxTotalNumTokens || l.NumRunningReqs > l.MaxRunningRequests {
			o.t.Errorf("load out of bounds: %+v", l)
		}
	}
	o.count("looked")
}
