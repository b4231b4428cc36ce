package runner

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/model"
	"github.com/sluice-dev/sluice/gpu"
	"github.com/sluice-dev/sluice/gpu/host"
	"github.com/sluice-dev/sluice/gpu/host/reference"
)

// TestDevicesGiveTheSameTokens generates greedily on the oracle and on the CPU's kernels. Logprobs may differ by
// rounding; the model and the prompt are fixed, so that no near tie can turn rounding into another token.
func TestDevicesGiveTheSameTokens(t *testing.T) {
	const n = 40
	dir := seededModel(t, model.SeededOptions{VocabSize: 600, Seed: 9})
	openHost := func(cfg host.Config) gpu.Device {
		d, err := host.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return d
	}
	generate := func(d gpu.Device) (tokens []int32, logprobs []float64) {
		g := &generation{prompt: countUp(100, 70), params: greedy}
		g.alone(t, newRunner(t, Config{ModelDir: dir, PageSize: 16, MaxTotalTokens: 128, Device: d}), n)
		for _, s := range g.sampled {
			tokens, logprobs = append(tokens, s.Token), append(logprobs, float64(s.Logprob))
		}
		return tokens, logprobs
	}
	want, wantLogprobs := generate(reference.New())
	for name, device := range map[string]gpu.Device{
		"portable": openHost(host.Config{Portable: true, Threads: 2}),
		"fastest":  openHost(host.Config{Threads: 2}),
	} {
		got, logprobs := generate(device)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: tokens (-oracle +got):\n%s", name, diff)
		}
		for i, w := range wantLogprobs {
			if math.Abs(logprobs[i]-w) > 1e-3 {
				t.Errorf("%s: logprob %d is %g, the oracle's %g", name, i, logprobs[i], w)
			}
		}
	}
}
