package monitoring

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/test/harness"
)

// scrapeInterval is how far apart the scrapes lie in the database, whatever lay between them here.
const scrapeInterval = 5 * time.Second

// rounds of load, with a scrape before, between and after them.
const rounds = 6

// client asks with a routing key.
var client = harness.Client{Header: http.Header{"X-Smg-Routing-Key": {"tenant-a"}}}

// scrape is what every engine said at one moment.
type scrape struct {
	at    time.Time
	pages map[string]string // by instance
}

// fleet are the engines under load and what tells them apart in a cluster.
type fleet struct {
	engines map[string]*harness.Engine // by pool
	router  string
}

func (f *fleet) each(do func(pool string, e *harness.Engine)) {
	for _, pool := range []string{"unified", "prefill", "decode"} {
		do(pool, f.engines[pool])
	}
}

// instance is the address under which Prometheus knows an engine.
func instance(e *harness.Engine) string { return fmt.Sprintf("127.0.0.1:%d", e.Port) }

// start runs a unified engine, and a prefill and a decode engine behind a router, each with two data-parallel replicas and
// little memory.
func start(t *testing.T) *fleet {
	t.Helper()
	harness.NoteSources(t, "../..")
	common := []string{"--dp-size", "2", "--enable-mfu-metrics", "--page-size", "8", "--chunked-prefill-size", "64", "--decode-log-interval", "4", "--enable-priority-scheduling"}
	with := func(more ...string) []string { return append(append([]string{}, common...), more...) }
	timer := []string{"SGLANG_ENABLE_METRICS_DEVICE_TIMER=1"}
	f := &fleet{engines: map[string]*harness.Engine{
		"unified": programs.StartEngine(t, "", timer, with("--model-path", windowed, "--max-total-tokens", "768", "--enable-streaming-session")...),
		"prefill": programs.StartEngine(t, "prefill", timer, with("--model-path", tiny, "--max-total-tokens", "1024")...),
		"decode":  programs.StartEngine(t, "decode", timer, with("--model-path", tiny, "--max-total-tokens", "512")...),
	}}
	f.router = programs.StartRouter(t, []*harness.Engine{f.engines["prefill"]}, []*harness.Engine{f.engines["decode"]})
	return f
}

// observe puts load on the engines, round by round, and scrapes them before, between and after.
func observe(t *testing.T, f *fleet) []scrape {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	begin := time.Unix(1_800_000_000, 0)
	var all []scrape
	look := func() {
		s := scrape{at: begin.Add(time.Duration(len(all)) * scrapeInterval), pages: map[string]string{}}
		f.each(func(_ string, e *harness.Engine) { s.pages[instance(e)] = harness.Get(t, e.URL+"/metrics") })
		s.pages[strings.TrimPrefix(f.router, "http://")] = harness.Get(t, f.router+"/metrics")
		all = append(all, s)
	}
	look()
	for range rounds {
		round(t, f, rng, look)
		look()
	}
	f.each(func(_ string, e *harness.Engine) { e.Idle(t) })
	look()
	records = harness.Get(t, f.engines["decode"].URL+"/debug/requests?slowest=10")
	walked = f.walk(t)
	return all
}

// walk asks what docs/diagnosis.md tells its reader to ask, one command after another, and gives the answers in their order.
// What a command takes from the answer to one before, a rid or a room, is taken from there.
func (f *fleet) walk(t *testing.T) (answers []walkStep) {
	t.Helper()
	rid, room := "", ""
	for _, command := range typed(t, "docs/diagnosis.md") {
		m := asked.FindStringSubmatch(command)
		if m == nil {
			t.Fatalf("docs/diagnosis.md has the command %s, want one that curl asks with", command)
		}
		at := strings.NewReplacer("localhost:30000", strings.TrimPrefix(f.engines["decode"].URL, "http://"), "localhost:8000", strings.TrimPrefix(f.router, "http://")).Replace(m[1])
		at = strings.ReplaceAll(at, "/RID", "/"+rid)
		at = written.ReplaceAllString(at, "room="+room)
		answer := harness.Get(t, "http://"+at)
		answers = append(answers, walkStep{m[1], answer})
		var list struct {
			Requests []struct {
				RID      string
				Attempts []struct {
					Room json.Number `json:"bootstrap_room"`
				}
			}
		}
		if json.Unmarshal([]byte(answer), &list) != nil || len(list.Requests) == 0 {
			continue
		}
		first := list.Requests[0]
		rid = first.RID
		if n := len(first.Attempts); n > 0 {
			room = first.Attempts[n-1].Room.String()
		}
	}
	return answers
}

var (
	asked   = regexp.MustCompile(`^curl -s '([^']*)'`)
	written = regexp.MustCompile(`room=\d+`)
)

// walkStep is a command's address as it is written, and the answer.
type walkStep struct{ address, answer string }

// round asks for answers of every kind at once: more than fit, so that some wait and some are retracted. It looks when the
// first few have come.
func round(t *testing.T, f *fleet, rng *rand.Rand, look func()) {
	t.Helper()
	var wg, first sync.WaitGroup
	unified := f.engines["unified"].URL
	early := map[string]*atomic.Int32{unified: {}, f.router: {}}
	for _, left := range early {
		left.Store(4)
		first.Add(4)
	}
	ask := func(url, path string, body map[string]any) {
		wg.Go(func() {
			if err := client.Post(t.Context(), url+path, body, nil); err != nil {
				t.Errorf("%s%s %v: %v", url, path, body, err)
			}
			if early[url].Add(-1) >= 0 {
				first.Done()
			}
		})
	}
	shared := harness.Tokens(rng, 40)
	for i := range 24 {
		body := map[string]any{
			"input_ids": append(append([]int32{}, shared...), harness.Tokens(rng, 1+rng.IntN(60))...), "priority": i % 3, "stream": i%2 == 0,
			"sampling_params": map[string]any{"temperature": 0, "max_new_tokens": 40 + rng.IntN(80), "ignore_eos": true},
		}
		ask(unified, "/generate", body)
		if i < 16 {
			ask(f.router, "/generate", body)
		}
	}
	ask(unified, "/v1/chat/completions", map[string]any{
		"model": "m", "max_tokens": 60, "messages": []map[string]any{{"role": "user", "content": "Where do the boats go?"}},
		"response_format": map[string]any{"type": "json_schema", "json_schema": map[string]any{"name": "trip", "strict": true, "schema": map[string]any{
			"type": "object", "properties": map[string]any{"boats": map[string]any{"type": "integer"}}, "required": []string{"boats"}, "additionalProperties": false,
		}}},
	})
	wg.Go(func() {
		turn := map[string]any{"text": "the old mill", "sampling_params": map[string]any{"temperature": 0, "max_new_tokens": 8, "ignore_eos": true}}
		if err := client.Talk(t.Context(), unified, turn, turn); err != nil {
			t.Errorf("a session: %v", err)
		}
	})
	wg.Go(func() {
		long := map[string]any{"text": "on and on", "sampling_params": map[string]any{"max_new_tokens": 600, "ignore_eos": true}}
		if err := client.Stream(t.Context(), unified+"/generate", long, harness.LeaveAfter(1)); err != nil {
			t.Errorf("a client that goes away: %v", err)
		}
	})
	first.Wait()
	look()
	wg.Wait()
	for _, url := range []string{unified, f.router} {
		if err := client.Post(t.Context(), url+"/v1/completions", map[string]any{"prompt": 7, "max_tokens": -1}, nil); err == nil {
			t.Errorf("%s: a malformed request got an answer", url)
		}
	}
	f.each(func(_ string, e *harness.Engine) {
		if _, err := e.Loads(); err != nil {
			t.Error(err)
		}
	})
}
