package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sluice-dev/sluice/engine/model"
	"github.com/sluice-dev/sluice/engine/parallel"
	"github.com/sluice-dev/sluice/engine/scheduler"
)

// ranks says to the model what this rank is.
func (r *Runner) ranks() model.Ranks {
	if r.world == nil {
		return model.Ranks{}
	}
	return model.Ranks{Place: r.world.Place(), TP: r.world.TP(), Pipe: r.world.Pipe()}
}

// abort ends the world because of this rank's error, so that the others don't wait for it.
func (r *Runner) abort(err error) {
	if r.world != nil {
		r.world.Abort(err)
	}
}

// freeBytes is the free memory that this rank may count on: ranks of one host share the host's.
func (r *Runner) freeBytes() int64 {
	info := r.device.Info()
	if r.world == nil || info.Threads == 0 { // a device with a memory of its own
		return info.MemoryFreeBytes
	}
	return info.MemoryFreeBytes / int64(r.world.HostRanks())
}

// setup is what all ranks of a world must have alike.
type setup struct {
	Model          string  `json:"model"` // hash of config.json
	PageSize       int     `json:"page_size"`
	MaxTotalTokens int     `json:"max_total_tokens"`
	WindowRatio    float64 `json:"window_ratio"`
}

// compare checks that all ranks were started alike. It returns on no rank before all have called it.
func (r *Runner) compare(cfg Config) error {
	if r.world == nil {
		return nil
	}
	raw, err := os.ReadFile(filepath.Join(cfg.ModelDir, "config.json"))
	if err != nil {
		return fmt.Errorf("read model config: %w", err)
	}
	sum := sha256.Sum256(raw)
	own := setup{Model: hex.EncodeToString(sum[:8]), PageSize: cfg.PageSize, MaxTotalTokens: cfg.MaxTotalTokens, WindowRatio: cfg.WindowRatio}
	all, err := exchange(r.world, own)
	if err != nil {
		return fmt.Errorf("compare the ranks' configurations: %w", err)
	}
	for rank, other := range all {
		for _, f := range []struct {
			name         string
			first, other any
		}{
			{"model (config.json)", all[0].Model, other.Model},
			{"--page-size", all[0].PageSize, other.PageSize},
			{"--max-total-tokens", all[0].MaxTotalTokens, other.MaxTotalTokens},
			{"--swa-full-tokens-ratio", all[0].WindowRatio, other.WindowRatio},
		} {
			if f.first != f.other {
				return fmt.Errorf("%s of rank %d is %v, of rank 0 %v: start all nodes alike", f.name, rank, f.other, f.first)
			}
		}
	}
	return nil
}

// fewest gives the least number of pages that a rank has in each pool: they hold the same sequences.
func (r *Runner) fewest(pages poolPages) (poolPages, error) {
	if r.world == nil {
		return pages, nil
	}
	all, err := exchange(r.world, pages)
	if err != nil {
		return poolPages{}, fmt.Errorf("agree on the number of pages: %w", err)
	}
	for _, p := range all {
		pages.Full, pages.Window = min(pages.Full, p.Full), min(pages.Window, p.Window)
	}
	return pages, nil
}

// exchange gives every rank's own value, by rank.
func exchange[T any](world *parallel.World, own T) ([]T, error) {
	raw, err := json.Marshal(own)
	if err != nil {
		return nil, err
	}
	said, err := world.Peers().Exchange(context.Background(), raw)
	if err != nil {
		return nil, err
	}
	all := make([]T, len(said))
	for rank, b := range said {
		if err := json.Unmarshal(b, &all[rank]); err != nil {
			return nil, fmt.Errorf("rank %d says %.64q: %w", rank, b, err)
		}
	}
	return all, nil
}

// samples reports whether this is the rank that samples for all.
func (r *Runner) samples() bool { return r.world == nil || r.world.Cast().Root() }

// tell gives the other ranks what this one has sampled.
func (r *Runner) tell(sampled []scheduler.Sampled) error {
	if r.world == nil {
		return nil
	}
	r.casts = appendSampled(r.casts[:0], sampled)
	if _, err := r.world.Cast().Share(context.Background(), r.casts); err != nil {
		return fmt.Errorf("tell the sampled tokens: %w", err)
	}
	return nil
}

// hear receives what was sampled from n rows.
func (r *Runner) hear(ctx context.Context, n int) ([]scheduler.Sampled, error) {
	raw, err := r.world.Cast().Share(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("hear the sampled tokens: %w", err)
	}
	sampled, err := parseSampled(raw)
	if err != nil {
		return nil, fmt.Errorf("hear the sampled tokens: %w", err)
	}
	if len(sampled) != n {
		return nil, fmt.Errorf("hear the sampled tokens: the sampling rank has %d rows, this one %d: the ranks are out of step", len(sampled), n)
	}
	return sampled, nil
}
