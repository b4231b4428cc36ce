package docrun

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestMatch(t *testing.T) {
	for _, tc := range []struct {
		name, want, got string
		numbers         bool
		matches         bool
	}{
		{name: "equal", want: "a b\nc\n", got: "a b\nc\n", matches: true},
		{name: "another word", want: "a b\n", got: "a c\n"},
		{name: "a line more", want: "a\n", got: "a\nb\n"},
		{name: "a line less", want: "a\nb\n", got: "a\n"},
		{name: "blanks", want: "NAME   AGE\nx      …\n", got: "NAME                AGE  \nx                   14s\n\n", matches: true},
		{name: "in a line", want: "chat-router-…   1/1   … \n", got: "chat-router-5cbc-x2x4z   1/1     Running\n", matches: true},
		{name: "in a line, but not that", want: "chat-router-… 1/1\n", got: "chat-router-5cbc 0/1\n"},
		{name: "three dots", want: "a ... c\n", got: "a b c\n", matches: true},
		{name: "twice in a line", want: "a…b…c\n", got: "a1b2c\n", matches: true},
		{name: "twice, in order", want: "a…b…c\n", got: "a2c1b\n"},
		{name: "the ends do not share", want: "ab…ba\n", got: "aba\n"},
		{name: "lines", want: "…\nb\n...\nd\n", got: "a\na\nb\nc\nd\n", matches: true},
		{name: "no lines", want: "…\nb\n…\n", got: "b\n", matches: true},
		{name: "lines, with a way back", want: "…\nb\nc\n", got: "b\nb\nc\n", matches: true},
		{name: "lines, but not those", want: "…\nb\n…\n", got: "a\nc\n"},
		{name: "numbers", want: "54.57 requests/s, 3 of 4\n", got: "1234 requests/s, 0.5 of 4\n", numbers: true, matches: true},
		{name: "numbers that count", want: "3 of 4\n", got: "2 of 4\n"},
		{name: "a number and a word", want: "3 of 4\n", got: "- of 4\n", numbers: true},
		{name: "nothing", want: "a\n", got: ""},
	} {
		if got := Match(tc.want, tc.got, tc.numbers); got != tc.matches {
			t.Errorf("%s: Match(%q, %q) = %t", tc.name, tc.want, tc.got, got)
		}
	}
}

// TestMatchAsRegexp compares random texts with a regular expression made of the page's.
func TestMatchAsRegexp(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	piece := func(letters string, most int) string {
		var b strings.Builder
		for range rng.IntN(most) {
			r := []rune(letters)
			b.WriteRune(r[rng.IntN(len(r))])
		}
		return b.String()
	}
	hits := 0
	for range 20000 {
		want, got := "x\n"+piece("ab…\n", 9)+"\nx", "x\n"+piece("ab\n", 9)+"\nx"
		var pattern strings.Builder
		lines := strings.Split(want, "\n")
		for _, line := range lines {
			if line == "…" {
				pattern.WriteString(`(?:[^\n]*\n)*`)
				continue
			}
			pattern.WriteString(strings.ReplaceAll(regexp.QuoteMeta(line), "…", `[^\n]*`) + `\n`)
		}
		naive := regexp.MustCompile(`\A` + pattern.String() + `\z`).MatchString(got + "\n")
		if naive {
			hits++
		}
		if Match(want, got, false) != naive {
			t.Fatalf("Match(%q, %q) = %t, the regular expression says %t", want, got, !naive, naive)
		}
	}
	if hits < 100 {
		t.Errorf("only %d pairs match", hits)
	}
}
