package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// run executes a command line.
func run(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	var o, e bytes.Buffer
	c := command(&o, &e)
	c.SetArgs(args)
	err = c.ExecuteContext(context.Background())
	return o.String(), err
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// kubeconfig is one for a server without TLS.
func kubeconfig(t *testing.T, server string) string {
	t.Helper()
	return write(t, "config", `{"apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [{"name": "k", "cluster": {"server": "`+server+`"}}],
"contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "team-a"}}], "users": [{"name": "u", "user": {}}]}`)
}

func TestUsage(t *testing.T) {
	empty := write(t, "empty", "")
	missing := filepath.Join(t.TempDir(), "missing")
	t.Setenv("KUBECONFIG", empty+string(filepath.ListSeparator)+missing)
	t.Setenv("HOME", t.TempDir())
	nobody := kubeconfig(t, "http://127.0.0.1:1")
	for _, tc := range []struct {
		name, reason string
		args         []string
		want         string
	}{
		{"no argument", "the line says what to give", []string{"ranks"}, "give SERVICE: kubectl sluice ranks SERVICE"},
		{"too many", "", []string{"diagnose", "a", "b"}, `"b" is too much`},
		{"no command", "", []string{"explode"}, `unknown command "explode"`},
		{"no flag", "help is named", []string{"status", "--wide"}, "see kubectl sluice status --help"},
		{"output", "the values are named", []string{"status", "-o", "yaml", "--kubeconfig", nobody}, "-o yaml: give json or wide"},
		{"connections", "", []string{"status", "--max-connections", "0", "--kubeconfig", nobody}, "--max-connections is 0: give 1 to 256"},
		{"time-out", "", []string{"status", "--pod-timeout", "0s", "--kubeconfig", nobody}, "--pod-timeout is 0s"},
		{"no key file", "", []string{"status", "--api-key-file", "/nowhere", "--kubeconfig", nobody}, "read --api-key-file"},
		{"empty key file", "", []string{"status", "--api-key-file", write(t, "key", "\n"), "--kubeconfig", nobody}, "want one line with the key"},
		{"no cluster", "the files and what to set are named", []string{"status"},
			"no cluster is configured in " + empty + ", " + missing + " (no such file or directory): set KUBECONFIG to a file that has one, or give --kubeconfig"},
		{"no such context", "", []string{"status", "--kubeconfig", nobody, "--context", "other"}, "other"},
		{"not reachable", "the address and a remedy", []string{"status", "--kubeconfig", nobody}, "the API server http://127.0.0.1:1 is not reachable"},
		{"a revision", "", []string{"rollout", "undo", "chat", "--to-revision", "-1", "--kubeconfig", nobody}, "--to-revision -1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := run(t, tc.args...)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %v; want %q", tc.reason, err, tc.want)
			}
		})
	}
}

// TestNoResource: a cluster without the chart.
func TestNoResource(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/api":
			_, _ = w.Write([]byte(`{"kind": "APIVersions", "versions": ["v1"]}`))
		case "/apis":
			_, _ = w.Write([]byte(`{"kind": "APIGroupList", "apiVersion": "v1", "groups": []}`))
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	_, err := run(t, "status", "--kubeconfig", kubeconfig(t, server.URL))
	if err == nil || !strings.Contains(err.Error(), "the cluster has no InferenceService resource") || !strings.Contains(err.Error(), "install the chart") {
		t.Errorf("without the resource: %v", err)
	}
}

// TestCompletion: names come from the cluster of the flags.
func TestCompletion(t *testing.T) {
	resources := map[string]any{
		"/api": map[string]any{"kind": "APIVersions", "versions": []any{"v1"}},
		"/apis": map[string]any{"kind": "APIGroupList", "apiVersion": "v1", "groups": []any{map[string]any{"name": "inference.sluice.dev",
			"versions":         []any{map[string]any{"groupVersion": "inference.sluice.dev/v1alpha1", "version": "v1alpha1"}},
			"preferredVersion": map[string]any{"groupVersion": "inference.sluice.dev/v1alpha1", "version": "v1alpha1"}}}},
		"/apis/inference.sluice.dev/v1alpha1": map[string]any{"kind": "APIResourceList", "groupVersion": "inference.sluice.dev/v1alpha1", "resources": []any{
			map[string]any{"name": "inferenceservices", "kind": "InferenceService", "namespaced": true, "verbs": []string{"get", "list"}}}},
		"/apis/inference.sluice.dev/v1alpha1/namespaces/team-a/inferenceservices": map[string]any{"kind": "InferenceServiceList", "apiVersion": "inference.sluice.dev/v1alpha1", "items": []any{
			map[string]any{"metadata": map[string]any{"name": "chat", "namespace": "team-a"}}, map[string]any{"metadata": map[string]any{"name": "code", "namespace": "team-a"}}}},
		"/apis/inference.sluice.dev/v1alpha1/namespaces/team-a/inferenceservices/chat": map[string]any{"kind": "InferenceService", "apiVersion": "inference.sluice.dev/v1alpha1",
			"metadata": map[string]any{"name": "chat", "namespace": "team-a"}, "spec": map[string]any{"pools": []any{map[string]any{"name": "prefill"}, map[string]any{"name": "decode"}}}},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := resources[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(body)
	}))
	defer server.Close()
	config := kubeconfig(t, server.URL)
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"status", ""}, "chat\ncode\n:4\n"},
		{[]string{"logs", "chat", ""}, "prefill\ndecode\n:4\n"},
		{[]string{"scale", "explain", "chat", ""}, "prefill\ndecode\n:4\n"},
		{[]string{"trace", "rid", ""}, "chat\ncode\n:4\n"},
		{[]string{"ranks", "chat", ""}, ":4\n"},
		{[]string{"top", "--sort", ""}, "name\nrunning\nwaiting\nkv\nutilization\ntokens\n:4\n"},
		{[]string{"status", "-o", ""}, "json\nwide\n:4\n"},
	} {
		out, err := run(t, append([]string{"__complete", "--kubeconfig", config}, tc.args...)...)
		if err != nil || out != tc.want {
			t.Errorf("%v: %q, %v; want %q", tc.args, out, err, tc.want)
		}
	}
}
