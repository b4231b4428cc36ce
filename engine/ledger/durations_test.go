package ledger_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	. "github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/ledger/ledgertest"
)

func TestDurations(t *testing.T) {
	move := func(ms int, to Stage) op { return op{Ms: ms, To: to} }
	cases := []struct {
		name, reason string
		form         Form
		ops          []op
		met          int // ms after the entry of the stage after ops[0]; 0: never
		transfer     *Transfer
		want         string
	}{
		{
			name: "unified", reason: "the three numbers of a request that went through", form: Unified,
			ops:  []op{move(1, StagePrefillWaiting), move(20, StagePrefillForward), move(300, StageDecodeWaiting), move(4, StageDecodeForward), move(5000, StageDone)},
			want: "queue_duration=20.00ms, forward_duration=5304.00ms, entry_time=1700000000.001",
		},
		{
			name: "unified, retracted", reason: "waits add up, the forward is from the first entry on", form: Unified,
			ops: []op{move(1, StagePrefillWaiting), move(20, StagePrefillForward), move(300, StageDecodeForward), move(4000, StagePrefillWaiting),
				move(50, StagePrefillForward), move(6, StageDecodeForward), move(70, StageDone)},
			want: "queue_duration=70.00ms, forward_duration=4426.00ms, entry_time=1700000000.001",
		},
		{
			name: "unified, finished quickly", reason: "no forward: both read 0, whatever it waited", form: Unified,
			ops:  []op{move(1, StagePrefillWaiting), move(20, StageDone)},
			want: "queue_duration=0.00ms, forward_duration=0.00ms, entry_time=1700000000.001",
		},
		{
			name: "unified, refused", reason: "it never came to a queue", form: Unified,
			ops:  []op{move(1, StageDone)},
			want: "queue_duration=0.00ms, forward_duration=0.00ms, entry_time=0.000",
		},
		{
			name: "prefill", reason: "the peer is known to have met, and pages went over", form: Prefill, met: 7,
			ops: []op{move(1, StagePrefillBootstrap), move(20, StagePrefillWaiting), move(300, StagePrefillForward), move(4000, StagePrefillTransferKVCache),
				move(500, StageDone)},
			transfer: &Transfer{OwnBytes: 3 << 29, Nanos: int64(500 * time.Millisecond)},
			want: "bootstrap_duration=7.00ms, queue_duration=300.00ms, forward_duration=4500.00ms, entry_time=1700000000.001, " +
				"transfer_speed=3.00GB/s, transfer_total=1536.00MB",
		},
		{
			name: "prefill, nobody met", reason: "the whole wait for the peer stands instead", form: Prefill,
			ops:  []op{move(1, StagePrefillBootstrap), move(20, StagePrefillWaiting), move(300, StagePrefillForward), move(4, StageDone)},
			want: "bootstrap_queue_duration=20.00ms, queue_duration=300.00ms, forward_duration=4.00ms, entry_time=1700000000.001",
		},
		{
			name: "prefill, no peer came", reason: "a duration with one end is 0", form: Prefill,
			ops:  []op{move(1, StagePrefillBootstrap), move(20, StageDone)},
			want: "bootstrap_queue_duration=0.00ms, queue_duration=0.00ms, forward_duration=0.00ms, entry_time=1700000000.001",
		},
		{
			name: "decode", reason: "handshake and pages are told apart", form: Decode, met: 7,
			ops: []op{move(1, StageDecodeBootstrap), move(20, StageDecodeTransferred), move(300, StageDecodeWaiting), move(4000, StageDecodeForward),
				move(50000, StageDone)},
			want: "bootstrap_duration=7.00ms, alloc_wait_duration=13.00ms, transfer_duration=300.00ms, queue_duration=4000.00ms, " +
				"forward_duration=50000.00ms, entry_time=1700000000.001",
		},
		{
			name: "decode, nobody met", reason: "then they are not", form: Decode,
			ops: []op{move(1, StageDecodeBootstrap), move(20, StageDecodeTransferred), move(300, StageDecodeWaiting), move(4000, StageDecodeForward),
				move(50000, StageDone)},
			want: "prealloc_queue_duration=20.00ms, transfer_duration=300.00ms, queue_duration=4000.00ms, forward_duration=50000.00ms, entry_time=1700000000.001",
		},
		{
			name: "API process", reason: "it has no queues", form: APIServer, ops: []op{move(1, StageDone)}, want: "entry_time=0.000",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			clock := ledgertest.New()
			tl := NewTimeline(clock, c.form)
			for i, o := range c.ops {
				clock.Advance(time.Duration(o.Ms) * time.Millisecond)
				if i == 1 && c.met > 0 && c.form == Decode {
					clock.Advance(time.Duration(c.met-o.Ms) * time.Millisecond)
					tl.Lap(StageDecodeBootstrapHandshake)
					clock.Advance(time.Duration(o.Ms-c.met) * time.Millisecond)
				} else if i == 1 && c.met > 0 {
					tl.MeetPeer(tl.Entered() + Instant(c.met)*1e6)
				}
				tl.Move(o.To)
			}
			r := tl.Record()
			r.Transfer = c.transfer
			d := r.Durations()
			if diff := cmp.Diff(c.want, d.String()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
			if err := tl.Assert(r); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAssertNamesBothTimes(t *testing.T) {
	clock := ledgertest.New()
	tl := NewTimeline(clock, Unified)
	clock.Advance(10)
	tl.Move(StagePrefillWaiting)
	clock.Advance(-4)
	tl.Move(StagePrefillForward)
	clock.Advance(20)
	tl.Move(StageDone)
	r := tl.Record()
	if err := r.Check(); err != nil {
		t.Errorf("the sums must hold all the same: %v", err)
	}
	if err := tl.Assert(r); err == nil || err.Error() != "the clock went back: 6 ns after 10 ns of this process" {
		t.Errorf("a clock that went back: %v", err)
	}

	cases := []struct {
		name, reason, want string
		damage             func(*Record)
	}{
		{"below 0", "both ends are named", "forward_duration is -5 ns: from 30 ns to 25 ns after the start", func(r *Record) { r.Visits[2].Start = 30 }},
		{"queue", "so is what adds up", "queue_duration is -1 ns: from 5 ns to 4 ns after the start", func(r *Record) { r.QueueNanos = -1 }},
		{"sound", "nothing to say", "", func(*Record) {}},
		{"never queued", "a PD request that did not come to the waiting queue is not looked at", "", func(r *Record) {
			r.Form, r.Visits, r.PeerMet = Prefill, []Visit{{StagePrefillPrepare, 0, 5}, {StagePrefillBootstrap, 20, 5}}, new(int64(10))
		}},
		{"queued", "else it is", "bootstrap_duration is -10 ns: from 20 ns to 10 ns after the start", func(r *Record) {
			r.Form, r.PeerMet = Prefill, new(int64(10))
			r.Visits = []Visit{{StagePrefillPrepare, 0, 5}, {StagePrefillBootstrap, 20, 5}, {StagePrefillWaiting, 25, 0}}
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := &Record{
				Form: Unified, Stage: StageDone, Nanos: 25,
				Visits: []Visit{{StageRequestProcess, 0, 5}, {StagePrefillWaiting, 5, 5}, {StagePrefillForward, 10, 15}},
			}
			c.damage(r)
			got := ""
			if err := r.Durations().Check(); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("%s: check says %q, want %q", c.reason, got, c.want)
			}
		})
	}
}
