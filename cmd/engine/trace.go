package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/engine/trace"
)

// readTraceEnvironment fills in what of the tracing comes from the environment; what is wrong besides the syntax is found when
// the configuration is validated.
func readTraceEnvironment(c *trace.Config, lookup func(string) (string, bool)) error {
	if protocol, set := lookup("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"); set && protocol != "" {
		c.Protocol = trace.Protocol(protocol)
	}
	for _, v := range []struct {
		name string
		to   func(int)
	}{
		{"SGLANG_TRACE_LEVEL", func(n int) { c.Level = n }},
		{"SGLANG_OTLP_EXPORTER_SCHEDULE_DELAY_MILLIS", func(n int) { c.Delay = time.Duration(n) * time.Millisecond }},
		{"SGLANG_OTLP_EXPORTER_MAX_EXPORT_BATCH_SIZE", func(n int) { c.BatchSize = n }},
	} {
		text, set := lookup(v.name)
		if !set {
			continue
		}
		number, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return fmt.Errorf("%s is %q: give a whole number", v.name, text)
		}
		v.to(int(number))
	}
	return nil
}

// modules is a flag value that is a list of names with commas between.
type modules []string

func (m *modules) String() string { return strings.Join(*m, ",") }

func (m *modules) Type() string { return "names" }

func (m *modules) Set(value string) error {
	if strings.TrimSpace(value) == "" {
		*m = nil
		return nil
	}
	var names []string
	for name := range strings.SplitSeq(value, ",") {
		if name = strings.TrimSpace(name); name == "" {
			return fmt.Errorf("%.100q has an empty name: leave out the comma without a name at its side", value)
		}
		names = append(names, name)
	}
	*m = names
	return nil
}
