package rank

import (
	"context"
	"io"
	"log/slog"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/rank/rankpb"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler"
	"github.com/sluice-dev/sluice/engine/scheduler/report"
	"google.golang.org/protobuf/proto"
)

// everyField fills v with a different value in every field, so that a field that the wire forgets shows.
func everyField(v reflect.Value, next *int) {
	*next++
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		everyField(v.Elem(), next)
	case reflect.Struct:
		for i := range v.NumField() {
			everyField(v.Field(i), next)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		everyField(v.Index(0), next)
		everyField(v.Index(1), next)
	case reflect.String:
		v.SetString(string(rune('A' + *next)))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(int64(*next))
	case reflect.Uint8: // a form or a stage
		v.SetUint(uint64(1 + *next%4))
	case reflect.Float32:
		v.SetFloat(float64(*next))
	default:
		panic("no value for a field of type " + v.Type().String())
	}
}

func TestWireKeepsEveryField(t *testing.T) {
	next := 0
	var r request.Request
	everyField(reflect.ValueOf(&r).Elem(), &next)
	if diff := cmp.Diff(&r, requestFromWire(requestToWire(&r))); diff != "" {
		t.Errorf("request (-before +after):\n%s", diff)
	}
	var o request.Output
	everyField(reflect.ValueOf(&o).Elem(), &next)
	if diff := cmp.Diff(o, outputFromWire(outputToWire(o))); diff != "" {
		t.Errorf("output (-before +after):\n%s", diff)
	}
	var session request.Session
	everyField(reflect.ValueOf(&session).Elem(), &next)
	if diff := cmp.Diff(session, sessionFromWire(sessionToWire(session))); diff != "" {
		t.Errorf("session (-before +after):\n%s", diff)
	}
	var i Info
	everyField(reflect.ValueOf(&i).Elem(), &next)
	if diff := cmp.Diff(i, infoFromWire(infoToWire(i))); diff != "" {
		t.Errorf("info (-before +after):\n%s", diff)
	}
	for _, empty := range []*request.Request{{RID: "a"}, {RID: "b", PromptIDs: []int32{0}}} {
		if diff := cmp.Diff(empty, requestFromWire(requestToWire(empty))); diff != "" {
			t.Errorf("empty request (-before +after):\n%s", diff)
		}
	}
}

// fixed is a device that always gives the same token.
type fixed struct{}

func (fixed) Execute(_ context.Context, rows []scheduler.Row, _ func(int)) ([]scheduler.Sampled, error) {
	return make([]scheduler.Sampled, len(rows)), nil
}

type noText struct{}

func (noText) Decode(ids []int32, _ bool) string { return string(make([]byte, len(ids))) }

type finishes struct{ finish chan request.Finish }

func (f finishes) Put(o request.Output) {
	if o.Finish != nil {
		f.finish <- *o.Finish
	}
}

// FuzzCall: whatever a message says, the rank lives and the request ends exactly once.
func FuzzCall(f *testing.F) {
	for _, c := range []*rankpb.Call{
		{}, {Call: &rankpb.Call_Abort{Abort: &rankpb.Abort{Rid: "a", Prefix: true}}},
		{Call: &rankpb.Call_Submit{}},
		{Call: &rankpb.Call_Submit{Submit: requestToWire(newRequest("a", prompt(20), 3))}},
		{Call: &rankpb.Call_Submit{Submit: &rankpb.Request{PromptIds: []int32{-1}, Sampling: &rankpb.Sampling{MaxNewTokens: -5, Stop: []string{"", "\x00\x00"}}}}},
		{Call: &rankpb.Call_Submit{Submit: &rankpb.Request{PromptIds: []int32{1}, Sampling: &rankpb.Sampling{MaxNewTokens: 1 << 62, MinNewTokens: 1 << 62}}}},
	} {
		raw, err := proto.Marshal(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var c rankpb.Call
		if proto.Unmarshal(raw, &c) != nil {
			return
		}
		s, err := scheduler.New(scheduler.Config{
			PageSize: 4, CapacityTokens: 64, ContextLength: 40, VocabSize: 100, MaxRunning: 2, MaxRunningUnderSLO: 2, MaxPrefillTokens: 100, DecodeInterval: 3,
		}, scheduler.Deps{
			Executor: fixed{}, Clock: ledger.System(), Reporter: report.Silent(), Decoder: noText{}, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		if submit, ok := c.GetCall().(*rankpb.Call_Submit); ok {
			sink := finishes{make(chan request.Finish, 2)}
			if err := s.Submit(requestFromWire(submit.Submit), sink); err != nil {
				t.Fatal(err)
			}
			<-sink.finish
		} else {
			_ = (&service{scheduler: s}).handle(&c, newOutbox()) // an unknown call is refused
		}
		stop()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if l := s.Load(); l.NumUsedTokens != 0 {
			t.Errorf("%d tokens are used after the end", l.NumUsedTokens)
		}
	})
}
