package diagnosis

// Cause is what is behind a complaint.
type Cause string

const (
	// NothingWrong says that requests are served, and no number is out of bounds.
	NothingWrong Cause = "NothingWrong"
	// NoRequests says that there is nothing to judge.
	NoRequests Cause = "NoRequests"
	// NoData says that no engine told enough.
	NoData Cause = "NoData"

	// QueueBound says that requests wait while the batch is full: the cap of running requests is the limit.
	QueueBound Cause = "QueueBound"
	// PrefillBound says that requests wait while prompts are computed all the time.
	PrefillBound Cause = "PrefillBound"
	// MemoryBound says that requests wait for KV memory.
	MemoryBound Cause = "MemoryBound"
	// AdmissionHeld says that requests wait though there is room: grammars, a pause, priorities.
	AdmissionHeld Cause = "AdmissionHeld"
	// TransferStall says that requests wait for KV on its way from prefill to decode.
	TransferStall Cause = "TransferStall"

	// Retraction says that running requests lose their memory and are computed again.
	Retraction Cause = "Retraction"
	// StorageHits says that prompts are found in slower places than the device.
	StorageHits Cause = "StorageHits"

	// UnevenRouting says that some ranks have the requests and others have nothing to do.
	UnevenRouting Cause = "UnevenRouting"

	// SlowRank says that a rank computes slower than its equals.
	SlowRank Cause = "SlowRank"

	// FrontEnd says that requests are held up before the scheduler: the API process.
	FrontEnd Cause = "FrontEnd"
	// RouterWait says that requests wait in the router for a usable engine.
	RouterWait Cause = "RouterWait"
	// Failing says that requests end in faults.
	Failing Cause = "Failing"
)

// Evidence is one number with its bound.
type Evidence struct {
	What   string  `json:"what"`
	Where  string  `json:"where"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
	Bound  string  `json:"bound"`  // "at least 0.9"; "" where there is none: the number is context
	Beyond bool    `json:"beyond"` // the number is as Bound says, which speaks for the cause
}

// Finding is a cause that the numbers of a place speak for.
type Finding struct {
	Cause    Cause      `json:"cause"`
	Where    string     `json:"where"` // the pool, with engine and rank where it is one
	Says     string     `json:"says"`  // a sentence
	Do       string     `json:"do"`    // what to do first
	Evidence []Evidence `json:"evidence"`
}

// Path is one of the five of docs/diagnosis.md, with what it found.
type Path struct {
	Name     string     `json:"name"`
	Anchor   string     `json:"anchor"` // in docs/diagnosis.md
	Findings []Finding  `json:"findings"`
	Evidence []Evidence `json:"evidence"` // numbers that were looked at, by pool
}

// Report is the document of `diagnose`.
type Report struct {
	Kind       string   `json:"kind"` // "Diagnosis"
	Time       string   `json:"time"`
	Namespace  string   `json:"namespace"`
	Service    string   `json:"service"`
	Seconds    float64  `json:"seconds"` // of the interval
	Cause      Cause    `json:"cause"`
	Conclusion Finding  `json:"conclusion"`
	Also       []Cause  `json:"also"`  // other causes that the numbers speak for, which may follow from the first
	Paths      []Path   `json:"paths"` // in reading order
	Missing    []string `json:"missing"`
}
