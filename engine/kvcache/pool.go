package kvcache

import (
	"fmt"
	"math/bits"
)

// Pool hands out the pages of one kind of KV memory.
//
// Properties, which check verifies:
//   - a page is in exactly one state: free, used, reserved or evictable;
//   - capacity = available + evictable + used + reserved, in tokens, each a multiple of the page size;
//   - Alloc gives the lowest free pages, so what it gives is a function of the set of free pages alone and two ranks that
//     make the same calls hold the same pages.
//
// Not safe for concurrent use.
type Pool struct {
	pageSize int // tokens
	states   []state
	count    [numStates]int // pages by state

	// free pages as bits, 64 a word; words before low have none.
	bitmap []uint64
	low    int
}

// New returns a pool with all pages free. capacityTokens is rounded down to whole pages; an error when that is none.
func New(capacityTokens, pageSize int) (*Pool, error) {
	if pageSize < 1 {
		return nil, fmt.Errorf("kvcache: page size is %d tokens: give at least 1", pageSize)
	}
	pages := capacityTokens / pageSize
	if pages < 1 {
		return nil, fmt.Errorf("kvcache: capacity of %d tokens holds no page of %d tokens: raise it or lower the page size", capacityTokens, pageSize)
	}
	p := &Pool{pageSize: pageSize, states: make([]state, pages), bitmap: make([]uint64, (pages+63)/64)}
	p.count[free] = pages
	for page := range pages {
		p.bitmap[page/64] |= 1 << (page % 64)
	}
	return p, nil
}

// Pages is the number of pages that hold n tokens.
func (p *Pool) Pages(tokens int) int { return (tokens + p.pageSize - 1) / p.pageSize }

// Alloc takes n free pages, lowest first, appends them to dst as used and returns it. When fewer than n are free it takes
// none and returns dst and false. The caller owns the pages until Free or Hold.
func (p *Pool) Alloc(dst []int32, n int) (pages []int32, ok bool) {
	if n > p.count[free] {
		return dst, false
	}
	for ; n > 0; n-- {
		for p.bitmap[p.low] == 0 {
			p.low++
		}
		bit := bits.TrailingZeros64(p.bitmap[p.low])
		p.bitmap[p.low] &^= 1 << bit
		page := int32(p.low*64 + bit)
		p.move(page, free, used)
		dst = append(dst, page)
	}
	return dst, true
}

// Free gives used pages back.
func (p *Pool) Free(pages []int32) {
	for _, page := range pages {
		p.move(page, used, free)
		p.mark(page)
	}
}

// Hold keeps used pages of an ended sequence away from others until Release, because a transfer may still touch them.
func (p *Pool) Hold(pages []int32) {
	for _, page := range pages {
		p.move(page, used, reserved)
	}
}

// Release frees held pages.
func (p *Pool) Release(pages []int32) {
	for _, page := range pages {
		p.move(page, reserved, free)
		p.mark(page)
	}
}

// cache makes used pages evictable: the tree has them, and nobody locks them.
func (p *Pool) cache(pages []int32) {
	for _, page := range pages {
		p.move(page, used, evictable)
	}
}

// lock makes evictable pages used.
func (p *Pool) lock(pages []int32) {
	for _, page := range pages {
		p.move(page, evictable, used)
	}
}

// evict frees evictable pages.
func (p *Pool) evict(pages []int32) {
	for _, page := range pages {
		p.move(page, evictable, free)
		p.mark(page)
	}
}

func (p *Pool) mark(page int32) {
	word := int(page) / 64
	p.bitmap[word] |= 1 << (page % 64)
	p.low = min(p.low, word)
}

// Stats is a pool's ledger in tokens: Capacity = Available + Evictable + Used + Reserved.
type Stats struct {
	Capacity  int
	Available int // free
	Evictable int // cached and unlocked
	Used      int // locked by live sequences
	Reserved  int // held for transfers of ended sequences
}

// Allocatable is what the next allocations can get.
func (s Stats) Allocatable() int { return s.Available + s.Evictable }

// Unavailable is capacity - (available + evictable): what is exported as used.
func (s Stats) Unavailable() int { return s.Capacity - s.Allocatable() }

// Stats reads the ledger.
func (p *Pool) Stats() Stats {
	return Stats{
		Capacity:  len(p.states) * p.pageSize,
		Available: p.count[free] * p.pageSize,
		Evictable: p.count[evictable] * p.pageSize,
		Used:      p.count[used] * p.pageSize,
		Reserved:  p.count[reserved] * p.pageSize,
	}
}

// Check verifies the properties in the comment of Pool and that owned, the pages of all live sequences, are exactly the used
// pages: where a tree shares the pool, those that are theirs alone, and once what they lock of the tree. It costs a pass over
// all pages: for tests and builds with Invariants.
func (p *Pool) Check(owned ...[]int32) error {
	var count [numStates]int
	for page, s := range p.states {
		count[s]++
		if marked := p.bitmap[page/64]&(1<<(page%64)) != 0; marked != (s == free) {
			return fmt.Errorf("kvcache: page %d is %s, but its free bit is %t", page, s, marked)
		}
	}
	if count != p.count {
		return fmt.Errorf("kvcache: pages by state are %v, but the counts say %v", count, p.count)
	}
	for word := range p.low {
		if p.bitmap[word] != 0 {
			return fmt.Errorf("kvcache: word %d has free pages, but the search starts at %d", word, p.low)
		}
	}
	if s := p.Stats(); s.Capacity != s.Available+s.Evictable+s.Used+s.Reserved {
		return fmt.Errorf("kvcache: capacity is not the sum of its parts: %+v", s)
	}
	owners := make(map[int32]int, p.count[used])
	for i, table := range owned {
		for _, page := range table {
			if before, ok := owners[page]; ok {
				return fmt.Errorf("kvcache: page %d is in tables %d and %d", page, before, i)
			}
			owners[page] = i
			if s := p.states[page]; s != used {
				return fmt.Errorf("kvcache: page %d is in table %d, but it is %s", page, i, s)
			}
		}
	}
	if len(owners) != p.count[used] {
		return fmt.Errorf("kvcache: %d pages are used, but sequences own %d", p.count[used], len(owners))
	}
	return nil
}
