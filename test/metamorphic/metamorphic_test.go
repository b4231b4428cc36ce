package metamorphic

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/sluice-dev/sluice/test/harness"
)

var (
	programs       *harness.Programs
	tiny, windowed string // model folders
)

func TestMain(m *testing.M) {
	shape := []string{"--layers", "4", "--vocab-size", strconv.Itoa(vocabulary)}
	os.Exit(harness.Main(m, func(p *harness.Programs) error { programs = p; return nil },
		harness.Model{Dir: &tiny, Name: "tiny", Flags: shape},
		harness.Model{Dir: &windowed, Name: "windowed", Flags: append(slices.Clone(shape), windowFlags...)},
	))
}

// tieBound is the distance of the two best logits below which ranks that add up partial sums may choose differently from
// one rank; see docs/design on tensor parallelism.
const tieBound = 2e-4

// variant is a way to run the model that must not change the tokens.
type variant struct {
	name string
	args []string
	env  []string
	// ties allows another token where the first run's two best are nearer to each other than tieBound.
	ties bool
	// decode, when not nil, makes a pair: args are of the prefill engine, decode of the decode engine.
	decode   []string
	retracts bool // requests must have been retracted, or the variant tests nothing
}

var variants = []variant{
	{name: "one at a time", args: []string{"--max-running-requests", "1"}},
	{name: "page 1", args: []string{"--page-size", "1"}},
	{name: "page 64", args: []string{"--page-size", "64"}},
	{name: "no chunks", args: []string{"--chunked-prefill-size", "-1"}},
	{name: "chunks of 17", args: []string{"--chunked-prefill-size", "17"}},
	{name: "mixed chunks of 24", args: []string{"--chunked-prefill-size", "24", "--enable-mixed-chunk"}},
	{name: "no cache", args: []string{"--disable-radix-cache"}},
	{name: "no overlap", args: []string{"--disable-overlap-schedule"}},
	{name: "neither, page 1, chunks of 7", args: []string{"--disable-radix-cache", "--disable-overlap-schedule", "--page-size", "1", "--chunked-prefill-size", "7"}},
	{name: "longest prefix first", args: []string{"--schedule-policy", "lpm"}},
	{name: "tight memory", args: []string{"--max-total-tokens", "512"}},
	{name: "forced retraction", env: []string{"SGLANG_TEST_RETRACT=true"}, retracts: true},
	{name: "forced retraction, no overlap, no cache", env: []string{"SGLANG_TEST_RETRACT=true"}, args: []string{"--disable-overlap-schedule", "--disable-radix-cache"}, retracts: true},
	{name: "two DP ranks", args: []string{"--dp-size", "2"}},
	{name: "pp 2", args: []string{"--pp-size", "2"}},
	{name: "tp 2", args: []string{"--tp-size", "2"}, ties: true},
	{name: "tp 2, pp 2, page 1", args: []string{"--tp-size", "2", "--pp-size", "2", "--page-size", "1"}, ties: true},
	{name: "prefill tp 2, decode tp 1", args: []string{"--tp-size", "2"}, decode: []string{}, ties: true},
	{name: "prefill tp 1, decode tp 2", args: []string{}, decode: []string{"--tp-size", "2"}, ties: true},
	{name: "prefill and decode", args: []string{"--chunked-prefill-size", "33"}, decode: []string{}},
	{name: "prefill and decode, retraction", args: []string{}, decode: []string{"--max-total-tokens", "640"}},
}

// windowFlags make layers with and without a sliding window.
var windowFlags = []string{"--arch", "ministral", "--sliding-window", "48"}

func TestSameTokens(t *testing.T) {
	harness.NoteSources(t, "../..")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	asked := questions(seed)
	for _, m := range []struct{ name, dir string }{{"full attention", tiny}, {"sliding window", windowed}} {
		t.Run(m.name, func(t *testing.T) {
			base := programs.StartEngine(t, "", nil, "--model-path", m.dir, "--max-total-tokens", "16384")
			want := ask(t, base.URL, asked, 1)
			base.Kill()
			for _, v := range variants {
				t.Run(v.name, func(t *testing.T) {
					url, engines := v.start(t, m.dir)
					got := ask(t, url, asked, 8)
					retractions, sampledParted := 0, 0
					for i, q := range asked {
						if !compare(t, v, q, want[i], got[i]) {
							sampledParted++
						}
						retractions += got[i].MetaInfo.NumRetractions
					}
					// A draw falls between two roundings of the same probability about once in a million tokens.
					if sampledParted > 1 {
						t.Errorf("the sampled tokens of %d requests differ", sampledParted)
					}
					if v.retracts && retractions == 0 {
						t.Error("no request was retracted")
					}
					for _, e := range engines {
						e.Idle(t)
					}
				})
			}
		})
	}
}

// start runs the variant and gives the address to ask.
func (v variant) start(t *testing.T, model string) (url string, engines []*harness.Engine) {
	common := []string{"--model-path", model, "--max-total-tokens", "16384"}
	if v.decode == nil {
		e := programs.StartEngine(t, "", v.env, append(common, v.args...)...)
		return e.URL, []*harness.Engine{e}
	}
	prefill := programs.StartEngine(t, "prefill", v.env, append(slices.Clone(common), v.args...)...)
	decode := programs.StartEngine(t, "decode", v.env, append(common, v.decode...)...)
	return programs.StartRouter(t, []*harness.Engine{prefill}, []*harness.Engine{decode}), []*harness.Engine{prefill, decode}
}

// ask sends all questions, so many at once, and gives the answers in their order.
func ask(t *testing.T, url string, questions []question, atOnce int) []harness.Answer {
	t.Helper()
	answers := make([]harness.Answer, len(questions))
	free := make(chan struct{}, atOnce)
	var clients sync.WaitGroup
	for i, q := range questions {
		body := map[string]any{"input_ids": q.prompt, "sampling_params": q.params, "return_logprob": true, "top_logprobs_num": 2}
		for k, v := range q.extra {
			body[k] = v
		}
		free <- struct{}{}
		clients.Go(func() {
			defer func() { <-free }()
			if err := harness.Post(t.Context(), url+"/generate", body, &answers[i]); err != nil {
				t.Errorf("%s: %v", q.name, err)
			}
		})
	}
	clients.Wait()
	return answers
}

// compare wants the same tokens. Where ties are allowed the tokens may part at a near tie, and then what follows says
// nothing; it is false for sampled tokens that part there, which the caller counts.
func compare(t *testing.T, v variant, q question, want, got harness.Answer) (same bool) {
	t.Helper()
	if slices.Equal(want.OutputIDs, got.OutputIDs) && want.Text == got.Text && want.MetaInfo.FinishReason == got.MetaInfo.FinishReason {
		return true
	}
	at := 0
	for at < min(len(want.OutputIDs), len(got.OutputIDs)) && want.OutputIDs[at] == got.OutputIDs[at] {
		at++
	}
	if v.ties {
		if q.sampled() {
			t.Logf("%s: sampled tokens part at %d", q.name, at)
			return false
		}
		if gap, ok := gapAt(want, at); ok && gap < tieBound {
			t.Logf("%s: tokens part at %d, where the two best logits differ by %g", q.name, at, gap)
			return true
		}
	}
	t.Errorf("%s: tokens part at %d:\nwant %v %q %+v\ngot  %v %q %+v", q.name, at,
		want.OutputIDs, want.Text, want.MetaInfo.FinishReason, got.OutputIDs, got.Text, got.MetaInfo.FinishReason)
	return true
}

// gapAt is the distance of the two best log-probabilities at a position, which is that of their logits.
func gapAt(a harness.Answer, at int) (gap float64, ok bool) {
	top := a.MetaInfo.OutputTopLogprobs
	if at >= len(top) || len(top[at]) < 2 || len(top[at][0]) == 0 || len(top[at][1]) == 0 {
		return 0, false
	}
	best, ok := top[at][0][0].(float64)
	next, ok2 := top[at][1][0].(float64)
	return best - next, ok && ok2
}
