package monitoring

import (
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/config"
	"sigs.k8s.io/yaml"

	_ "github.com/prometheus/prometheus/discovery/targetgroup" // static_configs
)

func TestPrometheusConfig(t *testing.T) {
	text, err := os.ReadFile("../../monitoring/prometheus.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(string(text), promslog.NewNopLogger())
	if err != nil {
		t.Fatal(err)
	}
	type settings struct{ Scrape, Evaluate model.Duration }
	want := settings{model.Duration(scrapeInterval), model.Duration(30 * time.Second)}
	if diff := cmp.Diff(want, settings{c.GlobalConfig.ScrapeInterval, c.GlobalConfig.EvaluationInterval}); diff != "" {
		t.Errorf("intervals (-want +got):\n%s", diff)
	}
	if len(c.ScrapeConfigs) != 1 || c.ScrapeConfigs[0].JobName != "sglang" || c.ScrapeConfigs[0].MetricsPath != "/metrics" {
		t.Errorf("want one job sglang that scrapes /metrics, got %+v", c.ScrapeConfigs)
	}
}

// TestProvisioning: the data source that the files name is the one that the dashboard begins with, and scrapes as often as
// Prometheus does.
func TestProvisioning(t *testing.T) {
	// The fields are those that Grafana reads in the files of its provisioning and that are of use here; another one is an error.
	var sources struct {
		APIVersion  int `json:"apiVersion"`
		Datasources []struct {
			Name      string `json:"name"`
			Access    string `json:"access"`
			URL       string `json:"url"`
			UID       string `json:"uid"`
			Type      string `json:"type"`
			IsDefault bool   `json:"isDefault"`
			Editable  bool   `json:"editable"`
			JSONData  struct {
				TimeInterval string `json:"timeInterval"`
			} `json:"jsonData"`
		} `json:"datasources"`
	}
	var providers struct {
		APIVersion int `json:"apiVersion"`
		Providers  []struct {
			Name    string `json:"name"`
			Type    string `json:"type"`
			Options struct {
				Path string `json:"path"`
			} `json:"options"`
			Folder                string `json:"folder"`
			UpdateIntervalSeconds int    `json:"updateIntervalSeconds"`
			AllowUIUpdates        bool   `json:"allowUiUpdates"`
		} `json:"providers"`
	}
	for file, to := range map[string]any{"datasources/prometheus.yaml": &sources, "dashboards/sluice.yaml": &providers} {
		text, err := os.ReadFile("../../monitoring/grafana/provisioning/" + file)
		if err == nil {
			err = yaml.UnmarshalStrict(text, to)
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	if s := sources.Datasources; len(s) != 1 || s[0].UID != "prometheus" || s[0].Type != "prometheus" || !s[0].IsDefault || s[0].Editable ||
		s[0].JSONData.TimeInterval != scrapeInterval.String() || s[0].Name == "" || s[0].Access != "proxy" || s[0].URL != "${PROMETHEUS_URL}" || sources.APIVersion != 1 {
		t.Errorf("data sources: %+v", s)
	}
	if p := providers.Providers; len(p) != 1 || p[0].Folder != "SGLang Monitoring" || p[0].UpdateIntervalSeconds != 10 || p[0].AllowUIUpdates ||
		p[0].Name == "" || p[0].Type != "file" || p[0].Options.Path != "${SLUICE_DASHBOARDS}" || providers.APIVersion != 1 {
		t.Errorf("providers: %+v", p)
	}
}
