package disagg

import (
	"fmt"
	"sync"

	"github.com/sluice-dev/sluice/engine/parallel"
)

// shard is what one rank holds of the KV: its rectangle, and how its pages are laid out.
type shard struct {
	layout    Layout
	world     world
	at        coordinate
	holds     cut
	headBytes int // bytes of one head of one token's keys; 0 where pages are not cut: one head in the model
}

// newShard checks that a rank at a place can have the layout.
func newShard(l Layout, p parallel.Place) (shard, error) {
	if err := l.validate(); err != nil {
		return shard{}, err
	}
	s := shard{layout: l, world: worldOf(p), at: coordinateOf(p)}
	if err := s.world.check(l.shape()); err != nil {
		return shard{}, fmt.Errorf("layout: %w", err)
	}
	if !s.world.has(s.at) {
		return shard{}, fmt.Errorf("place %v is not in a world of %d tensor-parallel ranks by %d stages", s.at, s.world.tp, s.world.pp)
	}
	s.holds = s.world.holds(l.shape(), s.at)
	if l.shape().heads > 1 {
		rows := 2 * l.PageSize * s.holds.heads.len()
		if l.PageBytesPerLayer%rows != 0 {
			return shard{}, fmt.Errorf("layout: page_bytes_per_layer is %d, want a multiple of %d: keys and values of %d tokens of %d KV heads",
				l.PageBytesPerLayer, rows, l.PageSize, s.holds.heads.len())
		}
		s.headBytes = l.PageBytesPerLayer / rows
	}
	return s, nil
}

// straight reports whether all of a page's heads are in the cut.
func (s *shard) straight(c cut) bool { return c.heads == s.holds.heads }

// cutBytes is the size of the cut's part of one layer of one page; 0 for an empty one.
func (s *shard) cutBytes(c cut) int {
	switch {
	case c.empty():
		return 0
	case s.straight(c):
		return s.layout.PageBytesPerLayer
	default:
		return 2 * s.layout.PageSize * c.heads.len() * s.headBytes
	}
}

// rows calls f for each token of the keys and then of the values: part is where the cut's heads of that token are in the
// cut's part of a page, [cutBytes], and whole where they are in the page, [PageBytesPerLayer].
func (s *shard) rows(c cut, f func(part, whole, bytes int)) {
	bytes, stride := c.heads.len()*s.headBytes, s.holds.heads.len()*s.headBytes
	skip := (c.heads.from - s.holds.heads.from) * s.headBytes
	for row := range 2 * s.layout.PageSize {
		f(row*bytes, row*stride+skip, bytes)
	}
}

// gather copies the cut's part of a page to dst, [cutBytes].
func (s *shard) gather(c cut, dst, page []byte) {
	s.rows(c, func(part, whole, bytes int) { copy(dst[part:part+bytes], page[whole:]) })
}

// scatter is the reverse of gather: it leaves what is not in the cut as it is.
func (s *shard) scatter(c cut, page, src []byte) {
	s.rows(c, func(part, whole, bytes int) { copy(page[whole:whole+bytes], src[part:]) })
}

// grid gives the pages of a prompt that travel within a cut.
func (s *shard) grid(c cut, promptTokens int) *grid {
	if c.empty() {
		return newGrid(0, 0, s.layout.NumPages(promptTokens))
	}
	g := newGrid(c.layers.from, c.layers.len(), s.layout.NumPages(promptTokens))
	for layer := c.layers.from; layer < c.layers.to; layer++ {
		if s.layout.windowed(layer) {
			g.skip(layer, s.layout.FirstWindowPage(promptTokens))
		}
	}
	return g
}

// stripes are locks over pages: parts of one page come from several peers at once, where a page can only be written whole.
type stripes [64]sync.Mutex

func (s *stripes) of(layer int, page int32) *sync.Mutex {
	return &s[(uint32(layer)*31+uint32(page))%uint32(len(s))]
}
