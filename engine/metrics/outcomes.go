package metrics

import (
	"sync"

	"github.com/sluice-dev/sluice/engine/request"
)

// outcomes are the series of what became of the requests. They change together, and a scrape reads them together:
//
//	submitted = Σ ended + inFlight
type outcomes struct {
	cut       sync.Mutex // held while some of them change, and while a scrape reads them
	submitted CounterSeries
	ended     map[request.Outcome]CounterSeries // all outcomes; never written
	inFlight  GaugeSeries
}

// newOutcomes makes the series, so that they read 0 from the start.
func (f *Front) newOutcomes() *outcomes {
	o := &outcomes{
		submitted: f.backend.Counter(requestsSubmitted, f.customLabels(nil)),
		ended:     map[request.Outcome]CounterSeries{},
		inFlight:  f.backend.Gauge(requestsInFlight, f.customLabels(nil)),
	}
	for _, outcome := range request.Outcomes() {
		o.ended[outcome] = f.backend.Counter(requestOutcomes, append(f.customLabels(nil), Label{outcomeLabel, string(outcome)}))
	}
	o.inFlight.Set(0, f.now())
	return o
}

const outcomeLabel = "outcome"

// Requests counts sequences that clients have asked for, and some that have ended: n of them with the outcome, which is
// one of the list. inFlight is how many have not ended after that. Calls come in the order of these events.
func (f *Front) Requests(submitted, ended int, outcome request.Outcome, inFlight int) {
	o := f.outcomes
	o.cut.Lock()
	defer o.cut.Unlock()
	o.submitted.Add(float64(submitted))
	if ended > 0 {
		o.ended[outcome].Add(float64(ended))
	}
	o.inFlight.Set(float64(inFlight), f.now())
}

// Cut is held while series change that only hold together; who reads all of them takes it. See Gatherer.Guard.
func (f *Front) Cut() sync.Locker { return &f.outcomes.cut }
