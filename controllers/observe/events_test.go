package observe

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/controllers/semantics"
	"github.com/sluice-dev/sluice/engine/metrics"
)

func ttft(counts ...float64) semantics.Distribution {
	return semantics.Distribution{Bounds: []float64{0.5, 1}, Counts: counts}
}

func TestParseHistograms(t *testing.T) {
	const family = semantics.FamilyTTFT
	bucket := func(labels, count string) string { return family + "_bucket{" + labels + "} " + count + "\n" }
	for _, tc := range []struct {
		name   string
		reason string
		text   string
		want   histograms
		err    string
	}{
		{name: "None", reason: "an engine that had no request", text: "# TYPE x gauge\nx 1\n", want: histograms{}},
		{name: "SeriesAreAdded", reason: "streams, others and priorities are parts of the whole",
			text: bucket(`is_streaming="True",le="0.5"`, "1") + bucket(`is_streaming="True",le="1.0"`, "3") + bucket(`is_streaming="True",le="+Inf"`, "4") +
				bucket(`is_streaming="False",priority="2",le="0.5"`, "10") + bucket(`is_streaming="False",priority="2",le="1"`, "10") + bucket(`is_streaming="False",priority="2",le="+Inf"`, "11"),
			want: histograms{family: ttft(11, 2, 2)}},
		{name: "LabelsThatLookLikeIt", reason: "the last le is the bucket's", text: bucket(`model_name="a,le=\"9\"}",le="+Inf"`, "4"), want: histograms{family: {Counts: []float64{4}}}},
		{name: "NoInf", reason: "a histogram that is cut off", text: bucket(`le="0.5"`, "1"), err: "bucket le=+Inf holds 0"},
		{name: "Falling", reason: "buckets hold those below", text: bucket(`le="0.5"`, "5") + bucket(`le="+Inf"`, "4"), err: "bucket le=+Inf holds 4, the one below 5"},
		{name: "NaN", reason: "never a number", text: bucket(`le="+Inf"`, "NaN"), err: "which is no count"},
		{name: "AfterMonths", reason: "an engine counts each of its tokens", text: bucket(`le="0.5"`, "3e+09") + bucket(`le="1"`, "4e+09") + bucket(`le="+Inf"`, "4000000001"), want: histograms{family: ttft(3e9, 1e9, 1)}},
		{name: "Infinite", reason: "never a number", text: bucket(`le="+Inf"`, "+Inf"), err: "which is no count"},
		{name: "Negative", reason: "never a number", text: bucket(`le="+Inf"`, "-1"), err: "which is no count"},
		{name: "BadBound", reason: "no bound", text: bucket(`le="x"`, "1"), err: `le="x" is no bound`},
		{name: "NoBound", reason: "no bucket", text: bucket(`model="x"`, "1"), err: "has no label le"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parseHistograms([]byte(tc.text))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want %q: %s", err, tc.err, tc.reason)
				}
				return
			}
			if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
				t.Errorf("error %v (-want +got), %s:\n%s", err, tc.reason, diff)
			}
		})
	}
}

// TestHistogramsOfAnEngine reads what an engine really writes.
func TestHistogramsOfAnEngine(t *testing.T) {
	text, err := os.ReadFile("../../engine/metrics/testdata/decode.prom")
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseHistograms(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range latencyFamilies() {
		family, ok := metrics.Lookup(name)
		if !ok {
			t.Fatalf("%s is not in the table", name)
		}
		if d := got[name]; len(d.Bounds) == 0 || len(d.Counts) != len(d.Bounds)+1 || d.Total() == 0 || family.Kind != metrics.Histogram {
			t.Errorf("%s reads %+v", name, d)
		}
	}
}

func TestEventHistory(t *testing.T) {
	at := func(second int) time.Time { return epoch.Add(time.Duration(second) * time.Second) }
	reading := func(counts ...float64) histograms { return histograms{semantics.FamilyTTFT: ttft(counts...)} }
	var h eventHistory
	for _, step := range []struct {
		second int
		now    histograms
		want   map[string]semantics.Distribution
		reason string
	}{
		{0, reading(5, 5, 5), nil, "what was before is not of the window"},
		{10, reading(6, 5, 5), reading(1, 0, 0), "one since"},
		{20, reading(6, 7, 5), reading(1, 2, 0), "three since"},
		{30, reading(1, 0, 0), reading(2, 2, 0), "another process began, whose events are new"},
		{70, reading(1, 0, 4), reading(1, 2, 4), "the first one has left the window"},
		{140, reading(1, 0, 4), reading(0, 0, 0), "nothing of late"},
		{400, reading(9, 9, 9), nil, "the engine was not asked for minutes: when these came is not known"},
		{410, reading(9, 9, 10), reading(0, 0, 1), "one since"},
	} {
		if diff := cmp.Diff(step.want, h.add(at(step.second), step.now)); diff != "" {
			t.Errorf("second %d (-want +got), %s:\n%s", step.second, step.reason, diff)
		}
	}
	if h.stale(at(440)) || !h.stale(at(441)) {
		t.Error("the newest reading counts for 30 s")
	}
}

func FuzzParseHistograms(f *testing.F) {
	f.Add([]byte(semantics.FamilyTTFT + "_bucket{le=\"+Inf\"} 3\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := parseHistograms(text)
		if err != nil {
			return
		}
		for family, d := range all {
			if len(d.Counts) != len(d.Bounds)+1 {
				t.Errorf("%s: %+v", family, d)
			}
			for _, c := range d.Counts {
				if c < 0 {
					t.Errorf("%s: %+v", family, d)
				}
			}
		}
	})
}
