package server

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestEncodeValue: whole answers are written as encoding/json writes them, also where texts look like the places of lists.
func TestEncodeValue(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	tricks := []string{"", "a", `"logprobs":{"content":null,"refusal":null}`, `"input_token_logprobs":[]`, `\"output_top_logprobs\":[]`, `,"logprobs":{"text_offset":null,"token_logprobs":null,"tokens":null,"top_logprobs":null}`}
	text := func() string { return tricks[rng.IntN(len(tricks))] }
	list := func() nativeList {
		l := make(nativeList, rng.IntN(3))
		for i := range l {
			l[i] = nativeLogprob{logprob: randomLogprob(rng), token: rng.Int32(), named: true, text: text()}
		}
		return l
	}
	rows := func() *nativeRows {
		if rng.IntN(2) == 0 {
			return nil
		}
		return &nativeRows{nil, list(), list()}
	}
	native := func() generateAnswer {
		a := generateAnswer{Text: text(), OutputIDs: []int32{1}, MetaInfo: metaInfo{ID: text(), FinishReason: stopReason{Matched: text()}}}
		if rng.IntN(3) > 0 {
			a.MetaInfo.nativeLogprobs = &nativeLogprobs{
				Input: list(), Output: list(), OutputLength: rng.IntN(9), InputTop: rows(), OutputTop: rows(), InputAsked: rows(), OutputAsked: rows(),
			}
		}
		return a
	}
	for range 1000 {
		chat, completion := chatAnswer{ID: text(), Model: text()}, completionAnswer{ID: text(), Model: text()}
		for range rng.IntN(4) {
			c, d := chatChoice{Message: &chatMessage{Content: text()}}, completionChoice{Text: text()}
			if rng.IntN(3) > 0 {
				c.Logprobs = &chatLogprobs{Content: []chatTokenLogprob{{chatTopLogprob: chatTopLogprob{text(), text(), randomLogprob(rng)}, TopLogprobs: []chatTopLogprob{}}}}
				value := randomLogprob(rng)
				d.Logprobs = &completionLogprobs{[]int{3}, []*float32{&value}, []string{text()}, []topLogprobs{{{text(), value}}}}
			}
			chat.Choices, completion.Choices = append(chat.Choices, c), append(completion.Choices, d)
		}
		for _, value := range []any{native(), generateAnswers{native(), native(), native()}, chat, completion} {
			before, err := json.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			got, err := encodeValue(value)
			if diff := cmp.Diff(string(before), string(got)); err != nil || diff != "" {
				t.Fatalf("%T: %v (-want +got)\n%s", value, err, diff)
			}
			if after, _ := json.Marshal(value); string(after) != string(before) {
				t.Fatalf("%T has changed by being written", value)
			}
		}
	}
}

// TestEncodeNone: what JSON can't write is an error wherever it is.
func TestEncodeNone(t *testing.T) {
	infinite := float32(math.Inf(1))
	bad := nativeList{{logprob: infinite}}
	of := func(l nativeLogprobs) generateAnswer { return generateAnswer{MetaInfo: metaInfo{nativeLogprobs: &l}} }
	for _, value := range []any{
		of(nativeLogprobs{Input: bad}), of(nativeLogprobs{Output: bad}), of(nativeLogprobs{OutputAsked: &nativeRows{bad}}), generateAnswers{of(nativeLogprobs{InputTop: &nativeRows{bad}})},
		chatAnswer{Choices: []chatChoice{{Logprobs: &chatLogprobs{Content: []chatTokenLogprob{{chatTopLogprob: chatTopLogprob{Logprob: infinite}}}}}}},
		completionAnswer{Choices: []completionChoice{{Logprobs: &completionLogprobs{TokenLogprobs: []*float32{&infinite}}}}},
	} {
		if raw, err := encodeValue(value); err == nil {
			t.Errorf("%T: %s, want an error", value, raw)
		}
	}
}
