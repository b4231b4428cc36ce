package trial

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseVector(t *testing.T) {
	for _, test := range []struct {
		name, body string
		want       []Series
		fails      bool
	}{
		{
			name: "two series",
			body: `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"a":"b"},"value":[1.5,"2"]},{"metric":{},"value":[1.5,"0.25"]}]}}`,
			want: []Series{{Labels: map[string]string{"a": "b"}, Value: 2}, {Labels: map[string]string{}, Value: 0.25}},
		},
		{name: "none", body: `{"status":"success","data":{"resultType":"vector","result":[]}}`},
		{name: "refused", body: `{"status":"error","error":"bad expression"}`, fails: true},
		{name: "another kind", body: `{"status":"success","data":{"resultType":"matrix","result":[]}}`, fails: true},
		{name: "no answer of Prometheus", body: `<html>`, fails: true},
		{name: "a value that is none", body: `{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"x"]}]}}`, fails: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseVector([]byte(test.body))
			if (err != nil) != test.fails {
				t.Fatalf("error %v, want one: %t", err, test.fails)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("series (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseAlerts(t *testing.T) {
	for _, test := range []struct {
		name, body string
		want       []Alert
		fails      bool
	}{
		{
			name: "two groups",
			body: `{"status":"success","data":{"groups":[{"name":"g","rules":[{"type":"alerting","name":"A","labels":{"tenant":"red"},"duration":120,"state":"firing","health":"ok"}]},` +
				`{"name":"h","rules":[{"type":"alerting","name":"B","duration":0,"state":"inactive","health":"err","lastError":"no"}]}]}}`,
			want: []Alert{
				{Name: "A", Labels: map[string]string{"tenant": "red"}, For: 2 * time.Minute, State: "firing", Health: "ok"},
				{Name: "B", State: "inactive", Health: "err", LastError: "no"},
			},
		},
		{name: "none", body: `{"status":"success","data":{"groups":[]}}`},
		{name: "refused", body: `{"status":"error","error":"no"}`, fails: true},
		{name: "no answer of Prometheus", body: `<html>`, fails: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseAlerts([]byte(test.body))
			if (err != nil) != test.fails {
				t.Fatalf("error %v, want one: %t", err, test.fails)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("alerts (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseScrapePools(t *testing.T) {
	got, err := parseScrapePools([]byte(`{"status":"success","data":{"scrapePools":["serviceMonitor/a/b/0","x"]}}`))
	if diff := cmp.Diff([]string{"serviceMonitor/a/b/0", "x"}, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	for _, body := range []string{`{"status":"error","error":"no"}`, `<html>`} {
		if _, err := parseScrapePools([]byte(body)); err == nil {
			t.Errorf("%s is taken for an answer", body)
		}
	}
}
