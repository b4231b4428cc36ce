package observe

import (
	"math"
	"testing"
)

func TestNumber(t *testing.T) {
	for _, tc := range []struct {
		name   string
		reason string
		x      float64
		want   fixed
		ok     bool
	}{
		{name: "Zero", reason: "an idle engine reports a number", x: 0, want: 0, ok: true},
		{name: "FourDecimals", reason: "the wire has four decimals", x: 0.8125, want: 8125, ok: true},
		{name: "AboveOne", reason: "utilization may exceed 1", x: 1.25, want: 12500, ok: true},
		{name: "Sentinel", reason: "-1 means that a prefill engine reports none", x: -1},
		{name: "NaN", reason: "a missing value", x: math.NaN()},
		{name: "Inf", reason: "a division by zero", x: math.Inf(1)},
		{name: "NegativeInf", reason: "a division by zero", x: math.Inf(-1)},
		{name: "Absurd", reason: "sums must not overflow", x: 1e300},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := number(tc.x)
			if ok != tc.ok || (ok && got != tc.want) {
				t.Errorf("number(%v) = %d, %t; want %d, %t: %s", tc.x, got, ok, tc.want, tc.ok, tc.reason)
			}
		})
	}
}

func TestText(t *testing.T) {
	for _, tc := range []struct {
		n        fixed
		decimals int
		want     string
	}{
		{0, 2, "0.00"}, {1, 2, "0.00"}, {50, 2, "0.01"}, {49, 2, "0.00"}, {8125, 2, "0.81"}, {8150, 2, "0.82"},
		{10000, 2, "1.00"}, {9950, 2, "1.00"}, {123456, 1, "12.3"}, {123500, 1, "12.4"}, {5000, 0, "1"}, {700, 4, "0.0700"},
	} {
		if got := tc.n.text(tc.decimals); got != tc.want {
			t.Errorf("fixed(%d).text(%d) = %q, want %q", tc.n, tc.decimals, got, tc.want)
		}
	}
}
