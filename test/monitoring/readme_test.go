package monitoring

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/hack/docrun"
	"github.com/sluice-dev/sluice/internal/buildcache"
	"github.com/sluice-dev/sluice/test/harness"
)

// docsRunner is what pages call this package in their marks.
const docsRunner = "monitoring"

// typed gives the commands of a page that this package runs, in their order.
func typed(t *testing.T, file string) []string {
	t.Helper()
	page, err := docrun.Read("../..", file)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, block := range page.Run(docsRunner) {
		steps, err := block.Steps()
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range steps {
			list = append(list, step.Command)
		}
	}
	return list
}

// TestRunsItsPages: no other page says that this package runs it.
func TestRunsItsPages(t *testing.T) {
	pages, err := docrun.Pages("../..")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, page := range pages {
		if len(page.Run(docsRunner)) > 0 {
			got = append(got, page.File)
		}
	}
	if diff := cmp.Diff([]string{"docs/diagnosis.md", "monitoring/README.md"}, got); diff != "" {
		t.Errorf("pages (-want +got):\n%s", diff)
	}
}

// TestReadmeCommands runs what monitoring/README.md says: the engine and Prometheus for real, with other ports and another
// folder for what they write. Grafana is no Go module that can be built, so what is run in its place tells what it was
// given, and that is looked at: the files, the folder and the address of Prometheus, which must answer what the dashboard asks.
func TestReadmeCommands(t *testing.T) {
	harness.NoteSources(t, "../..")
	var list []string
	for _, command := range typed(t, "monitoring/README.md") { // continued lines joined, without the & that lets a shell go on
		list = append(list, strings.TrimSuffix(strings.TrimSpace(strings.ReplaceAll(command, "\\\n", " ")), " &"))
	}
	if len(list) != 3 {
		t.Fatalf("the README has the commands %q, want those of the engine, of Prometheus and of Grafana", list)
	}
	cache, err := buildcache.Open(os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	prometheus, err := cache.Path(t.Context(), "prometheus")
	if err != nil {
		t.Fatal(err)
	}
	root, ports := t.TempDir(), harness.FreePorts(t, 2)
	engine, server := fmt.Sprint(ports[0]), fmt.Sprint(ports[1])
	replace := strings.NewReplacer("$(go run ./hack/tool path prometheus)", prometheus, "30000", engine, "9090", server, "/tmp/tiny", tiny, "/tmp/", root+"/")
	for _, link := range []struct{ from, to string }{
		{"bin/sluice-engine", programs.Engine}, {"path/prometheus", prometheus}, {"monitoring/grafana", "../../monitoring/grafana"},
	} {
		to, err := filepath.Abs(link.to)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(root, link.from)), 0o755)
		}
		if err == nil {
			err = os.Symlink(to, filepath.Join(root, link.from))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	config := replace.Replace(read(t, "../../monitoring/prometheus.yaml"))
	config = strings.Replace(config, "scrape_interval: 5s", "scrape_interval: 200ms", 1)
	const told = "#!/bin/sh\necho \"$@\"; env\n"
	for file, text := range map[string]string{"monitoring/prometheus.yaml": config, "path/grafana": told} {
		if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	environment := []string{"PATH=" + filepath.Join(root, "path") + ":" + os.Getenv("PATH"), "GRAFANA_HOME=/opt/grafana"}
	run := func(command string) (program string, args []string) {
		return "bash", []string{"-euc", "cd " + root + " && exec env " + replace.Replace(command)}
	}

	for i, name := range []string{"engine", "prometheus"} {
		program, args := run(list[i])
		if !strings.Contains(list[i], name) {
			t.Fatalf("command %d is %q, want that of %s", i, list[i], name)
		}
		harness.Start(t, name, program, environment, args...)
	}
	for _, query := range []string{`up == 1`, `sglang:max_total_num_tokens`, `{__name__=~"sglang[:_]num_running_reqs"}`} {
		harness.Eventually(t, "Prometheus answers "+query, func() bool { return answers(t, "http://127.0.0.1:"+server, query) > 0 })
	}

	program, args := run(list[2])
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), environment...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(out), "\n")
	if lines[0] != "server --homepath /opt/grafana" {
		t.Errorf("grafana is run with %q", lines[0])
	}
	given := map[string]string{}
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, "=")
		given[name] = value
	}
	for name, file := range map[string]string{"SLUICE_DASHBOARDS": "sglang-dashboard.json", "GF_PATHS_PROVISIONING": "datasources/prometheus.yaml"} {
		if _, err := os.Stat(filepath.Join(given[name], file)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Every variable that the provisioning files read is given, and the address in it answers.
	variable := regexp.MustCompile(`\$\{(\w+)\}`)
	for _, file := range []string{"datasources/prometheus.yaml", "dashboards/sluice.yaml"} {
		for _, m := range variable.FindAllStringSubmatch(read(t, "../../monitoring/grafana/provisioning/"+file), -1) {
			if given[m[1]] == "" {
				t.Errorf("%s reads %s, which the command of Grafana does not give", file, m[1])
			}
		}
	}
	if answers(t, given["PROMETHEUS_URL"], "up") == 0 {
		t.Errorf("nothing answers at PROMETHEUS_URL=%s", given["PROMETHEUS_URL"])
	}
}

// answers gives how many series a Prometheus answers a query with; 0 also when it does not answer yet.
func answers(t *testing.T, address, query string) int {
	t.Helper()
	response, err := http.Get(address + "/api/v1/query?query=" + url.QueryEscape(query))
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	var body struct {
		Data struct{ Result []any }
	}
	if json.NewDecoder(response.Body).Decode(&body) != nil {
		return 0
	}
	return len(body.Data.Result)
}
