package docrun

import (
	"regexp"
	"strings"
)

// elisions stand for what varies: in a line for any text, alone on a line for any number of lines, also none.
var elisions = []string{"…", "..."}

var number = regexp.MustCompile(`\d+(\.\d+)?`)

// Match says whether an output is the one that stands in a page. Blanks count as one, at the ends of lines as none, and empty
// lines at the end not at all. With numbers any number may stand where the page has one.
func Match(want, got string, numbers bool) bool {
	wants, gots := matchLines(want, numbers), matchLines(got, numbers)
	// fits[j]: the wanted lines so far are the first j lines of the output.
	fits := make([]bool, len(gots)+1)
	fits[0] = true
	for _, line := range wants {
		next := make([]bool, len(gots)+1)
		switch {
		case isElision(line):
			reached := false
			for j := range next {
				reached = reached || fits[j]
				next[j] = reached
			}
		default:
			for j := range gots {
				next[j+1] = fits[j] && matchLine(line, gots[j])
			}
		}
		fits = next
	}
	return fits[len(gots)]
}

func isElision(text string) bool {
	for _, e := range elisions {
		if text == e {
			return true
		}
	}
	return false
}

// matchLines gives the lines of a text in the form in which they are compared.
func matchLines(text string, numbers bool) []string {
	text = strings.TrimRight(text, " \t\r\n")
	if text == "" {
		return nil
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if numbers {
			line = number.ReplaceAllString(line, "0")
		}
		lines[i] = strings.Join(strings.Fields(line), " ")
	}
	return lines
}

// matchLine compares two lines; elisions of the wanted one stand for any text.
func matchLine(want, got string) bool {
	for _, e := range elisions[1:] {
		want = strings.ReplaceAll(want, e, elisions[0])
	}
	parts := strings.Split(want, elisions[0])
	if len(parts) == 1 {
		return want == got
	}
	first, last := parts[0], parts[len(parts)-1]
	rest, ok := strings.CutPrefix(got, first)
	if !ok {
		return false
	}
	if rest, ok = strings.CutSuffix(rest, last); !ok {
		return false
	}
	for _, part := range parts[1 : len(parts)-1] {
		_, after, found := strings.Cut(rest, part)
		if !found {
			return false
		}
		rest = after
	}
	return true
}
