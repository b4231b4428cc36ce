package engine

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// pair is a prefill and a decode engine, and what a router does between them.
type pair struct {
	t               testing.TB
	prefill, decode *replica
}

// startPair starts both engines with the same secret.
func startPair(t testing.TB, flags ...string) *pair {
	t.Setenv("SLUICE_PD_SECRET", "a secret of the service")
	return &pair{
		t:       t,
		prefill: start(t, append([]string{"--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", "0"}, flags...)...),
		decode:  start(t, append([]string{"--disaggregation-mode", "decode"}, flags...)...),
	}
}

// startPairOf starts both engines with flags of their own.
func startPairOf(t testing.TB, prefill, decode []string) *pair {
	t.Setenv("SLUICE_PD_SECRET", "a secret of the service")
	return &pair{
		t:       t,
		prefill: start(t, append([]string{"--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", "0"}, prefill...)...),
		decode:  start(t, append([]string{"--disaggregation-mode", "decode"}, decode...)...),
	}
}

// TestPairsOfManyRanks: whichever replicas and ranks the two engines have, every room's pages come from the replica that
// computed them: greedy answers are those of one process.
func TestPairsOfManyRanks(t *testing.T) {
	one := start(t)
	bodies := make([]string, 6)
	want := make([]string, len(bodies))
	for i := range bodies {
		bodies[i] = fmt.Sprintf(`{"prompt":"the river and mill number %d","max_tokens":12,"temperature":0,"ignore_eos":true}`, i)
		_, text := one.post("/v1/completions", bodies[i])
		want[i] = decode[completion](t, text).Choices[0].Text
	}
	for _, c := range []struct {
		name            string
		prefill, decode []string
	}{
		{"prefill replicas, by room", []string{"--dp-size", "2"}, nil},
		{"prefill replicas, by turns", []string{"--dp-size", "2", "--load-balance-method", "round_robin"}, nil},
		{"decode replicas", nil, []string{"--dp-size", "2"}},
		{"replicas of several ranks", []string{"--dp-size", "2", "--tp-size", "2"}, []string{"--dp-size", "2", "--load-balance-method", "total_tokens"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := startPairOf(t, c.prefill, c.decode)
			got := make([]string, len(bodies))
			var wait sync.WaitGroup
			for i, body := range bodies {
				wait.Go(func() {
					prefill, answer := p.post("/v1/completions", body)
					if prefill.status != http.StatusOK || answer.status != http.StatusOK {
						t.Errorf("request %d: prefill %d %s, decode %d %s", i, prefill.status, prefill.body, answer.status, answer.body)
						return
					}
					got[i] = decode[completion](t, answer.body).Choices[0].Text
				})
			}
			wait.Wait()
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-one process +pair)\n%s", diff)
			}
		})
	}
}

// post sends a body to both engines with a room to meet in and gives both answers.
func (p *pair) post(path, body string) (prefill, decode reply) {
	p.t.Helper()
	port, err := strconv.Atoi(p.prefill.bootstrap)
	if err != nil {
		p.t.Fatalf("the prefill engine has no bootstrap server: %v", err)
	}
	fields := readFields(p.t, body)
	fields["bootstrap_host"], fields["bootstrap_port"], fields["bootstrap_room"] = "127.0.0.1", port, rand.Int64()
	paired, err := json.Marshal(fields)
	if err != nil {
		p.t.Fatal(err)
	}
	var wait sync.WaitGroup
	wait.Go(func() { prefill.status, prefill.body = p.prefill.post(path, string(paired)) })
	wait.Go(func() { decode.status, decode.body = p.decode.post(path, string(paired)) })
	wait.Wait()
	return prefill, decode
}

// reply is an engine's answer.
type reply struct {
	status int
	body   string
}

func readFields(t testing.TB, body string) map[string]any {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(body))
	decoder.UseNumber()
	var fields map[string]any
	if err := decoder.Decode(&fields); err != nil {
		t.Fatal(err)
	}
	return fields
}

// TestPairEqualsUnified: through a pair the tokens are those of one engine, for prompts around the page boundaries, many
// at once, streamed or not.
func TestPairEqualsUnified(t *testing.T) {
	const pageSize = 16
	unified := start(t)
	p := startPair(t, "--enable-metrics", "--chunked-prefill-size", "32")
	var wait sync.WaitGroup
	for _, tokens := range []int{1, 2, pageSize - 1, pageSize, pageSize + 1, 2 * pageSize, 2*pageSize + 1, 5*pageSize - 1, 100, 257} {
		prompt := make([]int, tokens)
		for i := range prompt {
			prompt[i] = (7*i*i + 3*i + tokens) % 250
		}
		ids, err := json.Marshal(prompt)
		if err != nil {
			t.Fatal(err)
		}
		for _, sampling := range []string{`"temperature":0`, `"temperature":1,"seed":11,"stop":["e"]`} {
			body := fmt.Sprintf(`{"prompt":%s,"max_tokens":20,%s}`, ids, sampling)
			status, alone := unified.post("/v1/completions", body)
			if status != http.StatusOK {
				t.Fatalf("%d tokens: unified: status %d: %s", tokens, status, alone)
			}
			want := decode[completion](t, alone)
			for _, stream := range []bool{false, true} {
				wait.Go(func() {
					prefill, answer := p.post("/v1/completions", strings.TrimSuffix(body, "}")+fmt.Sprintf(`,"stream":%v,"stream_options":{"include_usage":true}}`, stream))
					if prefill.status != http.StatusOK || answer.status != http.StatusOK {
						t.Errorf("%d tokens: prefill %+v, decode %+v", tokens, prefill, answer)
						return
					}
					var got completion
					if stream {
						got = joined(t, answer.body)
					} else {
						got = decode[completion](t, answer.body)
					}
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("%d tokens, %s, stream %v: (-unified +pair)\n%s", tokens, sampling, stream, diff)
					}
				})
			}
		}
	}
	wait.Wait()
	p.prefill.idle()
	p.decode.idle()
}

// TestPairBatch: the sequences of one request meet in rooms that both engines count alike.
func TestPairBatch(t *testing.T) {
	p := startPair(t)
	prefill, answer := p.post("/v1/completions", `{"prompt":["one","two three","four"],"max_tokens":4}`)
	if prefill.status != http.StatusOK || answer.status != http.StatusOK {
		t.Fatalf("prefill %+v, decode %+v", prefill, answer)
	}
	if got := len(decode[completion](t, answer.body).Choices); got != 3 {
		t.Errorf("%d choices", got)
	}
	p.prefill.idle()
	p.decode.idle()
}

// TestPairWithoutRoom: each engine of a pair says that it needs a room.
func TestPairWithoutRoom(t *testing.T) {
	p := startPair(t)
	for _, r := range []*replica{p.prefill, p.decode} {
		status, body := r.post("/generate", `{"text":"a"}`)
		if got := decode[completion](t, body).Error; status != http.StatusBadRequest || got == nil || got.Param != "bootstrap_room" {
			t.Errorf("status %d: %s", status, body)
		}
	}
}

// TestPeerDeath: when one side dies the other's clients get an error at once and its pages are free again.
func TestPeerDeath(t *testing.T) {
	t.Run("prefill", func(t *testing.T) {
		p := startPair(t)
		answers := make(chan reply, 1)
		go func() { // only the decode engine gets it, so it waits for the other half
			status, body := p.decode.post("/v1/completions", fmt.Sprintf(
				`{"prompt":"a b c","bootstrap_host":"127.0.0.1","bootstrap_port":%s,"bootstrap_room":5}`, p.prefill.bootstrap))
			answers <- reply{status, body}
		}()
		p.decode.wait("the decode engine waits", func() bool { return p.decode.load().NumWaitingReqs == 1 })
		p.prefill.Signal(syscall.SIGKILL)
		if got := <-answers; got.status != http.StatusBadGateway {
			t.Errorf("%+v", got)
		}
		p.decode.idle()
	})
	t.Run("decode", func(t *testing.T) {
		p := startPair(t, "--chunked-prefill-size", "16")
		ids, err := json.Marshal(make([]int, 1500))
		if err != nil {
			t.Fatal(err)
		}
		body := fmt.Sprintf(`{"prompt":%s,"max_tokens":1,"bootstrap_host":"127.0.0.1","bootstrap_port":%s,"bootstrap_room":6}`, ids, p.prefill.bootstrap)
		answers := make(chan reply, 1)
		go func() {
			status, text := p.prefill.post("/v1/completions", body)
			answers <- reply{status, text}
		}()
		go func() { // it dies, so it has no answer
			if answer, err := http.Post(p.decode.url+"/v1/completions", "application/json", strings.NewReader(body)); err == nil {
				_ = answer.Body.Close()
			}
		}()
		p.prefill.wait("the prompt is being computed", func() bool { return p.prefill.load().NumUsedTokens > 0 || len(answers) > 0 })
		p.decode.Signal(syscall.SIGKILL)                                                          // takes its rank along
		if got := <-answers; got.status != http.StatusBadGateway && got.status != http.StatusOK { // a fast prefill is done already
			t.Errorf("%+v", got)
		}
		p.prefill.idle()
	})
}

// TestPairDisconnect: the client of the decode engine goes away; both engines forget the request.
func TestPairDisconnect(t *testing.T) {
	p := startPair(t)
	port := p.prefill.bootstrap
	body := fmt.Sprintf(`{"prompt":"the river","max_tokens":2000,"ignore_eos":true,"stream":true,"bootstrap_host":"127.0.0.1","bootstrap_port":%s,"bootstrap_room":7}`, port)
	done := make(chan reply, 1)
	go func() {
		status, text := p.prefill.post("/v1/completions", body)
		done <- reply{status, text}
	}()
	_, closeBody := p.decode.stream(t.Context(), body)
	if got := <-done; got.status != http.StatusOK {
		t.Errorf("prefill: %+v", got)
	}
	closeBody()
	p.prefill.idle()
	p.decode.idle()
}

// TestPairPromptLogprobs: the logprobs of the prompt, which the prefill engine computes, come with the decode engine's
// answer, the same as from one engine, whatever the prefill engine finds in its cache and however it cuts the prompt.
func TestPairPromptLogprobs(t *testing.T) {
	one := start(t)
	p := startPair(t, "--chunked-prefill-size", "32")
	prompt := make([]int32, 100)
	for i := range prompt {
		prompt[i] = int32((11*i*i + 5*i) % 250)
	}
	for _, from := range []int{0, 37, 99, 100, 0} {
		body := fmt.Sprintf(`{"input_ids":%s,"sampling_params":{"temperature":0,"max_new_tokens":6,"ignore_eos":true},"return_logprob":true,
			"logprob_start_len":%d,"top_logprobs_num":2,"token_ids_logprob":[7]}`, ints(prompt), from)
		want := one.score(body)
		prefill, answer := p.post("/generate", body)
		if prefill.status != http.StatusOK || answer.status != http.StatusOK {
			t.Fatalf("from %d: prefill %+v, decode %+v", from, prefill, answer)
		}
		if diff := cmp.Diff(want, decode[scored](t, answer.body)); diff != "" || len(want.MetaInfo.Input) != len(prompt)-from {
			t.Errorf("from %d: %d rows of the prompt (-one engine +pair)\n%s", from, len(want.MetaInfo.Input), diff)
		}
	}
	const echoed = `{"prompt":"the river and mill","max_tokens":6,"temperature":0,"echo":true,"logprobs":1}`
	_, want := one.post("/v1/completions", echoed)
	_, answer := p.post("/v1/completions", echoed)
	choice := func(body string) any { return decode[map[string]any](t, body)["choices"] }
	if diff := cmp.Diff(choice(want), choice(answer.body)); diff != "" || choice(want) == nil {
		t.Errorf("echo (-one engine +pair)\n%s", diff)
	}
	p.prefill.idle()
	p.decode.idle()
}
