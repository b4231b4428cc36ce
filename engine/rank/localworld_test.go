package rank

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/parallel"
	"github.com/sluice-dev/sluice/engine/request"
)

// localWorld runs the ranks of a world in this process and gives the leader's client.
func localWorld(t testing.TB, cfg Config, tp, pp int) Client {
	t.Helper()
	worlds, err := parallel.Local(tp, pp)
	if err != nil {
		t.Fatal(err)
	}
	clients, failures := make([]Client, len(worlds)), make([]error, len(worlds))
	var group sync.WaitGroup
	for i, w := range worlds {
		group.Go(func() {
			if clients[i], failures[i] = startInProcess(waiting(t), cfg, w); failures[i] != nil {
				w.Abort(failures[i]) // the others wait for it
			}
		})
	}
	group.Wait()
	if err := errors.Join(failures...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, c := range clients {
			_ = c.Close(waiting(t)) // the first one ends the world, and the others say so
		}
		for _, w := range worlds {
			_ = w.Close()
		}
	})
	return clients[0]
}

// TestWorldsHandOver compares the greedy answers of prefill and decode worlds of different sizes with those of one rank.
func TestWorldsHandOver(t *testing.T) {
	dir := seededModel(t)
	cfg := testConfig(dir)
	cfg.PageSize = 8
	requests := func() (list []*request.Request) {
		for i, n := range []int{1, 7, 8, 9, 40, 65} {
			list = append(list, newRequest(fmt.Sprint("n", n), prompt(n), 3+5*i))
		}
		return list
	}
	unified := startClient(t, startKinds[0], cfg)
	want := map[string][]int32{}
	for _, r := range requests() {
		want[r.RID], _ = answer(t, submit(t, unified, r))
	}
	type size struct{ tp, pp int }
	for _, worlds := range [][2]size{
		{{1, 1}, {2, 1}}, {{2, 1}, {1, 1}}, {{2, 1}, {2, 1}}, {{1, 2}, {1, 1}}, {{1, 1}, {1, 2}}, {{2, 1}, {1, 2}}, {{4, 1}, {2, 1}},
	} {
		prefill, decode := worlds[0], worlds[1]
		t.Run(fmt.Sprintf("tp%dpp%d-tp%dpp%d", prefill.tp, prefill.pp, decode.tp, decode.pp), func(t *testing.T) {
			p := startPair(t, cfg,
				func(cfg Config) Client { return localWorld(t, cfg, prefill.tp, prefill.pp) },
				func(cfg Config) Client { return localWorld(t, cfg, decode.tp, decode.pp) })
			type half struct{ prefill, decode *Stream }
			halves := map[string]half{}
			for _, r := range requests() {
				first, second := p.submit(r)
				halves[r.RID] = half{first, second}
			}
			for rid, h := range halves {
				got, finish := answer(t, h.decode)
				if !cmp.Equal(want[rid], got) {
					t.Errorf("%s: %v (%+v), want %v", rid, got, finish, want[rid])
				}
				_, handed := answer(t, h.prefill)
				checkBooks(t, rid, handed, finish)
			}
			p.drained(p.prefill)
			p.drained(p.decode)
		})
	}
}

// checkBooks verifies what the finishes of both halves say: the times sum up (E4), and the KV bytes that the one sent are
// those that the other received, as far as these ranks have a part of them (E5).
func checkBooks(t *testing.T, rid string, prefill, decode request.Finish) {
	t.Helper()
	for _, f := range []request.Finish{prefill, decode} {
		r := f.Timeline
		if r == nil {
			t.Fatalf("%s: %+v has no timeline", rid, f)
		}
		if err := errors.Join(r.Check(), r.Durations().Check()); err != nil {
			t.Errorf("%s: %s: %v", rid, r.Form, err)
		}
		if r.PeerMet == nil || r.Transfer == nil || r.Transfer.OwnBytes == 0 {
			t.Errorf("%s: %s met its peer at %v and has the transfer %+v", rid, r.Form, r.PeerMet, r.Transfer)
		} else if peer := r.Transfer.PeerBytes; peer == nil || *peer != r.Transfer.OwnBytes {
			t.Errorf("%s: %s counts %d bytes, its peers %v", rid, r.Form, r.Transfer.OwnBytes, peer)
		}
	}
}

// TestWorldTakesLongInputs: what a request is to the other ranks may be longer than what it is to the first.
func TestWorldTakesLongInputs(t *testing.T) {
	c := localWorld(t, testConfig(seededModel(t)), 2, 1)
	long := newRequest("long", prompt(8), 1)
	long.Grammar = &request.Grammar{Kind: request.GrammarRegex, Source: strings.Repeat("\x01", maxMessageBytes/5)} // 6 bytes each in JSON
	if _, f := answer(t, submit(t, c, long)); f.Outcome != request.OutcomeInvalid {
		t.Errorf("it ends with %v, want invalid: that is more than a grammar may have", f)
	}
	if _, f := answer(t, submit(t, c, newRequest("next", prompt(8), 1))); f.Outcome != request.OutcomeLength {
		t.Errorf("the next request ends with %v, want length", f)
	}
}
