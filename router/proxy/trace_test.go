package proxy

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/internal/traceparent"
	"github.com/sluice-dev/sluice/router/discovery"
)

// TestOneTrace: both halves of a request get the same trace context, on every attempt; a unified engine gets what the client
// sent.
func TestOneTrace(t *testing.T) {
	const valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, tc := range []struct {
		name, reason string
		sent         http.Header
		unified      bool
		want         http.Header // nil: a new valid context without a state, the same on both
	}{
		{"the client's", "it is handed on as it came", http.Header{"Traceparent": {valid}, "Tracestate": {"a=1", "b=2"}}, false, http.Header{"Traceparent": {valid}, "Tracestate": {"a=1", "b=2"}}},
		{"not sampled", "that is the client's to say", http.Header{"Traceparent": {valid[:len(valid)-1] + "0"}}, false, http.Header{"Traceparent": {valid[:len(valid)-1] + "0"}}},
		{"none", "the halves would have a trace each", nil, false, nil},
		{"a bad one", "it is as good as none, and its state means nothing", http.Header{"Traceparent": {"00-0-0-01"}, "Tracestate": {"a=1"}}, false, nil},
		{"two", "nobody can tell which is meant", http.Header{"Traceparent": {valid, valid}}, false, nil},
		{"none, unified", "the engine makes its own", nil, true, http.Header{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			meet := &rooms{open: map[int64]*meetingRoom{}}
			var engines []*engine
			if tc.unified {
				engines = []*engine{newEngine(t, meet, discovery.Unified, "u")}
			} else {
				bad := newEngine(t, meet, discovery.Prefill, "dying")
				bad.instead = die
				engines = []*engine{bad, newEngine(t, meet, discovery.Prefill, "p"), newEngine(t, meet, discovery.Decode, "d")}
			}
			rt := newRouter(t, routerOptions{engines: engines})
			for range 2 { // with round robin one of them is tried on the dying engine first
				header := tc.sent.Clone()
				if a := rt.do(t.Context(), http.MethodPost, "/generate", `{"text":"x"}`, header); a.Status != http.StatusOK {
					t.Fatalf("the answer is %+v", a)
				}
			}
			rt.settled()
			made := map[traceparent.Context]int{}
			for _, e := range engines {
				for len(e.got) > 0 {
					got := <-e.got
					context := http.Header{}
					for _, name := range []string{traceparent.Header, traceparent.StateHeader} {
						if values, ok := got.header[name]; ok {
							context[name] = values
						}
					}
					if tc.want != nil {
						if diff := cmp.Diff(tc.want, context); diff != "" {
							t.Errorf("%s: engine %s got (-want +got)\n%s", tc.reason, e.name, diff)
						}
						continue
					}
					c, ok := traceparent.FromHeader(context)
					if !ok || !c.Sampled || c.State != "" {
						t.Errorf("%s: engine %s got %v", tc.reason, e.name, context)
					}
					made[c]++
				}
			}
			if tc.want == nil {
				for c, n := range made {
					if n < 2 || len(made) != 2 {
						t.Errorf("%d contexts were made for 2 requests; %d engines got %s", len(made), n, c)
					}
				}
			}
		})
	}
}
