package metrics

import (
	"bytes"
	"os"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// TestMostSeries compares the bounds with real expositions, which have priorities and custom labels.
func TestMostSeries(t *testing.T) {
	for _, engineType := range []string{"unified", "prefill", "decode"} {
		t.Run(engineType, func(t *testing.T) {
			text, err := os.ReadFile("testdata/" + engineType + ".prom")
			if err != nil {
				t.Fatal(err)
			}
			parser := expfmt.NewTextParser(model.UTF8Validation)
			exposed, err := parser.TextToMetricFamilies(bytes.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			shape := Shape{EngineType: engineType, Ranks: 1, Priorities: true, CustomLabels: true, MaxValues: 4}
			for name, family := range exposed {
				f, ok := Lookup(name)
				if !ok {
					t.Errorf("%s is not in the table", name)
					continue
				}
				has := 0
				for _, m := range family.Metric {
					if has++; m.Histogram != nil {
						has += len(m.Histogram.Bucket) + 1 // the sum is one, and the count
					}
				}
				if most := f.MostSeries(shape); has > most {
					t.Errorf("%s has %d series, at most %d were expected", name, has, most)
				}
			}
		})
	}
}

// TestMostSeriesGrows: more ranks, priorities and bounds never make fewer series, and another role's families have none.
func TestMostSeriesGrows(t *testing.T) {
	for _, f := range Families() {
		one := f.MostSeries(Shape{EngineType: "decode", Ranks: 1})
		if has := f.Engines.Has("decode"); (one > 0) != has {
			t.Errorf("%s: %d series on decode, which has it: %t", f.Name, one, has)
		}
		for name, shape := range map[string]Shape{
			"two ranks":  {EngineType: "decode", Ranks: 2},
			"priorities": {EngineType: "decode", Ranks: 1, Priorities: true, CustomLabels: true},
			"values":     {EngineType: "decode", Ranks: 1, MaxValues: 2 * DefaultLabelValues},
			"bounds":     {EngineType: "decode", Ranks: 1, Bounds: maxBounds},
		} {
			if more := f.MostSeries(shape); more < one {
				t.Errorf("%s: %d series with %s, %d without", f.Name, more, name, one)
			}
		}
	}
}
