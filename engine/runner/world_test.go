package runner

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-dev/sluice/engine/model"
	"github.com/sluice-dev/sluice/engine/parallel"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler"
	"github.com/sluice-dev/sluice/gpu"
)

// team is the runners of all ranks of a world, in this process.
type team struct {
	worlds  []*parallel.World
	runners []*Runner
}

func newTeam(t testing.TB, cfg Config, tp, pp int) *team {
	t.Helper()
	return newTeamOn(t, cfg, tp, pp, func() gpu.Device { return nil })
}

// newTeamOn opens a device for each rank, in their order; nil: the rank opens its own.
func newTeamOn(t testing.TB, cfg Config, tp, pp int, open func() gpu.Device) *team {
	t.Helper()
	worlds, err := parallel.Local(tp, pp)
	if err != nil {
		t.Fatal(err)
	}
	m := &team{worlds: worlds, runners: make([]*Runner, len(worlds))}
	t.Cleanup(func() {
		for i, w := range worlds {
			if m.runners[i] != nil {
				if err := m.runners[i].Close(); err != nil {
					t.Error(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	devices := make([]gpu.Device, len(worlds))
	for rank := range devices {
		devices[rank] = open()
	}
	if err := m.all(func(rank int) (err error) {
		own := cfg
		own.World, own.Device = worlds[rank], devices[rank]
		m.runners[rank], err = New(own)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return m
}

// all runs body for every rank at once.
func (m *team) all(body func(rank int) error) error {
	var ranks errgroup.Group
	for rank := range m.worlds {
		ranks.Go(func() error { return body(rank) })
	}
	return ranks.Wait()
}

// sampler is the runner that has the logits.
func (m *team) sampler() *Runner { return m.runners[m.worlds[0].Place().Sampler()] }

// execute runs a step on all ranks and checks that all learn the same.
func (m *team) execute(t testing.TB, rows ...scheduler.Row) []scheduler.Sampled {
	t.Helper()
	results := make([][]scheduler.Sampled, len(m.runners))
	if err := m.all(func(rank int) (err error) {
		results[rank], err = m.runners[rank].Execute(context.Background(), rows, nil)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for rank, got := range results {
		if !slices.Equal(got, results[0]) {
			t.Fatalf("rank %d has sampled %v, rank 0 %v", rank, got, results[0])
		}
	}
	return results[0]
}

// teamBound bounds how far a logit of a team is from one rank's, on models of a few layers whose logits deviate by about
// 2.5; two tokens whose logits are nearer to each other than twice that may change places. See docs/design.
const teamBound = 1e-4

// follow generates along the tokens of one rank, so that one near tie doesn't end the comparison.
func (m *team) follow(t *testing.T, g *generation, pages []int32) {
	t.Helper()
	tokens, start := g.prompt, 0
	worst := 0.0
	for i, want := range g.sampled {
		got := m.execute(t, scheduler.Row{
			Tokens: tokens, Start: start, Pages: pages, Window: window(m.runners[0], pages, start), Sample: true, Params: g.params, Seed: g.seed, Index: i,
		})
		logits := m.sampler().logits
		for token, w := range g.logits[i] {
			worst = max(worst, math.Abs(float64(logits[token]-w)))
		}
		if worst > teamBound {
			t.Fatalf("a logit before token %d is %g from that of one rank: want at most %g", i, worst, teamBound)
		}
		if g.params == greedy && got[0].Token != want.Token {
			gap := math.Abs(float64(g.logits[i][got[0].Token] - g.logits[i][want.Token]))
			if gap > 2*teamBound {
				t.Fatalf("token %d is %d, of one rank %d, whose logits are %g apart: want the same", i, got[0].Token, want.Token, gap)
			}
			t.Logf("token %d: a tie of %d and %d, %g apart", i, got[0].Token, want.Token, gap)
		}
		start += len(tokens)
		tokens = []int32{want.Token}
	}
	t.Logf("prompt of %d: the logits are %.1e apart at most", len(g.prompt), worst)
}

var teamShapes = []struct{ tp, pp int }{{1, 1}, {2, 1}, {4, 1}, {8, 1}, {1, 2}, {1, 3}, {2, 2}, {4, 3}}

// TestTeamsGiveOneRanksTokens cuts models over ranks and stages, those with fewer key-value heads than ranks and a
// vocabulary that isn't a multiple included.
func TestTeamsGiveOneRanksTokens(t *testing.T) {
	models := []struct {
		name    string
		options model.SeededOptions
	}{
		{"default", model.SeededOptions{Layers: 3, VocabSize: 503, Seed: 7}},
		{"one key-value head", model.SeededOptions{Layers: 3, Heads: 8, KVHeads: 1, VocabSize: 302, Seed: 8}},
		{"windows", model.SeededOptions{Arch: "ministral", SlidingWindow: 9, Layers: 3, VocabSize: 303, Seed: 6}},
		{"two key-value heads", model.SeededOptions{Layers: 3, Heads: 16, KVHeads: 2, VocabSize: 301, Seed: 9}},
	}
	for _, m := range models {
		dir := seededModel(t, m.options)
		cfg := Config{ModelDir: dir, PageSize: 4, MaxTotalTokens: 256, WindowRatio: 1, Threads: 1}
		one := newRunner(t, cfg)
		generations := []*generation{
			{prompt: countUp(3, 50), params: greedy},
			{prompt: countUp(100, 7), params: &request.Sampling{Temperature: 0.9, TopP: 0.9, TopK: 40}, seed: 4},
		}
		for _, g := range generations {
			g.alone(t, one, 16)
		}
		for _, shape := range teamShapes {
			t.Run(fmt.Sprintf("%s/tp=%d,pp=%d", m.name, shape.tp, shape.pp), func(t *testing.T) {
				team := newTeam(t, cfg, shape.tp, shape.pp)
				for _, g := range generations {
					team.follow(t, g, countUp(0, 64))
				}
			})
		}
	}
}

// TestTeamsResultsDependOnTheSequenceAlone: the promise of one rank holds for a fixed cut, bit by bit.
func TestTeamsResultsDependOnTheSequenceAlone(t *testing.T) {
	const n = 8
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	dir := seededModel(t, model.SeededOptions{Layers: 2, VocabSize: 301, Seed: 3})
	solo := newTeam(t, Config{ModelDir: dir, PageSize: 16, MaxTotalTokens: 1024, Threads: 1}, 2, 2)
	company := newTeam(t, Config{ModelDir: dir, PageSize: 3, MaxTotalTokens: 1024, Threads: 2}, 2, 2)
	generations := make([]*generation, 4)
	for i := range generations {
		g := &generation{params: greedy, prompt: make([]int32, 1+random.IntN(90))}
		for j := range g.prompt {
			g.prompt[j] = int32(random.IntN(301))
		}
		tokens, start := g.prompt, 0
		for i := range n {
			got := solo.execute(t, scheduler.Row{Tokens: tokens, Start: start, Pages: countUp(0, 64), Sample: true, Params: greedy, Index: i})
			g.sampled, g.logits = append(g.sampled, got[0]), append(g.logits, slices.Clone(solo.sampler().logits[:301]))
			start += len(tokens)
			tokens = []int32{got[0].Token}
		}
		generations[i] = g
	}
	// All together, each prompt cut into two random chunks.
	rows := make([]scheduler.Row, len(generations))
	cuts := make([]int, len(generations))
	for i, g := range generations {
		cuts[i] = random.IntN(len(g.prompt))
		rows[i] = scheduler.Row{Tokens: g.prompt[:max(1, cuts[i])], Pages: countUp(80*i, 80)}
	}
	company.execute(t, rows...)
	for step := range n {
		for i, g := range generations {
			rows[i].Start += len(rows[i].Tokens)
			rows[i].Sample, rows[i].Params, rows[i].Index = true, greedy, step
			if step > 0 {
				rows[i].Tokens = []int32{g.sampled[step-1].Token}
				continue
			}
			rows[i].Tokens = g.prompt[max(1, cuts[i]):]
			if len(rows[i].Tokens) == 0 { // a prompt of one token: compute it again
				rows[i].Start, rows[i].Tokens = 0, g.prompt
			}
		}
		got := company.execute(t, rows...)
		for i, g := range generations {
			if got[i] != g.sampled[step] || !slices.Equal(company.sampler().logits[i*301:(i+1)*301], g.logits[step]) {
				t.Fatalf("sequence %d, token %d: other bits in company than alone", i, step)
			}
		}
	}
}

// TestStagesOverlap begins three steps of different sequences before the tokens of the first are asked for.
func TestStagesOverlap(t *testing.T) {
	dir := seededModel(t, model.SeededOptions{Layers: 3, VocabSize: 200, Seed: 5})
	cfg := Config{ModelDir: dir, PageSize: 4, MaxTotalTokens: 256, Threads: 1}
	one := newRunner(t, cfg)
	team := newTeam(t, cfg, 1, 3)
	var want [3]scheduler.Sampled
	row := func(i int) scheduler.Row {
		return scheduler.Row{Tokens: countUp(10*i, 20), Pages: countUp(8*i, 8), Sample: true, Params: greedy}
	}
	for i := range want {
		want[i] = execute(t, one, row(i))[0]
	}
	if err := team.all(func(rank int) error {
		var waits []func(context.Context) ([]scheduler.Sampled, error)
		for i := range want {
			tokens, err := team.runners[rank].Begin(context.Background(), []scheduler.Row{row(i)}, nil)
			if err != nil {
				return err
			}
			waits = append(waits, tokens)
		}
		for i, tokens := range waits {
			got, err := tokens(context.Background())
			if err != nil {
				return err
			}
			if got[0].Token != want[i].Token {
				return fmt.Errorf("rank %d, step %d: token %d, want %d", rank, i, got[0].Token, want[i].Token)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestTeamFutures lets rows compute tokens that their ranks have not been told of by the caller.
func TestTeamFutures(t *testing.T) {
	dir := seededModel(t, model.SeededOptions{Layers: 2, VocabSize: 200, Seed: 5})
	team := newTeam(t, Config{ModelDir: dir, PageSize: 4, MaxTotalTokens: 64, Threads: 1}, 2, 1)
	prompt := scheduler.Row{Tokens: countUp(3, 9), Pages: countUp(0, 8), Sample: true, Params: greedy}
	first := team.execute(t, prompt)
	next := scheduler.Row{Future: true, Start: 9, Pages: countUp(0, 8), Sample: true, Params: greedy, Index: 1}
	got := team.execute(t, next)
	next.Future, next.Tokens = false, []int32{first[0].Token}
	if want := team.execute(t, next); got[0] != want[0] {
		t.Errorf("a future row gives %v, one that knows its token %v", got, want)
	}
}

func TestARankThatDiesEndsExecute(t *testing.T) {
	dir := seededModel(t, model.SeededOptions{Layers: 2, VocabSize: 200, Seed: 5})
	for _, shape := range []struct{ tp, pp int }{{2, 1}, {1, 2}, {2, 2}} {
		team := newTeam(t, Config{ModelDir: dir, PageSize: 4, MaxTotalTokens: 64, Threads: 1}, shape.tp, shape.pp)
		victim := len(team.worlds) - 1
		row := scheduler.Row{Tokens: countUp(3, 9), Pages: countUp(0, 8), Sample: true, Params: greedy}
		errs := make([]error, len(team.worlds))
		_ = team.all(func(rank int) error {
			if rank == victim {
				team.worlds[rank].Abort(errors.New("it was killed"))
				return nil
			}
			_, errs[rank] = team.runners[rank].Execute(context.Background(), []scheduler.Row{row}, nil)
			return nil
		})
		for rank, err := range errs[:victim] {
			var named *parallel.PeerError
			if !errors.As(err, &named) || named.Rank != victim {
				t.Errorf("tp=%d, pp=%d: rank %d: error %v, want one that names rank %d", shape.tp, shape.pp, rank, err, victim)
			}
		}
	}
}

func TestTeamsThatCannotBe(t *testing.T) {
	options := model.SeededOptions{Hidden: 48, Layers: 2, Heads: 6, KVHeads: 3, Intermediate: 64, VocabSize: 50}
	dir := seededModel(t, options)
	tests := []struct {
		name   string
		tp, pp int
		cfg    func(rank int, c *Config)
		want   string
	}{
		{"heads", 4, 1, nil, "num_attention_heads is 6: want a multiple of the tensor-parallel size, 4; change --tp-size"},
		{"key-value heads", 2, 1, nil, "num_key_value_heads is 3: want a multiple or a divisor of the tensor-parallel size, 2; change --tp-size"},
		{"intermediate", 3, 1, nil, "intermediate_size is 64: want a multiple of the tensor-parallel size, 3; change --tp-size"},
		{"layers", 1, 3, nil, "num_hidden_layers is 2: want at least the pipeline-parallel size, 3; lower --pp-size"},
		{"page sizes", 1, 2, func(rank int, c *Config) { c.PageSize = 4 << rank }, "--page-size of rank 1 is 8, of rank 0 4: start all nodes alike"},
		{"capacities", 1, 2, func(rank int, c *Config) { c.MaxTotalTokens += 8 * rank }, "--max-total-tokens of rank 1 is 72, of rank 0 64: start all nodes alike"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			worlds, err := parallel.Local(test.tp, test.pp)
			if err != nil {
				t.Fatal(err)
			}
			m := &team{worlds: worlds}
			errs := make([]error, len(worlds))
			_ = m.all(func(rank int) error {
				cfg := Config{ModelDir: dir, PageSize: 4, MaxTotalTokens: 64, Threads: 1, World: worlds[rank]}
				if test.cfg != nil {
					test.cfg(rank, &cfg)
				}
				_, errs[rank] = New(cfg)
				return nil
			})
			for rank, err := range errs {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("rank %d: error %v, want one with %q", rank, err, test.want)
				}
				worlds[rank].Close()
			}
		})
	}
}

// TestTeamInfo checks what ranks say about their part.
func TestTeamInfo(t *testing.T) {
	dir := seededModel(t, model.SeededOptions{Hidden: 32, Layers: 3, Heads: 4, KVHeads: 2, VocabSize: 51})
	team := newTeam(t, Config{ModelDir: dir, PageSize: 4, MaxTotalTokens: 64, Threads: 1}, 4, 2)
	type part struct{ firstLayer, layers, firstHead, heads, pageBytes, tokens int }
	for rank, r := range team.runners {
		i := r.Info()
		got := part{i.FirstLayer, i.NumLayers, i.FirstKVHead, i.KVHeads, i.PageBytesPerLayer, i.MaxTotalTokens}
		want := part{0, 2, rank % 4 / 2, 1, 4 * 2 * 4 * 8, 64}
		if rank >= 4 {
			want.firstLayer, want.layers = 2, 1
		}
		if got != want || i.ModelLayers != 3 || i.ModelKVHeads != 2 {
			t.Errorf("rank %d: %+v of %d layers and %d heads, want %+v of 3 and 2", rank, got, i.ModelLayers, i.ModelKVHeads, want)
		}
	}
}
