package parallel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child()
		return
	}
	goleak.VerifyTestMain(m)
}

// patience bounds what must end by itself; a test that needs it has failed. With the race detector, on a machine that does other
// things too, ranks that wait for each other thousands of times take most of a minute.
const patience = 5 * time.Minute

// backend makes the worlds of all ranks of one, in this process.
type backend struct {
	name string
	// fits reports whether the backend can make such a world.
	fits func(tp, pp int) bool
	make func(t testing.TB, tp, pp int) []*World
}

func backends() []backend {
	always := func(int, int) bool { return true }
	return []backend{
		{"memory", always, func(t testing.TB, tp, pp int) []*World {
			worlds, err := Local(tp, pp)
			if err != nil {
				t.Fatal(err)
			}
			return worlds
		}},
		{"shared memory", always, func(t testing.TB, tp, pp int) []*World { return joinAll(t, tp, pp, 1) }},
		{"tcp", always, func(t testing.TB, tp, pp int) []*World { return joinAll(t, tp, pp, tp*pp) }},
		{"two nodes", func(tp, pp int) bool { return tp*pp >= 4 && tp*pp%2 == 0 },
			func(t testing.TB, tp, pp int) []*World { return joinAll(t, tp, pp, 2) }},
	}
}

// configs gives every rank's, with a folder for each node.
func configs(t testing.TB, tp, pp, nodes int) []Config {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if nodes == 1 {
		ln.Close()
	}
	dirs := make([]string, nodes)
	for i := range dirs {
		dirs[i] = t.TempDir()
	}
	all := make([]Config, tp*pp)
	for rank := range all {
		p, err := At(rank, tp, pp)
		if err != nil {
			t.Fatal(err)
		}
		all[rank] = Config{Place: p, Nodes: nodes, Rendezvous: ln.Addr().String(), Secret: []byte("a secret")}
		all[rank].Dir = dirs[all[rank].node(rank)]
	}
	if nodes > 1 {
		all[0].Listener = ln
	}
	return all
}

// joinAll joins all ranks of a world.
func joinAll(t testing.TB, tp, pp, nodes int) []*World {
	t.Helper()
	all := configs(t, tp, pp, nodes)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	worlds := make([]*World, len(all))
	var ranks errgroup.Group
	for rank, cfg := range all {
		ranks.Go(func() (err error) {
			worlds[rank], err = Join(ctx, cfg)
			return err
		})
	}
	if err := ranks.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, cfg := range all {
		if left, err := os.ReadDir(cfg.Dir); err != nil || len(left) > 0 {
			t.Errorf("the folder of the ranks holds %v, %v once all have joined: want nothing", left, err)
		}
	}
	return worlds
}

// closeWorlds closes what a test has left open.
func closeWorlds(t testing.TB, worlds []*World) {
	t.Helper()
	var ranks errgroup.Group
	for _, w := range worlds {
		ranks.Go(w.Close)
	}
	if err := ranks.Wait(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// onAll runs body for every rank at once and gives their errors by rank. It fails when one takes for ever.
func onAll(t testing.TB, worlds []*World, body func(w *World) error) []error {
	t.Helper()
	errs := make([]error, len(worlds))
	done := make(chan struct{})
	go func() {
		defer close(done)
		var ranks errgroup.Group
		for i, w := range worlds {
			ranks.Go(func() error {
				errs[i] = body(w)
				return nil
			})
		}
		_ = ranks.Wait()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		panic(fmt.Sprintf("ranks hang in %s", t.Name()))
	}
	return errs
}

// mustAll is onAll for what may not fail.
func mustAll(t testing.TB, worlds []*World, body func(w *World) error) {
	t.Helper()
	if err := errors.Join(onAll(t, worlds, body)...); err != nil {
		t.Fatal(err)
	}
}

// kill ends a rank the way the death of its process does: connections end without a notice.
func kill(w *World) {
	for _, one := range w.wires {
		if wire, ok := one.(*connWire); ok {
			wire.mu.Lock()
			wire.said = true // the dead tell nothing
			wire.mu.Unlock()
		}
	}
	for _, one := range w.wires {
		switch wire := one.(type) {
		case *connWire:
			for _, s := range wire.streams {
				s.conn.Close()
			}
			wire.conn.Close()
		case *localWire:
			wire.to.end(peerErrorf(w.place.Rank, "is gone: its connection closed"), false)
		}
	}
}
