package parallel

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/internal/peer"
)

// joinEach joins every rank for itself and gives worlds and errors by rank.
func joinEach(ctx context.Context, all []Config) ([]*World, []error) {
	worlds, errs := make([]*World, len(all)), make([]error, len(all))
	var ranks sync.WaitGroup
	for i, cfg := range all {
		ranks.Go(func() { worlds[i], errs[i] = Join(ctx, cfg) })
	}
	ranks.Wait()
	return worlds, errs
}

// TestStrangers has callers that say nothing, nonsense, or half a hello at the rendezvous while two nodes meet.
func TestStrangers(t *testing.T) {
	all := configs(t, 2, 1, 2)
	address := all[0].Rendezvous
	var strangers []net.Conn
	for i := range 40 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		strangers = append(strangers, conn)
		say := [][]byte{nil, []byte("GET / HTTP/1.1\r\n\r\n"), {0, 3, '{'}, {0, 2, '{', '}'}, bytes.Repeat([]byte{0xff}, 5000)}[i%5]
		if _, err := conn.Write(say); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	worlds, errs := joinEach(ctx, all)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	defer closeWorlds(t, worlds)
	mustAll(t, worlds, func(w *World) error { return w.TP().AllReduce(make([]float32, 10)) })
	for _, conn := range strangers {
		if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, context.DeadlineExceeded) {
			t.Error("a stranger is still connected once all have joined")
		}
	}
}

// TestMeetingsThatFail checks what each rank says when a meeting can't succeed.
func TestMeetingsThatFail(t *testing.T) {
	tests := []struct {
		name, reason string
		tp, nodes    int
		change       func(all []Config)
		absent       int // rank that doesn't come; 0: all do
		want         []string
	}{
		{
			"other secret", "", 2, 2, func(all []Config) { all[1].Secret = []byte("guess") }, 0,
			[]string{"ranks [1] did not come", "the secrets of the nodes differ: give all the same"},
		},
		{
			"no secret", "", 2, 2, func(all []Config) { all[1].Secret = nil }, 0,
			[]string{"the last caller was sent away", "the secrets of the nodes differ: give all the same"},
		},
		{
			"other sizes", "", 2, 2, func(all []Config) { all[1].Place = Place{Rank: 1, PPRank: 1, TPSize: 1, PPSize: 2} }, 0,
			[]string{"it has --tp-size 1, --pp-size 2 and --nnodes 2", "it has --tp-size 1, --pp-size 2 and --nnodes 2, rank 0 has 2, 1 and 2: start all nodes alike"},
		},
		{"absent on the same host", "", 3, 1, nil, 1, []string{"ranks [1] did not come", "", "call rank 1:"}},
		{"absent on another host", "", 3, 3, nil, 1, []string{"ranks [1] did not come", "", "rank 0 still waits for other ranks"}},
		{"nobody at the rendezvous", "", 2, 2, func(all []Config) { all[0].Listener.Close(); all[0].Rendezvous = "127.0.0.1:bad" }, 0,
			[]string{"listen at the rendezvous 127.0.0.1:bad", "meet the ranks at"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			all := configs(t, test.tp, 1, test.nodes)
			if test.change != nil {
				test.change(all)
				if test.name == "nobody at the rendezvous" {
					all[0].Listener = nil
				}
			}
			come := all
			if test.absent > 0 {
				come = append(append([]Config{}, all[:test.absent]...), all[test.absent+1:]...)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
			defer cancel()
			worlds, errs := joinEach(ctx, come)
			closeWorlds(t, nonNil(worlds))
			for i, cfg := range come {
				want := test.want[cfg.Place.Rank]
				if errs[i] == nil || !strings.Contains(errs[i].Error(), want) {
					t.Errorf("rank %d: error %v, want one with %q", cfg.Place.Rank, errs[i], want)
				}
			}
		})
	}
}

func nonNil(worlds []*World) []*World {
	var some []*World
	for _, w := range worlds {
		if w != nil {
			some = append(some, w)
		}
	}
	return some
}

func TestConfigIsChecked(t *testing.T) {
	two := Place{TPSize: 2, PPSize: 1}
	tests := []struct {
		name string
		cfg  Config
		want string
	}{
		{"place", Config{Place: Place{Rank: 1, TPSize: 2, PPSize: 1}}, "place is {Rank:1 TPRank:0 PPRank:0 TPSize:2 PPSize:1}: want {Rank:1 TPRank:1 PPRank:0 TPSize:2 PPSize:1}"},
		{"no place", Config{}, "tensor-parallel size is 0 and pipeline-parallel size 0: give 1 or more to --tp-size and --pp-size, 256 at most in all"},
		{"too many", Config{Place: Place{TPSize: 300, PPSize: 1}}, "tensor-parallel size is 300 and pipeline-parallel size 1"},
		{"rank", Config{Place: Place{Rank: 2, TPSize: 2, PPSize: 1}}, "rank is 2: want 0 to 1, the world is 2 tensor-parallel ranks by 1 stages"},
		{"nodes", Config{Place: two, Nodes: 3}, "number of nodes is 3: want a divisor of the 2 ranks for --nnodes"},
		{"folder", Config{Place: two}, "folder of the ranks is empty"},
		{"rendezvous", Config{Place: two, Nodes: 2, Rendezvous: "here"}, `rendezvous is "here": want host:port of the first node for --dist-init-addr`},
		{"secret", Config{Place: two, Nodes: 2, Rendezvous: "10.0.0.1:5000"}, "rendezvous is 10.0.0.1:5000, not a loopback address, and there is no secret"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := Join(context.Background(), test.cfg)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

// TestARestartedRankCounts has rank 1 come to the rendezvous, go away, and come again while rank 2 is awaited.
func TestARestartedRankCounts(t *testing.T) {
	all := configs(t, 3, 1, 3)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	first := make(chan error, 1)
	meeting := make(chan *World, 1)
	go func() {
		w, err := Join(ctx, all[0])
		first <- err
		meeting <- w
	}()
	crashed, crash := context.WithCancel(ctx)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if w, err := Join(crashed, all[1]); err == nil {
			w.Close()
		}
	}()
	crash()
	<-gone
	worlds, errs := joinEach(ctx, all[1:])
	if err := errors.Join(append(errs, <-first)...); err != nil {
		t.Fatal(err)
	}
	worlds = append([]*World{<-meeting}, worlds...)
	defer closeWorlds(t, worlds)
	mustAll(t, worlds, func(w *World) error { return w.TP().AllReduce(make([]float32, 10)) })
}

// TestDamagedMarks has a peer write nonsense into the marks of shared memory: no rank reads beyond a ring.
func TestDamagedMarks(t *testing.T) {
	for _, mark := range []uint32{1 << 31, uint32(data.ringBytes()) + 1, ^uint32(0)} {
		worlds := joinAll(t, 2, 1, 1)
		in := worlds[0].lines[data][1].in
		in.ring.marks.written.Store(mark)
		var named *PeerError
		if err := worlds[0].TP().AllReduce(make([]float32, 10)); !errors.As(err, &named) || named.Rank != 1 {
			t.Errorf("mark %d: error %v, want one that names rank 1", mark, err)
		}
		closeWorlds(t, worlds)
	}
}

// scripted is a connection whose peer says what is written down.
type scripted struct {
	net.Conn
	in bytes.Reader
}

func (s *scripted) Read(b []byte) (int, error)       { return s.in.Read(b) }
func (s *scripted) Write(b []byte) (int, error)      { return len(b), nil }
func (s *scripted) SetDeadline(time.Time) error      { return nil }
func (s *scripted) SetWriteDeadline(time.Time) error { return nil }
func script(b []byte) *scripted                      { return &scripted{in: *bytes.NewReader(b)} }
func frame(b string) []byte                          { return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...) }

// FuzzHandshake checks that nobody gets in, or lets this rank in, without the secret.
func FuzzHandshake(f *testing.F) {
	f.Add(frame(`{"version":1,"nonce":"00112233445566778899aabbccddeeff","has_secret":true,"from":1,"to":0,"channel":0,"tp_size":2,"pp_size":1,"nodes":2}`))
	f.Add(append(frame(`{"version":1,"nonce":"00112233445566778899aabbccddeeff","has_secret":true,"from":1}`), frame(strings.Repeat("x", 32))...))
	f.Add(append(frame(`{"nonce":"00112233445566778899aabbccddeeff","has_secret":true}`), frame(strings.Repeat("x", 32))...))
	f.Add(frame(`{"refusal":"go away"}`))
	f.Add([]byte{0xff, 0xff})
	f.Fuzz(func(t *testing.T, said []byte) {
		if h, err := receive(script(said), []byte("secret"), func(hello) error { return nil }); err == nil {
			t.Fatalf("%+v got in", h)
		}
		if err := greet(script(said), []byte("secret"), hello{}); err == nil {
			t.Fatal("greeted somebody without the secret")
		}
		var tab table
		if _, err := peer.ReadJSON(script(said), maxTableBytes, &tab); err == nil && len(tab.Addresses) > maxTableBytes {
			t.Fatal("a table larger than its frame")
		}
	})
}

// FuzzHeader checks that a header is refused or written back as it was.
func FuzzHeader(f *testing.F) {
	var b [headerBytes]byte
	header{kind: kindReduce, sequence: 7, length: 4096}.put(&b)
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) < headerBytes {
			return
		}
		b := [headerBytes]byte(raw)
		h, err := parseHeader(&b)
		if err != nil {
			return
		}
		var again [headerBytes]byte
		h.put(&again)
		if again != b || h.length > maxMessageBytes {
			t.Fatalf("% x is read as %+v and written as % x", b, h, again)
		}
	})
}

// FuzzNotice checks that a notice is refused or names a rank of the world, with printable words.
func FuzzNotice(f *testing.F) {
	f.Add(encodeNotice(nil))
	f.Add(encodeNotice(&PeerError{Rank: 3, Err: errors.New("failed: \x1b[31mred")}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		cause, err := readNotice(bytes.NewReader(raw), 1, 4)
		if err != nil {
			return
		}
		if cause.Rank < 0 || cause.Rank > 3 || strings.ContainsAny(cause.Error(), "\x00\x1b\n") {
			t.Fatalf("%q is read as %v", raw, cause)
		}
	})
}
