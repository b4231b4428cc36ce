package server

// Subject says whose event it is: the values of the labels that differ between requests.
type Subject struct {
	Streaming bool
	Priority  *int              // nil when the client gave none
	Labels    map[string]string // custom labels, allowed keys only
}

// Finished is the end of a counted request.
type Finished struct {
	PromptTokens, CompletionTokens, CachedTokens int
	E2ENanos                                     int64
	TPOTNanos                                    float64 // 0: undefined, not a sample
}

// Events listens to the API process. Calls come from many goroutines and must not block.
type Events interface {
	// FirstToken gets the time from arrival to the first output, once per request, never on a prefill engine.
	FirstToken(s Subject, nanos int64)
	// InterToken gets the time between two outputs, the later of which brought newTokens > 0.
	InterToken(s Subject, nanos int64, newTokens int)
	// Finished gets the end of a request, aborted ones included.
	Finished(s Subject, f Finished)
	// Aborted counts an abort that was sent to the rank.
	Aborted()
	// LoadsServed gets the time that one /v1/loads took.
	LoadsServed(nanos int64)

	// RequestStarted, ResponseStarted and RequestEnded follow one HTTP request; endpoint is the route's pattern.
	RequestStarted(endpoint, method string)
	ResponseStarted(endpoint, method string, status int)
	RequestEnded(endpoint, method string)
}

// noEvents drops everything: metrics are off.
type noEvents struct{}

func (noEvents) FirstToken(Subject, int64)           {}
func (noEvents) InterToken(Subject, int64, int)      {}
func (noEvents) Finished(Subject, Finished)          {}
func (noEvents) Aborted()                            {}
func (noEvents) LoadsServed(int64)                   {}
func (noEvents) RequestStarted(string, string)       {}
func (noEvents) ResponseStarted(string, string, int) {}
func (noEvents) RequestEnded(string, string)         {}
