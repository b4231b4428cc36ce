package observe

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/controllers/semantics"
)

const (
	// eventsWindow is the time over which events of latency histograms are counted, eventsStep the least time between two
	// readings: eventsWindow / eventsStep + 2 of them are kept.
	eventsWindow = time.Minute
	eventsStep   = 10 * time.Second

	// metricsLimitBytes bounds an answer of /metrics.
	metricsLimitBytes = 16 << 20
)

// EventsGrace is how long it may take until the histograms of an engine that has become ready are read twice.
const EventsGrace = 3 * eventsStep

// maxCount is the largest count that is exact; differences of larger ones would be noise.
const maxCount = 1 << 53

// latencyFamilies are the histograms that scaling on latency reads.
func latencyFamilies() []string { return []string{semantics.FamilyTTFT, semantics.FamilyITL} }

// histograms are all events of each family that one process has counted.
type histograms map[string]semantics.Distribution

// eventHistory turns readings of histograms, which only grow, into the events of a window. Readings ascend in time.
type eventHistory struct {
	readings []eventReading
}

type eventReading struct {
	at time.Time
	histograms
}

// stale says whether what add gave last tells nothing of now any more.
func (h *eventHistory) stale(at time.Time) bool {
	n := len(h.readings)
	return n > 0 && at.Sub(h.readings[n-1].at) > 3*eventsStep
}

// add takes a reading and gives the events since the oldest one of the window; nil while there is but one. A family that is
// missing from the newest reading has no events to tell of. What was read before a time without readings begins no window.
func (h *eventHistory) add(at time.Time, now histograms) map[string]semantics.Distribution {
	if n := len(h.readings); n > 0 && at.Sub(h.readings[n-1].at) > 2*eventsWindow {
		h.readings = nil
	}
	for len(h.readings) > 1 && at.Sub(h.readings[1].at) >= eventsWindow {
		h.readings = h.readings[1:]
	}
	h.readings = append(slices.Clone(h.readings), eventReading{at, now})
	if len(h.readings) == 1 {
		return nil
	}
	events := map[string]semantics.Distribution{}
	for family := range now {
		// Step by step, so that a process that began anew in between is noticed.
		var sum semantics.Distribution
		for i := 1; i < len(h.readings); i++ {
			before, after := h.readings[i-1].histograms[family], h.readings[i].histograms[family]
			step := after.Since(before)
			var same bool
			if sum, same = sum.Add(step); !same {
				sum = step // another engine with other buckets
			}
		}
		events[family] = sum
	}
	return events
}

// fetchHistograms reads the latency histograms of an engine.
func fetchHistograms(ctx context.Context, client *http.Client, url string) (histograms, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("read histograms: %w", err)
	}
	request.Header.Set("Accept", "text/plain;version=0.0.4")
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("read histograms: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read histograms of %s: status %d, want 200", url, response.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, metricsLimitBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read histograms of %s: %w", url, err)
	}
	if len(text) > metricsLimitBytes {
		return nil, fmt.Errorf("read histograms of %s: the body is larger than %d bytes", url, metricsLimitBytes)
	}
	return parseHistograms(text)
}

// parseHistograms adds up the series of each latency family by bucket: requests are in the series of one priority and of
// one kind of streaming. Other lines are not looked at.
func parseHistograms(text []byte) (histograms, error) {
	cumulative := map[string]map[float64]float64{}
	for line := range bytes.Lines(text) {
		for _, family := range latencyFamilies() {
			rest, ok := bytes.CutPrefix(line, []byte(family+"_bucket{"))
			if !ok {
				continue
			}
			bound, count, err := parseBucket(string(bytes.TrimSpace(rest)))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", family, err)
			}
			if cumulative[family] == nil {
				cumulative[family] = map[float64]float64{}
			}
			cumulative[family][bound] += count
		}
	}
	all := histograms{}
	for family, buckets := range cumulative {
		var d semantics.Distribution
		for bound := range buckets {
			if !math.IsInf(bound, 1) {
				d.Bounds = append(d.Bounds, bound)
			}
		}
		slices.Sort(d.Bounds)
		below := 0.0
		for _, bound := range append(slices.Clone(d.Bounds), math.Inf(1)) {
			count, ok := buckets[bound]
			if !ok || count < below {
				return nil, fmt.Errorf("%s: bucket le=%v holds %v, the one below %v", family, bound, count, below)
			}
			d.Counts = append(d.Counts, count-below)
			below = count
		}
		all[family] = d
	}
	return all, nil
}

// parseBucket reads what follows the brace of a bucket's line: LABELS,le="BOUND",LABELS} COUNT.
func parseBucket(rest string) (bound, count float64, err error) {
	end := strings.LastIndexByte(rest, '}')
	if end < 0 {
		return 0, 0, fmt.Errorf("line %.80q has no closing brace", rest)
	}
	// le is the last label that the exposition writes, but a value of another may hold the same text: look from the end.
	at := strings.LastIndex(rest[:end], `le="`)
	if at < 0 || (at > 0 && rest[at-1] != ',') {
		return 0, 0, fmt.Errorf("line %.80q has no label le", rest)
	}
	value, _, ok := strings.Cut(rest[at+4:end], `"`)
	if !ok {
		return 0, 0, fmt.Errorf("line %.80q has an open label le", rest)
	}
	if bound, err = strconv.ParseFloat(value, 64); err != nil || math.IsNaN(bound) {
		return 0, 0, fmt.Errorf("le=%.40q is no bound", value)
	}
	number, _, _ := strings.Cut(strings.TrimSpace(rest[end+1:]), " ")
	// An engine counts as many tokens in days as are no number of a gauge any more.
	if count, err = strconv.ParseFloat(number, 64); err != nil || !(count >= 0 && count <= maxCount) {
		return 0, 0, fmt.Errorf("le=%s holds %.40q, which is no count", value, number)
	}
	return bound, count, nil
}
