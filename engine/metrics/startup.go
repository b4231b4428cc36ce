package metrics

import "sync"

// startup are the series of how long the start took.
type startup struct {
	mu      sync.Mutex
	longest map[string]int64 // nanoseconds by context
}

// StartupTime writes the time of a phase of the start.
func (f *Front) StartupTime(phase string, nanos int64) {
	f.backend.Gauge(startupTime, append(f.customLabels(nil), Label{"phase", phase})).Set(seconds(nanos), f.now())
}

// StartupStep notes the time of a step of the start; of several with one name the longest stays.
func (f *Front) StartupStep(name string, nanos int64) {
	f.startup.mu.Lock()
	defer f.startup.mu.Unlock()
	if before, known := f.startup.longest[name]; known && before >= nanos {
		return
	}
	if f.startup.longest == nil {
		f.startup.longest = map[string]int64{}
	}
	f.startup.longest[name] = nanos
	f.backend.Gauge(startupBreakdown, []Label{{"context", name}}).Set(seconds(nanos), f.now())
}
