package runner

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/model"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler"
)

// want is one sequence with what it generates.
type generation struct {
	prompt []int32
	params *request.Sampling
	seed   uint64

	sampled []scheduler.Sampled // of each generated token
	logits  [][]float32         // before each generated token
}

// alone generates n tokens with nothing else in the step and the prompt in one piece.
func (g *generation) alone(t *testing.T, r *Runner, n int) {
	t.Helper()
	pages := countUp(0, (len(g.prompt)+n)/r.info.PageSize+1)
	tokens, start := g.prompt, 0
	for i := range n {
		got := execute(t, r, scheduler.Row{
			Tokens: tokens, Start: start, Pages: pages, Window: window(r, pages, start), Sample: true, Params: g.params, Seed: g.seed, Index: i,
		})
		g.sampled, g.logits = append(g.sampled, got[0]), append(g.logits, slices.Clone(r.logits[:r.info.VocabSize]))
		start += len(tokens)
		tokens = []int32{got[0].Token}
	}
}

// window gives the window's table of a row that starts at a position: the same pages, those gone that it needs no more.
func window(r *Runner, pages []int32, start int) []int32 {
	if r.info.WindowTokens == 0 {
		return nil
	}
	table := slices.Clone(pages)
	for i := range min(len(table), max(0, start-r.info.WindowTokens+1)/r.info.PageSize) {
		table[i] = -1
	}
	return table
}

// TestResultsDependOnTheSequenceAlone generates sequences one by one, and again in random company: other page sizes and
// numbers of threads, prompts cut into random chunks, random rows in each step, pages shuffled. Tokens, logprobs and
// logits must be the same bits.
func TestResultsDependOnTheSequenceAlone(t *testing.T) {
	for _, options := range []model.SeededOptions{
		{Layers: 2, VocabSize: 500, Seed: 3}, {Arch: "ministral", SlidingWindow: 40, Layers: 2, VocabSize: 500, Seed: 3},
	} {
		t.Run(options.Arch, func(t *testing.T) { dependOnTheSequenceAlone(t, seededModel(t, options)) })
	}
}

func dependOnTheSequenceAlone(t *testing.T, dir string) {
	const n = 12
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	generations := make([]*generation, 9)
	solo := newRunner(t, Config{ModelDir: dir, PageSize: 16, MaxTotalTokens: 512, Threads: 1})
	for i := range generations {
		g := &generation{params: greedy, seed: random.Uint64(), prompt: make([]int32, 1+random.IntN(200))}
		if i%3 == 1 {
			g.params = &request.Sampling{Temperature: 0.9, TopP: 0.9, TopK: 40}
		}
		for j := range g.prompt {
			g.prompt[j] = int32(random.IntN(500))
		}
		g.alone(t, solo, n)
		generations[i] = g
	}
	for _, cfg := range []Config{
		{PageSize: 1, Threads: 1}, {PageSize: 7, Threads: 2}, {PageSize: 16, Threads: 3}, {PageSize: 64, Threads: 2}, {PageSize: 256, Threads: 4},
	} {
		t.Run(fmt.Sprintf("page=%d,threads=%d", cfg.PageSize, cfg.Threads), func(t *testing.T) {
			cfg.ModelDir, cfg.MaxTotalTokens, cfg.WindowRatio = dir, len(generations)*512, 1
			together(t, newRunner(t, cfg), random, generations, n)
		})
	}
}

// together generates all sequences in random steps and compares with what they gave alone.
func together(t *testing.T, r *Runner, random *rand.Rand, generations []*generation, n int) {
	t.Helper()
	free := random.Perm(r.pages.Pages())
	type state struct {
		*generation
		pages  []int32
		start  int
		output int
	}
	var live []*state
	for _, g := range generations {
		s := &state{generation: g}
		for range (len(g.prompt)+n)/r.info.PageSize + 1 {
			s.pages, free = append(s.pages, int32(free[0])), free[1:]
		}
		live = append(live, s)
	}
	for len(live) > 0 {
		random.Shuffle(len(live), func(i, j int) { live[i], live[j] = live[j], live[i] })
		company := live[:1+random.IntN(len(live))]
		rows := make([]scheduler.Row, len(company))
		for i, s := range company {
			row := scheduler.Row{Start: s.start, Pages: s.pages, Window: window(r, s.pages, s.start), Params: s.params, Seed: s.seed, Index: s.output}
			if s.start < len(s.prompt) {
				end := s.start + 1 + random.IntN(len(s.prompt)-s.start)
				row.Tokens, row.Sample = s.prompt[s.start:end], end == len(s.prompt)
			} else {
				row.Tokens, row.Sample = []int32{s.sampled[s.output-1].Token}, true
			}
			rows[i] = row
		}
		got := execute(t, r, rows...)
		logits := r.logits
		for i, s := range company {
			s.start += len(rows[i].Tokens)
			if !rows[i].Sample {
				if got[i] != (scheduler.Sampled{}) {
					t.Fatalf("a row without Sample gives %v", got[i])
				}
				continue
			}
			if got[i] != s.sampled[s.output] {
				t.Fatalf("token %d after a prompt of %d is %v, alone %v", s.output, len(s.prompt), got[i], s.sampled[s.output])
			}
			if !slices.Equal(logits[:r.info.VocabSize], s.logits[s.output]) {
				t.Fatalf("logits before token %d after a prompt of %d differ from those alone", s.output, len(s.prompt))
			}
			logits = logits[r.info.VocabSize:]
			s.output++
		}
		live = slices.DeleteFunc(live, func(s *state) bool { return s.output == n })
	}
}

// TestPagesMove computes a prompt in one runner, moves its pages layer by layer into another, and goes on there, as a
// prefill and a decode engine do.
func TestPagesMove(t *testing.T) {
	const n = 8
	dir := seededModel(t, model.SeededOptions{Layers: 3, VocabSize: 200, Seed: 5})
	cfg := Config{ModelDir: dir, PageSize: 8, MaxTotalTokens: 256}
	from, to := newRunner(t, cfg), newRunner(t, cfg)
	g := &generation{prompt: countUp(20, 43), params: greedy}
	g.alone(t, to, n)

	source := []int32{9, 2, 31, 7, 0, 12}
	target := []int32{20, 30, 3, 4, 5, 6, 8}
	buffer := make([]byte, from.info.PageBytesPerLayer)
	var layers []int
	got, err := from.Execute(context.Background(), []scheduler.Row{{Tokens: g.prompt, Pages: source, Sample: true, Params: greedy}}, func(layer int) {
		layers = append(layers, layer)
		for i := range source {
			from.pages.ReadPage(layer, source[i], buffer)
			if err := to.pages.WritePage(layer, target[i], buffer); err != nil {
				t.Error(err)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{0, 1, 2}, layers); diff != "" {
		t.Errorf("layerDone calls (-want +got):\n%s", diff)
	}
	for i := 1; i < n; i++ {
		got = append(got, execute(t, to, scheduler.Row{
			Tokens: []int32{got[i-1].Token}, Start: len(g.prompt) + i - 1, Pages: target, Sample: true, Params: greedy, Index: i,
		})...)
	}
	if diff := cmp.Diff(g.sampled, got); diff != "" {
		t.Errorf("tokens after the move differ from those without (-want +got):\n%s", diff)
	}
}
