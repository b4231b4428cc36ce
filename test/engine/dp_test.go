package engine

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-dev/sluice/engine/loads"
)

// TestDataParallel: two replicas behind one API give the tokens of one, take turns, and honour the rank that a client names
// in header or body.
func TestDataParallel(t *testing.T) {
	one := start(t)
	two := start(t, "--dp-size", "2", "--enable-metrics", "--load-balance-method", "round_robin")
	const prompt = `"text":"the old mill","sampling_params":{"temperature":0,"max_new_tokens":12}`
	want := one.score("{" + prompt + "}").Text
	type placed struct {
		Text     string `json:"text"`
		MetaInfo struct {
			DPRank *int `json:"dp_rank"`
		} `json:"meta_info"`
	}
	ask := func(extra string, headers ...string) (int, placed) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, two.url+"/generate", strings.NewReader("{"+prompt+extra+"}"))
		if err != nil {
			t.Fatal(err)
		}
		for _, value := range headers {
			request.Header.Set("X-Data-Parallel-Rank", value)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != http.StatusOK {
			return response.StatusCode, placed{Text: string(body)}
		}
		return response.StatusCode, decode[placed](t, string(body))
	}
	counts := map[int]int{}
	for range 4 {
		status, got := ask("")
		if status != http.StatusOK || got.Text != want || got.MetaInfo.DPRank == nil {
			t.Fatalf("status %d, %+v, want the text %q and a rank", status, got, want)
		}
		counts[*got.MetaInfo.DPRank]++
	}
	if counts[0] != 2 || counts[1] != 2 {
		t.Errorf("the replicas don't take turns: %v", counts)
	}
	for i := range 3 {
		if _, got := ask(`,"routed_dp_rank":1`); got.MetaInfo.DPRank == nil || *got.MetaInfo.DPRank != 1 {
			t.Errorf("request %d for rank 1 is answered by %+v", i, got.MetaInfo)
		}
		if _, got := ask(`,"routed_dp_rank":1`, "0"); got.MetaInfo.DPRank == nil || *got.MetaInfo.DPRank != 0 {
			t.Errorf("request %d with rank 0 in the header is answered by %+v", i, got.MetaInfo)
		}
	}
	if status, got := ask("", "2"); status != http.StatusBadRequest || !strings.Contains(got.Text, "0 to 1") {
		t.Errorf("a rank that is none: status %d: %s", status, got.Text)
	}
	var load loads.Response
	two.get("/v1/loads", &load)
	if len(load.Loads) != 2 || load.Loads[0].DPRank != 0 || load.Loads[1].DPRank != 1 || load.NumAccelerators != 2 {
		t.Errorf("loads %+v", load)
	}
	if one, body := two.ask(http.MethodGet, "/metrics", "", ""); one != http.StatusOK || !strings.Contains(body, `sglang:num_running_reqs{dp_rank="0"`) || !strings.Contains(body, `sglang:num_running_reqs{dp_rank="1"`) {
		t.Error("the families have no series for each rank")
	}
}

// TestDataRankDeath: the death of one replica's rank ends the whole engine with an error that names it, and no client hangs.
func TestDataRankDeath(t *testing.T) {
	r := start(t, "--dp-size", "2")
	var rests []io.Reader
	for i := range 2 {
		rest, closeBody := r.stream(t.Context(), strings.Replace(longAnswer, "{", fmt.Sprintf(`{"routed_dp_rank":%d,`, i), 1))
		defer closeBody()
		rests = append(rests, rest)
	}
	if err := syscall.Kill(r.rankPID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for i, rest := range rests {
		body, err := io.ReadAll(rest)
		list := events(string(body))
		if last := list[len(list)-1]; err != nil || !strings.Contains(last, `"engine_failed"`) {
			t.Errorf("stream %d ends with %s: %v", i, last, err)
		}
	}
	if code := r.exit(); code == 0 || !strings.Contains(r.Log(), "rank 0 of DP rank 0 (pid ") || !strings.Contains(r.Log(), "signal: killed") {
		t.Errorf("exit code %d", code)
	}
}
