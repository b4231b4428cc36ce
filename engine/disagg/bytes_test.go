package disagg

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// TestE5BytesSentAreReceived: between engines of every shape each hand-over that is done has sent what was received, as both
// sides count it and as each heard from the other; one that was aborted has received no more than was sent, and the rest was
// dropped. So the totals are sent = received + dropped, and nothing is dropped while nothing fails.
func TestE5BytesSentAreReceived(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 5))
	worlds := []world{{1, 1}, {2, 1}, {4, 1}, {1, 2}, {2, 2}}
	var sent, received, dropped int64
	done, failed := 0, 0
	for range 12 {
		m := model{layers: 4, heads: 4, headBytes: 8, pageSize: 1 + rng.IntN(8)}
		if rng.IntN(3) == 0 {
			m.window, m.windowTokens = "0101", 1+rng.IntN(20)
		}
		e := newEngines(t, m, worlds[rng.IntN(len(worlds))], worlds[rng.IntN(len(worlds))], rng.IntN(2) == 0, nil)
		for room := range int64(4) {
			tokens := 1 + rng.IntN(9*m.pageSize)
			senders, receivers := e.open(rng, room+1, tokens)
			e.ready(senders, receivers, e.m.layout(1).NumPages(tokens))
			layers := m.layers // that each rank sends before the abort
			abort := rng.IntN(2) == 0
			if abort {
				layers = rng.IntN(m.layers + 1)
			}
			var work sync.WaitGroup
			for i, s := range senders {
				work.Go(func() {
					for layer := range min(layers, e.prefills[i].shard.holds.layers.len()) {
						e.send(s, i, layer, tokens)
					}
					if !abort {
						s.Finish(First{Token: 7})
					}
				})
			}
			work.Wait()
			if abort { // of all ranks, as their schedulers agree
				for _, i := range rng.Perm(len(senders) + len(receivers)) {
					if i < len(senders) {
						senders[i].Abort(errors.New("as asked"))
					} else {
						receivers[i-len(senders)].Abort(errors.New("as asked"))
					}
				}
			}
			var out, in int64
			whole := true
			for _, s := range senders {
				waitFor(t, "the end of a sender", s.Settled())
				stats := s.Stats()
				out += stats.TotalBytes
				whole = whole && s.State() == Done
				if s.State() == Done && (!stats.PeerKnown || stats.PeerBytes != stats.TotalBytes) {
					t.Errorf("a sender of room %d is done with %+v", room, stats)
				}
			}
			for _, r := range receivers {
				waitFor(t, "the end of a receiver", r.Settled())
				stats := r.Stats()
				in += stats.TotalBytes
				whole = whole && r.State() == Done
				if r.State() == Done && (!stats.PeerKnown || stats.PeerBytes != stats.TotalBytes) {
					t.Errorf("a receiver of room %d is done with %+v", room, stats)
				}
			}
			switch {
			case whole && in != out, in > out:
				t.Errorf("room %d: %d bytes were sent and %d received, all done: %t", room, out, in, whole)
			case whole && in == 0:
				t.Errorf("room %d: nothing was sent", room)
			case whole == abort:
				t.Errorf("room %d: aborted: %t, done: %t", room, abort, whole)
			}
			if whole {
				done++
			} else {
				failed++
				dropped += out - in
			}
			sent, received = sent+out, received+in
		}
	}
	if sent != received+dropped {
		t.Errorf("%d bytes were sent, %d received and %d dropped", sent, received, dropped)
	}
	t.Logf("%d done, %d failed: %d bytes sent = %d received + %d dropped", done, failed, sent, received, dropped)
}
