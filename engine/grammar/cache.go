package grammar

import "container/list"

// cache counts what the entries of a compiler keep, and drops the one that was not used for longest when it is too much. It is
// under the compiler's lock.
//
//	bytes = the sum of bytes of the entries in recent
//	bytes <= most, or recent holds one entry, or the others are being used at this moment
type cache struct {
	most   int
	bytes  int
	recent list.List // of *entry, most recently used first
}

// touch notes that an entry is used.
func (c *cache) touch(e *entry) {
	if e.place != nil {
		c.recent.MoveToFront(e.place)
	}
}

// remove forgets an entry.
func (c *cache) remove(e *entry) {
	c.recent.Remove(e.place)
	c.bytes -= e.bytes
	e.place, e.bytes = nil, 0
}

// What an entry takes besides its source and its automaton's parts: the entry with its place and its key in the map.
const entryBytes = 512

// size is what the entry keeps. Its grammar is locked, or nobody else has it yet.
func (e *entry) size() int {
	n := entryBytes + len(e.spec.Source)
	if e.grammar != nil {
		n += e.grammar.fixed + e.grammar.automaton.bytes
	}
	return n
}

// count takes what an entry keeps now into account, as the one that was used last, and drops others that are too much. An
// entry that was dropped while requests use it comes back by its next use. The entry's grammar is locked, or nobody else has
// it yet.
func (c *Compiler) count(e *entry) {
	if e.place == nil {
		e.place = c.cache.recent.PushFront(e)
	}
	if c.entries[e.spec] == nil { // else its source was compiled again in the meantime
		c.entries[e.spec] = e
	}
	c.cache.touch(e)
	n := e.size()
	c.cache.bytes += n - e.bytes
	e.bytes = n
	if e.grammar != nil {
		e.grammar.counted = e.grammar.automaton.bytes
	}
	for place := c.cache.recent.Back(); c.cache.bytes > c.cache.most && place != nil; {
		oldest := place.Value.(*entry)
		place = place.Prev()
		if oldest == e || !oldest.forget() {
			continue
		}
		c.cache.remove(oldest)
		if c.entries[oldest.spec] == oldest {
			delete(c.entries, oldest.spec)
		}
	}
}

// forget makes an entry's grammar give up what it found out, so that what requests that still use it hold is the automaton
// alone. It is false when the grammar is being used at this moment.
func (e *entry) forget() bool {
	g := e.grammar
	if g == nil {
		return true
	}
	if !g.mu.TryLock() {
		return false
	}
	defer g.mu.Unlock()
	g.automaton.reset()
	g.counted = 0
	return true
}
