package rank

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/request"
)

func piece(completion int, ids ...int32) request.Output {
	return request.Output{RID: "a", TokenIDs: ids, CompletionTokens: completion}
}

func TestStream(t *testing.T) {
	dead := errors.New("dead")
	last := piece(4, 4)
	last.Finish = &request.Finish{Type: request.FinishStop}
	joined := piece(4, 2, 3, 4)
	joined.Finish = last.Finish
	tests := []struct {
		name, reason string
		do           func(*Stream)
		want         []request.Output
		err          error
	}{
		{name: "joined", reason: "a reader that comes late gets one piece", do: func(s *Stream) { s.Put(piece(2, 2)); s.Put(piece(3, 3)); s.Put(last) },
			want: []request.Output{joined}, err: io.EOF},
		{name: "death", reason: "what came before is not lost", do: func(s *Stream) { s.Put(piece(1, 9)); s.Fail(dead); s.Fail(io.ErrNoProgress) },
			want: []request.Output{piece(1, 9)}, err: dead},
		{name: "death after the end", reason: "the answer is complete", do: func(s *Stream) { s.Put(last); s.Fail(dead) },
			want: []request.Output{last}, err: io.EOF},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := NewStream()
			tt.do(s)
			var got []request.Output
			for {
				o, err := s.Recv(waiting(t))
				if err != nil {
					if !errors.Is(err, tt.err) {
						t.Errorf("%s: the end is %v, want %v", tt.reason, err, tt.err)
					}
					break
				}
				got = append(got, o)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
			if _, err := s.Recv(waiting(t)); !errors.Is(err, tt.err) {
				t.Errorf("%s: after the end comes %v", tt.reason, err)
			}
		})
	}
}

func TestStreamMisuse(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s := NewStream()
	if _, err := s.Recv(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Recv without a piece gives %v, want context.Canceled", err)
	}
	last := piece(0)
	last.Finish = &request.Finish{}
	s.Put(last)
	defer func() {
		if got := fmt.Sprint(recover()); got != "rank: output of request a after its finish" {
			t.Errorf("panic is %q", got)
		}
	}()
	s.Put(piece(1, 1))
}

func TestJoinKeepsWhatWasTaken(t *testing.T) {
	shared := []int32{1, 2, 3, 4}
	before := piece(2, shared[:2]...)
	before.TokenIDs = shared[:2]
	Join(&before, piece(3, 9))
	if diff := cmp.Diff([]int32{1, 2, 3, 4}, shared); diff != "" {
		t.Errorf("joining wrote into the scheduler's tokens (-before +after):\n%s", diff)
	}
}

func TestTail(t *testing.T) {
	w := newTailWriter(io.Discard)
	for i := range 20 {
		if _, err := fmt.Fprintf(w, "line %d\n\n", i); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(w, "open"); err != nil {
		t.Fatal(err)
	}
	got := w.tail()
	if len(got) != tailLines+1 || got[0] != "line 12" || got[tailLines-1] != "line 19" || got[tailLines] != "open" {
		t.Errorf("tail is %q", got)
	}
	long := newTailWriter(io.Discard)
	for range 100 {
		if _, err := io.WriteString(long, "0123456789"); err != nil {
			t.Fatal(err)
		}
	}
	if got := long.tail(); len(got) != 1 || len(got[0]) != tailLineBytes {
		t.Errorf("a long line is kept as %d lines", len(got))
	}
}

func TestTailKeepsWhatMatters(t *testing.T) {
	tests := []struct {
		name, reason, text string
		want               []string
	}{
		{name: "log", reason: "an orderly log says nothing about a death", text: "time=1 level=INFO msg=a\ntime=1 level=WARN msg=b\n"},
		{name: "error", reason: "an error may", text: "time=1 level=ERROR msg=a\n", want: []string{"time=1 level=ERROR msg=a"}},
		{name: "panic", reason: "its beginning counts, not its stacks",
			text: "before\npanic: oh\n\ngoroutine 1\n1\n2\n3\n4\n5\n6\n7\n8\n", want: []string{"panic: oh", "goroutine 1", "1", "2", "3", "4", "5", "6"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newTailWriter(io.Discard)
			if _, err := io.WriteString(w, tt.text); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, w.tail()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}
