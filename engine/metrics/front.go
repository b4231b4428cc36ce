package metrics

import (
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/sluice-dev/sluice/engine/ledger"
)

// FrontLabels are the labels of every family of an API process.
type FrontLabels struct {
	ModelName  string
	EngineType string
	Priority   bool              // requests have priorities: the label is there, "" where a request has none
	Custom     []string          // names a client may fill; "" where it doesn't
	Extra      map[string]string // --extra-metric-labels; they win over the ones above
	MaxValues  int               // --metrics-max-label-values: sets of custom values and priority, endpoints; 0: DefaultLabelValues
}

// Subject says whose event it is: the values of the labels that differ between requests.
type Subject struct {
	Streaming bool
	Priority  *int              // nil: none
	Custom    map[string]string // values of FrontLabels.Custom; other names are dropped
}

// Finished is the end of a counted request.
type Finished struct {
	PromptTokens, CompletionTokens int
	CachedTokens                   int  // of PromptTokens, 0 <= CachedTokens <= PromptTokens
	Structured                     bool // a grammar bounded the answer
	E2ENanos                       int64
	TPOTNanos                      float64 // 0: undefined, not a sample
}

// OtherLabel stands for label values beyond a cap, and for unmatched routes and unknown methods.
const (
	OtherLabel        = "other"
	UnmatchedEndpoint = "unmatched"
	maxFuncs          = 64
	statusesEach      = 16 // of an endpoint and method
)

// Front writes what the API process tells: finished requests, latencies as the client sees them, HTTP. It is safe for
// concurrent use. Requests that don't count (health checks) must not be told.
type Front struct {
	backend    Backend
	engineType string
	custom     []string
	priority   bool    // the label is there
	base       []Label // of the front's families, without priority and custom labels
	extra      []Label // of the HTTP families
	buckets    Buckets
	clock      ledger.Clock

	laws
	aborted     CounterSeries
	loads       HistogramSeries
	outcomes    *outcomes
	routingKeys *refCountedGauge

	plain    [2]*requestSeries // of requests without custom labels: not streaming, streaming
	requests *vec[string, *requestSeries]
	http     *vec[route, *endpointSeries]
	status   *vec[answer, CounterSeries]
	funcs    *vec[string, HistogramSeries]
	startup  startup
}

// NewFront makes the series of an API process in the backend. clock tells the wall time of gauges.
func NewFront(backend Backend, labels FrontLabels, buckets Buckets, clock ledger.Clock) *Front {
	f := &Front{
		backend: backend, engineType: labels.EngineType, buckets: buckets, clock: clock, laws: newLaws(backend),
		base:  override([]Label{{"model_name", labels.ModelName}, {"engine_type", labels.EngineType}}, labels.Extra),
		extra: override(nil, labels.Extra),
	}
	f.priority = labels.Priority && !hasLabel(f.base, priorityLabel)
	for _, name := range labels.Custom {
		taken := hasLabel(f.base, name) || f.priority && name == priorityLabel || Reserved(name)
		if !taken {
			f.custom = append(f.custom, name)
		}
	}
	most := newBudget(backend, labels.MaxValues)
	f.requests = newVec[string, *requestSeries](most, numRequests, len(streamingValues)*most.most)
	f.http = newVec[route, *endpointSeries](most, httpRequests, most.most)
	f.status = newVec[answer, CounterSeries](most, httpResponses, statusesEach*most.most)
	f.funcs = newVec[string, HistogramSeries](most, funcLatency, maxFuncs)
	empty := f.customLabels(nil)
	f.aborted = backend.Counter(numAbortedRequests, empty)
	f.loads = backend.Histogram(getLoadsDuration, empty, nil)
	f.outcomes = f.newOutcomes()
	f.routingKeys = newRefCountedGauge(backend.Gauge(routingKeysActive, nil), f.now())
	// Made now, so that the counters are there, at 0, before the first request.
	f.plain = [2]*requestSeries{f.newRequestSeries(f.customLabels(nil), streamingValues[0]), f.newRequestSeries(f.customLabels(nil), streamingValues[1])}
	f.plain[0].cached() // a rate over a counter that begins with its first hit would not have that hit
	return f
}

// Taken reports whether the series of an engine have a label of the name already, so that no client may choose its value:
// that of a family, or one that says of which engine and rank a series is.
func Taken(name string) bool {
	return Reserved(name) || slices.Contains([]string{
		"model_name", "engine_type", "tp_rank", "pp_rank", "moe_ep_rank", "dp_rank", priorityLabel, "cache_type",
	}, name)
}

// Reserved reports whether a family that carries custom or extra labels has a label of the name itself.
func Reserved(name string) bool {
	return slices.ContainsFunc(families, func(f *Family) bool {
		return slices.Contains([]Source{FromScheduler, FromCache, FromFront, FromHTTP}, f.Source) && slices.Contains(f.Labels, name)
	})
}

func hasLabel(labels []Label, name string) bool {
	for _, l := range labels {
		if l.Name == name {
			return true
		}
	}
	return false
}

// customLabels gives the base labels with those that differ between requests: "" where there is no value.
func (f *Front) customLabels(values map[string]string) []Label { return f.labels("", values) }

func (f *Front) labels(priority string, custom map[string]string) []Label {
	labels := make([]Label, 0, len(f.base)+len(f.custom)+2)
	labels = append(labels, f.base...)
	if f.priority {
		labels = append(labels, Label{priorityLabel, priority})
	}
	for _, name := range f.custom {
		labels = append(labels, Label{name, custom[name]})
	}
	return labels
}

const streamingLabel = "is_streaming"

var streamingValues = [2]string{"False", "True"}

// requestSeries are the series of one kind of request.
type requestSeries struct {
	prompt, generation, requests, structured       CounterSeries
	ttft, itl, tpot, e2e                           HistogramSeries
	promptLength, uncachedLength, generationLength HistogramSeries

	cached func() CounterSeries // made when the first token came from the cache, or with the Front
}

func (f *Front) subject(s Subject) *requestSeries {
	streaming := 0
	if s.Streaming {
		streaming = 1
	}
	priority := ""
	if f.priority && s.Priority != nil {
		priority = strconv.Itoa(*s.Priority)
	}
	if priority == "" && (len(f.custom) == 0 || len(s.Custom) == 0) {
		return f.plain[streaming]
	}
	var key strings.Builder
	key.WriteString(streamingValues[streaming])
	key.WriteByte(0)
	key.WriteString(priority)
	for _, name := range f.custom {
		value := s.Custom[name]
		key.WriteByte(0)
		key.WriteString(strconv.Itoa(len(value))) // a value may hold any byte
		key.WriteByte(0)
		key.WriteString(value)
	}
	return f.requests.get(key.String(), streamingValues[streaming], func(full bool) *requestSeries {
		if full {
			return f.newRequestSeries(f.otherLabels(), streamingValues[streaming])
		}
		return f.newRequestSeries(f.labels(priority, s.Custom), streamingValues[streaming])
	})
}

// otherLabels are those of the requests beyond the cap.
func (f *Front) otherLabels() []Label {
	values := map[string]string{}
	for _, name := range f.custom {
		values[name] = OtherLabel
	}
	return f.labels(OtherLabel, values)
}

func (f *Front) newRequestSeries(labels []Label, streaming string) *requestSeries {
	stream := append(slices.Clone(labels), Label{streamingLabel, streaming})
	b := f.backend
	r := &requestSeries{
		prompt:     b.Counter(promptTokens, stream),
		generation: b.Counter(generationTokens, stream),
		requests:   b.Counter(numRequests, stream),
		structured: b.Counter(numSORequests, labels),
		ttft:       f.histogram(timeToFirstToken, stream, f.buckets.TimeToFirstToken),
		itl:        f.histogram(interTokenLatency, labels, f.buckets.InterTokenLatency),
		tpot:       f.histogram(timePerOutputToken, stream, f.buckets.InterTokenLatency),
		e2e:        f.histogram(e2eRequestLatency, stream, f.buckets.E2ERequestLatency),

		promptLength:     f.histogram(promptHistogram, labels, f.buckets.PromptTokens),
		uncachedLength:   f.histogram(uncachedHistogram, labels, f.buckets.PromptTokens),
		generationLength: f.histogram(generationHistogram, labels, f.buckets.GenerationTokens),
	}
	r.cached = sync.OnceValue(func() CounterSeries {
		return b.Counter(cachedTokens, append(slices.Clone(labels), Label{"cache_source", "device"}))
	})
	return r
}

// histogram gives the series of a family, or nothing where the engine type has none.
func (f *Front) histogram(family *Family, labels []Label, bounds []float64) HistogramSeries {
	if !family.Engines.Has(f.engineType) {
		return nothing{}
	}
	return f.backend.Histogram(family, labels, bounds)
}

// FirstToken observes the time from arrival to the first output, once per request. A prefill engine has no such family:
// what it puts out is not what the client waits for.
func (f *Front) FirstToken(s Subject, nanos int64) { f.subject(s).ttft.Observe(seconds(nanos)) }

// InterToken observes the time between two outputs, the later of which brought newTokens: newTokens samples of an equal
// share, whose sum is the time. Without new tokens there is no sample.
func (f *Front) InterToken(s Subject, nanos int64, newTokens int) {
	if newTokens > 0 {
		f.subject(s).itl.ObserveWeighted(seconds(nanos), uint64(newTokens))
	}
}

// Finished counts the end of a request, aborted ones included.
func (f *Front) Finished(s Subject, e Finished) {
	r := f.subject(s)
	r.requests.Add(1)
	r.prompt.Add(float64(e.PromptTokens))
	r.generation.Add(float64(e.CompletionTokens))
	r.promptLength.Observe(float64(e.PromptTokens))
	r.uncachedLength.Observe(float64(e.PromptTokens - e.CachedTokens))
	r.generationLength.Observe(float64(e.CompletionTokens))
	r.e2e.Observe(seconds(e.E2ENanos))
	if e.TPOTNanos > 0 {
		r.tpot.Observe(e.TPOTNanos / 1e9)
	}
	if e.Structured {
		r.structured.Add(1)
	}
	if e.CachedTokens > 0 {
		r.cached().Add(float64(e.CachedTokens))
	}
}

// Aborted counts an abort that was sent to the scheduler.
func (f *Front) Aborted() { f.aborted.Add(1) }

// LoadsServed observes the time that one /v1/loads took.
func (f *Front) LoadsServed(nanos int64) { f.loads.Observe(seconds(nanos)) }

// FuncLatency observes the time that one call of a function took.
func (f *Front) FuncLatency(name string, nanos int64) {
	f.funcs.get(name, "", func(full bool) HistogramSeries {
		if full {
			name = OtherLabel
		}
		return f.backend.Histogram(funcLatency, []Label{{"name", name}}, nil)
	}).Observe(seconds(nanos))
}

// RoutingKeyHeld says that a request with a routing key has come.
func (f *Front) RoutingKeyHeld(key string) { f.routingKeys.inc(key, f.now()) }

// RoutingKeyFreed says that one has gone.
func (f *Front) RoutingKeyFreed(key string) { f.routingKeys.dec(key, f.now()) }
