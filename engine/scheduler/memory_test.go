package scheduler

import (
	"testing"

	"github.com/sluice-dev/sluice/engine/request"
)

// TestRetractedBeforeSending: a prompt on a prefill rank that loses its pages before any of them was given to its transfer gets
// them back at once, so that it finds room again although its transfer is open all the time.
func TestRetractedBeforeSending(t *testing.T) {
	w := newWire(4)
	w.sender, w.receiver = newTape(4), newTape(4)
	cfg := testConfig(Prefill, 4, 64)
	cfg.ChunkTokens, cfg.NoCache = 2, true // less than a page
	s, err := New(cfg, Deps{Executor: w.sender, Clock: stillClock(), Reporter: newRecorder(), Decoder: letters{}, Log: quiet(), Sender: wireSender{w}})
	if err != nil {
		t.Fatal(err)
	}
	s.checked = true
	begin(t, s)
	peer, err := w.open(1, 40, 1)
	if err != nil {
		t.Fatal(err)
	}
	sink := newSink()
	if err := s.Submit(&request.Request{RID: "a", PromptIDs: testPrompt(40, 1), Bootstrap: &request.Bootstrap{Room: 1}}, sink); err != nil {
		t.Fatal(err)
	}
	for step := range 100 {
		if step == 2 {
			s.inbox.put(controlMsg{kind: controlPause, mode: request.PauseRetract})
			s.inbox.put(controlMsg{kind: controlContinue})
		}
		if _, err := s.turn(); err != nil {
			t.Fatal(err)
		}
		if step == 0 {
			peer.Allocate([]int32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, nil)
		}
		if step == 2 && s.pool.Stats().Reserved > 0 {
			t.Errorf("pages are reserved that no transfer knows: %+v", s.pool.Stats())
		}
	}
	if sink.finish == nil || sink.finish.Outcome != request.OutcomeLength {
		t.Errorf("the request ends with %v, want its length", sink.finish)
	}
	if st := s.pool.Stats(); st.Available != st.Capacity {
		t.Errorf("at the end the pool is %+v", st)
	}
}
