package metrics

import (
	"bytes"
	"math"
	"strconv"
	"strings"
)

// syntax is one of the two ways in which an exposition is written as text. What is written is, byte for byte, what the
// encoder of prometheus/common writes of the same families.
type syntax uint8

const (
	plainText syntax = iota
	openMetrics

	syntaxes // how many there are
)

const totalSuffix = "_total"

// template is the text of one series without its values. The text before value i is text[cuts[i]:cuts[i+1]].
//
// Invariant: one cut more than values, rising, the first 0, the last len(text).
type template struct {
	text []byte
	cuts []int32
}

func (t *template) line(parts ...[]byte) {
	if t.cuts == nil {
		t.cuts = []int32{0}
	}
	for _, p := range parts {
		t.text = append(t.text, p...)
	}
	t.text = append(t.text, ' ')
	t.cuts = append(t.cuts, int32(len(t.text)))
}

// newTemplate writes the lines of a series: a counter or gauge has one, a histogram its buckets, its sum and its count.
func newTemplate(m *mergedSeries, s syntax) *template {
	t, name := &template{}, []byte(m.family.Name)
	if m.family.Kind != Histogram {
		t.line(name, m.braces(s, nil))
		return t
	}
	bucket := append(bytes.Clone(name), "_bucket"...)
	for i := range m.bounds {
		t.line(bucket, m.braces(s, &m.bounds[i]))
	}
	inf := math.Inf(1)
	t.line(bucket, m.braces(s, &inf))
	t.line(name, []byte("_sum"), m.braces(s, nil))
	t.line(name, []byte("_count"), m.braces(s, nil))
	return t
}

// braces writes the labels of a series, with the bound of a bucket as the last one; nothing when there are none.
func (m *mergedSeries) braces(s syntax, bound *float64) []byte {
	var out []byte
	open := byte('{')
	for _, l := range m.labels {
		out = append(append(append(out, open), l.Name...), `="`...)
		out = append(append(out, escapeQuoted.Replace(l.Value)...), '"')
		open = ','
	}
	if bound != nil {
		out = append(append(out, open), `le="`...)
		out = append(appendFloat(out, s, *bound), '"')
	}
	if out != nil {
		out = append(out, '}')
	}
	return out
}

var (
	escape       = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	escapeQuoted = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

// appendHead writes the lines that begin a family.
func appendHead(b []byte, f *Family, s syntax) []byte {
	name, help := f.Name, escape.Replace(f.Help)
	if s == openMetrics {
		help = escapeQuoted.Replace(f.Help)
		if f.Kind == Counter {
			name = strings.TrimSuffix(name, totalSuffix)
		}
	}
	b = append(append(append(append(append(b, "# HELP "...), name...), ' '), help...), '\n')
	return append(append(append(append(append(b, "# TYPE "...), name...), ' '), f.Kind.String()...), '\n')
}

// appendSeries writes the lines of a series with the values of the scrape in progress.
func (m *mergedSeries) appendSeries(b []byte, s syntax) []byte {
	if m.templates[s] == nil {
		m.templates[s] = newTemplate(m, s)
	}
	t, line := m.templates[s], 0
	next := func() {
		b = append(b, t.text[t.cuts[line]:t.cuts[line+1]]...)
		line++
	}
	if m.family.Kind != Histogram {
		next()
		return append(appendFloat(b, s, m.value), '\n')
	}
	total := uint64(0)
	for _, n := range m.counts {
		total += n
		next()
		b = append(appendCount(b, s, total), '\n')
	}
	next()
	b = append(appendFloat(b, s, m.value), '\n')
	next()
	return append(appendCount(b, s, total), '\n')
}

// lines is how many samples a series has in an exposition, which is how many series Prometheus makes of it.
func (m *mergedSeries) lines() int {
	if m.family.Kind == Histogram {
		return len(m.counts) + 2
	}
	return 1
}

// exactInts is where the shortest text of a whole float begins to have an exponent.
const exactInts = 1e6

// appendFloat writes a value as the syntax wants it.
func appendFloat(b []byte, s syntax, v float64) []byte {
	switch {
	case v > -exactInts && v < exactInts && v == math.Trunc(v):
		b = strconv.AppendInt(b, int64(v), 10)
		if s == openMetrics {
			b = append(b, ".0"...)
		}
		return b
	case math.IsNaN(v):
		return append(b, "NaN"...)
	case math.IsInf(v, 1):
		return append(b, "+Inf"...)
	case math.IsInf(v, -1):
		return append(b, "-Inf"...)
	}
	from := len(b)
	b = strconv.AppendFloat(b, v, 'g', -1, 64)
	if s == openMetrics && !bytes.ContainsAny(b[from:], "e.") {
		b = append(b, ".0"...)
	}
	return b
}

// appendCount writes the count of a histogram: the text format has floats only.
func appendCount(b []byte, s syntax, n uint64) []byte {
	if s == openMetrics || n < exactInts {
		return strconv.AppendUint(b, n, 10)
	}
	return appendFloat(b, s, float64(n))
}
