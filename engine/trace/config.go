package trace

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config says whether requests are traced and where their spans go. It travels to the ranks as JSON.
type Config struct {
	Enabled  bool     `json:"enabled,omitempty"`  // --enable-trace; nothing else counts without it
	Endpoint string   `json:"endpoint,omitempty"` // --otlp-traces-endpoint: host:port, or a URL
	Protocol Protocol `json:"protocol,omitempty"` // OTEL_EXPORTER_OTLP_TRACES_PROTOCOL
	Modules  []string `json:"modules,omitempty"`  // --trace-modules: whose requests are traced
	Level    int      `json:"level,omitempty"`    // SGLANG_TRACE_LEVEL: of requests that begin, until SetLevel

	Delay     time.Duration `json:"delay,omitempty"`     // SGLANG_OTLP_EXPORTER_SCHEDULE_DELAY_MILLIS: a span waits at most so long for others, > 0
	BatchSize int           `json:"batchSize,omitempty"` // SGLANG_OTLP_EXPORTER_MAX_EXPORT_BATCH_SIZE: most spans of a message, 1 to QueueSize
}

// Protocol is how the collector is spoken to.
type Protocol string

// The protocols.
const (
	GRPC         Protocol = "grpc"
	HTTPProtobuf Protocol = "http/protobuf"
)

// Modules that can be named: who begins a trace.
const (
	ModuleRequest  = "request"  // client requests
	ModuleMooncake = "mooncake" // SGLang's transfer engine; taken, and there is nothing of it here
)

// The levels that have a meaning; each includes those below.
const (
	LevelOff    = 0
	LevelStages = 1 // where a request is
	LevelParts  = 2 // and dispatches and other short stages
	LevelSteps  = 3 // and every chunk, decode step and batch
	LevelCPU    = 4 // and what a step costs the CPU
)

// QueueSize is how many spans of a process may wait for the export. More are dropped and counted.
const QueueSize = 16384

// DefaultConfig is the configuration without any flag or variable: off, and what it would be when it was on.
func DefaultConfig() Config {
	return Config{
		Endpoint: "localhost:4317", Protocol: GRPC, Modules: []string{ModuleRequest}, Level: LevelSteps,
		Delay: 500 * time.Millisecond, BatchSize: 64,
	}
}

// Fault is a wrong field of a Config: the flag or the variable that it came from, and what to give instead.
type Fault struct{ Source, Text string }

func (f Fault) Error() string { return f.Source + " " + f.Text }

// Validate gives every fault of the configuration, joined; each is a Fault. A configuration that is off has none.
func (c Config) Validate() error {
	if !c.Enabled {
		return nil
	}
	var faults []error
	refuse := func(source, format string, args ...any) {
		faults = append(faults, Fault{source, fmt.Sprintf(format, args...)})
	}
	if _, err := c.target(); err != nil {
		refuse("--otlp-traces-endpoint", "is %q: %v", c.Endpoint, err)
	}
	if c.Protocol != GRPC && c.Protocol != HTTPProtobuf {
		refuse("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "is %q: use %s or %s", string(c.Protocol), GRPC, HTTPProtobuf)
	}
	for _, name := range c.Modules {
		if name != ModuleRequest && name != ModuleMooncake {
			refuse("--trace-modules", "has %q: use %s or %s, with commas between", name, ModuleRequest, ModuleMooncake)
		}
	}
	if c.Level < 0 {
		refuse("SGLANG_TRACE_LEVEL", "is %d: give 0 to %d", c.Level, LevelCPU)
	}
	if c.Delay <= 0 {
		refuse("SGLANG_OTLP_EXPORTER_SCHEDULE_DELAY_MILLIS", "is %d: give at least 1", c.Delay.Milliseconds())
	}
	if c.BatchSize < 1 || c.BatchSize > QueueSize {
		refuse("SGLANG_OTLP_EXPORTER_MAX_EXPORT_BATCH_SIZE", "is %d: give 1 to %d", c.BatchSize, QueueSize)
	}
	return errors.Join(faults...)
}

// traces reports whether requests of a module get spans. An empty name is of no module and never left out.
func (c Config) traces(module string) bool { return module == "" || slices.Contains(c.Modules, module) }

// target is where spans go.
type target struct {
	address string // host:port
	path    string // of HTTP
	secure  bool
}

// httpPath is where collectors take spans over HTTP.
const httpPath = "/v1/traces"

// target reads Endpoint: host:port without TLS, or a URL whose scheme says whether there is TLS; over HTTP the URL's path is
// used when it has one.
func (c Config) target() (target, error) {
	t := target{address: c.Endpoint, path: httpPath}
	if strings.Contains(c.Endpoint, "://") {
		u, err := url.Parse(c.Endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.User != nil {
			return target{}, errors.New("give host:port, or a URL such as http://host:4318/v1/traces")
		}
		t.address, t.secure = u.Host, u.Scheme == "https"
		if u.Port() == "" {
			t.address = net.JoinHostPort(u.Hostname(), map[bool]string{false: "80", true: "443"}[t.secure])
		}
		if path := strings.TrimSuffix(u.Path, "/"); path != "" {
			t.path = path
		}
	}
	host, port, err := net.SplitHostPort(t.address)
	if number, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || number == 0 || host == "" {
		return target{}, errors.New("give the collector's host and port, for example localhost:4317")
	}
	return t, nil
}
