package traces

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/test/harness"
)

// rankTree is what a rank has of a request of TestNodes.
const rankTree = `  Scheduler [TP %d]  [PP %d]
    request_process
    prefill_waiting
    prefill_forward
    decode_waiting
    decode_forward
      decode_loop
`

// TestNodes: the ranks of a replica's second node hang in the same tree as those of the first, as processes of their own, with
// the links to the dispatch in the API process of node 0.
func TestNodes(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		args         []string
		ranks        [][2]int // TP, PP; in the order of the tree
	}{
		{"tp", "each node has a rank of the one stage", []string{"--tp-size", "2"}, [][2]int{{0, 0}, {1, 0}}},
		{"tp and pp", "each node has a stage", []string{"--tp-size", "2", "--pp-size", "2"}, [][2]int{{0, 0}, {0, 1}, {1, 0}, {1, 1}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := startCollector(t)
			nodes := programs.StartNodes(t, 2, "", c.env(), append(c.args(), tc.args...)...)
			rid := fmt.Sprintf("nodes%03d", len(tc.ranks))
			header := http.Header{"Traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}
			if status, body := generate(t, nodes[0].URL, rid, prompt(6, 5), 2, nil, header); status != http.StatusOK {
				t.Fatalf("%s: the answer is %d %s", tc.reason, status, body)
			}
			r := trees(t, c.await(t, 1, 1+len(tc.ranks)))[rid]
			want := " Req " + rid + "\n  Tokenizer\n    tokenize\n    api_server_dispatch\n"
			for _, at := range tc.ranks {
				want += fmt.Sprintf(rankTree, at[0], at[1])
			}
			if diff := cmp.Diff(want, r.String()); diff != "" {
				t.Fatalf("%s: the tree (-want +got)\n%s", tc.reason, diff)
			}
			r.check(t, true)
			var got, ranks [2][]string
			for i, node := range nodes {
				for _, pid := range harness.Children(node.PID()) {
					ranks[i] = append(ranks[i], fmt.Sprint(pid))
				}
				for _, s := range r.threads {
					if slices.Contains(ranks[i], fmt.Sprint(s.Attributes["pid"])) {
						got[i] = append(got[i], fmt.Sprint(s.Attributes["pid"]))
					}
				}
				slices.Sort(ranks[i])
				slices.Sort(got[i])
			}
			if diff := cmp.Diff(ranks, got); diff != "" || len(ranks[1]) != len(tc.ranks)/2 {
				t.Errorf("%s: the rank processes of the nodes, and those of them that have a thread (-want +got)\n%s", tc.reason, diff)
			}
			for _, s := range r.threads {
				if s.Trace != "4bf92f3577b34da6a3ce929d0e0e4736" {
					t.Errorf("%s is of trace %s", s.Name, s.Trace)
				}
			}
		})
	}
}
