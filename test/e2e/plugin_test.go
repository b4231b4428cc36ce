//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/sluice-dev/sluice/hack/trial"
	"github.com/sluice-dev/sluice/plugin"
	"github.com/sluice-dev/sluice/plugin/diagnosis"
	"github.com/sluice-dev/sluice/plugin/rollout"
	"github.com/sluice-dev/sluice/plugin/scaling"
	"github.com/sluice-dev/sluice/plugin/trail"
	"github.com/sluice-dev/sluice/plugin/view"
)

// TestPlugin runs kubectl sluice on a service of a pair that answers, scales, is rolled out and undone, and looked at by somebody
// with few rights; and then the pages that look at a service.
func TestPlugin(t *testing.T) {
	ns := namespace(t, "e2e-plugin")
	serve(t, ns)
	p := &person{typist: newTypist(t), kubeconfig: cluster.Kubeconfig, namespace: ns}
	base := reach(t, ns, "chat")

	t.Run("trace", func(t *testing.T) { checkTrace(t, p, base) })
	t.Run("healthy", func(t *testing.T) { checkHealthy(t, p, base) })
	show := func(files []string) {
		for _, file := range files {
			t.Run(filepath.Base(file), func(t *testing.T) { p.page(t, readPage(t, file), "team-a", ns) })
		}
	}
	show(pagesBeforeLoad)
	heavy := trial.StartLoad(t.Context(), 24, func(ctx context.Context, n int) error {
		_, err := trial.Complete(ctx, base, trial.Completion{Model: "tiny", Prompt: fmt.Sprint("heavy ", n), MaxTokens: 200, IgnoreEOS: true, Stream: true}, nil)
		return err
	})
	defer heavy.Stop()
	until(t, 3*time.Minute, "two ready decode replicas", func(ctx context.Context) (string, bool, error) {
		pool, err := cluster.Pool(ctx, ns, "chat", "decode")
		if err != nil {
			return "", false, err
		}
		return fmt.Sprintf("%d ready", pool.Status.ReadyReplicas), pool.Status.ReadyReplicas >= 2, nil
	})
	t.Run("load", func(t *testing.T) { checkShown(t, p) })
	t.Run("scale", func(t *testing.T) { checkExplained(t, p) })
	t.Run("viewer", func(t *testing.T) { checkViewer(t, p) })
	show(pagesUnderLoad)
	if report := heavy.Stop(); report.Failed() > 0 {
		t.Errorf("the load: %s", report)
	}
	show(pagesAfterLoad)
	t.Run("rollout", func(t *testing.T) { checkRollout(t, p) })
	t.Run("completion", func(t *testing.T) { checkCompletion(t, p) })
}

// person types kubectl sluice with a kubeconfig.
type person struct {
	*typist
	kubeconfig, namespace string
}

// run gives what kubectl sluice writes to standard output, and what it writes beside.
func (p *person) run(ctx context.Context, args ...string) (out, beside string, err error) {
	var stdout, stderr bytes.Buffer
	// kubectl finds plugins by their names, which come before any flag.
	cmd := exec.CommandContext(ctx, filepath.Join(p.folder, "kubectl"), append(append([]string{"sluice"}, args...), "-n", p.namespace)...)
	cmd.Env = append(slices.Clone(p.env), "KUBECONFIG="+p.kubeconfig)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err = cmd.Run(); err != nil {
		err = fmt.Errorf("kubectl sluice %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), stderr.String(), err
}

// says runs a command that must go well, and wants parts in what it writes.
func (p *person) says(t *testing.T, args []string, parts ...string) string {
	t.Helper()
	out, _, err := p.run(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range parts {
		if !strings.Contains(out, part) {
			t.Errorf("kubectl sluice %s: %q is not in\n%s", strings.Join(args, " "), part, out)
		}
	}
	return out
}

// document reads what a command gives with -o json; a field that the document's type does not have is an error.
func document[T any](t *testing.T, p *person, args ...string) (d T) {
	t.Helper()
	out, _, err := p.run(t.Context(), append(args, "-o", "json")...)
	if err == nil {
		err = parseDocument(out, &d)
	}
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return d
}

func parseDocument(text string, to any) error {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(to); err != nil {
		return fmt.Errorf("read the document: %w in\n%s", err, text)
	}
	return nil
}

// checkTrace follows one request by its rid through all three processes.
func checkTrace(t *testing.T, p *person, base string) {
	const rid = "e2e-mill"
	status, body := post(t, base+"/v1/completions", `{"model": "tiny", "prompt": "the old mill", "max_tokens": 6, "temperature": 0, "rid": "`+rid+`"}`)
	if status != 200 {
		t.Fatalf("status %d: %s", status, body)
	}
	d := document[trail.Trace](t, p, "trace", rid, "chat")
	if d.Router == nil || d.Router.RID != rid || d.Router.Status != 200 || len(d.Router.Attempts) != 1 || d.Router.Nanos <= 0 {
		t.Fatalf("the router's part: %+v", d.Router)
	}
	got := map[string]int{}
	for _, e := range d.Engines {
		got[e.Role] = e.CompletionTokens
		if e.API == nil || e.Rank == nil || len(e.Rank.Visits) == 0 || e.Room == nil || *e.Room != *d.Router.Attempts[0].Room {
			t.Errorf("the part of %s has no timeline, or another room: %+v", e.Pod, e)
		}
	}
	if len(d.Engines) != 2 || got["Decode"] != 6 || got["Prefill"] != 1 {
		t.Errorf("answer tokens by role: %v", got)
	}
	p.says(t, []string{"trace", rid}, "attempt 1: prefill chat-prefill-0-0, decode chat-decode-0-0, room", "prefill_forward", "decode_forward", "stream")
	if _, _, err := p.run(t.Context(), "trace", "nobody"); err == nil || !strings.Contains(err.Error(), "remembers request nobody") {
		t.Errorf("a rid that nobody knows: %v", err)
	}
}

// checkHealthy: a service that does its work says so, and one that nobody asks says that.
func checkHealthy(t *testing.T, p *person, base string) {
	if d := document[diagnosis.Report](t, p, "diagnose", "chat", "--interval", "1s", "--polls", "2"); d.Cause != diagnosis.NoRequests || len(d.Missing) > 0 {
		t.Errorf("nobody asks: %+v", d.Conclusion)
	}
	light := trial.StartLoad(t.Context(), 1, func(ctx context.Context, n int) error {
		_, err := trial.Complete(ctx, base, trial.Completion{Model: "tiny", Prompt: fmt.Sprint("light ", n), MaxTokens: 64, IgnoreEOS: true}, nil)
		return err
	})
	defer light.Stop()
	until(t, time.Minute, "requests to flow", func(context.Context) (string, bool, error) { return "", light.Now().Done > 2, nil })
	d := document[diagnosis.Report](t, p, "diagnose", "chat", "--interval", "4s", "--polls", "8")
	if d.Cause != diagnosis.NothingWrong || len(d.Paths) != 5 || len(d.Missing) > 0 {
		t.Errorf("one client: %+v, also %v, missing %v", d.Conclusion, d.Also, d.Missing)
	}
}

// checkShown: status, ranks and top show what runs on every rank.
func checkShown(t *testing.T, p *person) {
	var status view.Status
	until(t, time.Minute, "both decode ranks to be busy", func(ctx context.Context) (string, bool, error) {
		out, _, err := p.run(ctx, "status", "chat", "-o", "json")
		if err != nil {
			return "", false, err
		}
		status = view.Status{}
		if err := parseDocument(out, &status); err != nil {
			return "", false, err
		}
		if len(status.Services) != 1 || len(status.Services[0].Pools) != 2 {
			return "", false, fmt.Errorf("not the service with its two pools: %+v", status)
		}
		load := status.Services[0].Pools[1].Load
		return fmt.Sprintf("%+v", load), load.Ranks >= 2 && load.Running >= 4 && load.Throughput != nil && *load.Throughput > 0, nil
	})
	service := status.Services[0]
	prefill, decode := service.Pools[0], service.Pools[1]
	if !service.Ready || service.Tenant != p.namespace || service.Router.Ready != 1 || len(service.Notes) > 0 || len(service.Conditions) < 5 {
		t.Errorf("the service: %+v", service)
	}
	if prefill.Load.Utilization != nil || decode.Load.Utilization == nil || *decode.Load.Utilization < 0.3 || decode.LoadSource != "engines" {
		t.Errorf("a prefill pool has no utilization, a busy decode pool has: %+v, %+v", prefill.Load, decode.Load)
	}
	p.says(t, []string{"status", "chat"}, "├─ prefill  Prefill, 1/1 ready", "└─ decode  Decode, ", "rank 0  running ", "router  1/1 ready")
	p.says(t, []string{"status", "-o", "wide"}, "pod chat-prefill-0-0  node ")

	ranks := document[view.Ranks](t, p, "ranks", "chat")
	var pods []string
	for _, row := range ranks.Rows {
		pods = append(pods, row.Pod)
		if row.Load == nil || row.Node == "" || !row.Leader {
			t.Errorf("rank %+v has no load or no place: %s", row.Rank, row.Note)
		}
	}
	for _, pod := range []string{"chat-prefill-0-0", "chat-decode-0-0", "chat-decode-1-0"} {
		if !slices.Contains(pods, pod) {
			t.Errorf("no rank is in %s: %v", pod, pods)
		}
	}
	p.says(t, []string{"ranks", "chat", "-o", "wide"}, "chat-decode-0-0")

	if top := document[view.Status](t, p, "top", "--once"); top.Kind != "Status" || len(top.Services) != 1 {
		t.Errorf("top: %+v", top)
	}
	out := p.says(t, []string{"top", "chat", "--once", "--by-rank", "--sort", "running"}, "RUNNING", "decode", "prefill")
	if strings.Contains(out, "\x1b") {
		t.Error("what goes to a pipe has escape codes")
	}

	lines := 0
	logs := p.says(t, []string{"logs", "chat", "--router", "--tail", "3", "-o", "json"})
	for line := range strings.Lines(logs) {
		lines++
		var l struct{ Pod, Pool, Line string }
		if err := parseDocument(line, &l); err != nil || l.Pod == "" || l.Pool == "" {
			t.Errorf("line of the logs: %+v, %v", l, err)
		}
	}
	if lines < 3 {
		t.Errorf("the logs have %d lines", lines)
	}
	p.says(t, []string{"logs", "chat", "decode", "--tail", "2"}, "chat-decode-0-0  ")
}

// checkExplained: the last decision can be computed again.
func checkExplained(t *testing.T, p *person) {
	d := document[scaling.Explanation](t, p, "scale", "explain", "chat")
	if len(d.Pools) != 2 || d.Pools[0].Scaled || !d.Pools[1].Scaled || d.Pools[1].Now == nil || len(d.Pools[1].Decisions) == 0 {
		t.Fatalf("the explanation: %+v", d)
	}
	for _, decision := range d.Pools[1].Decisions {
		if decision.By != "HorizontalPodAutoscaler" {
			continue // such as the first demand, which nothing was computed for
		}
		if !decision.Agrees || decision.Raw == nil || len(decision.Inputs) != 1 || decision.Inputs[0].Signal != "Utilization" {
			t.Errorf("decision %+v can't be computed again", decision)
		}
	}
	p.says(t, []string{"scale", "explain", "chat", "decode"}, "autoscaling between 1 and 3 by MetricsAPI", "as decided: ")
}

// checkViewer: somebody with the cluster's role view sees the load that the operator wrote, and which right is missing; with the
// chart's role for the plugin as well, the load of the engines.
func checkViewer(t *testing.T, p *person) {
	viewer := &person{typist: p.typist, namespace: p.namespace, kubeconfig: accountKubeconfig(t, p.namespace, "viewer")}
	kubectl := func(args ...string) {
		t.Helper()
		if out, err := cluster.Kubectl(t.Context(), append(args, "-n", p.namespace)...); err != nil {
			t.Fatal(out, err)
		}
	}
	kubectl("create", "rolebinding", "viewer", "--clusterrole=view", "--serviceaccount="+p.namespace+":viewer")
	until(t, time.Minute, "the viewer to see the load of the status", func(ctx context.Context) (string, bool, error) {
		out, _, err := viewer.run(ctx, "status", "chat")
		if err != nil {
			out = err.Error() // a role that was bound just now
		}
		return out, strings.Contains(out, "(from the status, seen ") &&
			strings.Contains(out, "note: the engines' own load is missing: you may not create pods/portforward in namespace "+p.namespace) &&
			strings.Contains(out, "chat-decode-0-0  (not asked)"), nil
	})
	d := document[view.Status](t, viewer, "status", "chat")
	if pool := d.Services[0].Pools[1]; pool.LoadSource != "status" || pool.LoadAsOf == "" || pool.Load.Ranks == 0 {
		t.Errorf("the decode pool: %+v", pool)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"diagnose", "chat", "--interval", "1s"}, "you may not create pods/portforward"},
		{[]string{"rollout", "pause", "chat"}, "forbidden"},
		{[]string{"trace", "e2e-mill", "chat"}, "you may not create pods/portforward"},
	} {
		out, _, err := viewer.run(t.Context(), tc.args...)
		if text := fmt.Sprint(out, err); !strings.Contains(text, tc.want) {
			t.Errorf("%v says %s, want %q", tc.args, text, tc.want)
		}
	}
	viewer.says(t, []string{"scale", "explain", "chat"}, "autoscaling between 1 and 3")
	viewer.says(t, []string{"logs", "chat", "prefill", "--tail", "1"}, "chat-prefill-0-0  ")

	kubectl("create", "rolebinding", "plugin", "--clusterrole="+trial.Release+"-plugin", "--serviceaccount="+p.namespace+":viewer")
	until(t, time.Minute, "the viewer to see the load of the engines", func(ctx context.Context) (string, bool, error) {
		out, _, err := viewer.run(ctx, "status", "chat", "-o", "json")
		if err != nil {
			return "", false, err
		}
		var d view.Status
		if err := parseDocument(out, &d); err != nil {
			return "", false, err
		}
		pool := d.Services[0].Pools[1]
		return fmt.Sprint(pool.LoadSource, d.Services[0].Notes), pool.LoadSource == "engines" && len(d.Services[0].Notes) == 0, nil
	})
	viewer.says(t, []string{"trace", "e2e-mill", "chat"}, "attempt 1")
}

// accountKubeconfig makes a ServiceAccount and gives a file with which it reaches the cluster.
func accountKubeconfig(t *testing.T, namespace, name string) string {
	t.Helper()
	if out, err := cluster.Kubectl(t.Context(), "-n", namespace, "create", "serviceaccount", name); err != nil {
		t.Fatal(out, err)
	}
	token, err := cluster.Kubectl(t.Context(), "-n", namespace, "create", "token", name)
	if err != nil {
		t.Fatal(err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{
		Server: cluster.Config.Host, CertificateAuthority: cluster.Config.CAFile, CertificateAuthorityData: cluster.Config.CAData, TLSServerName: cluster.Config.ServerName,
	}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: strings.TrimSpace(token)}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u", Namespace: namespace}
	config.CurrentContext = "x"
	file := filepath.Join(t.TempDir(), name)
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// checkRollout pauses, changes, drops the change, changes again, and undoes that.
func checkRollout(t *testing.T, p *person) {
	change := func(value string) {
		t.Helper()
		patch := `{"spec": {"engine": {"env": [{"name": "E2E_CHANGE", "value": "` + value + `"}]}}}`
		if out, err := cluster.Kubectl(t.Context(), "-n", p.namespace, "patch", "slisvc", "chat", "--type=merge", "-p", patch); err != nil {
			t.Fatal(out, err)
		}
	}
	environment := func() string {
		t.Helper()
		svc, err := cluster.Service(t.Context(), p.namespace, "chat")
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(svc.Spec.Engine.Env)
	}
	before := environment()
	if done := document[plugin.Done](t, p, "rollout", "pause", "chat"); done.Did != "roll-outs are paused" {
		t.Errorf("pause: %+v", done)
	}
	change("held")
	until(t, time.Minute, "the change to be held", func(ctx context.Context) (string, bool, error) {
		out, _, err := p.run(ctx, "rollout", "status", "chat", "-o", "json")
		if err != nil {
			return "", false, err
		}
		var d rollout.Status
		if err := parseDocument(out, &d); err != nil {
			return "", false, err
		}
		return out, d.Paused && d.Held && !d.Done, nil
	})
	p.says(t, []string{"rollout", "undo", "chat"}, "the changes that the pools have not taken over are dropped")
	if now := environment(); now != before {
		t.Errorf("after undo of what was held the environment is %s, was %s", now, before)
	}
	p.says(t, []string{"rollout", "resume", "chat"}, "roll-outs go on")
	p.says(t, []string{"rollout", "status", "chat", "--wait", "--timeout", "3m"}, "decode", "prefill")

	change("made")
	p.says(t, []string{"rollout", "status", "chat", "--wait", "--timeout", "4m"})
	if history := document[rollout.History](t, p, "rollout", "history", "chat"); len(history.Revisions) == 0 || len(history.Revisions[0].Pools) != 2 {
		t.Errorf("history: %+v", history)
	}
	p.says(t, []string{"rollout", "undo", "chat"}, "it is as at revision ")
	p.says(t, []string{"rollout", "status", "chat", "--wait", "--timeout", "4m"})
	if now := environment(); now != before {
		t.Errorf("after undo the environment is %s, was %s", now, before)
	}
	if status := document[rollout.Status](t, p, "rollout", "status", "chat"); !status.Done || status.Held || status.Paused {
		t.Errorf("in the end: %+v", status)
	}
}

// checkCompletion: names come from the cluster, for the plugin by itself and as kubectl asks.
func checkCompletion(t *testing.T, p *person) {
	for _, tc := range []struct {
		program string
		args    []string
		want    string
	}{
		{"kubectl_complete-sluice", []string{"-n", p.namespace, "ranks", ""}, "chat\n"},
		{"kubectl_complete-sluice", []string{"-n", p.namespace, "scale", "explain", "chat", ""}, "prefill\ndecode\n"},
		{"kubectl-sluice", []string{"__complete", "rollout", ""}, "undo\t"},
	} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(p.folder, tc.program), tc.args...)
		cmd.Env = p.env
		out, err := cmd.Output()
		if err != nil || !strings.Contains(string(out), tc.want) {
			t.Errorf("%s %v: %v\n%s", tc.program, tc.args, err, out)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		p.says(t, []string{"completion", shell}, "kubectl-sluice")
	}
}
