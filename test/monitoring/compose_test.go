package monitoring

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCompose: compose.yaml is a compose file to the specification's own program and its schema, its volumes are files of its
// folder, and what Grafana's files read is in the environment.
func TestCompose(t *testing.T) {
	for _, name := range []string{"go.mod", "go.sum"} { // the cached result of a test is not that of another reader
		read(t, filepath.Join("compose", name))
	}
	reader := filepath.Join(t.TempDir(), "compose")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", reader, "github.com/compose-spec/compose-go/v2/cmd")
	build.Dir = "compose"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the reader: %v\n%s", err, out)
	}
	load := func(text string) (p composed, err error) {
		file := filepath.Join(t.TempDir(), "compose.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), reader, "-format", "json", "-no-path-resolution", file)
		cmd.Env = []string{} // no variable of the file is set
		out, err := cmd.CombinedOutput()
		if err != nil {
			return p, fmt.Errorf("%w: %s", err, out)
		}
		return p, json.Unmarshal(out, &p)
	}
	text := read(t, "../../monitoring/compose.yaml")
	if _, err := load(strings.Replace(text, "network_mode", "networkmode", 1)); err == nil {
		t.Error("a field that compose does not know is taken, so the schema is not looked at")
	}
	project, err := load(text)
	if err != nil {
		t.Fatal(err)
	}
	volume := func(from, to string) mount { return mount{"bind", from, to, true} }
	want := composed{Services: map[string]service{
		"prometheus": {
			Image: "prom/prometheus", Network: "host",
			Command: []string{"--config.file=/etc/prometheus/prometheus.yaml", "--web.listen-address=127.0.0.1:9090"},
			Volumes: []mount{volume("./prometheus.yaml", "/etc/prometheus/prometheus.yaml")},
		},
		"grafana": {
			Image: "grafana/grafana", Network: "host",
			Environment: map[string]string{
				"GF_SERVER_HTTP_ADDR": "127.0.0.1", "GF_AUTH_ANONYMOUS_ENABLED": "true", "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
				"GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH": "/var/lib/sluice/sglang-dashboard.json",
				"PROMETHEUS_URL": "http://127.0.0.1:9090", "SLUICE_DASHBOARDS": "/var/lib/sluice",
			},
			Volumes: []mount{volume("./grafana/provisioning", "/etc/grafana/provisioning"), volume("./grafana/dashboards", "/var/lib/sluice")},
		},
	}}
	if diff := cmp.Diff(want, project); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for name, s := range project.Services {
		for _, v := range s.Volumes {
			if _, err := os.Stat(filepath.Join("../../monitoring", v.Source)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if _, err := os.Stat("../../monitoring/grafana/dashboards/sglang-dashboard.json"); err != nil {
		t.Errorf("the home dashboard: %v", err)
	}
}

// composed is what matters of a compose file.
type composed struct {
	Services map[string]service `json:"services"`
}

type service struct {
	Image       string            `json:"image"`
	Network     string            `json:"network_mode"`
	Command     []string          `json:"command"`
	Environment map[string]string `json:"environment"`
	Volumes     []mount           `json:"volumes"`
}

type mount struct {
	Type     string `json:"type"`
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only"`
}
