package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Report is what a run found, as it is written to JSON.
type Report struct {
	Version     string            `json:"version"` // of the program
	API         API               `json:"api"`
	Model       string            `json:"model"`
	Stream      bool              `json:"stream"`
	Load        Load              `json:"load"`
	Lengths     map[string]string `json:"distributions"` // by flag
	Interrupted bool              `json:"interrupted"`

	Servers   []Summary   `json:"servers"`
	Alternate Alternation `json:"alternate,omitempty"` // with two servers
	Ratios    []Ratio     `json:"ratios,omitempty"`    // second server ÷ first

	Notes   []string `json:"notes,omitempty"` // what a reader of the numbers must know
	Records []Record `json:"records,omitempty"`
}

// WriteJSON writes the report as indented JSON.
func (r *Report) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(r)
}

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	for i := range r.Servers {
		if i > 0 {
			b.WriteByte('\n')
		}
		r.Servers[i].table(&b)
	}
	if len(r.Ratios) > 0 {
		fmt.Fprintf(&b, "\nsecond ÷ first, %d %ss, 95%% confidence\n", r.Ratios[0].Units, map[Alternation]string{ByRequest: "pair", ByRound: "round"}[r.Alternate])
		ratioTable(&b, r.Ratios)
	}
	if r.Interrupted {
		b.WriteString("\ninterrupted: these are the requests until then\n")
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "\nnote: %s\n", note)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// table writes one server's account.
func (s *Summary) table(b *strings.Builder) {
	fmt.Fprintf(b, "%s\n", s.URL)
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	ended := fmt.Sprintf("%d completed", s.Completed)
	for _, part := range []struct {
		count int
		what  string
	}{{s.Failed, "failed"}, {s.Cancelled, "cancelled"}, {s.Interrupted, "interrupted"}} {
		if part.count > 0 {
			ended += fmt.Sprintf(", %d %s", part.count, part.what)
		}
	}
	fmt.Fprintf(t, "  requests\t%d: %s\n", s.Requests, ended)
	fmt.Fprintf(t, "  time\t%.2f s\n", s.Seconds)
	fmt.Fprintf(t, "  rate\t%.2f requests/s\n", s.RequestsPerSecond)
	if s.Goodput != nil {
		fmt.Fprintf(t, "  goodput\t%.2f requests/s\n", *s.Goodput)
	}
	cached := ""
	if s.CachedTokens != nil && s.InputTokens > 0 {
		cached = fmt.Sprintf(", %.1f%% of them cached", 100*float64(*s.CachedTokens)/float64(s.InputTokens))
	}
	fmt.Fprintf(t, "  input\t%d tokens, %.1f tokens/s%s\n", s.InputTokens, s.InputTokensPerSecond, cached)
	fmt.Fprintf(t, "  output\t%d tokens, %.1f tokens/s\n", s.OutputTokens, s.OutputTokensPerSecond)
	fmt.Fprintf(t, "  in flight\tmean %.1f, peak %d\n", s.ConcurrencyMean, s.ConcurrencyPeak)
	flush(t)

	if s.Completed > 0 {
		t = tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprint(t, "\tms\tmean\tp50\tp90\tp95\tp99\tmax\t\n")
		s.Latencies.rows(t, "")
		row(t, "send lag", s.SendLag)
		for i := range s.ByPriority {
			p := &s.ByPriority[i]
			p.rows(t, fmt.Sprintf(" of priority %d", p.Priority))
		}
		flush(t)
	}

	if s.Failed > 0 {
		b.WriteString("  errors\n")
		t = tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
		for _, e := range s.Errors {
			fmt.Fprintf(t, "    %d\t%s\t%s\n", e.Count, e.Kind, firstLine(e.Example))
		}
		flush(t)
	}
}

func (l *Latencies) rows(t *tabwriter.Writer, of string) {
	row(t, "TTFT"+of, l.TTFT)
	row(t, "ITL"+of, l.ITL)
	row(t, "TPOT"+of, l.TPOT)
	row(t, "E2E"+of, l.E2E)
}

func row(t *tabwriter.Writer, name string, d *Distribution) {
	if d != nil {
		fmt.Fprintf(t, "\t%s\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t\n", name, d.Mean, d.P50, d.P90, d.P95, d.P99, d.Max)
	}
}

func ratioTable(b *strings.Builder, ratios []Ratio) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "\t\tfirst\tsecond\tratio\tinterval\t\t\n")
	for i := range ratios {
		r := &ratios[i]
		interval, verdict := "-", "too few to tell"
		if r.Low != nil {
			interval, verdict = fmt.Sprintf("%.3f – %.3f", *r.Low, *r.High), "no difference shown"
		}
		if r.Differs() {
			verdict = "differs"
		}
		fmt.Fprintf(t, "\t%s\t%.2f\t%.2f\t%.3f\t%s\t%s\t\n", r.Name, r.First, r.Second, r.Ratio, interval, verdict)
	}
	flush(t)
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// flush can't fail: what is below is a strings.Builder.
func flush(t *tabwriter.Writer) { _ = t.Flush() }
