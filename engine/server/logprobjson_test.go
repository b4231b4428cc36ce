package server

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The naive twins: the same values as encoding/json writes them by their fields.
type (
	plainNative     []any // of [logprob, token, text]
	plainCompletion struct {
		TextOffset    []int                `json:"text_offset"`
		TokenLogprobs []*float32           `json:"token_logprobs"`
		Tokens        []string             `json:"tokens"`
		TopLogprobs   []map[string]float32 `json:"top_logprobs"`
	}
	plainTop struct {
		Token   string  `json:"token"`
		Bytes   []int   `json:"bytes"`
		Logprob float32 `json:"logprob"`
	}
	plainToken struct {
		plainTop
		TopLogprobs []plainTop `json:"top_logprobs"`
	}
	plainChat struct {
		Content []plainToken `json:"content"`
		Refusal []plainToken `json:"refusal"`
	}
)

// plainEntry is an entry that encoding/json asks for its own bytes, one by one.
type plainEntry nativeLogprob

func (l plainEntry) MarshalJSON() ([]byte, error) {
	triple := plainNative{l.logprob, l.token, l.text}
	if l.unknown {
		triple[0] = nil
	}
	if !l.named {
		triple[2] = nil
	}
	return json.Marshal([]any(triple))
}

func plainList(l nativeList) []plainEntry {
	if l == nil {
		return nil
	}
	plain := make([]plainEntry, len(l))
	for i, one := range l {
		plain[i] = plainEntry(one)
	}
	return plain
}

func plainRows(r nativeRows) [][]plainEntry {
	if r == nil {
		return nil
	}
	plain := make([][]plainEntry, len(r))
	for i, l := range r {
		plain[i] = plainList(l)
	}
	return plain
}

func plainCompletionOf(l completionLogprobs) plainCompletion {
	plain := plainCompletion{l.TextOffset, l.TokenLogprobs, l.Tokens, nil}
	if l.TopLogprobs != nil {
		plain.TopLogprobs = make([]map[string]float32, len(l.TopLogprobs))
	}
	for i, tops := range l.TopLogprobs {
		if tops == nil {
			continue
		}
		plain.TopLogprobs[i] = map[string]float32{}
		for _, one := range tops {
			plain.TopLogprobs[i][one.name] = one.logprob
		}
	}
	return plain
}

func plainChatOf(l chatLogprobs) plainChat {
	one := func(t chatTopLogprob) plainTop {
		plain := plainTop{t.Token, []int{}, t.Logprob}
		for _, b := range []byte(t.Bytes) {
			plain.Bytes = append(plain.Bytes, int(b))
		}
		return plain
	}
	var plain plainChat
	if l.Content != nil {
		plain.Content = []plainToken{}
	}
	for _, t := range l.Content {
		entry := plainToken{plainTop: one(t.chatTopLogprob)}
		if t.TopLogprobs != nil {
			entry.TopLogprobs = []plainTop{}
		}
		for _, top := range t.TopLogprobs {
			entry.TopLogprobs = append(entry.TopLogprobs, one(top))
		}
		plain.Content = append(plain.Content, entry)
	}
	return plain
}

// checkSameBytes compares two values as encoding/json gives them.
func checkSameBytes(t *testing.T, got, want any) {
	t.Helper()
	a, errA := json.Marshal(got)
	b, errB := json.Marshal(want)
	if errA != nil || errB != nil {
		t.Fatalf("%v; the twin %v", errA, errB)
	}
	if diff := cmp.Diff(string(b), string(a)); diff != "" {
		t.Fatalf("(-want +got)\n%s", diff)
	}
}

// randomLogprob has every form that a number is written in.
func randomLogprob(rng *rand.Rand) float32 {
	switch rng.IntN(6) {
	case 0:
		return 0
	case 1:
		return leastLogprob
	case 2:
		return float32(math.Ldexp(-rng.Float64(), -rng.IntN(160)))
	case 3:
		return -float32(rng.IntN(30))
	default:
		return -30 * rng.Float32()
	}
}

func randomText(rng *rand.Rand) string {
	const hard = "a z\"\\<>&\x00\n\t\x7fé\u2028\U0001f600\xff\xc3"
	text := []byte{}
	for range rng.IntN(6) {
		at := rng.IntN(len(hard))
		text = append(text, hard[at:min(len(hard), at+1+rng.IntN(4))]...)
	}
	return string(text)
}

func TestLogprobBytes(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	list := func() nativeList {
		if rng.IntN(8) == 0 {
			return nil
		}
		l := make(nativeList, rng.IntN(5))
		for i := range l {
			l[i] = nativeLogprob{logprob: randomLogprob(rng), token: rng.Int32(), unknown: rng.IntN(5) == 0, named: rng.IntN(2) == 0, text: randomText(rng)}
		}
		return l
	}
	for range 3000 {
		l := list()
		checkSameBytes(t, l, plainList(l))
		var rows nativeRows
		for range rng.IntN(4) {
			rows = append(rows, list())
		}
		checkSameBytes(t, &rows, plainRows(rows))

		var c completionLogprobs
		if rng.IntN(8) > 0 {
			c = completionLogprobs{[]int{}, []*float32{}, []string{}, []topLogprobs{}}
		}
		for range rng.IntN(4) {
			value := randomLogprob(rng)
			c.TextOffset, c.Tokens, c.TokenLogprobs = append(c.TextOffset, rng.IntN(1000)), append(c.Tokens, randomText(rng)), append(c.TokenLogprobs, &value)
			var tops []namedLogprob
			for n := range rng.IntN(6) {
				tops = append(tops, namedLogprob{fmt.Sprint(rng.IntN(4), n%2), randomLogprob(rng)})
			}
			c.TopLogprobs = append(c.TopLogprobs, newTopLogprobs(tops))
		}
		if len(c.TokenLogprobs) > 0 {
			c.TokenLogprobs[0] = nil
		}
		checkSameBytes(t, &c, plainCompletionOf(c))

		top := func() chatTopLogprob { return chatTopLogprob{randomText(rng), randomText(rng), randomLogprob(rng)} }
		var chat chatLogprobs
		for range rng.IntN(4) {
			entry := chatTokenLogprob{chatTopLogprob: top()}
			for range rng.IntN(4) {
				entry.TopLogprobs = append(entry.TopLogprobs, top())
			}
			chat.Content = append(chat.Content, entry)
		}
		checkSameBytes(t, &chat, plainChatOf(chat))
	}
}

// TestTopLogprobsOfOneName: of tokens with the same name the first stays, which is the likeliest.
func TestTopLogprobsOfOneName(t *testing.T) {
	got := newTopLogprobs([]namedLogprob{{"b", -1}, {"a", -2}, {"b", -3}, {"a", -4}})
	if diff := cmp.Diff(topLogprobs{{"a", -2}, {"b", -1}}, got, cmp.AllowUnexported(namedLogprob{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestLogprobThatIsNone: what JSON can't write is an error, as before, and no broken body.
func TestLogprobThatIsNone(t *testing.T) {
	infinite := float32(math.Inf(1))
	for _, value := range []any{
		nativeList{{logprob: infinite}}, nativeRows{{{logprob: infinite}}}, completionLogprobs{TokenLogprobs: []*float32{&infinite}},
		completionLogprobs{TopLogprobs: []topLogprobs{{{"a", infinite}}}}, chatLogprobs{Content: []chatTokenLogprob{{chatTopLogprob: chatTopLogprob{Logprob: infinite}}}},
		chatLogprobs{Content: []chatTokenLogprob{{TopLogprobs: []chatTopLogprob{{Logprob: infinite}}}}},
	} {
		if raw, err := json.Marshal(value); err == nil {
			t.Errorf("%T: %s, want an error", value, raw)
		}
	}
}

func FuzzText(f *testing.F) {
	for _, text := range []string{"", "abc", `"\<>&`, "\x00\u2028\xff"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		want, err := json.Marshal(text)
		if got := appendText(nil, text); err != nil || string(got) != string(want) {
			t.Errorf("%q is written as %s, want %s (%v)", text, got, want, err)
		}
	})
}

func FuzzLogprob(f *testing.F) {
	for _, value := range []float32{0, -1, -9999, 1e-6, 9.9e-7, -1e-10, 1e21, math.MaxFloat32, math.SmallestNonzeroFloat32} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value float32) {
		want, err := json.Marshal(value)
		if (err != nil) != (checkLogprob(value) != nil) {
			t.Fatalf("%v: %v, want %v", value, checkLogprob(value), err)
		}
		if got := appendLogprob(nil, value); err == nil && string(got) != string(want) {
			t.Errorf("%v is written as %s, want %s", value, got, want)
		}
	})
}

// BenchmarkLogprobs writes the likeliest 256 tokens at 200 positions, with their texts, and says how many times longer
// encoding/json takes for the same bytes when it asks each entry.
func BenchmarkLogprobs(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	rows := make(nativeRows, 200)
	for i := range rows {
		rows[i] = make(nativeList, 256)
		for k := range rows[i] {
			rows[i][k] = nativeLogprob{logprob: -30 * rng.Float32(), token: rng.Int32N(128256), named: true, text: fmt.Sprint(" word", k)}
		}
	}
	answer := generateAnswer{MetaInfo: metaInfo{nativeLogprobs: &nativeLogprobs{Input: nativeList{}, Output: nativeList{}, OutputTop: &rows}}}
	plain := plainRows(rows)
	var own, naive time.Duration
	for b.Loop() {
		began := time.Now()
		raw, err := encodeValue(answer)
		middle := time.Now()
		if _, errPlain := json.Marshal(plain); err != nil || errPlain != nil {
			b.Fatal(err, errPlain)
		}
		own, naive = own+middle.Sub(began), naive+time.Since(middle)
		b.SetBytes(int64(len(raw)))
	}
	b.ReportMetric(float64(naive)/float64(own), "json/own")
}
