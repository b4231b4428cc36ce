package plugin

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/plugin/view"
)

// Status shows a service, or all, as a tree down to the ranks with their load.
func (p *Plugin) Status(ctx context.Context, service string) error {
	states, err := p.services(ctx, service)
	if err != nil {
		return err
	}
	status, err := p.status(ctx, states)
	if err != nil {
		return err
	}
	return p.write(status, func(wide bool) string { return status.Tree(p.Now(), wide) })
}

// Ranks shows the ranks of a service as a table.
func (p *Plugin) Ranks(ctx context.Context, service string) error {
	states, err := p.services(ctx, service)
	if err != nil {
		return err
	}
	status, err := p.status(ctx, states)
	if err != nil {
		return err
	}
	for _, s := range status.Services {
		for _, text := range s.Notes {
			p.warn(text)
		}
	}
	ranks := view.NewRanks(status)
	return p.write(ranks, ranks.Table)
}

// TopOptions are how `top` shows load.
type TopOptions struct {
	Once     bool
	Interval time.Duration
	Sort     string // one of view.SortKeys
	ByRank   bool
}

func (o TopOptions) validate() error {
	if !slices.Contains(view.SortKeys(), o.Sort) {
		return fmt.Errorf("%w: --sort %s: give one of %s", ErrUsage, o.Sort, strings.Join(view.SortKeys(), ", "))
	}
	if o.Interval < 100*time.Millisecond {
		return fmt.Errorf("%w: --interval %s: give 100ms or more", ErrUsage, o.Interval)
	}
	return nil
}

// Top shows load as a table, again and again until ctx ends: over the table before on a terminal, below it elsewhere. As JSON it
// gives one document after the other.
func (p *Plugin) Top(ctx context.Context, service string, o TopOptions) error {
	if err := o.validate(); err != nil {
		return err
	}
	for {
		states, err := p.services(ctx, service)
		if err != nil {
			return err
		}
		status, err := p.status(ctx, states)
		if err != nil {
			return err
		}
		if err := p.write(status, func(bool) string { return p.frame(status, o) }); err != nil {
			return err
		}
		if o.Once {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.After(o.Interval):
		}
		if p.Output != JSON && !p.Screen {
			if _, err := io.WriteString(p.Out, "\n"); err != nil {
				return fmt.Errorf("write the answer: %w", err)
			}
		}
	}
}

// Escapes of a terminal: to the upper left corner; and clear what is behind the cursor, in the line and below.
const (
	home      = "\x1b[H"
	clearLine = "\x1b[K"
	clearRest = "\x1b[J"
)

func (p *Plugin) frame(status *view.Status, o TopOptions) string {
	text := "No InferenceServices found.\n"
	if len(status.Services) > 0 {
		text = status.Top(o.Sort, o.ByRank, p.AllNamespaces)
	}
	if !p.Screen || o.Once {
		return text
	}
	head := fmt.Sprintf("%s  every %s, sorted by %s; Ctrl-C ends\n\n", p.Now().Format(time.TimeOnly), o.Interval, o.Sort)
	return home + strings.ReplaceAll(head+text, "\n", clearLine+"\n") + clearRest
}
