package metrics

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// constant is a gauge with a value of one scrape. There is one for each condition of each object, so it is made of few parts:
// prometheus.NewConstMetric makes three for each label.
type constant struct {
	desc  *prometheus.Desc
	pairs []*dto.LabelPair // in the order of their names
	value float64
}

// newConstant makes a gauge of a family with labels of these names, with a value for each.
func newConstant(desc *prometheus.Desc, names []string, value float64, values []string) prometheus.Metric {
	pairs := make([]dto.LabelPair, len(names))
	c := &constant{desc: desc, value: value, pairs: make([]*dto.LabelPair, len(names))}
	for i := range names {
		pairs[i].Name, pairs[i].Value = &names[i], &values[i]
		c.pairs[i] = &pairs[i]
	}
	slices.SortFunc(c.pairs, func(a, b *dto.LabelPair) int { return strings.Compare(*a.Name, *b.Name) })
	return c
}

// Desc implements prometheus.Metric.
func (c *constant) Desc() *prometheus.Desc { return c.desc }

// Write implements prometheus.Metric.
func (c *constant) Write(out *dto.Metric) error {
	out.Label, out.Gauge = c.pairs, &dto.Gauge{Value: &c.value}
	return nil
}
