package rules

import (
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// objective is one latency objective of a service, ready to be measured.
type objective struct {
	key    string // value of the label slo: ttft or itl
	what   string // of what the objective is, for people
	alert  string
	family string
	anchor string

	threshold time.Duration
	share     float64 // that has to be good
	bound     float64 // at which it is measured, in seconds
	exact     bool    // the threshold is a bound
}

// budget is the share that may be slow.
func (o objective) budget() float64 { return 1 - o.share }

// burn is one pair of windows of a multi-window, multi-burn-rate alert: the budget of 30 days burns factor times too fast
// over the long window, which is significant, and over the short one, so that the alert ends soon after the burning does.
type burn struct {
	factor      float64
	long, short string
	wait        string // for
	severity    string
}

// burns are the pairs that the practice recommends: 2 % of the budget of 30 days within an hour and 5 % within six call
// somebody, 10 % within three days (at two speeds) make a ticket.
var burns = []burn{
	{14.4, "1h", "5m", "2m", severityCritical},
	{6, "6h", "30m", "15m", severityCritical},
	{3, "1d", "2h", "1h", severityWarning},
	{1, "3d", "6h", "3h", severityWarning},
}

// windows are those of burns, in order of their length.
var windows = []string{"5m", "30m", "1h", "2h", "6h", "1d", "3d"}

const (
	// fewSlow events within the long window say nothing yet: with little traffic a single one would burn the budget.
	fewSlow = 5
	// highestShare of slow events that an alert asks for: with a loose objective a factor could ask for more than all.
	highestShare = 0.9
)

// slowAbove is the share of slow events above which a pair fires.
func (o objective) slowAbove(b burn) float64 {
	// The objective is a decimal; its difference to 1 is rounded to the same digits.
	v, _ := strconv.ParseFloat(strconv.FormatFloat(min(b.factor*o.budget(), highestShare), 'g', 6, 64), 64)
	return v
}

// objectives reads spec.slo. The error says which part of the service doesn't fit.
func objectives(service *v1alpha1.InferenceService) ([]objective, error) {
	if service.Spec.SLO == nil {
		return nil, nil
	}
	var list []objective
	for _, c := range []struct {
		objective
		flag string
		spec *v1alpha1.LatencyObjective
	}{
		{objective{key: "ttft", what: "first tokens", alert: "SluiceFirstTokenBudgetBurns", family: "sglang:time_to_first_token_seconds", anchor: "diagnosis.md#the-first-token-is-late"}, "--bucket-time-to-first-token", service.Spec.SLO.TTFT},
		{objective{key: "itl", what: "tokens after the first", alert: "SluiceTokenBudgetBurns", family: "sglang:inter_token_latency_seconds", anchor: "diagnosis.md#tokens-come-slowly"}, "--bucket-inter-token-latency", service.Spec.SLO.ITL},
	} {
		if c.spec == nil {
			continue
		}
		o := c.objective
		o.threshold, o.share = c.spec.Threshold.Duration, c.spec.Objective.AsApproximateFloat64()
		if o.threshold <= 0 || o.share <= 0 || o.share >= 1 {
			return nil, fmt.Errorf("spec.slo.%s: threshold %s and objective %s; give a time above 0 and a share between 0 and 1", o.key, o.threshold, c.spec.Objective.String())
		}
		bounds, err := commonBounds(service, o.family, c.flag)
		if err != nil {
			return nil, fmt.Errorf("spec.slo.%s: %w", o.key, err)
		}
		o.bound, o.exact = Snap(o.threshold.Seconds(), bounds)
		list = append(list, o)
	}
	return list, nil
}

const (
	slowShare = "service:sluice_slo_slow:ratio_rate"
	slowCount = "service:sluice_slo_slow:increase"
)

// sloRecordings are the share and the number of slow events within each window.
func sloRecordings(s *scope, o objective) []recording {
	label := map[string]string{"slo": o.key}
	var list []recording
	for _, w := range windows {
		list = append(list, recording{
			name: slowShare + w, labels: label, help: "share of events that were slower than the objective, by slo",
			expr: "1 - " + quotient(s.rate(o.family, "_bucket", w, nil, atMost(o.bound)), s.rate(o.family, "_count", w, nil)),
		})
	}
	for _, b := range burns {
		list = append(list, recording{
			name: slowCount + b.long, labels: label, help: "number of events that were slower than the objective, by slo",
			expr: s.increase(o.family, "_count", b.long, nil) + "\n-\n" + s.increase(o.family, "_bucket", b.long, nil, atMost(o.bound)),
		})
	}
	return list
}

// sloAlerts are the alerts of an objective, one a pair of windows.
func sloAlerts(s *scope, o objective) []alert {
	slo := `slo="` + o.key + `"`
	var list []alert
	for _, b := range burns {
		above := o.slowAbove(b)
		expr := fmt.Sprintf("%s > %s\nand\n%s > %s\nand\n%s >= %d",
			s.recorded(slowShare+b.long, slo), number(above), s.recorded(slowShare+b.short, slo), number(above), s.recorded(slowCount+b.long, slo), fewSlow)
		list = append(list, alert{
			name: o.alert, severity: b.severity, wait: b.wait, expr: expr, anchor: o.anchor,
			labels:  map[string]string{"window": b.long},
			summary: fmt.Sprintf("Of the %s of SERVICE, {{ $value | humanizePercentage }} were slower than %s within %s", o.what, o.threshold, b.long),
			description: fmt.Sprintf("The objective is that %s %% of the %s come within %s. Over %s and over %s more than %s %% were slower: the budget of 30 days burns %s times too fast.%s%s",
				percent(o.share), o.what, o.threshold, b.long, b.short, percent(above), number(round3(above/o.budget())), o.measured(), o.capped(b)),
			help: fmt.Sprintf("the budget of `spec.slo.%s` burns %s times too fast over %s and %s", o.key, number(b.factor), b.long, b.short),
		})
	}
	return list
}

// measured says at which bound the objective is measured where that is not the threshold.
func (o objective) measured() string {
	switch {
	case o.exact:
		return ""
	case o.bound < o.threshold.Seconds():
		return fmt.Sprintf(" Latencies are counted in buckets and %s is no bound of them: measured at %s s, the next below, so that what took between the two counts as slow.", o.threshold, number(o.bound))
	default:
		return fmt.Sprintf(" Latencies are counted in buckets and %s lies below all bounds: measured at %s s, the smallest, so that what took between the two counts as good.", o.threshold, number(o.bound))
	}
}

// capped says where the objective is too loose for the pair's factor.
func (o objective) capped(b burn) string {
	if b.factor*o.budget() <= highestShare {
		return ""
	}
	return fmt.Sprintf(" With this objective the budget cannot burn %s times too fast; the alert asks for %s %% instead.", number(b.factor), percent(highestShare))
}

// percent writes a share in percent, with the digits that it has.
func percent(share float64) string { return number(round3(100 * share)) }

func round3(v float64) float64 {
	v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 7, 64), 64)
	return v
}
