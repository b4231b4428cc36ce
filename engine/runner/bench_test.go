package runner

import (
	"fmt"
	"testing"

	"github.com/sluice-dev/sluice/engine/model"
	"github.com/sluice-dev/sluice/engine/scheduler"
)

// benchModels are the model that init-model writes and one of about 25 million parameters.
var benchModels = []struct {
	name    string
	options model.SeededOptions
}{
	{"tiny", model.SeededOptions{}},
	{"25m", model.SeededOptions{Hidden: 512, Layers: 6, Heads: 8, KVHeads: 4, VocabSize: 4096}},
}

// BenchmarkDecode measures steps of 1 and 16 sequences with 256 tokens of context each.
func BenchmarkDecode(b *testing.B) {
	const context, pageSize = 256, 16
	for _, m := range benchModels {
		dir := seededModel(b, m.options)
		for _, n := range []int{1, 16} {
			b.Run(fmt.Sprintf("%s/rows=%d", m.name, n), func(b *testing.B) {
				r := newRunner(b, Config{ModelDir: dir, PageSize: pageSize, MaxTotalTokens: n * 2 * context})
				rows := make([]scheduler.Row, n)
				for i := range rows {
					rows[i] = scheduler.Row{Tokens: make([]int32, context), Pages: countUp(i*2*context/pageSize, 2*context/pageSize), Params: greedy}
				}
				execute(b, r, rows...)
				for i := range rows {
					rows[i].Tokens, rows[i].Start, rows[i].Sample = []int32{int32(i)}, context, true
				}
				b.ReportAllocs()
				b.ResetTimer()
				for range b.N {
					execute(b, r, rows...)
				}
				b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
			})
		}
	}
}

// BenchmarkPrefill measures a prompt of 512 tokens in one step.
func BenchmarkPrefill(b *testing.B) {
	const prompt, pageSize = 512, 16
	for _, m := range benchModels {
		dir := seededModel(b, m.options)
		b.Run(m.name, func(b *testing.B) {
			r := newRunner(b, Config{ModelDir: dir, PageSize: pageSize, MaxTotalTokens: prompt})
			row := scheduler.Row{Tokens: countUp(0, prompt), Pages: countUp(0, prompt/pageSize), Sample: true, Params: greedy}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				execute(b, r, row)
			}
			b.ReportMetric(prompt*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}
