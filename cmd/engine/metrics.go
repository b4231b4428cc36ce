package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-dev/sluice/engine/metrics"
	"github.com/sluice-dev/sluice/engine/rank"
)

// readMetricsEnvironment fills in what the environment says of a rank's metrics.
func readMetricsEnvironment(r *rank.Config, lookup func(string) (string, bool)) error {
	if text, set := lookup("SGLANG_ENABLE_METRICS_DEVICE_TIMER"); set {
		value, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("SGLANG_ENABLE_METRICS_DEVICE_TIMER is %q: give true or false", text)
		}
		r.Metrics.DeviceTimer = value
	}
	text, _ := lookup(evictionVariable)
	if strings.TrimSpace(text) == "" {
		return nil
	}
	bounds, err := readBounds(text)
	if err != nil {
		return fmt.Errorf("%s is %.100q: %w", evictionVariable, text, err)
	}
	r.Metrics.EvictionBuckets = bounds
	return nil
}

// evictionVariable holds the bounds of the eviction histogram, as SGLang reads them.
const evictionVariable = "SGLANG_BUCKET_EVICTION_DURATION"

// readBounds reads seconds with commas between, in any order.
func readBounds(text string) ([]float64, error) {
	var bounds []float64
	for word := range strings.SplitSeq(text, ",") {
		v, err := strconv.ParseFloat(strings.TrimSpace(word), 64)
		if err != nil {
			return nil, fmt.Errorf("%.100q is no number: give seconds with commas between, such as 0.001,0.01,0.1", strings.TrimSpace(word))
		}
		bounds = append(bounds, v)
	}
	return metrics.CheckBuckets(bounds)
}
