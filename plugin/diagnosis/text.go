package diagnosis

import (
	"fmt"
	"strconv"
	"strings"
)

// Text shows the report: the conclusion with its numbers, and the five paths; all also shows every number that was looked at.
func (r *Report) Text(all bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", r.Cause, r.Conclusion.Says)
	if r.Conclusion.Where != "all pools" {
		fmt.Fprintf(&b, "  where  %s\n", r.Conclusion.Where)
	}
	fmt.Fprintf(&b, "  do     %s\n", r.Conclusion.Do)
	for _, e := range r.Conclusion.Evidence {
		fmt.Fprintf(&b, "  %s\n", e)
	}
	if len(r.Also) > 0 {
		causes := make([]string, len(r.Also))
		for i, cause := range r.Also {
			causes[i] = string(cause)
		}
		fmt.Fprintf(&b, "also: %s, which may follow from it\n", strings.Join(causes, ", "))
	}
	fmt.Fprintf(&b, "\nthe five paths, over %s s (docs/diagnosis.md):\n", short(r.Seconds))
	for i, path := range r.Paths {
		found := "nothing found"
		if len(path.Findings) > 0 {
			causes := make([]string, len(path.Findings))
			for j, f := range path.Findings {
				causes[j] = fmt.Sprintf("%s (%s)", f.Cause, f.Where)
			}
			found = strings.Join(causes, ", ")
		}
		fmt.Fprintf(&b, "%d. %s  %s\n", i+1, path.Name, found)
		if !all {
			continue
		}
		for _, e := range path.Evidence {
			fmt.Fprintf(&b, "     %s\n", e)
		}
	}
	for _, text := range r.Missing {
		fmt.Fprintf(&b, "missing: %s\n", text)
	}
	return b.String()
}

// String gives "KV memory that is locked 0.93 (at least 0.9: yes)  chat-decode-0-0 DP rank 0".
func (e Evidence) String() string {
	text := e.What + " " + strconv.FormatFloat(e.Value, 'f', decimals(e.Value), 64)
	if e.Unit != "" {
		text += " " + e.Unit
	}
	if e.Bound != "" {
		answer := "no"
		if e.Beyond {
			answer = "yes"
		}
		text += fmt.Sprintf(" (%s: %s)", e.Bound, answer)
	}
	return text + "  " + e.Where
}

func decimals(x float64) int {
	switch {
	case x >= 100:
		return 0
	case x >= 1:
		return 1
	default:
		return 3
	}
}

func short(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
