package contract

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Exposition is what one or several processes expose: those of a prefill and a decode engine together show more families
// than either.
type Exposition struct {
	families map[string][]*dto.MetricFamily // by name, one for each source that has it
	faults   []string
}

// Read adds a text exposition. source names it in faults.
func (e *Exposition) Read(source string, r io.Reader) error {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(r)
	if err != nil {
		return fmt.Errorf("read the exposition of %s: %w", source, err)
	}
	if e.families == nil {
		e.families = map[string][]*dto.MetricFamily{}
	}
	for name, f := range families {
		e.families[name] = append(e.families[name], f)
		e.checkSamples(source, f)
	}
	return nil
}

// Has reports whether there is a sample of the family.
func (e *Exposition) Has(name string) bool { return len(e.families[name]) > 0 }

// checkSamples looks for what no exposition may have, whatever the contract says.
func (e *Exposition) checkSamples(source string, f *dto.MetricFamily) {
	fault := func(format string, args ...any) {
		e.faults = append(e.faults, fmt.Sprintf("%s: %s: ", source, f.GetName())+fmt.Sprintf(format, args...))
	}
	seen := map[string]bool{}
	for _, m := range f.GetMetric() {
		key := seriesKey(m)
		if seen[key] {
			fault("series {%s} is there twice", key)
		}
		seen[key] = true
		switch {
		case m.Counter != nil:
			if v := m.Counter.GetValue(); math.IsNaN(v) || v < 0 {
				fault("a counter is %v", v)
			}
		case m.Histogram != nil:
			if what := histogramFault(m.Histogram); what != "" {
				fault("{%s}: %s", key, what)
			}
		}
	}
}

func seriesKey(m *dto.Metric) string {
	var pairs []string
	for _, l := range m.GetLabel() {
		pairs = append(pairs, l.GetName()+"="+strconv.Quote(l.GetValue()))
	}
	slices.Sort(pairs)
	return strings.Join(pairs, ",")
}

func histogramFault(h *dto.Histogram) string {
	bound, count := math.Inf(-1), uint64(0)
	for _, b := range h.GetBucket() {
		if b.GetUpperBound() <= bound || b.GetCumulativeCount() < count {
			return fmt.Sprintf("the bucket le=%v has %d after %d of le=%v", b.GetUpperBound(), b.GetCumulativeCount(), count, bound)
		}
		bound, count = b.GetUpperBound(), b.GetCumulativeCount()
	}
	switch {
	case !math.IsInf(bound, 1):
		return "there is no bucket le=+Inf"
	case count != h.GetSampleCount():
		return fmt.Sprintf("the count is %d, the bucket le=+Inf %d", h.GetSampleCount(), count)
	case math.IsNaN(h.GetSampleSum()):
		return "the sum is not a number"
	}
	return ""
}
