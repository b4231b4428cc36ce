package bench

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseDist(t *testing.T) {
	tests := []struct {
		name, reason, text string
		want               Dist
		err                string
	}{
		{name: "number", reason: "a number is a fixed length", text: "128", want: Dist{Kind: Fixed, A: 128}},
		{name: "named number", reason: "fixed has a name too", text: "fixed:7", want: Dist{Kind: Fixed, A: 7}},
		{name: "uniform", reason: "both ends are included", text: "uniform:4,9", want: Dist{Kind: Uniform, A: 4, B: 9}},
		{name: "normal", reason: "spaces do not matter", text: "normal:10, 2.5", want: Dist{Kind: Normal, A: 10, B: 2.5}},
		{name: "bounded", reason: "a third number bounds the tail", text: "lognormal:256,200,2048", want: Dist{Kind: Lognormal, A: 256, B: 200, Max: 2048}},
		{name: "unknown", reason: "the error names what there is", text: "zipf:1,2", err: "lognormal:MEAN,SD"},
		{name: "too few", reason: "uniform needs two", text: "uniform:4", err: "has 1 numbers"},
		{name: "too many", reason: "uniform is bounded anyway", text: "uniform:1,2,3", err: "has 3 numbers"},
		{name: "order", reason: "an empty range has no value", text: "uniform:9,4", err: "the smaller one first"},
		{name: "negative", reason: "lengths are not negative", text: "-3", err: "is no number from 0"},
		{name: "not a number", reason: "NaN parses as a float", text: "normal:NaN,1", err: "is no number from 0"},
		{name: "fraction", reason: "tokens are whole", text: "1.5", err: "whole number"},
		{name: "mean", reason: "the logarithm of 0 does not exist", text: "lognormal:0,1", err: "mean above 0"},
		{name: "empty", reason: "nothing is no number", text: "", err: "is no number"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseDist(tt.text)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("%s: error %v, want one with %q", tt.reason, err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s: %v", tt.reason, err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
			again, err := ParseDist(got.String())
			if err != nil || again != got {
				t.Errorf("String() is %q, which reads as %+v, %v", got.String(), again, err)
			}
		})
	}
}

func FuzzParseDist(f *testing.F) {
	for _, seed := range []string{"1", "uniform:1,2", "normal:3,4", "lognormal:5,6,7", "uniform:0,2147483647"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := ParseDist(text)
		if err != nil {
			return
		}
		d.Min = 1
		rng := random(1, 0, 0)
		for range 10 {
			if v := d.draw(rng); v < 1 {
				t.Errorf("%q draws %d", text, v)
			}
		}
	})
}

// TestDraws compares the moments of many draws with what the words promise.
func TestDraws(t *testing.T) {
	const n = 200_000
	tests := []struct {
		text     string
		mean, sd float64
		low, up  int // of every draw
	}{
		{text: "12", mean: 12, low: 12, up: 12},
		{text: "uniform:10,20", mean: 15, sd: math.Sqrt((11*11 - 1) / 12.0), low: 10, up: 20},
		{text: "normal:500,40", mean: 500, sd: 40, up: math.MaxInt32},
		{text: "lognormal:400,300", mean: 400, sd: 300, up: math.MaxInt32},
		{text: "lognormal:400,0", mean: 400, low: 400, up: 400},
	}
	for _, tt := range tests {
		d, err := ParseDist(tt.text)
		if err != nil {
			t.Fatal(err)
		}
		rng := random(11, 0, 0)
		sum, squares := 0.0, 0.0
		for range n {
			v := d.draw(rng)
			if v < tt.low || v > tt.up {
				t.Fatalf("%s draws %d, outside [%d, %d]", tt.text, v, tt.low, tt.up)
			}
			sum += float64(v)
			squares += (float64(v) - tt.mean) * (float64(v) - tt.mean)
		}
		if got := sum / n; math.Abs(got-tt.mean) > 0.01*tt.mean {
			t.Errorf("%s has mean %.2f, want %.2f", tt.text, got, tt.mean)
		}
		if got := math.Sqrt(squares / n); math.Abs(got-tt.sd) > 0.03*tt.sd+1e-9 {
			t.Errorf("%s has deviation %.2f, want %.2f", tt.text, got, tt.sd)
		}
	}
	bounded := Dist{Kind: Normal, A: 1, B: 100, Min: 1, Max: 5}
	rng := random(12, 0, 0)
	for range 1000 {
		if v := bounded.draw(rng); v < 1 || v > 5 {
			t.Fatalf("%v draws %d outside its bounds", bounded, v)
		}
	}
}
