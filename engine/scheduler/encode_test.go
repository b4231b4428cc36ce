package scheduler

import (
	"bytes"
	"math"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/request"
)

// fill sets every field of v to a value of its own, so that one that is not encoded is missed.
func fill(v reflect.Value, n *int64) {
	*n++
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	case reflect.String:
		v.SetString(string(rune('a' + *n%26)))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(float64(*n) + 0.25)
	case reflect.Uint8, reflect.Uint64:
		v.SetUint(uint64(*n))
	default:
		v.SetInt(*n)
	}
}

func fullInput() input {
	var n int64
	r := &request.Request{}
	fill(reflect.ValueOf(r).Elem(), &n)
	r.PromptIDs = []int32{0, -1, math.MaxInt32, math.MinInt32, 5}
	var session request.Session
	fill(reflect.ValueOf(&session).Elem(), &n)
	return input{stop: true, messages: []message{
		submitMsg{req: r}, submitMsg{req: &request.Request{RID: "empty"}},
		abortMsg{rid: "a", prefix: true, reason: request.OutcomeTimeout}, flushMsg{},
		grammarMsg{arrival: 7, verdict: grammarFailed, message: "no"},
		maskMsg{arrival: 8, ended: true}, maskMsg{arrival: 9, left: true, fault: "no"}, maskMsg{arrival: 10},
		controlMsg{kind: controlOpenSession, mode: request.PauseInPlace, session: session},
	}}
}

var unexported = cmp.AllowUnexported(input{}, submitMsg{}, abortMsg{}, flushMsg{}, controlMsg{}, grammarMsg{}, maskMsg{})

func TestInputRoundTrip(t *testing.T) {
	for _, want := range []input{{}, {stop: true}, fullInput()} {
		raw, err := want.encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeInput(raw)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, unexported); diff != "" {
			t.Errorf("(-sent +received):\n%s", diff)
		}
		for n := range raw {
			if _, err := decodeInput(raw[:n]); err == nil {
				t.Errorf("the first %d of %d bytes are taken for an input", n, len(raw))
			}
		}
	}
}

// TestUnshareable: a number that can't be encoded is refused on the leader alone, and takes nothing with it.
func TestUnshareable(t *testing.T) {
	w := newWorld(t, 2, nil, testConfig(Unified, 4, 256))
	r := &request.Request{RID: "nan", PromptIDs: []int32{1}, Sampling: request.Sampling{MaxNewTokens: 1, TopP: float32(math.NaN())}}
	bad := w.submit(r, 0)[0]
	good := w.submit(&request.Request{RID: "good", PromptIDs: []int32{1}, Sampling: request.Sampling{MaxNewTokens: 1}}, 0)[0]
	<-bad.ended
	<-good.ended
	if bad.finish.Outcome != request.OutcomeInvalid || good.finish.Type == request.FinishAbort {
		t.Errorf("bad ends with %v, good with %v", bad.finish, good.finish)
	}
	w.end()
}

// FuzzInput: bytes are refused, or are an input whose bytes decode to the same.
func FuzzInput(f *testing.F) {
	for _, in := range []input{{}, {stop: true}, fullInput()} {
		raw, err := in.encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		in, err := decodeInput(raw)
		if err != nil {
			return
		}
		again, err := in.encode()
		if err != nil {
			t.Fatal(err)
		}
		same, err := decodeInput(again)
		if err != nil {
			t.Fatal(err)
		}
		if third, err := same.encode(); err != nil || !bytes.Equal(again, third) {
			t.Errorf("bytes %x become %x, and then %x (%v)", raw, again, third, err)
		}
	})
}
