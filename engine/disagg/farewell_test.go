package disagg

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/engine/request"
)

// TestFarewellsAreBounded: rooms that are aborted faster than their peers can be told do not pile up: as many as MaxFarewells
// wait for an answer, the others end at once.
func TestFarewellsAreBounded(t *testing.T) {
	const rooms, farewells = 7, 2
	var asked atomic.Int64
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		<-r.Context().Done()
	}))
	t.Cleanup(silent.Close) // after the decode rank
	p := newPair(t, pairOptions{decode: func(c *Config) {
		c.MaxFarewells, c.RouteTimeout, c.HandshakeTimeout = farewells, time.Hour, time.Hour
	}})
	at := silent.Listener.Addr().(*net.TCPAddr)
	poll := func(what string, done func() bool) {
		t.Helper()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for late := time.After(20 * time.Second); !done(); {
			select {
			case <-tick.C:
			case <-late:
				t.Fatalf("not within 20 s: %s; %d questions came", what, asked.Load())
			}
		}
	}
	var all []*Receiver
	for room := range int64(rooms) {
		r, err := p.decode.Open(request.Bootstrap{Host: at.IP.String(), Port: at.Port, Room: room}, 9)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	poll("each room is asked for", func() bool { return asked.Load() == rooms })
	for i, r := range all {
		r.Abort(errors.New("the queue is full: " + strconv.Itoa(i)))
	}
	poll("all but those that take leave have ended", func() bool {
		p.decode.mu.Lock()
		defer p.decode.mu.Unlock()
		return len(p.decode.live) == farewells
	})
	poll("these ask", func() bool { return asked.Load() == rooms+farewells })
	if err := p.decode.Close(); err != nil {
		t.Fatal(err)
	}
	if n := len(p.decode.visits); n != 0 {
		t.Errorf("%d take leave after the end", n)
	}
}
