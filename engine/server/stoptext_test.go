package server

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sluice-dev/sluice/engine/request"
)

// spelled is a detokenizer whose tokens are bytes; it holds back half a rune as the real one does.
type spelled struct{ pending string }

func (d *spelled) Push(ids ...int32) string {
	for _, id := range ids {
		d.pending += string([]byte{byte(id)})
	}
	whole := len(d.pending)
	for whole > 0 && !utf8.ValidString(d.pending[:whole]) {
		whole--
	}
	text := d.pending[:whole]
	d.pending = d.pending[whole:]
	return text
}

func (d *spelled) Flush() string {
	rest := d.pending
	d.pending = ""
	return strings.ToValidUTF8(rest, "\uFFFD")
}

func spell(text string) []int32 {
	var ids []int32
	for _, b := range []byte(text) {
		ids = append(ids, int32(b))
	}
	return ids
}

func TestAnswerText(t *testing.T) {
	matched := func(stop string) *request.Finish {
		return &request.Finish{Type: request.FinishStop, MatchedStop: stop}
	}
	dot := int32('.')
	for _, tc := range []struct {
		name, reason string
		stops        []string
		keepStop     bool
		pieces       []string
		finish       *request.Finish
		want         []string
	}{
		{"no stop strings", "everything goes out at once", nil, false, []string{"ab", "c"}, &request.Finish{Type: request.FinishLength}, []string{"ab", "c"}},
		{"held and released", "what began like a stop string was none", []string{"END"}, false, []string{"aE", "N", "x"}, &request.Finish{Type: request.FinishLength}, []string{"a", "", "ENx"}},
		{"held until the end", "the end releases it", []string{"END"}, false, []string{"aEN"}, &request.Finish{Type: request.FinishLength}, []string{"aEN"}},
		{"cut across pieces", "the stop string never goes out", []string{"END"}, false, []string{"aE", "N", "D"}, matched("END"), []string{"a", "", ""}},
		{"cut inside the last token's piece", "an earlier one did not count", []string{"x"}, false, []string{"ax", "bx"}, matched("x"), []string{"ax", "b"}},
		{"earlier one in the same piece", "only the last token completed the one that counts", []string{"xy"}, false, []string{"xyaxy"}, matched("xy"), []string{"xya"}},
		{"longest of several", "the longest possible begin is held", []string{"ab", "babc"}, false, []string{"xbab", "z"}, &request.Finish{Type: request.FinishLength}, []string{"x", "babz"}},
		{"kept", "no_stop_trim", []string{"END"}, true, []string{"aE", "ND"}, matched("END"), []string{"a", "END"}},
		{"stop token", "its text is cut", nil, false, []string{"a", "b."}, &request.Finish{Type: request.FinishStop, MatchedToken: &dot}, []string{"a", "b"}},
		{"stop token kept", "no_stop_trim", nil, true, []string{"a", "b."}, &request.Finish{Type: request.FinishStop, MatchedToken: &dot}, []string{"a", "b."}},
		{"half a rune at the end", "becomes a replacement rune", []string{"zz"}, false, []string{"a\xe2\x82"}, &request.Finish{Type: request.FinishLength}, []string{"a\uFFFD"}},
		{"rune across pieces", "is given whole", nil, false, []string{"\xe2\x82", "\xac"}, &request.Finish{Type: request.FinishLength}, []string{"", "€"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text := answerText{detokenizer: &spelled{}, stops: tc.stops, keepStop: tc.keepStop}
			for i, piece := range tc.pieces {
				var finish *request.Finish
				if i == len(tc.pieces)-1 {
					finish = tc.finish
				}
				if got := text.push(spell(piece), finish); got != tc.want[i] {
					t.Errorf("%s: piece %d gives %q, want %q", tc.reason, i, got, tc.want[i])
				}
			}
		})
	}
}

// TestAnswerTextRandom: however the tokens are cut into pieces, the client gets the text before the first stop string,
// and no piece reaches into it.
func TestAnswerTextRandom(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	for round := range 2000 {
		stops := []string{pick(rng, 3), pick(rng, 4)}
		whole := pick(rng, 40)
		end, stop := len(whole), ""
		for at := 1; at <= len(whole) && stop == ""; at++ { // the rank looks after each token
			for _, s := range stops {
				if strings.HasSuffix(whole[:at], s) && stop == "" {
					end, stop = at, s
				}
			}
		}
		finish := &request.Finish{Type: request.FinishLength}
		want := whole
		if stop != "" {
			finish = &request.Finish{Type: request.FinishStop, MatchedStop: stop}
			want = whole[:end-len(stop)]
		}
		text := answerText{detokenizer: &spelled{}, stops: stops}
		got := ""
		for rest := whole[:end]; rest != ""; {
			n := min(len(rest), 1+rng.IntN(4))
			var last *request.Finish
			if n == len(rest) {
				last = finish
			}
			piece := text.push(spell(rest[:n]), last)
			if !utf8.ValidString(piece) {
				t.Fatalf("seed %d round %d: the piece %q is no text", seed, round, piece)
			}
			got += piece
			rest = rest[n:]
			if !strings.HasPrefix(want, got) && last == nil {
				t.Fatalf("seed %d round %d: %q with stops %q gave %q, which is not before the stop", seed, round, whole, stops, got)
			}
		}
		if got != want {
			t.Fatalf("seed %d round %d: %q with stops %q gives %q, want %q", seed, round, whole, stops, got, want)
		}
	}
}

// pick gives 1 to most runes of a small alphabet, so that stop strings overlap with the text and with each other.
func pick(rng *rand.Rand, most int) string {
	var text strings.Builder
	for range 1 + rng.IntN(most) {
		fmt.Fprint(&text, string([]rune("abé")[rng.IntN(3)]))
	}
	return text.String()
}
