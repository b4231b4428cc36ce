package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/bench"
	"github.com/sluice-dev/sluice/internal/version"
)

// terminal is where the program writes; columns is the width of err when that is a terminal, else 0.
type terminal struct {
	out, err io.Writer
	columns  int
}

// errInterrupted ends a run whose report was printed all the same.
var errInterrupted = errors.New("interrupted")

// run reads the flags, prepares the servers, runs the load and reports.
func run(ctx context.Context, o options, t terminal) error {
	if err := o.check(); err != nil {
		return err
	}
	load, err := o.load()
	if err != nil {
		return err
	}
	goal, err := o.goal()
	if err != nil {
		return err
	}
	clients, err := o.clients(&load)
	if err != nil {
		return err
	}
	for _, c := range clients {
		defer c.HTTP.CloseIdleConnections()
	}
	report := bench.Report{
		Version: version.Version, API: clients[0].Target.API, Stream: o.stream, Load: load,
		Lengths: map[string]string{"input-len": o.input.String(), "output-len": o.output.String()},
	}
	if load.CancelShare > 0 {
		report.Lengths["cancel-after"] = o.cancelMillis.String()
		if o.cancelChunks.Kind != "" {
			report.Lengths["cancel-after"] = o.cancelChunks.String() + " chunks"
		}
	}
	notes, err := o.prepare(ctx, clients, load)
	if err != nil {
		return err
	}
	report.Model = clients[0].Target.Model

	measured := &bench.Run{Load: load, Clients: clients, Alternate: bench.Alternation(o.alternate), RoundLength: o.round}
	result := o.watch(ctx, t, measured)
	for i, c := range clients {
		report.Servers = append(report.Servers, bench.Summarize(&result, i, c.URL, &load, goal))
	}
	if len(clients) == 2 {
		report.Alternate = measured.Alternate
		report.Ratios = bench.Ratios(&result, measured.Alternate, load.Seed)
	}
	report.Interrupted, report.Notes = result.Interrupted, append(notes, remarks(&report)...)
	if o.records {
		report.Records = result.Records
	}
	if err := o.write(&report, t.out); err != nil {
		return err
	}
	return verdict(&report)
}

// clients gives one client for each server, as far as it needs no server, and reads the file of prompts into the load.
func (o *options) clients(load *bench.Load) ([]*bench.Client, error) {
	urls, err := o.urls()
	if err != nil {
		return nil, err
	}
	target, err := o.target()
	if err != nil {
		return nil, err
	}
	writer, err := o.writer()
	if err != nil {
		return nil, err
	}
	if o.prompts != "" {
		if load.Corpus, err = o.corpus(&target); err != nil {
			return nil, fmt.Errorf("--prompts %s: %w", o.prompts, err)
		}
		writer.Corpus = load.Corpus
		if err := load.Validate(); err != nil {
			return nil, err
		}
	}
	var clients []*bench.Client
	for _, url := range urls {
		clients = append(clients, &bench.Client{
			URL: url, Target: target, Writer: writer, Seed: load.Seed, Timeout: o.timeout, HTTP: bench.NewHTTP(),
		})
	}
	return clients, nil
}

func (o *options) corpus(target *bench.Target) ([]bench.Prompt, error) {
	in := io.Reader(os.Stdin)
	if o.prompts != "-" {
		file, err := os.Open(o.prompts)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	}
	prompts, err := bench.ReadPrompts(in)
	if err != nil {
		return nil, err
	}
	for i, p := range prompts {
		if err := target.Accepts(p); err != nil {
			return nil, fmt.Errorf("prompt %d: %w", i+1, err)
		}
	}
	if o.shuffle {
		bench.Shuffle(prompts, o.seed)
	}
	return prompts, nil
}

// prepare learns the models and the length of words, warms the servers up and empties their caches.
func (o *options) prepare(ctx context.Context, clients []*bench.Client, load bench.Load) (notes []string, err error) {
	if o.model == "" && o.api != string(bench.Generate) {
		err := bench.Each(clients, func(c *bench.Client) error {
			model, err := c.Model(ctx)
			if err != nil {
				return fmt.Errorf("learn the model (or give --model): %w", err)
			}
			c.Target.Model = model
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if len(load.Corpus) == 0 && o.tokenIDs == "" && o.tokensPerWord == 0 {
		writer, err := clients[0].Calibrate(ctx)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			notes = append(notes, fmt.Sprintf("prompts have a word for each token: the tokens of a word are not known (--tokens-per-word): %v", err))
		}
		for _, c := range clients {
			c.Writer = writer
		}
	}
	if o.warmup > 0 {
		if err := bench.Each(clients, func(c *bench.Client) error { return bench.WarmUp(ctx, c, load, o.warmup) }); err != nil {
			return nil, err
		}
	}
	if o.flushCache {
		if err := bench.Each(clients, func(c *bench.Client) error { return c.FlushCache(ctx) }); err != nil {
			return nil, fmt.Errorf("--flush-cache: %w", err)
		}
	}
	return notes, nil
}

// watch runs the load and shows its progress.
func (o *options) watch(ctx context.Context, t terminal, measured *bench.Run) bench.Result {
	if o.quiet {
		return measured.Do(ctx)
	}
	every := o.progressEvery
	if t.columns > 0 {
		every = 200 * time.Millisecond
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		bench.Watch(t.err, t.columns, ticker.C, stop, measured.Status)
	}()
	defer func() {
		close(stop)
		<-stopped
	}()
	return measured.Do(ctx)
}

// remarks are what a reader of the numbers must know.
func remarks(r *bench.Report) []string {
	var notes []string
	for i := range r.Servers {
		s := &r.Servers[i]
		if s.WithoutUsage > 0 {
			notes = append(notes, fmt.Sprintf(
				"%s: %d answers told no usage; their input tokens are those that were wanted, their output tokens are chunks", s.URL, s.WithoutUsage))
		}
		if s.TokensPerGap > 1.05 {
			notes = append(notes, fmt.Sprintf(
				"%s: a chunk holds %.1f tokens on average, so ITL is the gap between chunks (--continuous-usage tells the tokens of each)", s.URL, s.TokensPerGap))
		}
		if lag := s.SendLag; lag != nil && lag.P99 > 100 {
			notes = append(notes, fmt.Sprintf(
				"%s: requests were sent up to %.0f ms late; latencies count from when they were due (see send lag)", s.URL, lag.Max))
		}
	}
	if !r.Stream {
		notes = append(notes, "answers were not streamed: there is no TTFT, ITL or TPOT")
	}
	return notes
}

func (o *options) write(r *bench.Report, out io.Writer) error {
	if o.outputFile != "" {
		var text strings.Builder
		if err := r.WriteJSON(&text); err != nil {
			return err
		}
		if err := os.WriteFile(o.outputFile, []byte(text.String()), 0o644); err != nil {
			return fmt.Errorf("--output: %w", err)
		}
	}
	if o.json {
		return r.WriteJSON(out)
	}
	return r.WriteTable(out)
}

// verdict is the error of a run that measured nothing.
func verdict(r *bench.Report) error {
	if r.Interrupted {
		return errInterrupted
	}
	for i := range r.Servers {
		if s := &r.Servers[i]; s.Requests > 0 && s.Failed == s.Requests {
			return fmt.Errorf("%s: every request failed: %s", s.URL, s.Errors[0].Kind)
		}
	}
	return nil
}
