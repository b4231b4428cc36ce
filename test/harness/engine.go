package harness

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"testing"

	"github.com/sluice-dev/sluice/engine/loads"
)

// Secret is what the PD peers of tests share.
const Secret = "6f1d0f0d5bb94ad1a3d7d3c0b2c7f0e9"

// Engine is a running sluice-engine serve.
type Engine struct {
	*Process
	URL       string
	Port      int
	Bootstrap int // port of the bootstrap server, on a prefill engine

	programs *Programs
	env      []string
	args     []string
}

// StartEngine runs a replica on free ports and waits until it is healthy. args follow those that every test needs; mode is
// the disaggregation mode or "".
func (p *Programs) StartEngine(t testing.TB, mode string, env []string, args ...string) *Engine {
	t.Helper()
	e := p.NewEngine(t, mode, env, args...)
	e.Run(t)
	return e
}

// NewEngine is StartEngine without the start.
func (p *Programs) NewEngine(t testing.TB, mode string, env []string, args ...string) *Engine {
	t.Helper()
	ports := FreePorts(t, 2)
	e := &Engine{
		Port: ports[0], Bootstrap: ports[1], URL: fmt.Sprintf("http://127.0.0.1:%d", ports[0]), programs: p,
		env:  append([]string{"SLUICE_PD_SECRET=" + Secret}, env...),
		args: []string{"serve", "--served-model-name", "m", "--port", strconv.Itoa(ports[0]), "--threads", "1", "--enable-metrics", "--log-level", "warn"},
	}
	switch mode {
	case "":
	case "prefill":
		e.args = append(e.args, "--disaggregation-mode", mode, "--disaggregation-bootstrap-port", strconv.Itoa(e.Bootstrap))
	default:
		e.args = append(e.args, "--disaggregation-mode", mode)
	}
	e.args = append(e.args, args...)
	return e
}

// Run starts the replica at its ports, also again after its end, and waits until it is healthy.
func (e *Engine) Run(t testing.TB) {
	t.Helper()
	e.launch(t)
	waitHealthy(t, e.Process, e.URL)
}

func (e *Engine) launch(t testing.TB) {
	t.Helper()
	e.Process = Start(t, "engine", e.programs.Engine, e.env, e.args...)
}

// StartNodes runs a replica of n nodes on this host and waits until all are healthy. Node 0, the first, has the API.
func (p *Programs) StartNodes(t testing.TB, n int, mode string, env []string, args ...string) []*Engine {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", FreePorts(t, 1)[0])
	nodes := make([]*Engine, n)
	for i := range nodes {
		nodes[i] = p.NewEngine(t, mode, env, append([]string{"--nnodes", strconv.Itoa(n), "--node-rank", strconv.Itoa(i), "--dist-init-addr", address}, args...)...)
		nodes[i].launch(t)
	}
	for _, e := range nodes {
		waitHealthy(t, e.Process, e.URL)
	}
	return nodes
}

// StartRouter runs a router over engines and gives its address.
func (p *Programs) StartRouter(t testing.TB, prefills, decodes []*Engine, more ...string) (url string) {
	t.Helper()
	port := FreePorts(t, 1)[0]
	args := []string{"--port", strconv.Itoa(port), "--health-interval", "200ms"}
	for _, e := range prefills {
		args = append(args, "--prefill", fmt.Sprintf("%s,%d", e.URL, e.Bootstrap))
	}
	for _, e := range decodes {
		args = append(args, "--decode", e.URL)
	}
	url = fmt.Sprintf("http://127.0.0.1:%d", port)
	waitHealthy(t, Start(t, "router", p.Router, nil, append(args, more...)...), url)
	return url
}

func waitHealthy(t testing.TB, p *Process, url string) {
	t.Helper()
	Eventually(t, p.Name+" is healthy", func() bool {
		select {
		case <-p.ended:
			t.Fatalf("%s ended while starting:\n%s", p.Name, p.Log())
		default:
		}
		answer, err := http.Get(url + "/health")
		if err != nil {
			return false
		}
		answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
}

// Loads reads /v1/loads with all sections.
func (e *Engine) Loads() ([]loads.Load, error) {
	answer, err := http.Get(e.URL + "/v1/loads?include=all")
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	var r loads.Response
	if err := json.NewDecoder(answer.Body).Decode(&r); err != nil {
		return nil, fmt.Errorf("GET /v1/loads: status %d: %w", answer.StatusCode, err)
	}
	return r.Loads, nil
}

// Idle waits until no DP rank has a request in any queue or uses KV that is not merely cached.
func (e *Engine) Idle(t testing.TB) {
	t.Helper()
	Eventually(t, e.URL+" is idle", func() bool {
		list, err := e.Loads()
		for _, l := range list {
			d := l.Disaggregation
			if d == nil || l.NumRunningReqs+l.NumWaitingReqs+l.NumUsedTokens+l.NumTotalTokens != 0 ||
				d.PrefillBootstrapQueueReqs+d.PrefillInflightQueueReqs+d.DecodePreallocQueueReqs+d.DecodeTransferQueueReqs != 0 {
				return false
			}
		}
		return err == nil && len(list) > 0
	})
}
