package runner

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/model"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler"
	"github.com/sluice-dev/sluice/gpu"
	"github.com/sluice-dev/sluice/gpu/host"
)

// measured is a device that knows its largest buffer of numbers.
type measured struct {
	gpu.Device
	mu      sync.Mutex
	largest int // elements
}

func (d *measured) Alloc(dtype gpu.DType, n int) (gpu.Buffer, error) {
	d.mu.Lock()
	d.largest = max(d.largest, n)
	d.mu.Unlock()
	return d.Device.Alloc(dtype, n)
}

// TestPromptLogprobsInBoundedMemory: a chunk whose logits are more than may be in memory at once gives the bits of small
// chunks, on any number of ranks, and no buffer of the device or the host has room for all of its logits.
func TestPromptLogprobsInBoundedMemory(t *testing.T) {
	const vocab, chunk, bound = 16384, 700, 8 << 20
	dir := seededModel(t, model.SeededOptions{Hidden: 32, Layers: 2, Heads: 2, KVHeads: 2, Intermediate: 32, VocabSize: vocab, Seed: 5})
	tokens := make([]int32, chunk)
	for i := range tokens {
		tokens[i] = int32(i * 7919 % vocab)
	}
	want := &request.WantLogprobs{Top: 2, TokenIDs: []int32{11}, PromptFrom: 1}
	for _, shape := range []struct{ tp, pp int }{{1, 1}, {2, 1}, {1, 2}, {2, 2}} {
		t.Run(fmt.Sprintf("tp=%d,pp=%d", shape.tp, shape.pp), func(t *testing.T) {
			var devices []*measured
			cfg := Config{ModelDir: dir, PageSize: 16, MaxTotalTokens: 1024}
			team := newTeamOn(t, cfg, shape.tp, shape.pp, func() gpu.Device {
				d, err := host.New(host.Config{Threads: 1})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { d.Close() })
				devices = append(devices, &measured{Device: d})
				return devices[len(devices)-1]
			})
			score := func(step int) (prompt []request.TokenLogprobs, first request.TokenLogprobs) {
				for start := 0; start < chunk; start += step {
					row := scheduler.Row{
						Tokens: tokens[start:min(chunk, start+step)], Start: start, Pages: countUp(0, 64), Params: greedy, Sample: start+step >= chunk,
						History: tokens, PromptTokens: chunk, Logprobs: want,
					}
					told := make([]scheduler.Sampled, len(team.runners))
					if err := team.all(func(rank int) error {
						got, err := team.runners[rank].Execute(context.Background(), []scheduler.Row{row}, nil)
						if err == nil {
							told[rank] = got[0]
						}
						return err
					}); err != nil {
						t.Fatal(err)
					}
					for rank, s := range told {
						if diff := cmp.Diff(told[0], s); diff != "" {
							t.Fatalf("from %d on (-rank 0 +rank %d)\n%s", start, rank, diff)
						}
					}
					prompt = append(prompt, told[0].Logprobs.Prompt...)
					if row.Sample {
						first = *told[0].Logprobs.Sampled
					}
				}
				return prompt, first
			}
			whole, wholeFirst := score(chunk)
			if len(whole) != chunk-1 {
				t.Fatalf("%d positions, want %d", len(whole), chunk-1)
			}
			for rank, r := range team.runners {
				if devices[rank].largest > bound || cap(r.logits) > bound {
					t.Errorf("rank %d: the largest buffer has %d numbers on the device and %d on the host, want at most %d",
						rank, devices[rank].largest, cap(r.logits), bound)
				}
			}
			parts, partsFirst := score(100)
			if diff := cmp.Diff(whole, parts); diff != "" {
				t.Errorf("prompt (-one chunk +chunks of 100)\n%s", diff)
			}
			if diff := cmp.Diff(wholeFirst, partsFirst); diff != "" {
				t.Errorf("first token (-one chunk +chunks of 100)\n%s", diff)
			}
		})
	}
}
