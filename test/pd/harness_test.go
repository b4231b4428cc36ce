package pd

import (
	"context"
	"errors"
	"fmt"
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

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if programs, err = harness.Build(); err == nil {
		var errs [2]error
		tiny, errs[0] = programs.Model("tiny", "--seed", "7", "--hidden-size", "64", "--layers", "3", "--vocab-size", "512", "--context-length", "1024")
		// Large enough that a long prompt takes seconds: time to be killed in.
		slow, errs[1] = programs.Model("slow", "--seed", "8", "--hidden-size", "256", "--layers", "8", "--vocab-size", "512", "--context-length", "4096")
		err = errors.Join(errs[:]...)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare:", err)
		return 1
	}
	code := m.Run()
	if err := programs.Remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
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
