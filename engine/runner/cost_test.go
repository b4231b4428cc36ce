package runner

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/engine/model"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
)

// naiveCost counts token by token, layer by layer.
func naiveCost(k costs, rows []scheduler.Row) (c report.Cost) {
	wanted := 0
	for _, row := range rows {
		n := max(len(row.Tokens), 1)
		from, to := promptLogits(row)
		wanted += to - from
		if row.Sample {
			wanted++
		}
		for layer := range k.layers {
			first := row.Start + n // that the row looks at
			for p := row.Start; p < row.Start+n; p++ {
				begin := 0
				if k.windowed != nil && k.windowed[layer] {
					begin = max(0, p-k.window+1)
				}
				first = min(first, begin)
				c.Flops += 2*float64(k.layer) + 4*float64(k.queries*(p-begin+1))
				c.WriteBytes += float64(4 * k.keyValues)
			}
			c.ReadBytes += float64(4 * k.keyValues * (row.Start + n - first))
		}
		c.ReadBytes += float64(4 * n * k.embedding)
	}
	c.ReadBytes += float64(4 * k.layers * int(k.layer))
	if wanted > 0 {
		c.Flops += 2 * float64(int(k.head)*wanted)
		c.ReadBytes += float64(4 * k.head)
	}
	return c
}

func TestCostTwin(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 500 {
		k := costs{
			layers: 1 + rng.IntN(4), layer: int64(1 + rng.IntN(1000)), head: int64(rng.IntN(100)), embedding: rng.IntN(50),
			queries: 1 + rng.IntN(40), keyValues: 2 + rng.IntN(40),
		}
		if rng.IntN(2) == 0 {
			k.window = 1 + rng.IntN(20)
			for range k.layers {
				k.windowed = append(k.windowed, rng.IntN(2) == 0)
			}
		}
		var rows []scheduler.Row
		for range 1 + rng.IntN(4) {
			row := scheduler.Row{Start: rng.IntN(40), Sample: rng.IntN(2) == 0, Future: rng.IntN(3) == 0, PromptTokens: 1 + rng.IntN(60)}
			if !row.Future {
				row.Tokens = make([]int32, 1+rng.IntN(30))
			}
			if rng.IntN(3) == 0 {
				row.Logprobs = &request.WantLogprobs{PromptFrom: rng.IntN(10)}
			}
			rows = append(rows, row)
		}
		if got, want := k.of(rows), naiveCost(k, rows); got != want {
			t.Fatalf("%+v of %+v: %+v, want %+v", k, rows, got, want)
		}
	}
	if got := (costs{layers: 1, layer: 9}).of(nil); got != (report.Cost{}) {
		t.Errorf("nothing costs %+v", got)
	}
}

// TestCostsOfRanks: what the ranks of a world compute is what one rank would, whatever the parallelism.
func TestCostsOfRanks(t *testing.T) {
	dir := seededModel(t, model.SeededOptions{Hidden: 16, Layers: 4, Heads: 4, KVHeads: 2, Intermediate: 24, VocabSize: 48, ContextLength: 40, EOSTokenIDs: []int32{7}})
	rows := []scheduler.Row{{Tokens: make([]int32, 9)}, {Start: 20, Future: true, Sample: true}}
	alone := newRunner(t, Config{ModelDir: dir, PageSize: 4, MaxTotalTokens: 64}).Cost(rows)
	for _, size := range [][2]int{{2, 1}, {1, 2}, {2, 2}} {
		var sum report.Cost
		for _, r := range newTeam(t, Config{ModelDir: dir, PageSize: 4, MaxTotalTokens: 64, Threads: 1}, size[0], size[1]).runners {
			c := r.Cost(rows)
			sum.Flops += c.Flops
			sum.WriteBytes += c.WriteBytes
		}
		if sum.Flops != alone.Flops || sum.WriteBytes != alone.WriteBytes {
			t.Errorf("tp %d, pp %d: %+v, one rank %+v", size[0], size[1], sum, alone)
		}
	}
}
