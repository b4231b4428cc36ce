package kvcache

import "fmt"

// state is what a page is for. A page is in exactly one state; the transitions are the methods of Pool below.
//
//	         Alloc            Hold
//	free ───────────▶ used ─────────▶ reserved
//	  ▲               │ ▲ │               │
//	  ├────── Free ───┘ │ │               │
//	  ├─────────────────│─│── Release ────┘
//	  │            lock │ │ cache
//	  └──── evict ─── evictable
type state uint8

const (
	free      state = iota // nobody's; Alloc may give it away
	used                   // locked by a live sequence: its own, or cached and locked
	reserved               // of an ended sequence, but a transfer may still read or write it
	evictable              // holds cached KV that nobody locks

	numStates
)

func (s state) String() string {
	switch s {
	case free:
		return "free"
	case used:
		return "used"
	case reserved:
		return "reserved"
	case evictable:
		return "evictable"
	default:
		return fmt.Sprintf("state(%d)", uint8(s))
	}
}

// move takes a page from one state to the next. A page that isn't in from is somebody else's: going on would give one
// page to two sequences, so it panics.
func (p *Pool) move(page int32, from, to state) {
	if page < 0 || int(page) >= len(p.states) {
		panic(fmt.Sprintf("kvcache: page %d moves from %s to %s, but the pool has pages 0 to %d", page, from, to, len(p.states)-1))
	}
	if have := p.states[page]; have != from {
		panic(fmt.Sprintf("kvcache: page %d moves from %s to %s, but it is %s", page, from, to, have))
	}
	p.states[page] = to
	p.count[from]--
	p.count[to]++
}
