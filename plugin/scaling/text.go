package scaling

import (
	"fmt"
	"strings"
)

// Text shows the arithmetic, pool by pool, so that it can be done again by hand.
func (e *Explanation) Text() string {
	var b strings.Builder
	for i := range e.Pools {
		if i > 0 {
			b.WriteByte('\n')
		}
		e.Pools[i].text(&b)
	}
	if len(e.Pools) == 0 {
		b.WriteString("No pools found.\n")
	}
	for _, note := range e.Notes {
		fmt.Fprintf(&b, "note: %s\n", note)
	}
	return b.String()
}

func (p *Pool) text(b *strings.Builder) {
	fmt.Fprintf(b, "%s  %s: %s asked for, %d allocated, %d ready\n", p.Name, p.Role, replicas(p.Demand), p.Allocated, p.Ready)
	switch {
	case !p.Scaled:
		b.WriteString("  no autoscaling: the number is that of spec.pools[].replicas\n")
	case p.Now == nil:
		fmt.Fprintf(b, "  autoscaling between %d and %d by %s; its HorizontalPodAutoscaler is not there\n", p.Min, p.Max, p.Provider)
	default:
		fmt.Fprintf(b, "  autoscaling between %d and %d by %s\n", p.Min, p.Max, p.Provider)
		fmt.Fprintf(b, "  now: %d -> %d\n", p.Now.Current, p.Now.Desired)
		for _, in := range p.Now.Inputs {
			fmt.Fprintf(b, "    %s\n", in.words(p.Now.Current))
		}
		for _, text := range p.Now.Says {
			fmt.Fprintf(b, "    %s\n", text)
		}
	}
	if p.Condition != "" {
		fmt.Fprintf(b, "  ScalingActive: %s\n", p.Condition)
	}
	for i := range p.Decisions {
		p.Decisions[i].text(b)
	}
	if p.Scaled && len(p.Decisions) == 0 {
		b.WriteString("  no decision is recorded yet\n")
	}
	if c := p.LastChange; c != nil {
		fmt.Fprintf(b, "  last change of the replicas: %s %s: %s\n", c.Time, c.Action, c.Reason)
	}
}

func (d *Decision) text(b *strings.Builder) {
	fmt.Fprintf(b, "  %s  %d -> %d by %s\n", d.Time, d.From, d.To, d.By)
	for _, in := range d.Inputs {
		fmt.Fprintf(b, "    %s\n", in.words(d.From))
	}
	if d.Raw != nil {
		terms := make([]string, 0, len(d.Inputs))
		for _, in := range d.Inputs {
			if in.Computed != nil {
				terms = append(terms, fmt.Sprint(*in.Computed))
			}
		}
		text := fmt.Sprintf("max(%s) = %d", strings.Join(terms, ", "), *d.Raw)
		if d.Min != nil && d.Max != nil {
			text += fmt.Sprintf(", within [%d, %d]: %d", *d.Min, *d.Max, *d.Bounded)
		}
		if d.Agrees {
			text += fmt.Sprintf(", as decided: %d", d.To)
		} else {
			text += fmt.Sprintf(", but decided was %d", d.To)
			if d.Bound != "" {
				text += " (bound: " + d.Bound + ")"
			}
		}
		fmt.Fprintf(b, "    %s\n", text)
	}
	fmt.Fprintf(b, "    why: %s\n", d.Reason)
}

// words gives "Utilization 950m, target 800m: ceil(950m * 2 / 800m) = 3".
func (in *Input) words(current int32) string {
	name := in.Signal
	if name == "" {
		name = in.Metric
	}
	text := fmt.Sprintf("%s %s, target %s: ", name, in.Value, in.Target)
	switch {
	case in.Value == "":
		return fmt.Sprintf("%s has no value, target %s: it holds", name, in.Target)
	case in.Computed == nil:
		return text + "this can't be computed again"
	case in.Within:
		text += fmt.Sprintf("%s / %s is within a tenth of 1: stays %d", in.Value, in.Target, current)
	default:
		text += fmt.Sprintf("ceil(%s * %d / %s) = %d", in.Value, in.Replicas, in.Target, *in.Computed)
	}
	if in.Recorded != nil && *in.Recorded != *in.Computed {
		text += fmt.Sprintf(", recorded was %d", *in.Recorded)
	}
	return text
}

func replicas(n int32) string {
	if n == 1 {
		return "1 replica"
	}
	return fmt.Sprintf("%d replicas", n)
}
