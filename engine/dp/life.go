package dp

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/sluice-dev/sluice/engine/rank"
)

// mourningGrace is how long the other DP ranks may take to end after one has died, before they are killed.
const mourningGrace = time.Second

// watch waits for the first DP rank that ends and ends the others: a replica without one of its DP ranks is no replica.
func (c *Controller) watch() {
	defer close(c.done)
	first, err := firstEnd(c.ranks)
	var orphans []*rank.Stream
	c.mu.Lock()
	if !c.closing {
		if err == nil {
			err = errors.New("it ended although nobody asked it to")
		}
		c.err = c.name(first, err)
		for _, p := range c.live {
			if p.stream != nil {
				orphans = append(orphans, p.stream)
			}
		}
		err = c.err
	}
	c.mu.Unlock()
	for _, s := range orphans {
		s.Fail(err)
	}
	if len(orphans) > 0 || c.Err() != nil {
		ctx, cancel := context.WithTimeout(context.Background(), mourningGrace)
		defer cancel()
		_ = c.each(func(_ int, r rank.Client) error { return r.Close(ctx) }) // the first death is the reason that counts
	}
	for _, r := range c.ranks {
		<-r.Done()
	}
}

// firstEnd waits until one of ranks has ended and says how.
func firstEnd(ranks []rank.Client) (dpRank int, err error) {
	cases := make([]reflect.SelectCase, len(ranks))
	for i, r := range ranks {
		cases[i] = reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(r.Done())}
	}
	dpRank, _, _ = reflect.Select(cases)
	return dpRank, ranks[dpRank].Err()
}

// Done implements rank.Client: closed when all DP ranks have ended.
func (c *Controller) Done() <-chan struct{} { return c.done }

// Err implements rank.Client.
func (c *Controller) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close implements rank.Client.
func (c *Controller) Close(ctx context.Context) error {
	c.mu.Lock()
	if c.err == nil {
		c.closing = true
	}
	c.mu.Unlock()
	if err := c.each(func(_ int, r rank.Client) error { return r.Close(ctx) }); err != nil {
		return err
	}
	<-c.done
	return nil
}
