package server

import "sync"

// pulse tells waiters that something happened after they began to wait. The zero value is ready.
type pulse struct {
	mu   sync.Mutex
	next chan struct{} // nil while nobody waits
}

// wait gives a channel that is closed at the next mark.
func (p *pulse) wait() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == nil {
		p.next = make(chan struct{})
	}
	return p.next
}

// mark wakes all waiters.
func (p *pulse) mark() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next != nil {
		close(p.next)
		p.next = nil
	}
}
