package scheduler

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// wholeStop is matchStop as one would first write it: decode everything, before and after the newest token.
func wholeStop(d TailDecoder, answer []int32, stops []string) string {
	text, before := d.Decode(answer, false), len(strings.TrimRight(d.Decode(answer[:len(answer)-1], false), "\uFFFD"))
	match, first := "", len(text)
	for _, stop := range stops {
		for at := 0; stop != "" && at+len(stop) <= len(text); at++ {
			if text[at:at+len(stop)] == stop && at+len(stop) > before && at < first {
				match, first = stop, at
			}
		}
	}
	return match
}

func TestMatchStopAgainstTwin(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	d := letters{words: map[int32]string{0: "", 1: "a", 2: "b", 3: "ab", 4: "ba", 5: "aab", 6: "é", 7: "\uFFFD", 8: "bbaab"}}
	pieces := []string{"a", "b", "ab", "é", "ba"}
	for range 20000 {
		answer := make([]int32, 1+rng.IntN(30))
		for i := range answer {
			answer[i] = rng.Int32N(9)
		}
		var stops []string
		for range rng.IntN(4) {
			stop := ""
			for range rng.IntN(5) {
				stop += pieces[rng.IntN(len(pieces))]
			}
			stops = append(stops, stop)
		}
		if got, want := matchStop(d, answer, stops), wholeStop(d, answer, stops); got != want {
			t.Fatalf("matchStop(%q, %v, %q) = %q, the twin says %q", d.Decode(answer, false), answer, stops, got, want)
		}
	}
}

// marks is a decoder whose token 9 is special.
type marks struct{}

func (marks) Decode(ids []int32, skipSpecial bool) string {
	d := letters{words: map[int32]string{9: "<end>"}}
	if skipSpecial {
		d.words[9] = ""
	}
	return d.Decode(ids, false)
}

// TestSpecialTokensStop: clients name the model's marks as stop strings.
func TestSpecialTokensStop(t *testing.T) {
	tests := []struct {
		name, reason, stop string
		answer             []int32
		want               string
	}{
		{name: "mark", reason: "it has a text though the client doesn't see it", stop: "<end>", answer: []int32{1, 9}, want: "<end>"},
		{name: "across", reason: "text and mark make one string", stop: "b<en", answer: []int32{1, 9}, want: "b<en"},
		{name: "old mark", reason: "it was allowed to pass before the minimum", stop: "<end>", answer: []int32{9, 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := matchStop(marks{}, tt.answer, []string{tt.stop}); got != tt.want {
				t.Errorf("%s: stop is %q, want %q", tt.reason, got, tt.want)
			}
		})
	}
}

func TestBudget(t *testing.T) {
	roomy := budget{slots: 4, inputTokens: 100, chunkTokens: 50, kvTokens: 1000, freeTokens: 1000}
	tests := []struct {
		name, reason string
		budget       func(*budget)
		wants        []want
		chunks       []int // of those that were taken, up to the first that was not
	}{
		{name: "all", reason: "everything fits", budget: func(*budget) {}, wants: []want{{tokens: 10, poolTokens: 16, growth: 5}, {tokens: 20, poolTokens: 32, growth: 5}}, chunks: []int{10, 20}},
		{name: "chunk", reason: "the step is full after a part of the second", budget: func(*budget) {}, wants: []want{{tokens: 30, poolTokens: 32, growth: 5}, {tokens: 30, poolTokens: 32, growth: 5}, {tokens: 1, poolTokens: 16, growth: 5}}, chunks: []int{30, 20}},
		{name: "input", reason: "only the first may be longer than the batch admits", budget: func(b *budget) { b.chunkTokens = 1000 },
			wants: []want{{tokens: 150, poolTokens: 160, growth: 5}, {tokens: 1, poolTokens: 16, growth: 5}}, chunks: []int{150}},
		{name: "slots", reason: "no place", budget: func(b *budget) { b.slots = 1 }, wants: []want{{tokens: 1, poolTokens: 16, growth: 5}, {tokens: 1, poolTokens: 16, growth: 5}}, chunks: []int{1}},
		{name: "growth", reason: "the pool is free, but what runs will need it", budget: func(b *budget) { b.kvTokens = 20 }, wants: []want{{tokens: 10, poolTokens: 16, growth: 5}}},
		{name: "alone", reason: "nobody else will need it", budget: func(b *budget) { b.kvTokens, b.alone = 20, true }, wants: []want{{tokens: 10, poolTokens: 16, growth: 5}, {tokens: 1, poolTokens: 16, growth: 0}}, chunks: []int{10}},
		{name: "free", reason: "what isn't free can't be given, alone or not", budget: func(b *budget) { b.freeTokens, b.alone = 15, true }, wants: []want{{tokens: 10, poolTokens: 16, growth: 0}}},
		{name: "debt", reason: "running requests will need more than is free", budget: func(b *budget) { b.kvTokens = -7 }, wants: []want{{tokens: 1, poolTokens: 16, growth: 0}}},
		{name: "window", reason: "window pages are claimed, and there is no sequence without its claim", budget: func(b *budget) { b.windowPages, b.alone = 9, true },
			wants: []want{{tokens: 10, windowPages: 5}, {tokens: 10, windowPages: 5}}, chunks: []int{10}},
		{name: "order", reason: "nobody overtakes: the caller stops at the first that waits", budget: func(b *budget) { b.kvTokens = 40 },
			wants: []want{{tokens: 10, poolTokens: 16, growth: 5}, {tokens: 20, poolTokens: 32, growth: 0}, {tokens: 1, poolTokens: 1, growth: 0}}, chunks: []int{10}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := roomy
			tt.budget(&b)
			var chunks []int
			for _, w := range tt.wants {
				n, ok := b.take(w)
				if !ok {
					break
				}
				chunks = append(chunks, n)
			}
			if diff := cmp.Diff(tt.chunks, chunks); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}

func TestReserve(t *testing.T) {
	r := newReserve(1)
	if got := r.of(1000); got != 700 {
		t.Errorf("at the start 1000 tokens reserve %d, want 700", got)
	}
	if got := r.of(1 << 40); got != growthClip*7/10 {
		t.Errorf("an endless answer reserves %d, want %d", got, growthClip*7/10)
	}
	for range reserveSteps + 10 {
		r.decay()
	}
	if r.ratio != 98_000 {
		t.Errorf("after %d steps the ratio is %d, want the floor, 98000", reserveSteps+10, r.ratio)
	}
	q := &sequence{req: randomRequests(rand.New(rand.NewPCG(1, 1)), 1, 1, 1)[0], tokens: make([]int32, 40), prompt: 10}
	q.req.Sampling.MaxNewTokens = 99
	r.raise([]*sequence{q})
	if want := int64((30 + retractLookahead) * million / 100); r.ratio != want {
		t.Errorf("after a retraction the ratio is %d, want %d", r.ratio, want)
	}
	r.raise(nil)
	if r.ratio != r.floor {
		t.Errorf("with nobody left the ratio is %d, want the floor", r.ratio)
	}
	r.reset()
	if r.ratio != 700_000 {
		t.Errorf("after a reset the ratio is %d, want the start", r.ratio)
	}
	for conservativeness, want := range map[float64]reserve{
		0: {700_000, 700_000, 98_000}, 0.5: {350_000, 350_000, 49_000}, 1.2: {840_000, 840_000, 117_600}, 9: {million, million, 140_000},
	} {
		if got := newReserve(conservativeness); got != want {
			t.Errorf("with a conservativeness of %g the reserve is %+v, want %+v", conservativeness, got, want)
		}
	}
}

// TestConfigErrors: a configuration that can't work is refused with the field's name.
func TestConfigErrors(t *testing.T) {
	for field, change := range map[string]func(*Config){
		"page size": func(c *Config) { c.PageSize = 0 }, "capacity": func(c *Config) { c.CapacityTokens = -1 },
		"context length": func(c *Config) { c.ContextLength = 0 }, "vocabulary size": func(c *Config) { c.VocabSize = 0 },
		"maximum of running requests": func(c *Config) { c.MaxRunning = 0 }, "chunk tokens": func(c *Config) { c.ChunkTokens = -1 },
		"decode interval": func(c *Config) { c.DecodeInterval = 0 }, "holds no page": func(c *Config) { c.CapacityTokens = 3 },
		"conservativeness is -1": func(c *Config) { c.Conservativeness = -1 }, "preemption threshold": func(c *Config) { c.Priorities.Threshold = -1 },
		"retraction is by priority": func(c *Config) { c.Retraction = RetractByPriority }, "time-outs": func(c *Config) { c.Timeouts.WaitingNanos = -1 },
		"mixed with decodes": func(c *Config) { c.MixedChunk = true },
	} {
		cfg := testConfig(Unified, 4, 64)
		change(&cfg)
		if _, err := New(cfg, Deps{Executor: newTape(4), Clock: stillClock(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet()}); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: error is %v", field, err)
		}
	}
	for role, part := range map[Role]string{Prefill: "sender", Decode: "receiver"} {
		deps := Deps{Executor: newTape(4), Clock: stillClock(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet()}
		if _, err := New(testConfig(role, 4, 64), deps); err == nil || !strings.Contains(fmt.Sprint(err), part) {
			t.Errorf("%s without a %s: error is %v", role, part, err)
		}
	}
	if _, err := New(testConfig(Unified, 4, 64), Deps{}); err == nil {
		t.Error("no parts at all is no error")
	}
}
