package diagnosis

// Bounds beyond which a number speaks for a cause. They are those of docs/diagnosis.md where it has one.
const (
	fullBatch    = 0.9  // running over the cap of running requests
	fullMemory   = 0.9  // locked share of the KV memory
	mostlyBusy   = 0.8  // share of the interval
	mostlyIdle   = 0.5  // share of the interval
	busyPrefill  = 0.5  // share of the interval in which prompts are computed
	repeated     = 0.05 // share of prefill that retracted requests repeat
	lost         = 0.02 // tokens lost to retractions over tokens generated
	slowerPlaces = 0.3  // share of what the cache found that was not on the device
	uneven       = 1.5  // requests or tokens of the busiest rank over the mean
	leftOut      = 0.25 // requests of the least busy rank over the mean
	fewRequests  = 2.0  // of the busiest rank; with fewer there is too little to compare
	slow         = 0.5  // tokens per busy second over those of an equal rank
	equalLoad    = 1.25 // requests of the equal rank over those of the slow one, at most
	held         = 1.0  // requests on average that are held up in one place
	entry        = 0.1  // tokenized, of the requests that no rank has; the others wait for a rank to take them, or to be heard
	waitsAlways  = 1.0  // requests that wait at every poll
	failing      = 0.05 // share of requests that end in faults
)
