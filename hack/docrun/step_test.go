package docrun

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSteps(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		text         string
		want         []Step
	}{
		{"outputs", "", "$ a\none\n\ntwo\n\n$ b   # why\n", []Step{{10, "a", "one\n\ntwo\n"}, {15, "b   # why", ""}}},
		{"without prompts", "every line is a command; comments and empty lines are none", "a\n\n# words\nb\n", []Step{{10, "a", ""}, {13, "b", ""}}},
		{"continued", "", "$ a \\\n  --b\nout\n", []Step{{10, "a \\\n  --b", "out\n"}}},
		{"piped", "", "a |\nb &&\nc\n", []Step{{10, "a |\nb &&\nc", ""}}},
		{"quotes", "a quote that is open takes the next line", "$ a '{\"b\":\n\"c\"}'\nout\n", []Step{{10, "a '{\"b\":\n\"c\"}'", "out\n"}}},
		{"an apostrophe in a comment", "", "a # doesn't\nb\n", []Step{{10, "a # doesn't", ""}, {11, "b", ""}}},
		{"a hash in a word", "", "a b#'c\nd'\n", []Step{{10, "a b#'c\nd'", ""}}},
		{"a here-document", "its lines are no outputs", "$ a <<'EOF'\n$ b\n\nEOF\nout\n", []Step{{10, "a <<'EOF'\n$ b\n\nEOF", "out\n"}}},
		{"with tabs", "", "a <<-EOF | b\n\tx\n\tEOF\nc\n", []Step{{10, "a <<-EOF | b\n\tx\n\tEOF", ""}, {13, "c", ""}}},
		{"two", "", "a <<A <<B\nA\nx\nB\nc\n", []Step{{10, "a <<A <<B\nA\nx\nB", ""}, {14, "c", ""}}},
		{"a here-string", "", "a <<< 'b'\nc\n", []Step{{10, "a <<< 'b'", ""}, {11, "c", ""}}},
		{"an escaped quote", "", "a \\'\nb\n", []Step{{10, "a \\'", ""}, {11, "b", ""}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Block{Page: "p.md", Line: 10, Text: tc.text}.Steps()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
	for _, tc := range []struct{ name, text, want string }{
		{"output first", "out\n$ a\n", "p.md:10: there is output before the first command"},
		{"an open quote", "$ a\n$ b '\n", "p.md:11: the command has no end"},
		{"no command", "$ \nout\n", "p.md:10: there is no command behind the prompt"},
	} {
		if _, err := (Block{Page: "p.md", Line: 10, Text: tc.text}).Steps(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}

// TestCompleteAsBash: what counts as complete is what bash takes, for every beginning of some commands by lines.
func TestCompleteAsBash(t *testing.T) {
	for _, whole := range []string{
		"curl -s x -d '{\"a\":\n 1}' \\\n  -H b", "cat <<'A' | tr a b\n$ (' \"\nA", "a=\"$(echo 'x y')\" # don't\necho \"\n$a\"", "true &&\n  false ||\n  echo x | \n cat",
		"echo a\\\n\\\nb", "cat <<A\n<<B\nA", "echo '<<A'", "echo x<<A\nA\n",
	} {
		lines := strings.SplitAfter(whole, "\n")
		for n := range lines {
			part := strings.Join(lines[:n+1], "")
			part = strings.TrimSuffix(part, "\n")
			out, err := exec.CommandContext(context.Background(), "bash", "-n", "-c", part).CombinedOutput()
			// bash warns of an open here-document, takes a backslash at the end for nothing, and refuses the rest.
			want := err == nil && !strings.Contains(string(out), "here-document") && !strings.HasSuffix(part, `\`)
			if got := complete(part); got != want {
				t.Errorf("complete(%q) = %t, bash: %v %s", part, got, err, out)
			}
		}
	}
}

// FuzzSteps: every line of a block is in exactly one step, or empty, or a comment.
func FuzzSteps(f *testing.F) {
	f.Add("$ a <<E\nx\nE\nout\n$ b\n")
	f.Add("a \\\nb |\nc # d\n'\n'\n")
	f.Fuzz(func(t *testing.T, text string) {
		steps, err := Block{Page: "p.md", Line: 1, Text: text}.Steps()
		if err != nil {
			return
		}
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		prompts := strings.HasPrefix(text, prompt) || strings.Contains(text, "\n"+prompt)
		next := 0
		for _, step := range steps {
			for ; next < step.Line-1; next++ {
				if line := strings.TrimSpace(lines[next]); prompts || line != "" && line[0] != '#' {
					if line != "" {
						t.Fatalf("line %q is in no step of %+v", lines[next], steps)
					}
				}
			}
			own := strings.Split(step.Command, "\n")
			for i, line := range own {
				if want := lines[next]; line != want && (i != 0 || prompt+line != want) {
					t.Fatalf("command line %q, the text has %q", line, want)
				}
				next++
			}
			if step.Want != "" {
				for _, line := range strings.Split(strings.TrimSuffix(step.Want, "\n"), "\n") {
					if line != lines[next] {
						t.Fatalf("output line %q, the text has %q", line, lines[next])
					}
					next++
				}
			}
		}
	})
}
