package docrun

import (
	"context"
	"fmt"
	"time"
)

// retryPeriod is the time between two runs of a command whose output comes with time.
const retryPeriod = 500 * time.Millisecond

// Runner runs blocks of pages.
type Runner struct {
	Session *Session
	// Replace gives what stands in a page, a command or an output, as it is here: other ports, folders, images. Nil changes
	// nothing.
	Replace func(string) string
	// Limit is how long one command may take.
	Limit time.Duration
	// Log is told what was run, and how it went. Nil tells nobody.
	Log func(format string, args ...any)
}

// Run runs the commands of a block, one after another, and compares their outputs with the page. The first that ends with
// another exit status or another output than the page says is the error, which holds both.
func (r *Runner) Run(ctx context.Context, block Block) error {
	steps, err := block.Steps()
	if err != nil {
		return err
	}
	for i, step := range steps {
		exit := 0
		if i == len(steps)-1 {
			exit = block.Mark.Exit
		}
		start := time.Now()
		result, err := r.step(ctx, step, block.Mark, exit)
		if r.Log != nil {
			r.Log("%s:%d: $ %s\n%s(status %d after %s)", block.Page, step.Line, r.here(step.Command), result.Output, result.Status, time.Since(start).Round(time.Millisecond))
		}
		if err != nil {
			return fmt.Errorf("%s:%d: %s: %w", block.Page, step.Line, step.Command, err)
		}
	}
	return nil
}

// step runs a command, and again until it goes as the page says where the mark allows that.
func (r *Runner) step(ctx context.Context, step Step, mark Mark, exit int) (Result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.Limit+mark.Until, fmt.Errorf("a command may take %s", r.Limit+mark.Until))
	defer cancel()
	end := time.Now().Add(mark.Until)
	retry := time.NewTicker(retryPeriod)
	defer retry.Stop()
	for {
		result, err := r.Session.Run(ctx, r.here(step.Command))
		if err != nil {
			return result, fmt.Errorf("%w; it wrote:\n%s", err, result.Output)
		}
		if err = r.judge(step, mark, exit, result); err == nil || mark.Until == 0 || time.Now().After(end) {
			return result, err
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			return result, err
		}
	}
}

// judge compares what a command did with what the page says.
func (r *Runner) judge(step Step, mark Mark, exit int, result Result) error {
	if result.Status != exit {
		return fmt.Errorf("exit status %d, want %d; it wrote:\n%s", result.Status, exit, result.Output)
	}
	if want := r.here(step.Want); want != "" && !mark.Output && !Match(want, result.Output, mark.Numbers) {
		return fmt.Errorf("the page says:\n%s\nit wrote:\n%s", want, result.Output)
	}
	return nil
}

func (r *Runner) here(text string) string {
	if r.Replace == nil {
		return text
	}
	return r.Replace(text)
}
