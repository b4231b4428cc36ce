package docrun

import (
	"fmt"
	"strings"
)

// Step is a command of a block with the output that stands below it.
type Step struct {
	Line    int    // in the page
	Command string // of one line or several
	Want    string // "" when nothing stands below; then any output will do
}

// prompt begins the first line of a command in a block that shows outputs too.
const prompt = "$ "

// Steps takes a block apart. Where a line begins with the prompt "$ ", such lines are commands, and what stands below one is
// its output; else all lines are commands. A command goes on over the next lines while a quote or a here-document is open, or
// its line ends with a backslash, a pipe, && or ||. Lines of commands that are empty or a comment are left out.
func (b Block) Steps() ([]Step, error) {
	lines := strings.Split(strings.TrimSuffix(b.Text, "\n"), "\n")
	prompts := false
	for _, line := range lines {
		prompts = prompts || strings.HasPrefix(line, prompt)
	}
	var steps []Step
	for i := 0; i < len(lines); i++ {
		line, isCommand := strings.CutPrefix(lines[i], prompt)
		at := b.Line + i
		if prompts && !isCommand {
			if len(steps) == 0 {
				return nil, fmt.Errorf("%s:%d: there is output before the first command", b.Page, at)
			}
			steps[len(steps)-1].Want += lines[i] + "\n"
			continue
		}
		command := line
		for !complete(command) {
			if i++; i == len(lines) {
				return nil, fmt.Errorf("%s:%d: the command has no end: a quote, a here-document or a continued line is open", b.Page, at)
			}
			command += "\n" + lines[i]
		}
		if text := strings.TrimSpace(command); text == "" || text[0] == '#' && !strings.Contains(text, "\n") {
			if prompts {
				return nil, fmt.Errorf("%s:%d: there is no command behind the prompt", b.Page, at)
			}
			continue
		}
		steps = append(steps, Step{Line: at, Command: command})
	}
	for i := range steps {
		steps[i].Want = strings.TrimRight(steps[i].Want, "\n")
		if steps[i].Want != "" {
			steps[i].Want += "\n"
		}
	}
	return steps, nil
}

// complete says whether a shell would run the text and not wait for another line of it.
func complete(text string) bool {
	var quote byte        // the quote that is open: ' or "; 0 for none
	var waiting []hereDoc // here-documents whose text begins with the next line
	last := ""            // the operator or word that ends the text
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case quote == '\'':
			if c == '\'' {
				quote = 0
			}
		case c == '\\':
			if i++; i == len(text) {
				return false
			}
			if text[i] != '\n' {
				last = "word"
			}
		case quote == '"':
			if c == '"' {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote, last = c, "word"
		case c == '#' && (i == 0 || strings.IndexByte(" \t\n;&|(", text[i-1]) >= 0):
			for i+1 < len(text) && text[i+1] != '\n' {
				i++
			}
		case c == '\n':
			if len(waiting) > 0 {
				rest, closed := skip(text[i+1:], waiting)
				if !closed {
					return false
				}
				i, waiting = len(text)-len(rest)-1, nil
			}
			if last != "|" && last != "&&" && last != "||" {
				last = ""
			}
		case strings.HasPrefix(text[i:], "<<<"):
			i, last = i+2, "word"
		case strings.HasPrefix(text[i:], "<<"):
			doc, n := hereDocAt(text[i+2:])
			if n == 0 {
				return false
			}
			waiting, i, last = append(waiting, doc), i+1+n, "word"
		case strings.HasPrefix(text[i:], "&&"), strings.HasPrefix(text[i:], "||"):
			last, i = text[i:i+2], i+1
		case c == '|':
			last = "|"
		case c != ' ' && c != '\t':
			last = "word"
		}
	}
	return quote == 0 && len(waiting) == 0 && last != "|" && last != "&&" && last != "||"
}

// hereDoc is the end of a here-document: a line that is word, behind tabs where tabs are allowed.
type hereDoc struct {
	word string
	tabs bool
}

// hereDocAt reads what stands behind <<; n is how much of the text that is, 0 when there is no word.
func hereDocAt(text string) (doc hereDoc, n int) {
	rest := text
	if doc.tabs = strings.HasPrefix(rest, "-"); doc.tabs {
		rest = rest[1:]
	}
	rest = strings.TrimLeft(rest, " \t")
	end := strings.IndexAny(rest, " \t\n;&|<>()")
	if end < 0 {
		end = len(rest)
	}
	doc.word = strings.NewReplacer("'", "", `"`, "", `\`, "").Replace(rest[:end])
	if doc.word == "" {
		return hereDoc{}, 0
	}
	return doc, len(text) - len(rest) + end
}

// skip leaves the text of here-documents out; closed is false when one of them has no end.
func skip(text string, docs []hereDoc) (rest string, closed bool) {
	for _, doc := range docs {
		for {
			line, after, more := strings.Cut(text, "\n")
			text = after
			if doc.tabs {
				line = strings.TrimLeft(line, "\t")
			}
			if line == doc.word {
				break
			}
			if !more {
				return "", false
			}
		}
	}
	return text, true
}
