package metrics

import "slices"

// Kind is the type of a family.
type Kind uint8

// The kinds.
const (
	Counter Kind = iota + 1
	Gauge
	Histogram
)

func (k Kind) String() string {
	switch k {
	case Counter:
		return "counter"
	case Gauge:
		return "gauge"
	case Histogram:
		return "histogram"
	default:
		return "unknown"
	}
}

// Merge says how the values that several processes hold of one series become one.
type Merge uint8

const (
	// Sum adds all processes, also those that have ended. Counters and histograms.
	Sum Merge = iota
	// MostRecent takes the newest write. Gauges.
	MostRecent
	// LiveSum adds the processes that live. Gauges.
	LiveSum
)

func (m Merge) String() string { return [...]string{"sum", "mostrecent", "livesum"}[m] }

// Source is who fills a family; it decides the labels that every series of the family has.
type Source uint8

// The sources, with the labels that each gives.
const (
	FromScheduler Source = iota // model_name, engine_type, tp_rank, pp_rank, moe_ep_rank, extra labels
	FromCache                   // cache_type, tp_rank, pp_rank, dp_rank, extra labels
	FromFront                   // model_name, engine_type, priority where there are priorities, custom labels, extra labels
	FromHTTP                    // extra labels
	FromProcess                 // no further labels: every process about itself
	FromStore                   // no further labels: the store about itself
)

func (s Source) String() string {
	return [...]string{"scheduler", "cache", "front", "http", "process", "store"}[s]
}

// Engines is a set of engine types.
type Engines uint8

// The engine types.
const (
	OnUnified Engines = 1 << iota
	OnPrefill
	OnDecode

	OnAll = OnUnified | OnPrefill | OnDecode
)

// Has reports whether an engine of the type has the family. "dynamic" has all.
func (e Engines) Has(engineType string) bool {
	switch engineType {
	case "prefill":
		return e&OnPrefill != 0
	case "decode":
		return e&OnDecode != 0
	case "unified":
		return e&OnUnified != 0
	default:
		return true
	}
}

// Features is a set of what a rank may have besides its engine type.
type Features uint8

// The features.
const (
	WithSlidingWindow Features = 1 << iota // the model has sliding-window layers, whose KV has a pool of its own
	WithSessions                           // streaming sessions may be opened
	WithDeviceTimer                        // the device's busy time is measured
	WithMFU                                // the cost of steps is estimated
)

// Has reports whether all of some features are there.
func (f Features) Has(needed Features) bool { return f&needed == needed }

// Reports is a set of kinds of scheduler report: which of them write a gauge. A gauge keeps its value at the others.
type Reports uint8

// The kinds of report.
const (
	OnPrefillReport Reports = 1 << iota
	OnDecodeReport
	OnIdleReport
	OnStart // not a report: once, with the rank's constants

	OnEveryReport = OnPrefillReport | OnDecodeReport | OnIdleReport
)

// Family is one row of the table.
type Family struct {
	Name   string // as exposed; counters hold their _total
	Kind   Kind
	Help   string
	Unit   string
	Source Source
	// Labels are those besides the ones that the source gives.
	Labels []string
	// Buckets are the bounds of a histogram, without +Inf.
	Buckets []float64
	Merge   Merge
	// Engines are the engine types that have the family.
	Engines Engines
	// Needs is what else it takes.
	Needs Features
	// Reports are the scheduler reports that write the gauge; 0 for families that events write.
	Reports Reports
	// SumOver lists labels over which series may be added without counting anything twice.
	SumOver []string
}

// Families gives the table in the order of its groups.
func Families() []*Family { return slices.Clone(families) }

// Lookup finds a family by name.
func Lookup(name string) (f *Family, ok bool) {
	f, ok = byName[name]
	return f, ok
}

var byName = func() map[string]*Family {
	m := make(map[string]*Family, len(families))
	for _, f := range families {
		m[f.Name] = f
	}
	return m
}()
