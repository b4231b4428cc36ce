package observe

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// Families that are read besides those that a rank must have.
const (
	familyRunning    = "sglang:num_running_reqs"
	familyWaiting    = "sglang:num_queue_reqs"
	familyPaused     = "sglang:num_paused_reqs"
	familyTokens     = "sglang:realtime_tokens_total"
	familyIterations = "sglang:scheduler_iterations_total"
	familyViolations = "sluice_ledger_violations_total"
	familyInFlight   = "sluice_requests_in_flight"
	familySent       = "sluice_kv_sent_bytes_total"
	familyReceived   = "sluice_kv_received_bytes_total"
)

// Required lists the families of which every rank of a role has a series from its start, as they are exposed: a histogram by
// its count.
func Required(role v1alpha1.Role) []string {
	all := []string{
		familyRunning, familyWaiting, "sglang:token_usage", "sglang:utilization", "sglang:max_total_num_tokens", familyIterations,
		"sglang:queue_time_seconds_count",
	}
	switch role {
	case v1alpha1.RolePrefill:
		return append(all, "sglang:num_prefill_bootstrap_queue_reqs", "sglang:num_prefill_inflight_queue_reqs")
	case v1alpha1.RoleDecode:
		return append(all, "sglang:num_decode_prealloc_queue_reqs", "sglang:num_decode_transfer_queue_reqs", "sglang:max_running_requests_under_SLO")
	default:
		return append(all, "sglang:max_running_requests_under_SLO")
	}
}

// handover are the queues of requests that wait for a peer.
func handover() []string {
	return []string{
		"sglang:num_prefill_bootstrap_queue_reqs", "sglang:num_prefill_inflight_queue_reqs",
		"sglang:num_decode_prealloc_queue_reqs", "sglang:num_decode_transfer_queue_reqs",
	}
}

// read are all families that are kept of an exposition.
func read(role v1alpha1.Role) map[string]bool {
	kept := map[string]bool{}
	for _, name := range slices.Concat(Required(role), handover(), []string{familyPaused, familyTokens, familyViolations, familyInFlight, familySent, familyReceived}) {
		kept[name] = true
	}
	return kept
}

// Exposition is what is kept of one answer of a pod's /metrics. It is a value; nobody writes to it.
type Exposition struct {
	Ranks map[RankID]RankSeries
	// Violations are the breaches of the ledger's laws since the processes started, by law; nil: they are not exported.
	Violations map[string]float64
	// InFlight are the requests that the API process holds; 0 on a pod without one.
	InFlight float64
	// Sent and Received are the bytes of KV of hand-overs that have ended, over all ranks of the pod.
	Sent, Received KVBytes
}

// KVBytes are bytes of KV by how the hand-over ended.
type KVBytes struct {
	Done, Failed float64
	Known        bool // the family is exported
}

// RankSeries is what is kept of one rank.
type RankSeries struct {
	Families map[string]bool // those with a series
	// Running and Waiting requests, and those that wait for a peer.
	Running, Waiting, Handover float64
	Paused                     float64
	// Tokens that were computed or found in the cache, and turns of the scheduler's loop, since the start.
	Tokens, Iterations float64
}

// errNoExposition says that an answer is not in the text format.
var errNoExposition = errors.New("no exposition in the text format")

// parseExposition reads the text format. Lines of families that are not needed are not parsed: an engine with many ranks
// and histograms has a hundred times as many.
func parseExposition(text []byte, role v1alpha1.Role) (Exposition, error) {
	kept := read(role)
	var needed bytes.Buffer
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(make([]byte, 0, 64<<10), 1<<20)
	seen := false
	for lines.Scan() {
		line := lines.Bytes()
		if len(line) == 0 || line[0] == '#' {
			seen = seen || bytes.HasPrefix(line, []byte("# TYPE "))
			continue
		}
		name := line
		if end := bytes.IndexAny(line, "{ \t"); end >= 0 {
			name = line[:end]
		}
		if kept[string(name)] {
			needed.Write(line)
			needed.WriteByte('\n')
		}
	}
	if err := lines.Err(); err != nil {
		return Exposition{}, fmt.Errorf("read the lines: %w", err)
	}
	if !seen {
		return Exposition{}, errNoExposition
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(&needed)
	if err != nil {
		return Exposition{}, fmt.Errorf("%w: %w", errNoExposition, err)
	}
	e := Exposition{Ranks: map[RankID]RankSeries{}}
	for _, name := range slices.Sorted(maps.Keys(families)) {
		for _, m := range families[name].GetMetric() {
			e.add(name, m)
		}
	}
	return e, nil
}

// add takes one sample. Samples of single priorities repeat what the total says, and are left out.
func (e *Exposition) add(name string, m *dto.Metric) {
	label := func(of string) string {
		for _, l := range m.GetLabel() {
			if l.GetName() == of {
				return l.GetValue()
			}
		}
		return ""
	}
	value := m.GetUntyped().GetValue()
	if label("priority") != "" {
		return
	}
	if math.IsNaN(value) || math.IsInf(value, 0) {
		value = 0 // present, and no number
	}
	switch name {
	case familyViolations:
		if e.Violations == nil {
			e.Violations = map[string]float64{}
		}
		e.Violations[label("law")] += value
		return
	case familyInFlight:
		e.InFlight += value
		return
	case familySent:
		e.Sent.add(label("outcome"), value)
		return
	case familyReceived:
		e.Received.add(label("outcome"), value)
		return
	}
	id, ok := rankOf(label)
	if !ok {
		return
	}
	r := e.Ranks[id]
	if r.Families == nil {
		r.Families = map[string]bool{}
	}
	r.Families[name] = true
	switch {
	case name == familyRunning:
		r.Running += value
	case name == familyWaiting:
		r.Waiting += value
	case name == familyPaused:
		r.Paused += value
	case name == familyTokens:
		r.Tokens += value
	case name == familyIterations:
		r.Iterations += value
	case slices.Contains(handover(), name):
		r.Handover += value
	}
	e.Ranks[id] = r
}

func (b *KVBytes) add(outcome string, value float64) {
	b.Known = true
	if outcome == "done" {
		b.Done += value
		return
	}
	b.Failed += value
}

// missing lists what a rank lacks of what it must have.
func (r RankSeries) missing(role v1alpha1.Role) []string {
	var names []string
	for _, name := range Required(role) {
		if !r.Families[name] {
			names = append(names, strings.TrimSuffix(name, "_count"))
		}
	}
	return names
}

// readLimited reads a body up to a limit.
func readLimited(body io.Reader, limitBytes int64) ([]byte, outcome, error) {
	text, err := io.ReadAll(io.LimitReader(body, limitBytes+1))
	if err != nil {
		return nil, transportOutcome(err), fmt.Errorf("read the body: %w", err)
	}
	if int64(len(text)) > limitBytes {
		return nil, outcomeTooLarge, fmt.Errorf("the body is larger than %d bytes", limitBytes)
	}
	return text, outcomeOK, nil
}
