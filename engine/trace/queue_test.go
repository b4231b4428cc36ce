package trace

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// naiveQueue is the same as a list.
type naiveQueue struct {
	size, batch int
	spans       []string
	dropped     int64
	closed      bool
}

func (q *naiveQueue) put(name string) {
	if q.closed || len(q.spans) == q.size {
		q.dropped++
		return
	}
	q.spans = append(q.spans, name)
}

func (q *naiveQueue) take() (spans []string, more bool, dropped int64) {
	n := min(q.batch, len(q.spans))
	spans, q.spans = slices.Clone(q.spans[:n]), q.spans[n:]
	dropped, q.dropped = q.dropped, 0
	return spans, n > 0 && (len(q.spans) >= q.batch || q.closed && len(q.spans) > 0), dropped
}

func TestQueueAsNaively(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		size, batch := 1+random.IntN(20), 1+random.IntN(6)
		q, twin := newQueue(size, batch), &naiveQueue{size: size, batch: batch}
		for i := range 200 {
			switch n := random.IntN(10); {
			case n < 6:
				name := fmt.Sprint(i)
				q.put(span{name: name})
				twin.put(name)
				if len(twin.spans)%batch == 0 && !twin.closed && len(q.ready) == 0 {
					t.Fatalf("a batch of %d is full, and nobody is told", batch)
				}
			case n < 9 || i < 150:
				for len(q.ready) > 0 {
					<-q.ready
				}
				spans, more, dropped, closed := q.take()
				want, wantMore, wantDropped := twin.take()
				var names []string
				for _, s := range spans {
					names = append(names, s.name)
				}
				if diff := cmp.Diff(want, names, cmp.Transformer("empty", func(l []string) []string { return append([]string{}, l...) })); diff != "" ||
					more != wantMore || dropped != wantDropped || closed != twin.closed {
					t.Fatalf("size %d, batch %d: more %t, %d dropped, closed %t; want %t, %d, %t (-want +got)\n%s",
						size, batch, more, dropped, closed, wantMore, wantDropped, twin.closed, diff)
				}
				q.giveBack(spans)
			default:
				q.close()
				twin.closed = true
			}
		}
	}
}

// TestQueueTakesAll: what many put at the same time is taken or counted as dropped.
func TestQueueTakesAll(t *testing.T) {
	const writers, each = 4, 5000
	q := newQueue(100, 8)
	var writing sync.WaitGroup
	for range writers {
		writing.Go(func() {
			for range each {
				q.put(span{name: "s"})
			}
		})
	}
	taken, lost := 0, int64(0)
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			<-q.ready
			for more := true; more; {
				spans, left, dropped, closed := q.take()
				more = left
				taken, lost = taken+len(spans), lost+dropped
				q.giveBack(spans)
				if closed && !left {
					return
				}
			}
		}
	})
	writing.Wait()
	q.close()
	reading.Wait()
	if int64(taken)+lost != writers*each {
		t.Errorf("%d spans were taken and %d lost of %d", taken, lost, writers*each)
	}
}
