package trace

import (
	"encoding/json"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestValidate(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Config)
		want   []string // what the faults begin with
	}{
		{"the default", func(*Config) {}, nil},
		{"off", func(c *Config) { c.Enabled, c.Endpoint, c.Level = false, "", -1 }, nil},
		{"mooncake", func(c *Config) { c.Modules = []string{"request", "mooncake"} }, nil},
		{"everything wrong", func(c *Config) {
			*c = Config{Enabled: true, Endpoint: "collector", Protocol: "http/json", Modules: []string{"requests"}, Level: -1, Delay: -time.Millisecond, BatchSize: QueueSize + 1}
		}, []string{
			`--otlp-traces-endpoint is "collector": give`, `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is "http/json": use`, `--trace-modules has "requests": use`,
			"SGLANG_TRACE_LEVEL is -1: give", "SGLANG_OTLP_EXPORTER_SCHEDULE_DELAY_MILLIS is -1: give", "SGLANG_OTLP_EXPORTER_MAX_EXPORT_BATCH_SIZE is 16385: give",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Enabled = true
			tc.change(&cfg)
			err := cfg.Validate()
			var faults []string
			if err != nil {
				faults = strings.Split(err.Error(), "\n")
			}
			if len(faults) != len(tc.want) {
				t.Fatalf("the faults are %q", faults)
			}
			for i, fault := range faults {
				if !strings.HasPrefix(fault, tc.want[i]) {
					t.Errorf("a fault is %q, want %q at its begin", fault, tc.want[i])
				}
			}
		})
	}
}

func TestConfigTravels(t *testing.T) {
	cfg := Config{Enabled: true, Endpoint: "h:1", Protocol: HTTPProtobuf, Modules: []string{"request"}, Level: 2, Delay: 3, BatchSize: 4}
	data, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var got Config
	if err := json.Unmarshal(data, &got); err != nil || !cmp.Equal(cfg, got) {
		t.Errorf("%v (-want +got)\n%s", err, cmp.Diff(cfg, got))
	}
}

func TestTarget(t *testing.T) {
	for _, tc := range []struct {
		endpoint string
		want     target // zero: refused
	}{
		{"localhost:4317", target{"localhost:4317", "/v1/traces", false}},
		{"[::1]:4317", target{"[::1]:4317", "/v1/traces", false}},
		{"http://c:4318", target{"c:4318", "/v1/traces", false}},
		{"https://c:4318/v1/traces", target{"c:4318", "/v1/traces", true}},
		{"https://c/otlp/", target{"c:443", "/otlp", true}},
		{"http://[::1]", target{"[::1]:80", "/v1/traces", false}},
		{"c", target{}}, {"", target{}}, {":4317", target{}}, {"c:0", target{}}, {"c:http", target{}}, {"c:65536", target{}},
		{"grpc://c:4317", target{}}, {"http://", target{}}, {"http://c:4318?x=1", target{}}, {"http://user@c:4318", target{}},
	} {
		got, err := Config{Endpoint: tc.endpoint}.target()
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(target{})); diff != "" || (err != nil) != (tc.want == target{}) {
			t.Errorf("%q: %v (-want +got)\n%s", tc.endpoint, err, diff)
		}
	}
}

func TestHostID(t *testing.T) {
	missing := errors.New("missing")
	card := func(flags net.Flags, address ...byte) net.Interface {
		return net.Interface{Flags: flags, HardwareAddr: address}
	}
	for _, tc := range []struct {
		name, reason string
		file         string // "": there is none
		cards        []net.Interface
		cardsErr     error
		want         string
	}{
		{"machine id", "it wins", "0123abcd\n", []net.Interface{card(0, 1, 2, 3, 4, 5, 6)}, nil, "0123abcd"},
		{"card", "the first with an address that is not the loopback", "", []net.Interface{card(net.FlagLoopback, 9), card(0), card(0, 1, 2, 3, 4, 5, 6)}, nil, "4398abfc-ecc1-55f9-99f0-1ec395b16c4f"},
		{"empty file", "as if it was missing", " \n", nil, nil, "unknown"},
		{"no cards", "nothing tells", "", nil, missing, "unknown"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			read := func(string) ([]byte, error) {
				if tc.file == "" {
					return nil, missing
				}
				return []byte(tc.file), nil
			}
			if got := hostID(read, func() ([]net.Interface, error) { return tc.cards, tc.cardsErr }); got != tc.want {
				t.Errorf("the id is %q, want %q: %s", got, tc.want, tc.reason)
			}
		})
	}
}
