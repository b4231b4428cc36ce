package server

import (
	"strconv"
	"testing"

	"github.com/sluice-dev/sluice/engine/request"
)

// TestSessionsAreForgotten: sessions that time out at the ranks are never closed here, and the notes of them don't grow
// for ever; one that has turns is remembered however many others come.
func TestSessionsAreForgotten(t *testing.T) {
	var s sessions
	goesOn := func(id string) bool { return s.goesOn(&request.Turn{SessionID: id}) }
	s.opened("busy")
	s.opened("idle")
	s.turned("idle")
	for i := range 3 * maxNoted {
		if i%(maxNoted/2) == 0 {
			s.turned("busy")
		}
		s.opened(strconv.Itoa(i))
	}
	if n := len(s.used) + len(s.aged); n > 2*maxNoted {
		t.Errorf("%d sessions are noted, want at most %d", n, 2*maxNoted)
	}
	if !goesOn("busy") || goesOn("idle") {
		t.Errorf("busy goes on: %t, idle: %t; want true, false", goesOn("busy"), goesOn("idle"))
	}
	s.closed("busy")
	s.turned("busy") // its last turn ends after the close
	if goesOn("busy") {
		t.Error("a closed session goes on")
	}
	s.opened("busy")
	if goesOn("busy") {
		t.Error("a session without a turn goes on")
	}
}
