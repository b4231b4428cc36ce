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
	text, _ := lookup("SGLANG_BUCKET_EVICTION_DURATION")
	if strings.TrimSpace(text) == "" {
		return nil
	}
	var bounds []float64
	for _, word := range strings.Split(text, ",") {
		v, err := strconv.ParseFloat(strings.TrimSpace(word), 64)
		if err != nil {
			return fmt.Errorf("SGLANG_BUCKET_EVICTION_DURATION is %q: give seconds with commas between, such as 0.001,0.01,0.1", text)
		}
		bounds = append(bounds, v)
	}
	sorted, err := metrics.CheckBuckets(bounds)
	if err != nil {
		return fmt.Errorf("SGLANG_BUCKET_EVICTION_DURATION is %q: %w", text, err)
	}
	r.Metrics.EvictionBuckets = sorted
	return nil
}
