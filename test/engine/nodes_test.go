package engine

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/test/harness"
)

// freeAddress gives an address on which nobody listens.
func freeAddress(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// startNodes starts the nodes of a replica and waits until all are healthy.
func startNodes(t testing.TB, n int, flags ...string) []*replica {
	t.Helper()
	address := freeAddress(t)
	nodes := make([]*replica, n)
	for i := range nodes {
		nodes[i] = launch(t, append(slices.Clone(flags), "--nnodes", fmt.Sprint(n), "--node-rank", fmt.Sprint(i), "--dist-init-addr", address)...)
	}
	for _, r := range nodes {
		r.wait("it listens", func() bool {
			found := listening.FindStringSubmatch(r.Log())
			if found == nil {
				return false
			}
			r.url, r.bootstrap = "http://"+found[1], found[2]
			return true
		})
	}
	for _, r := range nodes {
		r.wait("it is healthy", func() bool { return r.status("/health") == http.StatusOK })
	}
	return nodes
}

// nothingLeft waits until processes have ended and looks for folders.
func nothingLeft(t testing.TB, pids []int) {
	t.Helper()
	for _, pid := range pids {
		harness.Eventually(t, fmt.Sprintf("rank process %d has ended", pid), func() bool { return !alive(pid) })
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(binary), "sluice-world-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("%v is left behind: %v", left, err)
	}
}

// TestNodes: ranks on two nodes give the answers of one process; the second node says where to ask, has metrics of its own
// and ends with the first.
func TestNodes(t *testing.T) {
	const body = `{"prompt":"the river and the old mill and the river and the bread of the miller","max_tokens":24,"temperature":0,"ignore_eos":true}`
	ask := func(r *replica) string {
		t.Helper()
		status, text := r.post("/v1/completions", body)
		if status != http.StatusOK {
			t.Fatalf("status %d: %s", status, text)
		}
		return decode[completion](t, text).Choices[0].Text
	}
	want := ask(start(t))
	for _, flags := range [][]string{
		{"--tp-size", "2"}, {"--pp-size", "2"}, {"--tp-size", "2", "--pp-size", "2"}, {"--tp-size", "2", "--dp-size", "2"},
	} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			nodes := startNodes(t, 2, append(flags, "--enable-metrics", "--enable-metrics-for-all-schedulers")...)
			pids := append(harness.Children(nodes[0].PID()), harness.Children(nodes[1].PID())...)
			for range 2 { // each DP rank has a turn
				if diff := cmp.Diff(want, ask(nodes[0])); diff != "" {
					t.Errorf("(-one process +two nodes)\n%s", diff)
				}
			}
			status, text := nodes[1].post("/v1/completions", body)
			if status != http.StatusMisdirectedRequest || !strings.Contains(text, "send the request to node 0, on 127.0.0.1") {
				t.Errorf("node 1 answers %d: %s", status, text)
			}
			response, err := http.Get(nodes[1].url + "/metrics")
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			exposition, err := io.ReadAll(response.Body)
			label := `tp_rank="1"`
			if flags[0] == "--pp-size" || len(flags) == 4 && flags[2] == "--pp-size" {
				label = `pp_rank="1"`
			}
			if err != nil || !strings.Contains(string(exposition), label) {
				t.Errorf("the metrics of node 1 have no %s: %v", label, err)
			}
			nodes[0].Signal(syscall.SIGTERM)
			for i, r := range nodes {
				if code := r.exit(); code != 0 {
					t.Errorf("node %d: exit code %d\n%s", i, code, r.Log())
				}
			}
			nothingLeft(t, pids)
		})
	}
}

// TestNodeDeath: whatever is killed on whichever node, both nodes end with an error that names it, no client hangs and
// nothing stays.
func TestNodeDeath(t *testing.T) {
	for _, c := range []struct {
		name   string
		victim func(nodes []*replica) (pid int)
		want   [2]string // in the log of each node; empty: it is the one that was killed
	}{
		{"rank of node 0", func(nodes []*replica) int { return harness.Children(nodes[0].PID())[0] },
			[2]string{"sluice-engine: rank 0 (tp 0, pp 0, pid %d) ended: signal: killed", "sluice-engine: node 0 ended the replica: rank 0 (tp 0, pp 0, pid %d) ended: signal: killed"}},
		{"rank of node 1", func(nodes []*replica) int { return harness.Children(nodes[1].PID())[0] },
			[2]string{"sluice-engine: node 1: rank 1 (tp 1, pp 0, pid %d) ended: signal: killed", "sluice-engine: rank 1 (tp 1, pp 0, pid %d) ended: signal: killed"}},
		{"node 0", func(nodes []*replica) int { return nodes[0].PID() }, [2]string{"", "sluice-engine: node 0 is gone"}},
		{"node 1", func(nodes []*replica) int { return nodes[1].PID() }, [2]string{"sluice-engine: node 1 is gone", ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			nodes := startNodes(t, 2, "--tp-size", "2")
			pids := append(harness.Children(nodes[0].PID()), harness.Children(nodes[1].PID())...)
			stream, closeBody := nodes[0].stream(t.Context(), longAnswer)
			defer closeBody()
			victim := c.victim(nodes)
			if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			answer, err := io.ReadAll(stream)
			if c.want[0] != "" {
				list := events(string(answer))
				if last := list[len(list)-1]; err != nil || !strings.Contains(last, `"error"`) {
					t.Errorf("the stream ends with %s: %v", last, err)
				}
			}
			for i, r := range nodes {
				code := r.exit()
				want := c.want[i]
				if strings.Contains(want, "%d") {
					want = fmt.Sprintf(want, victim)
				}
				if want != "" && (code == 0 || !strings.Contains(r.Log(), want)) {
					t.Errorf("node %d: exit code %d, and the log lacks %q", i, code, want)
				}
			}
			nothingLeft(t, pids)
		})
	}
}

// TestNodeThatDoesNotStart: its error ends the others, which say why.
func TestNodeThatDoesNotStart(t *testing.T) {
	address := freeAddress(t)
	common := []string{"--tp-size", "2", "--nnodes", "2", "--dist-init-addr", address}
	first := launch(t, append(slices.Clone(common), "--node-rank", "0")...)
	second := launch(t, append(slices.Clone(common), "--node-rank", "1", "--model-path", filepath.Join(t.TempDir(), "none"))...)
	for i, r := range []*replica{first, second} {
		if code := r.exit(); code == 0 || !strings.Contains(r.Log(), "none/config.json: no such file or directory") {
			t.Errorf("node %d: exit code %d, and the log doesn't say why\n%s", i, code, r.Log())
		}
	}
	nothingLeft(t, nil)
}
