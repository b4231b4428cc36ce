package layout

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
	"github.com/sluice-dev/sluice/engine/parallel"
	"github.com/sluice-dev/sluice/test/harness"
)

var (
	programs *harness.Programs
	tiny     string // folder of a model with 8 heads, 4 key-value heads and 4 layers
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	http.DefaultClient.Timeout = harness.Patience
	var err error
	if programs, err = harness.Build(); err == nil {
		tiny, err = programs.Model("tiny", "--seed", "7", "--hidden-size", "64", "--layers", "4", "--heads", "8", "--kv-heads", "4", "--vocab-size", "512", "--context-length", "1024")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare:", err)
		return 1
	}
	code := m.Run()
	if err := programs.Remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// TestPlacesAreTheEngines: whatever the sizes, a rank has the same place in the plan as in the engine.
func TestPlacesAreTheEngines(t *testing.T) {
	for tensor := 1; tensor <= 8; tensor++ {
		for pipeline := 1; pipeline <= 4; pipeline++ {
			layout, err := plan.NewLayout(shape(tensor, pipeline, 2, 0))
			if err != nil {
				t.Fatal(err)
			}
			for _, got := range layout.Ranks {
				place, err := parallel.At(int(got.Rank), tensor, pipeline)
				if err != nil {
					t.Fatal(err)
				}
				want := plan.Rank{DP: got.DP, Rank: int32(place.Rank), TP: int32(place.TPRank), PP: int32(place.PPRank)}
				if diff := gocmp.Diff(want, got); diff != "" {
					t.Errorf("tensor %d, pipeline %d (-engine +plan):\n%s", tensor, pipeline, diff)
				}
			}
		}
	}
}

// shape has perPod ranks a pod; 0 is all of them.
func shape(tensor, pipeline, data, perPod int) v1alpha1.EngineShape {
	s := v1alpha1.EngineShape{
		Parallelism:  v1alpha1.Parallelism{Tensor: int32(tensor), Pipeline: int32(pipeline), Data: int32(data)},
		KVCache:      v1alpha1.KVCacheSpec{MaxTotalTokens: new(int32(4096))},
		DrainSeconds: new(int32(10)),
	}
	if perPod > 0 {
		s.RanksPerPod = new(int32(perPod))
	}
	return s
}

func pool(role v1alpha1.Role, s v1alpha1.EngineShape, args ...string) *v1alpha1.EnginePool {
	s.Args = append([]string{"--threads", "1", "--log-level", "warn"}, args...)
	return &v1alpha1.EnginePool{
		ObjectMeta: metav1.ObjectMeta{Name: "chat-" + role.EngineType(), Namespace: "team-a"},
		Spec: v1alpha1.EnginePoolSpec{Service: "chat", Pool: role.EngineType(), Role: role, Tenant: "team-a",
			Model: v1alpha1.ModelSpec{Name: "m", URI: "pvc://models/tiny"}, EngineShape: s},
	}
}

// launch starts the pods of one replica, each as a process. Of the planned arguments only those are others that say where
// things are: the pods' addresses, the model and the secret. env is added to the pods' own.
func launch(t *testing.T, pool *v1alpha1.EnginePool, env ...string) []*harness.Engine {
	t.Helper()
	layout, err := plan.NewLayout(pool.Spec.EngineShape)
	if err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(harness.Secret), 0o600); err != nil {
		t.Fatal(err)
	}
	ports := harness.FreePorts(t, 2+int(layout.Nodes))
	meet, bootstrap := ports[0], ports[1]
	engines := make([]*harness.Engine, layout.Nodes)
	for node := range layout.Nodes {
		pod, err := plan.Pod(pool, plan.EngineDefaults{Image: "engine"}, 0, node, 0)
		if err != nil {
			t.Fatal(err)
		}
		args := pod.Spec.Containers[0].Args
		vars := slices.Clone(env)
		for _, v := range pod.Spec.Containers[0].Env {
			if v.ValueFrom == nil {
				vars = append(vars, v.Name+"="+v.Value)
			}
		}
		port := ports[2+node]
		for flag, value := range map[string]string{
			"--model-path": tiny, "--host": "127.0.0.1", "--port": strconv.Itoa(port), "--dist-init-addr": fmt.Sprintf("127.0.0.1:%d", meet),
			"--dist-secret-file": secret, "--disaggregation-secret-file": secret, "--disaggregation-bootstrap-port": strconv.Itoa(bootstrap),
		} {
			if i := slices.Index(args, flag); i >= 0 {
				args[i+1] = value
			}
		}
		engines[node] = &harness.Engine{
			Process: harness.Start(t, pod.Name, programs.Engine, vars, args...),
			URL:     fmt.Sprintf("http://127.0.0.1:%d", port), Port: port, Bootstrap: bootstrap,
		}
	}
	return engines
}

func healthy(t *testing.T, engines []*harness.Engine) {
	t.Helper()
	for _, e := range engines {
		harness.Eventually(t, e.Name+" is healthy", func() bool {
			select {
			case <-e.Ended():
				t.Fatalf("%s ended while starting:\n%s", e.Name, e.Log())
			default:
			}
			answer, err := http.Get(e.URL + "/health")
			if err != nil {
				return false
			}
			answer.Body.Close()
			return answer.StatusCode == http.StatusOK
		})
	}
}

// TestEnginesHaveThePlannedRanks: started with the arguments of the plan, an engine has exactly the planned ranks, each pod's
// /metrics has series of exactly those that are planned to export, and requests are answered alike.
func TestEnginesHaveThePlannedRanks(t *testing.T) {
	harness.NoteSources(t, "../..")
	var want string
	for _, test := range []struct {
		name  string
		shape v1alpha1.EngineShape
		args  []string
	}{
		{"one rank", shape(1, 1, 1, 0), nil},
		{"tensor 2", shape(2, 1, 1, 0), nil},
		{"tensor 2, all export", shape(2, 1, 1, 0), []string{"--enable-metrics-for-all-schedulers"}},
		{"data 2", shape(1, 1, 2, 0), nil},
		{"pipeline 2", shape(1, 2, 1, 0), nil},
		{"tensor 2 on two pods", shape(2, 1, 1, 1), []string{"--enable-metrics-for-all-schedulers"}},
		{"tensor 2 by pipeline 2 by data 2 on two pods", shape(2, 2, 2, 4), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			pool := pool(v1alpha1.RoleUnified, test.shape, test.args...)
			layout, err := plan.NewLayout(pool.Spec.EngineShape)
			if err != nil {
				t.Fatal(err)
			}
			engines := launch(t, pool)
			healthy(t, engines)
			for i := range 2 { // each DP rank has a turn
				var answer harness.Answer
				if err := harness.Post(t.Context(), engines[0].URL+"/generate", map[string]any{
					"text": "the old mill", "sampling_params": map[string]any{"temperature": 0, "max_new_tokens": 8, "ignore_eos": true},
				}, &answer); err != nil {
					t.Fatal(err)
				}
				if want == "" {
					want = answer.Text
				}
				if answer.Text != want {
					t.Errorf("request %d gives %q, one rank gives %q", i, answer.Text, want)
				}
			}
			if diff := gocmp.Diff(layout.Ranks, ranks(t, engines[0].URL)); diff != "" {
				t.Errorf("ranks (-plan +engine):\n%s", diff)
			}
			all := plan.AllRanksExport(pool.Spec)
			for node, e := range engines {
				planned := layout.Exporting(int32(node), all)
				var got []plan.Rank
				harness.Eventually(t, fmt.Sprintf("pod %d exports %v", node, planned), func() bool {
					got = exporting(t, e.URL, layout)
					return len(got) >= len(planned)
				})
				if diff := gocmp.Diff(planned, got); diff != "" {
					t.Errorf("ranks with series at pod %d (-plan +engine):\n%s", node, diff)
				}
			}
			loads, err := engines[0].Loads()
			if err != nil || len(loads) != int(layout.Data) {
				t.Errorf("the leader tells of %d DP ranks, the plan has %d: %v", len(loads), layout.Data, err)
			}
		})
	}
}

// ranks asks the leader which ranks there are and where.
func ranks(t *testing.T, url string) []plan.Rank {
	t.Helper()
	var info struct {
		States []struct {
			Ranks []struct {
				Rank int32 `json:"rank"`
				TP   int32 `json:"tp_rank"`
				PP   int32 `json:"pp_rank"`
				Node int32 `json:"node_rank"`
			} `json:"ranks"`
		} `json:"internal_states"`
	}
	answer, err := http.Get(url + "/server_info")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(&info); err != nil {
		t.Fatal(err)
	}
	var all []plan.Rank
	for dp, state := range info.States {
		for _, r := range state.Ranks {
			all = append(all, plan.Rank{DP: int32(dp), Rank: r.Rank, NodeRank: r.Node, TP: r.TP, PP: r.PP})
		}
	}
	return sorted(all)
}

// exporting finds the ranks that /metrics has series of the scheduler from. Without --dp-size they have no label dp_rank.
func exporting(t *testing.T, url string, layout plan.Layout) []plan.Rank {
	t.Helper()
	answer, err := http.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[plan.Rank]bool{}
	for name, family := range families {
		if !strings.HasPrefix(name, "sglang:") && !strings.HasPrefix(name, "sluice_") {
			continue
		}
		for _, metric := range family.GetMetric() {
			labels := labelsOf(metric)
			if _, ranked := labels["tp_rank"]; !ranked {
				continue // of the API process
			}
			seen[place(t, labels, layout)] = true
		}
	}
	all := make([]plan.Rank, 0, len(seen))
	for rank := range seen {
		all = append(all, rank)
	}
	return sorted(all)
}

func labelsOf(metric *dto.Metric) map[string]string {
	labels := map[string]string{}
	for _, label := range metric.GetLabel() {
		labels[label.GetName()] = label.GetValue()
	}
	return labels
}

// place gives the rank of the layout that a series' labels name.
func place(t *testing.T, labels map[string]string, layout plan.Layout) plan.Rank {
	t.Helper()
	number := func(label string) int32 {
		n, err := strconv.ParseInt(cmp.Or(labels[label], "0"), 10, 32)
		if err != nil {
			t.Fatalf("label %s: %v", label, err)
		}
		return int32(n)
	}
	for _, rank := range layout.Ranks {
		if rank.DP == number("dp_rank") && rank.TP == number("tp_rank") && rank.PP == number("pp_rank") && rank.MoEEP == number("moe_ep_rank") {
			return rank
		}
	}
	t.Fatalf("the plan has no rank with the labels %v", labels)
	return plan.Rank{}
}

func sorted(all []plan.Rank) []plan.Rank {
	slices.SortFunc(all, func(a, b plan.Rank) int { return cmp.Or(cmp.Compare(a.DP, b.DP), cmp.Compare(a.Rank, b.Rank)) })
	if len(all) == 0 {
		return nil
	}
	return all
}

// TestPoolsOfDifferentSizes: a prefill pool of two ranks hands over to decode pools of one and of four, with the answer of one
// engine.
func TestPoolsOfDifferentSizes(t *testing.T) {
	harness.NoteSources(t, "../..")
	body := map[string]any{"text": "the river and the old mill", "sampling_params": map[string]any{"temperature": 0, "max_new_tokens": 12, "ignore_eos": true}}
	ask := func(url string) string {
		t.Helper()
		var answer harness.Answer
		if err := harness.Post(t.Context(), url+"/generate", body, &answer); err != nil {
			t.Fatal(err)
		}
		return answer.Text
	}
	alone := launch(t, pool(v1alpha1.RoleUnified, shape(1, 1, 1, 0)))
	prefill := launch(t, pool(v1alpha1.RolePrefill, shape(2, 1, 1, 0)))
	healthy(t, append(alone, prefill...))
	want := ask(alone[0].URL)
	for _, tensor := range []int{1, 4} {
		decode := launch(t, pool(v1alpha1.RoleDecode, shape(tensor, 1, 1, 0)))
		healthy(t, decode)
		router := programs.StartRouter(t, prefill, decode)
		if got := ask(router); got != want {
			t.Errorf("prefill with tensor 2 and decode with tensor %d give %q, one engine gives %q", tensor, got, want)
		}
	}
}

// TestHeadsThatDoNotDivide: what the model can't do the engine refuses, in the last line that it writes, which is what a
// pool's condition shows; on several pods each says it.
func TestHeadsThatDoNotDivide(t *testing.T) {
	harness.NoteSources(t, "../..")
	const want = "num_attention_heads is 8: want a multiple of the tensor-parallel size, 3; change --tp-size"
	for _, perPod := range []int{0, 1} {
		for _, e := range launch(t, pool(v1alpha1.RoleUnified, shape(3, 1, 1, perPod))) {
			ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
			select {
			case <-e.Ended():
			case <-ctx.Done():
				t.Fatalf("%s does not end", e.Name)
			}
			cancel()
			lines := strings.Split(strings.TrimSpace(e.Log()), "\n")
			if last := lines[len(lines)-1]; e.ExitCode() != 1 || !strings.Contains(last, want) {
				t.Errorf("%s ended with code %d and the last line\n%s\nwant it to hold\n%s", e.Name, e.ExitCode(), last, want)
			}
		}
	}
}
