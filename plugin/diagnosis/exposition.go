package diagnosis

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Exposition is one scrape: the series of /metrics by family. Names are spelled with "_" for ":".
type Exposition struct {
	families map[string]*dto.MetricFamily
}

// Parse reads the text form of /metrics.
func Parse(body []byte) (Exposition, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return Exposition{}, fmt.Errorf("read the metrics: %w", err)
	}
	e := Exposition{families: make(map[string]*dto.MetricFamily, len(families))}
	for name, family := range families {
		e.families[strings.ReplaceAll(name, ":", "_")] = family
	}
	return e, nil
}

// match is the labels that a series has to have.
type match map[string]string

func (m match) takes(labels []*dto.LabelPair) bool {
	for name, want := range m {
		got := "" // a label that is absent is empty
		for _, l := range labels {
			if l.GetName() == name {
				got = l.GetValue()
			}
		}
		if got != want {
			return false
		}
	}
	return true
}

func label(labels []*dto.LabelPair, name string) string {
	for _, l := range labels {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// values gives the numbers of a family's series that match, added by the value of a label; "" adds all. Of a histogram it is the
// sum of what was observed. Ranks of one data-parallel group tell the same, so the first of them counts.
func (e Exposition) values(family string, m match, by string) map[string]float64 {
	f := e.families[family]
	if f == nil {
		return nil
	}
	sums := map[string]float64{}
	for _, metric := range firsts(f, m) {
		key := ""
		if by != "" {
			key = label(metric.GetLabel(), by)
		}
		sums[key] += number(metric)
	}
	return sums
}

// place is where in its data-parallel group a rank is.
type place struct{ pp, tp int }

func placeOf(labels []*dto.LabelPair) place {
	at := func(name string) int {
		n, err := strconv.Atoi(label(labels, name))
		if err != nil {
			return 0
		}
		return n
	}
	return place{at("pp_rank"), at("tp_rank")}
}

func (p place) before(q place) bool { return p.pp < q.pp || p.pp == q.pp && p.tp < q.tp }

// firsts gives the series that match, of each data-parallel group those of its first rank.
func firsts(f *dto.MetricFamily, m match) []*dto.Metric {
	first := map[string]place{}
	var matching []*dto.Metric
	for _, metric := range f.GetMetric() {
		labels := metric.GetLabel()
		if !m.takes(labels) {
			continue
		}
		matching = append(matching, metric)
		dp, at := label(labels, "dp_rank"), placeOf(labels)
		if best, ok := first[dp]; !ok || at.before(best) {
			first[dp] = at
		}
	}
	return slices.DeleteFunc(matching, func(metric *dto.Metric) bool {
		labels := metric.GetLabel()
		return placeOf(labels) != first[label(labels, "dp_rank")]
	})
}

func number(m *dto.Metric) float64 {
	switch {
	case m.Gauge != nil:
		return m.GetGauge().GetValue()
	case m.Counter != nil:
		return m.GetCounter().GetValue()
	case m.Histogram != nil:
		return m.GetHistogram().GetSampleSum()
	case m.Untyped != nil:
		return m.GetUntyped().GetValue()
	default:
		return math.NaN()
	}
}

// total is the sum of the values; NaN when the family is absent.
func (e Exposition) total(family string, m match) float64 {
	if e.families[family] == nil {
		return math.NaN()
	}
	return e.values(family, m, "")[""]
}

// count is how many observations the histograms of a family have; NaN when it is absent.
func (e Exposition) count(family string, m match) float64 {
	f := e.families[family]
	if f == nil {
		return math.NaN()
	}
	n := 0.0
	for _, metric := range firsts(f, m) {
		n += float64(metric.GetHistogram().GetSampleCount())
	}
	return n
}

// increase is how much a counter or the sum of a histogram grew between two scrapes; NaN when it is absent or began anew.
func increase(before, after Exposition, family string, m match) float64 {
	return grown(before.total(family, m), after.total(family, m))
}

func grown(before, after float64) float64 {
	if !(after >= before) {
		return math.NaN()
	}
	return after - before
}
