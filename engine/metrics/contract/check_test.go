package contract

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const list = `
# a comment
sglang:load type=gauge role=scheduler group=basics merge=mostrecent labels=model,rank may=+extra,priority
sglang:keys type=gauge role=scheduler group=keys merge=mostrecent labels=gt,le bounds=1,2.5
sglang:done_total type=counter role=front group=basics merge=sum labels=model may=+custom
sglang:time_seconds type=histogram role=front group=times merge=sum buckets=0.1,1
sglang:never type=gauge role=front group=times merge=mostrecent
`

func parse(t testing.TB, text string) *Contract {
	t.Helper()
	c, err := Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const good = `# TYPE sglang:load gauge
sglang:load{model="m",rank="0",priority="",zone="b"} -1
# TYPE sglang:keys gauge
sglang:keys{gt="0",le="1"} 1
sglang:keys{gt="1",le="2.5"} 0
sglang:keys{gt="2.5",le="+Inf"} 0
# TYPE sglang:done_total counter
sglang:done_total{model="m",team="red"} 3
# TYPE sglang:time_seconds histogram
sglang:time_seconds_bucket{le="0.1"} 1
sglang:time_seconds_bucket{le="1"} 2
sglang:time_seconds_bucket{le="+Inf"} 2
sglang:time_seconds_sum 0.7
sglang:time_seconds_count 2
# TYPE go_goroutines gauge
go_goroutines 3
`

func TestCheck(t *testing.T) {
	replace := func(pairs ...string) string { return strings.NewReplacer(pairs...).Replace(good) }
	for _, c := range []struct {
		name, reason, text string
		absent             map[string]string
		faults             []string
		missing            []string
	}{
		{"good", "extra and custom labels are allowed where the contract says so", good, map[string]string{"sglang:never": "no mechanism"}, nil, nil},
		{"missing", "", good, nil, nil, []string{"sglang:never"}},
		{"absent and there", "the list is wrong then", good, map[string]string{"sglang:load": "no load", "sglang:never": "x"}, []string{"sglang:load: is there, but is on the list of absent families (no load)"}, nil},
		{"type", "", replace("keys gauge", "keys counter"), nil, []string{"sglang:keys: is a counter, in the contract a gauge"}, []string{"sglang:never"}},
		{"label lacking", "", replace(`rank="0",`, ""), nil, []string{"sglang:load: lacks the label rank"}, []string{"sglang:never"}},
		{"label unknown", "", replace(`zone`, "planet"), nil, []string{"sglang:load: has the label planet, which the contract does not know"}, []string{"sglang:never"}},
		{"bounds", "exact to the last bit", replace(`le="0.1"`, `le="0.10000000000000002"`), nil, []string{"sglang:time_seconds: has the bounds [0.10000000000000002 1], in the contract [0.1 1]"}, []string{"sglang:never"}},
		{"intervals", "", replace(`gt="1",le="2.5"`, `gt="1",le="2"`), nil, []string{"sglang:keys: has the intervals map[0:1 1:2 2.5:+Inf], in the contract those between 0, [1 2.5] and +Inf"}, []string{"sglang:never"}},
		{"negative counter", "", replace("} 3", "} -3"), nil, []string{"x: sglang:done_total: a counter is -3"}, []string{"sglang:never"}},
		{"NaN counter", "", replace("} 3", "} NaN"), nil, []string{"x: sglang:done_total: a counter is NaN"}, []string{"sglang:never"}},
		{"buckets fall", "they are cumulative", replace(`le="0.1"} 1`, `le="0.1"} 5`), nil, []string{"x: sglang:time_seconds: {}: the bucket le=1 has 2 after 5 of le=0.1"}, []string{"sglang:never"}},
		{"count", "it is the last bucket", replace("_count 2", "_count 3"), nil, []string{"x: sglang:time_seconds: {}: the count is 3, the bucket le=+Inf 2"}, []string{"sglang:never"}},
		{"unknown name", "", good + "sglang:mine 1\n", nil, []string{"sglang:mine: not in the contract"}, []string{"sglang:never"}},
		{"twice", "a scraper takes one of them", replace("# TYPE sglang:keys", "sglang:load{rank=\"0\",model=\"m\",priority=\"\",zone=\"b\"} 2\n# TYPE sglang:keys"), nil,
			[]string{`x: sglang:load: series {model="m",priority="",rank="0",zone="b"} is there twice`}, []string{"sglang:never"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var e Exposition
			if err := e.Read("x", strings.NewReader(c.text)); err != nil {
				t.Fatal(err)
			}
			r := parse(t, list).Check(&e, Options{Extra: []string{"zone"}, Absent: c.absent})
			var missing []string
			for _, g := range r.Groups {
				missing = append(missing, g.Missing...)
			}
			if diff := cmp.Diff([2][]string{c.faults, c.missing}, [2][]string{r.Faults, missing}); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
			if r.OK() != (c.faults == nil && c.missing == nil) {
				t.Errorf("OK is %v", r.OK())
			}
		})
	}
}

// Several expositions together show what each has.
func TestExpositionsAreMerged(t *testing.T) {
	var e Exposition
	for source, text := range map[string]string{"a": good, "b": "# TYPE sglang:never gauge\nsglang:never 1\n# TYPE sglang:load gauge\nsglang:load{model=\"m\",rank=\"0\"} 1\n"} {
		if err := e.Read(source, strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	r := parse(t, list).Check(&e, Options{Groups: []string{"times"}, Extra: []string{"zone"}})
	want := Report{Groups: []Coverage{{Group: "times", Present: 2, Of: 2}}}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	var out bytes.Buffer
	if err := r.Write(&out); err != nil {
		t.Fatal(err)
	}
	if want := "times                2 of 2  \n2 of 2 families, 0 faults\n"; out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"a type=gauge group=g\na type=gauge group=g", "line 2: a is there twice"},
		{"a type=flag group=g", `line 1: a: type is "flag": write counter, gauge, histogram or summary`},
		{"a type=gauge", "line 1: a: group is missing"},
		{"a type=gauge group=g buckets=1,x", `line 1: a: "x" is not a number`},
		{"a gauge", `line 1: a: "gauge" has no value: write key=value`},
		{"a kind=gauge", `line 1: a: field "kind" is not known: write type, role, group, merge, labels, may, buckets or bounds`},
	} {
		if _, err := Parse(strings.NewReader(c.text)); err == nil || err.Error() != c.want {
			t.Errorf("%q: %v, want %s", c.text, err, c.want)
		}
	}
	for _, text := range []string{"a", "a x\na y"} {
		if _, err := ParseAbsent(strings.NewReader(text)); err == nil {
			t.Errorf("%q is a list of absent families", text)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(list)
	data, err := os.ReadFile(filepath.Join("..", "testdata", "contract.txt"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(data))
	f.Add("a type=gauge group=g may=,+ labels=")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, family := range c.Families() {
			if got, ok := c.Lookup(family.Name); !ok || got.Name != family.Name {
				t.Errorf("%s is not found", family.Name)
			}
		}
	})
}
