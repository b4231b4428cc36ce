package dashboard

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-dev/sluice/engine/metrics"
)

// Options say for whom a dashboard is built.
type Options struct {
	UID   string
	Title string
	Tags  []string
	// Folded closes all rows after the first.
	Folded bool

	// Datasource is the uid of a Prometheus data source. Empty: the reader chooses one.
	Datasource string
	// Fixed matchers go into every query; none of their labels may be a filter.
	Fixed []Matcher
	// Filters are labels of targets that readers may filter by: those that every series of a target has.
	Filters []string
	// TTFT and ITL are what requests and tokens should keep to, in seconds: bounds of the built-in buckets of their histograms.
	TTFT, ITL float64
	// Replica are labels of targets that tell engines apart, the parts of a legend. All nodes of one replica have the same
	// values.
	Replica []string
	// Router are those of Filters that series of routers have too.
	Router []string
	// Docs is the URL under which the pages of docs/ are, for links in panels; empty for no links.
	Docs string
}

// Matcher is label="value".
type Matcher struct{ Label, Value string }

// Standalone are the options of the checked-in dashboard, for a Prometheus that scrapes engines by address.
func Standalone() Options {
	return Options{
		UID: "sglang-dashboard", Title: "SGLang Dashboard", Tags: []string{"sluice", "sglang"}, Folded: true,
		Filters: []string{"namespace", "instance"}, Replica: []string{"instance"},
		TTFT: 1, ITL: 0.1,
	}
}

// The labels that engines put on series themselves, as far as readers filter by them.
var (
	modelLabels = []string{"model_name", "engine_type"}     // scheduler and front
	rankLabels  = []string{"dp_rank", "tp_rank", "pp_rank"} // scheduler
)

var labelName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

func (o Options) validate() error {
	if o.UID == "" || o.Title == "" {
		return fmt.Errorf("options: UID %q and Title %q must both be set", o.UID, o.Title)
	}
	if len(o.Replica) == 0 {
		return fmt.Errorf("options: Replica is empty; name the labels that tell engines apart, such as instance")
	}
	seen := map[string]bool{}
	for _, label := range slices.Concat(o.Filters, modelLabels, rankLabels) {
		if !labelName.MatchString(label) || seen[label] {
			return fmt.Errorf("options: Filters name label %q, which is not a label name, named twice or always a filter", label)
		}
		seen[label] = true
	}
	for _, m := range o.Fixed {
		if !labelName.MatchString(m.Label) || slices.Contains(o.Filters, m.Label) {
			return fmt.Errorf("options: Fixed has label %q, which is not a label name or also a filter", m.Label)
		}
	}
	for _, label := range o.Replica {
		if !labelName.MatchString(label) {
			return fmt.Errorf("options: Replica has label %q, which is not a label name", label)
		}
	}
	for name, target := range map[string]float64{"sglang:time_to_first_token_seconds": o.TTFT, "sglang:inter_token_latency_seconds": o.ITL} {
		if f, ok := metrics.Lookup(name); ok && !slices.Contains(f.Buckets, target) {
			return fmt.Errorf("options: TTFT or ITL is %v s, which is not one of the bounds %v of %s", target, f.Buckets, name)
		}
	}
	return nil
}

// fixed reports whether a matcher sets the label.
func (o Options) fixed(label string) bool {
	return slices.ContainsFunc(o.Fixed, func(m Matcher) bool { return m.Label == label })
}

// legend names a replica.
func (o Options) legend() string {
	parts := make([]string, len(o.Replica))
	for i, label := range o.Replica {
		parts[i] = "{{" + label + "}}"
	}
	return strings.Join(parts, " ")
}
