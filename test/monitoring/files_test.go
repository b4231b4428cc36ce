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
	var sources struct {
		Datasources []struct {
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
		Providers []struct {
			Folder                string `json:"folder"`
			UpdateIntervalSeconds int    `json:"updateIntervalSeconds"`
			AllowUIUpdates        bool   `json:"allowUiUpdates"`
		} `json:"providers"`
	}
	for file, to := range map[string]any{"datasources/prometheus.yaml": &sources, "dashboards/sluice.yaml": &providers} {
		text, err := os.ReadFile("../../monitoring/grafana/provisioning/" + file)
		if err == nil {
			err = yaml.Unmarshal(text, to)
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	if s := sources.Datasources; len(s) != 1 || s[0].UID != "prometheus" || s[0].Type != "prometheus" || !s[0].IsDefault || s[0].Editable ||
		s[0].JSONData.TimeInterval != scrapeInterval.String() {
		t.Errorf("data sources: %+v", s)
	}
	if p := providers.Providers; len(p) != 1 || p[0].Folder != "SGLang Monitoring" || p[0].UpdateIntervalSeconds != 10 || p[0].AllowUIUpdates {
		t.Errorf("providers: %+v", p)
	}
}
