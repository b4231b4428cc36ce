package scheduler

import (
	"context"
	"fmt"
	"testing"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/request"
)

// nothingness is a device that takes no time.
type nothingness struct{ sampled []Sampled }

func (n *nothingness) Execute(_ context.Context, rows []Row, _ func(int)) ([]Sampled, error) {
	for len(n.sampled) < len(rows) {
		n.sampled = append(n.sampled, Sampled{Token: 7})
	}
	return n.sampled[:len(rows)], nil
}

type dropped struct{}

func (dropped) Put(request.Output) {}

// BenchmarkDecodeStep is what the scheduler adds to a decode step of so many sequences.
func BenchmarkDecodeStep(b *testing.B) {
	for _, n := range []int{1, 16, 256} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			cfg := testConfig(Unified, 16, 1<<24)
			cfg.MaxRunning, cfg.DecodeInterval = n, 40
			s, err := New(cfg, Deps{Executor: &nothingness{}, Clock: ledger.System(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet()})
			if err != nil {
				b.Fatal(err)
			}
			begin(b, s)
			for i := range n {
				r := &request.Request{RID: fmt.Sprint(i), PromptIDs: testPrompt(100, i), Sampling: request.Sampling{MaxNewTokens: 1 << 30, IgnoreEOS: true}}
				if err := s.Submit(r, dropped{}); err != nil {
					b.Fatal(err)
				}
			}
			if _, err := s.turn(); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.turn(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
