package pd

import (
	"context"
	"errors"
	"os"
	"strconv"
	"testing"

	"github.com/sluice-dev/sluice/engine/loads"
	"github.com/sluice-dev/sluice/test/harness"
)

var (
	programs   *harness.Programs
	tiny, slow string // model folders
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(p *harness.Programs) error { programs = p; return nil },
		harness.Model{Dir: &tiny, Name: "tiny", Flags: []string{"--layers", "3"}},
		// Large enough that a long prompt takes seconds: time to be killed in.
		harness.Model{Dir: &slow, Name: "slow", Flags: []string{"--seed", "8", "--hidden-size", "256", "--layers", "8", "--context-length", "4096"}},
	))
}

// engineOptions are the flags that a test varies.
type engineOptions struct {
	model    string
	pageSize int
	chunk    int
	more     []string
}

func startEngine(t *testing.T, mode string, o engineOptions) *harness.Engine {
	t.Helper()
	harness.NoteSources(t, "../..")
	return programs.StartEngine(t, mode, nil, append([]string{
		"--model-path", o.model, "--page-size", strconv.Itoa(o.pageSize), "--chunked-prefill-size", strconv.Itoa(o.chunk), "--max-total-tokens", "8192",
	}, o.more...)...)
}

// startRouter starts a router over engines.
func startRouter(t *testing.T, prefills, decodes []*harness.Engine, more ...string) (url string) {
	t.Helper()
	return programs.StartRouter(t, prefills, decodes, more...)
}

// generate asks for tokens, greedily.
func generate(ctx context.Context, url string, prompt []int32, tokens int) (harness.Answer, error) {
	var a harness.Answer
	err := harness.Post(ctx, url+"/generate", map[string]any{
		"input_ids":       prompt,
		"sampling_params": map[string]any{"temperature": 0, "max_new_tokens": tokens, "ignore_eos": true},
	}, &a)
	return a, err
}

// load reads the load of an engine's only DP rank.
func load(e *harness.Engine) (loads.Load, error) {
	list, err := e.Loads()
	if err != nil {
		return loads.Load{}, err
	}
	if len(list) != 1 || list[0].Disaggregation == nil {
		return loads.Load{}, errors.New("want one load with a disaggregation section")
	}
	return list[0], nil
}
