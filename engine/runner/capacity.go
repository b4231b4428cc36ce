package runner

import (
	"fmt"
	"math"
	"slices"
)

// poolPages is how many pages each pool has, by kind of layer. 0 <= Window <= Full; Window is 0 without windowed layers.
type poolPages struct {
	Full   int `json:"full"`
	Window int `json:"window"`
}

// windowPages is how many pages the pool of windowed layers has beside a pool of full pages.
func (c Config) windowPages(info Info, full int) int {
	if info.WindowTokens == 0 {
		return 0
	}
	ratio := c.WindowRatio
	if ratio == 0 {
		ratio = DefaultWindowRatio
	}
	return min(full, int(math.Ceil(ratio*float64(full))))
}

// pools gives the pools of a capacity of full pages.
func (c Config) pools(info Info, full int) poolPages {
	return poolPages{Full: full, Window: c.windowPages(info, full)}
}

// layers counts this rank's layers by kind.
func (i Info) layers() (full, windowed int) {
	for _, w := range i.Windowed {
		if w {
			windowed++
		}
	}
	return i.NumLayers - windowed, windowed
}

// bytes is the memory of all of this rank's layers' pages.
func (i Info) bytes(p poolPages) int64 {
	full, windowed := i.layers()
	return int64(i.PageBytesPerLayer) * (int64(full)*int64(p.Full) + int64(windowed)*int64(p.Window))
}

// derivedContexts caps a derived capacity at this many full contexts. More would only be cold prefixes, in memory that
// the machine's other pods can use.
const derivedContexts = 32

// capacity gives the number of pages to allocate. Given: refused when they can't be in memory, which the system would
// otherwise show only under load, by ending the process. Derived: what is left of the memory fraction after the weights,
// at most derivedContexts full contexts.
func (c Config) capacity(info Info, freeBytes int64) (poolPages, error) {
	if c.MaxTotalTokens > 0 {
		most := math.MaxInt32 // page ids
		if freeBytes > 0 {
			most = c.most(info, freeBytes-info.WeightBytes, most)
		}
		if full := c.MaxTotalTokens / c.PageSize; full <= most {
			return c.whole(info, c.pools(info, full))
		}
		return poolPages{}, fmt.Errorf("max total tokens is %d: %d free bytes, less %d of weights, hold %d tokens of KV: lower --max-total-tokens, or set 0 to derive it",
			c.MaxTotalTokens, freeBytes, info.WeightBytes, most*c.PageSize)
	}
	most := (derivedContexts*info.ContextLength + c.PageSize - 1) / c.PageSize
	if freeBytes <= 0 { // the device can't tell
		return c.whole(info, c.pools(info, most))
	}
	fraction := c.MemFraction
	if fraction == 0 {
		fraction = DefaultMemFraction
	}
	most = c.most(info, int64(fraction*float64(freeBytes))-info.WeightBytes, most)
	if most < 1 {
		return poolPages{}, fmt.Errorf("no memory for KV: %g of %d free bytes, less %d of weights, is under one page of %d bytes: "+
			"raise the memory fraction or set max total tokens", fraction, freeBytes, info.WeightBytes, info.bytes(c.pools(info, 1)))
	}
	return c.whole(info, c.pools(info, most))
}

// most gives the largest capacity in full pages, up to limit, that fits into a budget; 0 when none does.
func (c Config) most(info Info, budgetBytes int64, limit int) int {
	onePage := int64(info.PageBytesPerLayer) * int64(info.NumLayers)
	limit = int(min(int64(limit), math.MaxInt64/max(1, onePage))) // what is more has no number of bytes
	fits := func(full int) bool { return info.bytes(c.pools(info, full)) <= budgetBytes }
	if fits(limit) {
		return limit
	}
	low, high := 0, limit // low fits, or is 0; high doesn't fit
	for high-low > 1 {
		if mid := low + (high-low)/2; fits(mid) {
			low = mid
		} else {
			high = mid
		}
	}
	return low
}

// whole refuses pools in which a window can't be.
func (c Config) whole(info Info, p poolPages) (poolPages, error) {
	need := min(p.Full, (info.WindowTokens+c.PageSize-1)/c.PageSize+1)
	if slices.Contains(info.Windowed, true) && p.Window < need {
		return poolPages{}, fmt.Errorf("the pool of sliding-window layers holds %d tokens, %d of them in a window: want %d at least; raise --swa-full-tokens-ratio or --max-total-tokens",
			p.Window*c.PageSize, info.WindowTokens, need*c.PageSize)
	}
	return p, nil
}
