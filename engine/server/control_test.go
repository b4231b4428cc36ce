package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/profile"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/request"
)

// TestControl: what each control call asks of the rank and answers.
func TestControl(t *testing.T) {
	for _, tc := range []struct {
		name, path, body string
		status           int
		want             string // the answer's body
		calls            []string
	}{
		{"pause", "/pause_generation", ``, 200, `{"message":"Generation paused successfully.","status":"ok"}`, []string{"pause abort"}},
		{"pause by retraction", "/pause_generation", `{"mode":"retract"}`, 200, `{"message":"Generation paused successfully.","status":"ok"}`, []string{"pause retract"}},
		{"pause in place", "/pause_generation", `{"mode":"in_place"}`, 200, `{"message":"Generation paused successfully.","status":"ok"}`, []string{"pause in_place"}},
		{"continue", "/continue_generation", `{"torch_empty_cache":false}`, 200, `{"message":"Generation continued successfully.","status":"ok"}`, []string{"continue"}},
		{"open session", "/open_session", `{"session_id":"s","capacity_of_str_len":100,"streaming":true,"timeout":1.5}`, 200, `"s"`,
			[]string{"open {ID:s CapacityTokens:100 Streaming:true TimeoutNanos:1500000000}"}},
		{"close session", "/close_session", `{"session_id":"s"}`, 200, ``, []string{"close s"}},
		{"collect", "/freeze_gc", ``, 200, "Garbage collected in all processes.", []string{"collect"}},
		{"log", "/configure_logging", `{"log_requests":true,"log_requests_level":1}`, 200, ``, nil},
		{"state", "/set_internal_state", `{"server_args":{"enable_cache_report":true}}`, 200,
			`[{"updated":true,"server_args":{"enable_cache_report":true,"log_requests":false,"log_requests_level":2,"log_requests_sample_rate":1}}]`, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, nil)
			w := b.call(http.MethodPost, tc.path, tc.body)
			if got := strings.TrimSpace(w.Body.String()); w.Code != tc.status || got != tc.want {
				t.Errorf("status %d: %s", w.Code, got)
			}
			if diff := cmp.Diff(tc.calls, b.rank.calls); diff != "" {
				t.Errorf("calls: (-want +got)\n%s", diff)
			}
		})
	}
}

func TestRefusedControl(t *testing.T) {
	for _, tc := range []struct {
		name, path, body string
		want             refused
	}{
		{"mode", "/pause_generation", `{"mode":"later"}`, refused{400, "mode", "", `mode must be abort, retract or in_place, not "later"`}},
		{"pause denied", "/pause_generation", `{}`, refused{400, "", codeRefused, "the engine does not pause: the rank says no"}},
		{"continue denied", "/continue_generation", `{}`, refused{400, "", codeRefused, "the engine does not continue: the rank says no"}},
		{"session denied", "/open_session", `{"session_id":"s"}`, refused{400, "", codeRefused, "the session is not opened: the rank says no"}},
		{"session time", "/open_session", `{"timeout":-1}`, refused{400, "timeout", "", "timeout must be from 0 to 604800, not -1"}},
		{"close of nothing", "/close_session", `{}`, refused{400, "session_id", "", "session_id is missing: send the id that /open_session gave"}},
		{"close denied", "/close_session", `{"session_id":"s"}`, refused{400, "", codeRefused, "the session is not closed: the rank says no"}},
		{"collect denied", "/freeze_gc", ``, refused{400, "", codeRefused, "the garbage is not collected: the rank says no"}},
		{"log level", "/configure_logging", `{"log_requests_level":4}`, refused{400, "log_requests_level", "", "log_requests_level must be at most 3, not 4"}},
		{"dump", "/configure_logging", `{"dump_requests_folder":"/x"}`, refused{400, "dump_requests_folder", codeNotSupported, "dump_requests_folder is not supported: leave it out; log_requests_level 3 logs whole texts"}},
		{"no state", "/set_internal_state", `{}`, refused{400, "server_args", "", "server_args is missing: send an object with what to change: enable_cache_report, log_requests, log_requests_level, log_requests_sample_rate"}},
		{"fixed state", "/set_internal_state", `{"server_args":{"enable_cache_report":true,"page_size":1}}`, refused{400, "server_args.page_size", "",
			"server_args.page_size can't change while the engine serves: what can is enable_cache_report, log_requests, log_requests_level, log_requests_sample_rate; restart it with the flag for the rest"}},
		{"profile path", "/start_profile", `{"output_dir":"here"}`, refused{400, "output_dir", "", `output_dir must be an absolute path on the engine's machine, not "here"`}},
		{"profile name", "/start_profile", `{"profile_prefix":"../../etc"}`, refused{400, "profile_id", "",
			`profile_id with profile_prefix before it makes the name "../../etc-1700000000", which must be 1 to 100 letters, digits, dots, underscores and dashes, without a dot at the begin`}},
		{"profile of a device", "/start_profile", `{"activities":["GPU"]}`, refused{400, "activities", "", "activities must hold CPU, MEM or both"}},
		{"profile of another kind", "/start_profile", `{"activities":["CPU","RPD"]}`, refused{400, "activities[1]", codeNotSupported, "activities[1] is not supported: send CPU, MEM or both, not RPD"}},
		{"profile of less than nothing", "/start_profile", `{"num_steps":-1}`, refused{400, "num_steps", "", "num_steps must be at least 0, not -1"}},
		{"profile of stages", "/start_profile", `{"profile_stages":["decode"]}`, refused{400, "profile_stages", codeNotSupported, "profile_stages is not supported: leave it out"}},
		{"profile denied", "/start_profile", `{"activities":["MEM"]}`, refused{400, "", codeRefused, "nothing is recorded: the rank says no"}},
		{"stop of nothing", "/stop_profile", ``, refused{400, "", codeRefused, "the recording does not end: no profile is being recorded: start one first; the rank says no"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, func(c *Config, r *scriptedRank) {
				r.denial, c.ProfilerDir = errors.New("the rank says no"), t.TempDir()
			})
			r := b.call(http.MethodPost, tc.path, tc.body)
			if diff := cmp.Diff(tc.want, readRefusal(t, r.Code, r.Body.Bytes())); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if left, _ := filepath.Glob(filepath.Join(b.cfg.ProfilerDir, "*")); len(left) > 0 {
				t.Errorf("files of a recording that did not begin: %v", left)
			}
			if b.cacheReport() {
				t.Error("a refused change was made in part")
			}
		})
	}
}

// TestLostControl: that the engine failed, or time ran out, is no mistake of the client's.
func TestLostControl(t *testing.T) {
	gone := fmt.Errorf("pause: %w", &rank.LostError{Cause: errors.New("rank 0 (pid 7) ended: signal: killed")})
	for _, tc := range []struct {
		name, path string
		err        error
		status     int
		code, want string
	}{
		{"dead rank", "/pause_generation", gone, 502, codeEngineFailed, "the engine does not pause: pause: rank 0 (pid 7) ended: signal: killed"},
		{"one of two is dead", "/continue_generation", errors.Join(errors.New("DP rank 0: it says no"), gone), 502, codeEngineFailed,
			"the engine does not continue: DP rank 0: it says no; pause: rank 0 (pid 7) ended: signal: killed"},
		{"dead rank at a flush", "/flush_cache", gone, 502, codeEngineFailed, "the cache is not flushed: pause: rank 0 (pid 7) ended: signal: killed"},
		{"busy", "/flush_cache", errors.New("the engine is not idle"), 400, codeNotFlushed, "the cache is not flushed: the engine is not idle"},
		{"out of time", "/freeze_gc", context.DeadlineExceeded, 504, "timeout", "the garbage is not collected: context deadline exceeded"},
		{"client gone", "/freeze_gc", context.Canceled, statusClientClosed, string(request.OutcomeAbortedClient), "the client closed the connection"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, func(_ *Config, r *scriptedRank) { r.denial, r.flush = tc.err, tc.err })
			r := b.call(http.MethodPost, tc.path, ``)
			if diff := cmp.Diff(refused{tc.status, "", tc.code, tc.want}, readRefusal(t, r.Code, r.Body.Bytes())); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestRefusedRecording: what the ranks record for somebody else goes on when they don't begin another recording, and of that
// nothing stays.
func TestRefusedRecording(t *testing.T) {
	b := newBench(t, func(c *Config, r *scriptedRank) { c.ProfilerDir, r.denial = t.TempDir(), profile.ErrRunning })
	if r := b.call(http.MethodPost, "/start_profile", `{"profile_id":"p"}`); r.Code != http.StatusBadRequest {
		t.Errorf("status %d: %s", r.Code, r.Body)
	}
	want := "start profile {Dir:" + b.cfg.ProfilerDir + " Name:p CPU:true Memory:true FromStep:0 Steps:0}"
	if diff := cmp.Diff([]string{want}, b.rank.calls); diff != "" {
		t.Errorf("the ranks are asked (-want +got):\n%s", diff)
	}
	if left, err := filepath.Glob(filepath.Join(b.cfg.ProfilerDir, "*")); len(left) > 0 || err != nil {
		t.Errorf("files %v, %v", left, err)
	}
	if _, err := b.profiles.Stop(); !errors.Is(err, profile.ErrIdle) {
		t.Errorf("this process records on: %v", err)
	}
}

// TestPartOfARecording: where one process can't end its recording, the files of the others are named.
func TestPartOfARecording(t *testing.T) {
	b := newBench(t, func(c *Config, _ *scriptedRank) { c.ProfilerDir = t.TempDir() })
	if r := b.call(http.MethodPost, "/start_profile", `{"activities":["MEM"],"profile_id":"half"}`); r.Code != http.StatusOK {
		t.Fatalf("status %d: %s", r.Code, r.Body)
	}
	b.rank.denial = &rank.LostError{Cause: errors.New("rank 0 ended")}
	r := b.call(http.MethodPost, "/stop_profile", ``)
	written, err := filepath.Glob(filepath.Join(b.cfg.ProfilerDir, "*"))
	if err != nil || len(written) != 1 {
		t.Fatalf("files %v, %v", written, err)
	}
	want := refused{502, "", codeEngineFailed, "the recording has ended in a part of the processes, which wrote " + written[0] + ": rank 0 ended"}
	if diff := cmp.Diff(want, readRefusal(t, r.Code, r.Body.Bytes())); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestPauseWaits: a pause that aborts answers when the requests that lived have ended, also those that it has overtaken on the
// way to the ranks.
func TestPauseWaits(t *testing.T) {
	for _, overtaken := range []bool{false, true} {
		b := newBench(t, func(_ *Config, r *scriptedRank) { r.overtaken = overtaken })
		b.rank.script = b.waitForAbort("x")
		answered := make(chan int, 1)
		go func() { answered <- b.call(http.MethodPost, "/generate", `{"text":"x"}`).Code }()
		eventually(t, "the request is at the rank", func() bool { return len(b.rank.asked()) == 1 })
		if r := b.call(http.MethodPost, "/pause_generation", ``); r.Code != http.StatusOK {
			t.Fatalf("overtaken %t: status %d: %s", overtaken, r.Code, r.Body)
		}
		if b.anyClaimed([]string{b.rank.asked()[0].RID}) {
			t.Errorf("overtaken %t: a request lives after the pause", overtaken)
		}
		if got := <-answered; got != http.StatusServiceUnavailable {
			t.Errorf("overtaken %t: status %d", overtaken, got)
		}
	}
}

// TestAbortOnTheWay: a request that is on its way to the rank while the rank aborts all ends all the same, and a pause that
// waits for it answers.
func TestAbortOnTheWay(t *testing.T) {
	for path, body := range map[string]string{"/pause_generation": `{"mode":"abort"}`, "/abort_request": `{"rid":"on"}`} {
		t.Run(path, func(t *testing.T) {
			b := newBench(t, nil)
			b.rank.script = b.waitForAbort("x")
			told := make(chan struct{}) // closed when the rank has aborted all that it has
			b.rank.told = sync.OnceFunc(func() { close(told) })
			answered := make(chan int, 1)
			b.rank.arriving = func(string) {
				go func() { answered <- b.call(http.MethodPost, path, body).Code }()
				<-told
			}
			if r := b.call(http.MethodPost, "/generate", `{"text":"x","rid":"on the way"}`); r.Code != http.StatusServiceUnavailable {
				t.Errorf("the request ends with status %d: %s", r.Code, r.Body)
			}
			if got := <-answered; got != http.StatusOK {
				t.Errorf("%s: status %d", path, got)
			}
		})
	}
}

// TestProfile: the API process's files are profiles, and the ranks' are named beside them.
func TestProfile(t *testing.T) {
	b := newBench(t, nil)
	dir := filepath.Join(t.TempDir(), "profiles")
	if r := b.call(http.MethodPost, "/start_profile", `{"output_dir":"`+dir+`","profile_id":"p","activities":["CPU","GPU","MEM"]}`); r.Code != http.StatusOK {
		t.Fatalf("status %d: %s", r.Code, r.Body)
	}
	r := b.call(http.MethodPost, "/stop_profile", ``)
	var want strings.Builder
	want.WriteString("Stop profiling. The files are:\n")
	for _, kind := range []string{"cpu", "heap"} {
		files, err := filepath.Glob(filepath.Join(dir, "p-api-*."+kind+".pprof"))
		if err != nil || len(files) != 1 {
			t.Fatalf("%s: %v %v", kind, files, err)
		}
		if info, err := os.Stat(files[0]); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", files[0], err)
		}
		want.WriteString(files[0] + "\n")
	}
	want.WriteString("/of/the/rank\n")
	if diff := cmp.Diff(want.String(), r.Body.String()); diff != "" || r.Code != http.StatusOK {
		t.Errorf("status %d (-want +got)\n%s", r.Code, diff)
	}
	if diff := cmp.Diff([]string{"start profile {Dir:" + dir + " Name:p CPU:true Memory:true FromStep:0 Steps:0}", "stop profile"}, b.rank.calls); diff != "" {
		t.Errorf("calls: (-want +got)\n%s", diff)
	}
}

// TestProfileOfSteps: the API process records as long as the ranks do, and nobody has to end it.
func TestProfileOfSteps(t *testing.T) {
	b := newBench(t, func(_ *Config, r *scriptedRank) { r.steps = make(chan int64) })
	dir := t.TempDir()
	if r := b.call(http.MethodPost, "/start_profile", `{"output_dir":"`+dir+`","profile_id":"p","start_step":5,"num_steps":3}`); r.Code != http.StatusOK {
		t.Fatalf("status %d: %s", r.Code, r.Body)
	}
	if got := []int64{<-b.rank.steps, <-b.rank.steps}; !slices.Equal(got, []int64{4, 7}) {
		t.Errorf("steps %v are waited for, want 4 and 7", got)
	}
	eventually(t, "the recording ends by itself", func() bool {
		files, _ := filepath.Glob(filepath.Join(dir, "p-api-*.heap.pprof"))
		return len(files) == 1
	})
	r := b.call(http.MethodPost, "/stop_profile", ``)
	if got := r.Body.String(); r.Code != http.StatusOK || strings.Count(got, dir) != 2 || !strings.Contains(got, "/of/the/rank") {
		t.Errorf("status %d: %s", r.Code, got)
	}
	if diff := cmp.Diff([]string{"start profile {Dir:" + dir + " Name:p CPU:true Memory:true FromStep:5 Steps:3}", "stop profile"}, b.rank.calls); diff != "" {
		t.Errorf("calls: (-want +got)\n%s", diff)
	}
}

// TestRequestLog: what a line holds at each level, and who leaves none.
func TestRequestLog(t *testing.T) {
	const plain = `{"prompt":"Hi","rid":"a","max_tokens":3,"seed":4,"priority":2}`
	for _, tc := range []struct {
		name, configure, body string
		want                  string
	}{
		{"off", `{}`, plain, ""},
		{"level 0", `{"log_requests":true,"log_requests_level":0}`, plain,
			`level=INFO msg="request received" rid=a prompt_tokens=3 stream=false priority=2
level=INFO msg="request ended" rid=a outcome=length prompt_tokens=3 cached_tokens=1 completion_tokens=1 retractions=2 e2e_latency=0 queue_time=0.5 forward_entry_time=1700000001 request_received_ts=1700000000 api_server_dispatch_finish_ts=1700000000 response_sent_to_client_ts=1700000000 request_finished_ts=1700000000 first_token_latency=0
`},
		{"level 1", `{"log_requests":true,"log_requests_level":1}`, plain,
			`level=INFO msg="request received" rid=a prompt_tokens=3 stream=false priority=2 sampling.max_new_tokens=3 sampling.temperature=1 sampling.seed=4
level=INFO msg="request ended" rid=a outcome=length prompt_tokens=3 cached_tokens=1 completion_tokens=1 retractions=2 e2e_latency=0 queue_time=0.5 forward_entry_time=1700000001 request_received_ts=1700000000 api_server_dispatch_finish_ts=1700000000 response_sent_to_client_ts=1700000000 request_finished_ts=1700000000 first_token_latency=0
`},
		{"level 3", `{"log_requests":true,"log_requests_level":3}`, plain,
			`level=INFO msg="request received" rid=a prompt_tokens=3 stream=false priority=2 sampling.max_new_tokens=3 sampling.temperature=1 sampling.seed=4 prompt=<|begin_of_text|>Hi
level=INFO msg="request ended" rid=a outcome=length prompt_tokens=3 cached_tokens=1 completion_tokens=1 retractions=2 e2e_latency=0 queue_time=0.5 forward_entry_time=1700000001 request_received_ts=1700000000 api_server_dispatch_finish_ts=1700000000 response_sent_to_client_ts=1700000000 request_finished_ts=1700000000 first_token_latency=0 answer=x
`},
		{"no_logs", `{"log_requests":true}`, `{"prompt":"Hi","no_logs":true}`, ""},
		{"not counted", `{"log_requests":true}`, `{"prompt":"Hi","log_metrics":false}`, ""},
		{"not in the sample", `{"log_requests":true,"log_requests_sample_rate":0}`, `{"prompt":"Hi"}`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, nil)
			b.rank.script = b.say(length(), "x")
			var log bytes.Buffer
			b.requests.log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			}}))
			if r := b.call(http.MethodPost, "/configure_logging", tc.configure); r.Code != http.StatusOK {
				t.Fatalf("status %d: %s", r.Code, r.Body)
			}
			if r := b.call(http.MethodPost, "/v1/completions", tc.body); r.Code != http.StatusOK {
				t.Fatalf("status %d: %s", r.Code, r.Body)
			}
			if diff := cmp.Diff(tc.want, log.String()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestRequestLogSettings: what is not named stays, and neither a level nor a rate turns the log on.
func TestRequestLogSettings(t *testing.T) {
	b := newBench(t, nil)
	for _, tc := range []struct {
		body string
		want logSetting
	}{
		{`{}`, logSetting{level: 2, rate: 1}},
		{`{"log_requests_level":1}`, logSetting{level: 1, rate: 1}},
		{`{"log_requests":true}`, logSetting{on: true, level: 1, rate: 1}},
		{`{"log_requests_sample_rate":0.25}`, logSetting{on: true, level: 1, rate: 0.25}},
		{`{"log_requests":false}`, logSetting{level: 1, rate: 0.25}},
		{`{"log_requests":true,"log_requests_sample_rate":2}`, logSetting{level: 1, rate: 0.25}}, // refused
	} {
		b.call(http.MethodPost, "/configure_logging", tc.body)
		if got := b.requests.current(); got != tc.want {
			t.Errorf("after %s: %+v, want %+v", tc.body, got, tc.want)
		}
	}
}

// TestRequestLogSample: about the share that was asked for is in the sample, always the same, and a larger sample has the
// smaller one in it.
func TestRequestLogSample(t *testing.T) {
	const n = 20000
	in := func(rate float64) (count int) {
		for i := range n {
			rid := fmt.Sprint("request_", i)
			if sampled(rid, rate) {
				count++
			} else if sampled(rid, rate/2) {
				t.Fatalf("%s is in the sample of %g and not in that of %g", rid, rate/2, rate)
			}
		}
		return count
	}
	for rate, want := range map[float64]int{0: 0, 0.1: n / 10, 0.5: n / 2, 1: n} {
		if got := in(rate); math.Abs(float64(got-want)) > n/50 || (rate == 0 || rate == 1) && got != want {
			t.Errorf("rate %g: %d of %d", rate, got, n)
		}
	}
}

// TestServerInfo: flags that the server does not know are shown as they are, and what it has resolved wins.
func TestServerInfo(t *testing.T) {
	b := newBench(t, func(c *Config, _ *scriptedRank) {
		c.Args = map[string]any{"tp_size": 2, "schedule_policy": "lpm", "page_size": 4}
		c.APIKey, c.AdminAPIKey = "secret", "secret"
	})
	r := b.call(http.MethodGet, "/server_info", "", "Authorization", "Bearer secret")
	var got map[string]any
	if err := json.Unmarshal(r.Body.Bytes(), &got); err != nil || r.Code != http.StatusOK {
		t.Fatalf("status %d: %v", r.Code, err)
	}
	for name, want := range map[string]any{
		"tp_size": 2.0, "pp_size": 1.0, "dp_size": 1.0, "schedule_policy": "lpm", "page_size": 16.0, "status": "serving", "served_model_name": "tiny",
		"internal_states": []any{map[string]any{
			"last_gen_throughput": 0.0, "effective_max_running_requests_per_dp": 8.0, "kv_cache_dtype": "float32", "pid": 4711.0,
			"ranks": []any{
				map[string]any{"rank": 0.0, "tp_rank": 0.0, "pp_rank": 0.0, "node_rank": 0.0, "pid": 4711.0},
				map[string]any{"rank": 1.0, "tp_rank": 1.0, "pp_rank": 0.0, "node_rank": 0.0, "pid": 4712.0},
			},
			"memory_usage": map[string]any{"weight": 1.0, "kvcache": 0.5, "graph": 0.0, "token_capacity": 96.0},
		}},
	} {
		if diff := cmp.Diff(want, got[name]); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
	if strings.Contains(r.Body.String(), "secret") {
		t.Errorf("a key is shown: %s", r.Body)
	}
}

// TestSessionBegin: the first turn of a session begins a text, a later one does not.
func TestSessionBegin(t *testing.T) {
	b := newBench(t, nil)
	begin := b.words.Encode("", true)
	ask := func(params string) []int32 {
		t.Helper()
		if r := b.call(http.MethodPost, "/generate", `{"text":"x","session_params":`+params+`,"sampling_params":{"max_new_tokens":1}}`); r.Code != http.StatusOK {
			t.Fatalf("status %d: %s", r.Code, r.Body)
		}
		asked := b.rank.asked()
		return asked[len(asked)-1].PromptIDs
	}
	if r := b.call(http.MethodPost, "/open_session", `{"session_id":"s"}`); r.Code != http.StatusOK {
		t.Fatal(r.Body)
	}
	first, later := append(begin, 'x'), []int32{'x'}
	for i, tc := range []struct {
		params string
		want   []int32
	}{{`{"id":"s"}`, first}, {`{"id":"s"}`, later}, {`{"id":"s","offset":0}`, first}, {`{"id":"other"}`, first}} {
		if diff := cmp.Diff(tc.want, ask(tc.params)); diff != "" {
			t.Errorf("turn %d: (-want +got)\n%s", i, diff)
		}
	}
	if r := b.call(http.MethodPost, "/close_session", `{"session_id":"s"}`); r.Code != http.StatusOK {
		t.Fatal(r.Body)
	}
	if diff := cmp.Diff(first, ask(`{"id":"s"}`)); diff != "" {
		t.Errorf("after the close: (-want +got)\n%s", diff)
	}
}

// TestNamedOutcomes: what a client hears of each end that the rank chooses.
func TestNamedOutcomes(t *testing.T) {
	for _, tc := range []struct {
		name    string
		outcome request.Outcome
		body    string
		want    refused
		kind    string
		retry   string // Retry-After
	}{
		{"queue full", request.OutcomeRefused, `{"prompt":[1]}`, refused{503, "", "refused", "so it is"}, "overloaded_error", "1"},
		{"pushed out", request.OutcomePreempted, `{"prompt":[1],"stream":true}`, refused{503, "", "preempted", "so it is"}, "overloaded_error", "1"},
		{"time-out", request.OutcomeTimeout, `{"prompt":[1]}`, refused{504, "", "timeout", "so it is"}, "timeout_error", ""},
		{"grammar", request.OutcomeInvalid, `{"prompt":[1],"response_format":{"type":"json_object"}}`, refused{400, "response_format", codeGrammar, "so it is"}, "invalid_request_error", ""},
		{"session", request.OutcomeInvalid, `{"prompt":[1],"session_params":{"id":"s"}}`, refused{400, "session_params", codeSession, "so it is"}, "invalid_request_error", ""},
		{"anything else", request.OutcomeInvalid, `{"prompt":[1]}`, refused{400, "", "invalid", "so it is"}, "invalid_request_error", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, nil)
			b.rank.script = func(r *request.Request, s *rank.Stream, _ <-chan request.Outcome) {
				s.Put(request.Output{RID: r.RID, PromptTokens: 1, Finish: &request.Finish{Type: request.FinishAbort, Outcome: tc.outcome, Message: "so it is"}})
			}
			r := b.call(http.MethodPost, "/v1/completions", tc.body)
			if diff := cmp.Diff(tc.want, readRefusal(t, r.Code, r.Body.Bytes())); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if !strings.Contains(r.Body.String(), `"type":"`+tc.kind+`"`) || r.Header().Get("Retry-After") != tc.retry {
				t.Errorf("Retry-After %q, body %s", r.Header().Get("Retry-After"), r.Body)
			}
		})
	}
}

// TestWhoGetsIn: every route of the table, with each key, under each way to set the keys. Nobody learns more than that a key
// is wrong.
func TestWhoGetsIn(t *testing.T) {
	for _, keys := range []struct{ api, admin string }{{"", ""}, {"user", ""}, {"", "boss"}, {"user", "boss"}, {"same", "same"}} {
		b := newBench(t, func(c *Config, _ *scriptedRank) {
			c.APIKey, c.AdminAPIKey, c.ProfilerDir = keys.api, keys.admin, t.TempDir()
		})
		for _, row := range b.rows() {
			for _, given := range []string{"", "user", "boss", "same", "use", "userr"} {
				needed := map[access]string{accessUser: keys.api, accessAdmin: keys.admin}[row.access]
				if row.access == accessAdmin && needed == "" {
					needed = keys.api
				}
				headers := []string{}
				if given != "" {
					headers = []string{"Authorization", "Bearer " + given}
				}
				r := b.call(row.methods[0], strings.ReplaceAll(row.pattern, "{model}", "tiny"), `{`, headers...) // a body that no route takes
				if got, want := r.Code != http.StatusUnauthorized, needed == "" || given == needed; got != want {
					t.Errorf("keys %+v: %s with key %q: status %d", keys, row.pattern, given, r.Code)
				}
				if r.Code == http.StatusUnauthorized && r.Header().Get("WWW-Authenticate") != "Bearer" {
					t.Errorf("%s: no WWW-Authenticate", row.pattern)
				}
			}
		}
	}
}
