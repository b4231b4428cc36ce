package pd

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-dev/sluice/test/harness"
)

// timeline is one of /debug/requests.
type timeline struct {
	Form      string
	Stage     string
	StartWall int64 `json:"start_wall_nanos"`
	Nanos     int64
	Stages    []struct {
		Stage string
		Nanos int64
	}
	Transfer *struct {
		Bytes     int64
		PeerBytes *int64 `json:"peer_bytes"`
	}
}

// record is a request in /debug/requests of an engine.
type record struct {
	RID         string
	InFlight    bool `json:"in_flight"`
	Outcome     string
	DPRank      *int   `json:"dp_rank"`
	Room        *int64 `json:"bootstrap_room"`
	Prompt      int    `json:"prompt_tokens"`
	Cached      int    `json:"cached_tokens"`
	Computed    int    `json:"computed_tokens"`
	Completion  int    `json:"completion_tokens"`
	Retractions int
	API         *timeline `json:"api_server"`
	Rank        *timeline `json:"scheduler"`
}

// remembered gives the requests that a server remembers, once none lives.
func remembered[R any](t *testing.T, url string) []R {
	t.Helper()
	var list struct {
		InFlight int `json:"in_flight"`
		Requests []R
	}
	harness.Eventually(t, "no request lives", func() bool {
		list.Requests = nil
		if err := json.Unmarshal([]byte(harness.Get(t, url+"/debug/requests?limit=1000")), &list); err != nil {
			t.Fatal(err)
		}
		return list.InFlight == 0
	})
	return list.Requests
}

// checkRecord verifies what one engine says of one request.
func checkRecord(t *testing.T, engine string, r record) {
	t.Helper()
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%s, request %s (%s): %s", engine, r.RID, r.Outcome, fmt.Sprintf(format, args...))
	}
	for _, tl := range []*timeline{r.API, r.Rank} {
		if tl == nil {
			fail("a timeline is missing: %+v", r)
			return
		}
		var sum int64
		for _, s := range tl.Stages {
			if s.Nanos < 0 {
				fail("%s took %d ns", s.Stage, s.Nanos)
			}
			sum += s.Nanos
		}
		if sum != tl.Nanos || tl.Stage != "done" {
			fail("%s: the stages sum to %d ns of %d, and the last is %s", tl.Form, sum, tl.Nanos, tl.Stage)
		}
	}
	// Lengths are of one monotonic clock, so they compare to the nanosecond. Beginnings are by the wall, which may be corrected
	// while the two processes look at it, so of them only that the parts lie over each other is certain.
	after := int64(0) // in the API process, once the request was on its way to the rank
	for _, s := range r.API.Stages {
		if s.Stage != "tokenize" {
			after += s.Nanos
		}
	}
	if r.Rank.Nanos > after {
		fail("the scheduler took %d ns, and the API process waited %d ns for it", r.Rank.Nanos, after)
	}
	if r.Rank.StartWall > r.API.StartWall+r.API.Nanos || r.Rank.StartWall+r.Rank.Nanos < r.API.StartWall {
		fail("the scheduler had it from %d to %d, the API process from %d to %d", r.Rank.StartWall, r.Rank.StartWall+r.Rank.Nanos, r.API.StartWall, r.API.StartWall+r.API.Nanos)
	}
	if r.Outcome == "length" && r.Rank.Form != "decode" && r.Computed+r.Cached != r.Prompt {
		fail("%d prompt tokens, %d computed and %d cached", r.Prompt, r.Computed, r.Cached)
	}
	if x := r.Rank.Transfer; r.Outcome == "length" && r.Room != nil && (x == nil || x.Bytes == 0 || x.PeerBytes == nil || *x.PeerBytes != x.Bytes) {
		fail("the transfer is %+v", x)
	}
}

// TestE4RecordsOfRealEngines: after a load with clients that go away, what every engine and the router remember sums up in each
// process, the scheduler's part lies inside of the API process's, the parts of a request are joined by its room, both sides of
// a hand-over count the same bytes, and no law was broken.
func TestE4RecordsOfRealEngines(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	o := engineOptions{model: tiny, pageSize: 4, chunk: 32, more: []string{"--enable-metrics"}}
	with := func(more ...string) engineOptions {
		o := o
		o.more = append(append([]string(nil), o.more...), more...)
		return o
	}
	unified := startEngine(t, "", with("--dp-size", "2"))
	prefill, decode := startEngine(t, "prefill", with("--tp-size", "2")), startEngine(t, "decode", o)
	router := startRouter(t, []*harness.Engine{prefill}, []*harness.Engine{decode})
	var wg sync.WaitGroup
	for i := range 40 {
		prompt := make([]int32, 1+rng.IntN(200))
		for j := range prompt {
			prompt[j] = int32(10 + j%7 + rng.IntN(2))
		}
		tokens, leaves, url := 1+rng.IntN(30), rng.IntN(5) == 0, []string{unified.URL, router}[i%2]
		wg.Go(func() {
			stay := 0
			if leaves {
				stay = 1
			}
			err := harness.Client{}.Stream(t.Context(), url+"/generate", map[string]any{
				"rid": fmt.Sprint("r", i), "input_ids": prompt,
				"sampling_params": map[string]any{"temperature": 0, "max_new_tokens": tokens, "ignore_eos": true},
			}, harness.LeaveAfter(stay))
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()

	byRoom := map[int64]map[string]record{}
	for name, url := range map[string]string{"unified": unified.URL, "prefill": prefill.URL, "decode": decode.URL} {
		list := remembered[record](t, url)
		if len(list) != 20 {
			t.Errorf("%s remembers %d requests, want 20", name, len(list))
		}
		for _, r := range list {
			if r.Outcome == "aborted_client" && r.Rank == nil {
				continue // it went before the rank had it
			}
			checkRecord(t, name, r)
			if r.Rank != nil && r.Rank.Form != name || (name == "unified") != (r.DPRank != nil) || (name == "unified") != (r.Room == nil) {
				t.Errorf("%s has %+v", name, r)
			}
			if r.Room != nil {
				if byRoom[*r.Room] == nil {
					byRoom[*r.Room] = map[string]record{}
				}
				byRoom[*r.Room][name] = r
			}
		}
		text := harness.Get(t, url+"/debug/requests?format=text&limit=3")
		if strings.Count(text, "end to end") != 3 || !strings.Contains(text, name+": ") {
			t.Errorf("%s as text:\n%s", name, text)
		}
		told := 0
		for line := range strings.Lines(harness.Get(t, url+"/metrics")) {
			if strings.HasPrefix(line, "sluice_ledger_violations_total{") {
				told++
				if !strings.HasSuffix(strings.TrimSpace(line), " 0") {
					t.Errorf("%s: %s", name, line)
				}
			}
		}
		if told == 0 {
			t.Errorf("%s does not tell of breaches", name)
		}
	}
	routed := remembered[struct {
		RID      string
		Outcome  string
		Nanos    int64
		Attempts []struct {
			Room            *int64 `json:"bootstrap_room"`
			Prefill, Decode *struct{ URL string }
		}
	}](t, router)
	if len(routed) != 20 {
		t.Errorf("the router remembers %d requests, want 20", len(routed))
	}
	for _, r := range routed {
		last := r.Attempts[len(r.Attempts)-1]
		halves := byRoom[*last.Room]
		if last.Prefill == nil || last.Prefill.URL != prefill.URL || last.Decode.URL != decode.URL || r.Outcome == "ok" && len(halves) != 2 {
			t.Errorf("the router sent %s to %+v; the engines remember %d halves", r.RID, last, len(halves))
			continue
		}
		for name, half := range halves {
			if half.RID != r.RID || r.Outcome == "ok" && name == "decode" && half.API.Nanos > r.Nanos {
				t.Errorf("%s took %d ns in the router, and as %s %d ns in the %s engine", r.RID, r.Nanos, half.RID, half.API.Nanos, name)
			}
		}
	}
}
