package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Kind is the shape of a distribution.
type Kind string

const (
	// Fixed gives A each time.
	Fixed Kind = "fixed"
	// Uniform gives each whole number of [A, B] as often.
	Uniform Kind = "uniform"
	// Normal has mean A and standard deviation B.
	Normal Kind = "normal"
	// Lognormal has mean A and standard deviation B: those of the values, not of their logarithm.
	Lognormal Kind = "lognormal"
)

// Dist is a distribution of whole numbers of at least Min, such as token counts or milliseconds. The zero value gives 0.
type Dist struct {
	Kind     Kind    `json:"kind"`
	A        float64 `json:"a"`
	B        float64 `json:"b,omitempty"`
	Min, Max int     `json:"-"` // bounds of every draw; Max 0: none
}

// ParseDist reads "128", "uniform:64,256", "normal:128,32" or "lognormal:256,200"; the last two take an upper bound as a
// third number.
func ParseDist(text string) (Dist, error) {
	kind, numbers, named := strings.Cut(text, ":")
	if !named {
		kind, numbers = string(Fixed), text
	}
	want := map[Kind][2]int{Fixed: {1, 1}, Uniform: {2, 2}, Normal: {2, 3}, Lognormal: {2, 3}}
	count, known := want[Kind(kind)]
	if !known {
		return Dist{}, fmt.Errorf("%q is no distribution: give a number, uniform:FROM,TO, normal:MEAN,SD or lognormal:MEAN,SD", text)
	}
	fields := strings.Split(numbers, ",")
	if len(fields) < count[0] || len(fields) > count[1] {
		return Dist{}, fmt.Errorf("%q has %d numbers: %s takes %d to %d", text, len(fields), kind, count[0], count[1])
	}
	values := make([]float64, 3)
	for i, field := range fields {
		v, err := strconv.ParseFloat(strings.TrimSpace(field), 64)
		if err != nil || !(v >= 0) || v > math.MaxInt32 {
			return Dist{}, fmt.Errorf("%q in %q is no number from 0 to %d", field, text, math.MaxInt32)
		}
		values[i] = v
	}
	d := Dist{Kind: Kind(kind), A: values[0], B: values[1], Max: int(values[2])}
	switch {
	case d.Kind == Fixed && d.A != math.Trunc(d.A):
		return Dist{}, fmt.Errorf("%q must be a whole number", text)
	case d.Kind == Uniform && (d.A > d.B || d.A != math.Trunc(d.A) || d.B != math.Trunc(d.B)):
		return Dist{}, fmt.Errorf("%q must have two whole numbers, the smaller one first", text)
	case d.Kind == Lognormal && d.A <= 0:
		return Dist{}, fmt.Errorf("%q must have a mean above 0", text)
	case len(fields) == 3 && d.Max < 1:
		return Dist{}, fmt.Errorf("%q must have an upper bound of at least 1", text)
	}
	return d, nil
}

// String gives what ParseDist reads.
func (d Dist) String() string {
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	if d.Kind == Fixed || d.Kind == "" {
		return number(d.A)
	}
	text := fmt.Sprintf("%s:%s,%s", d.Kind, number(d.A), number(d.B))
	if d.Max > 0 {
		text += "," + strconv.Itoa(d.Max)
	}
	return text
}

// Set is ParseDist for a flag; it keeps Min.
func (d *Dist) Set(text string) error {
	parsed, err := ParseDist(text)
	if err != nil {
		return err
	}
	parsed.Min = d.Min
	*d = parsed
	return nil
}

// Type names the value in a flag's help.
func (d *Dist) Type() string { return "dist" }

// draw gives one number.
func (d Dist) draw(rng *rand.Rand) int {
	var v float64
	switch d.Kind {
	case Uniform:
		v = d.A + float64(rng.Int64N(int64(d.B-d.A)+1))
	case Normal:
		v = d.A + d.B*rng.NormFloat64()
	case Lognormal:
		variance := math.Log1p((d.B / d.A) * (d.B / d.A))
		v = math.Exp(math.Log(d.A) - variance/2 + math.Sqrt(variance)*rng.NormFloat64())
	default:
		v = d.A
	}
	if d.Max > 0 {
		v = min(v, float64(d.Max))
	}
	return max(d.Min, int(math.Round(min(v, math.MaxInt32))))
}
