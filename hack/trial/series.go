package trial

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Exposition is one engine's /metrics.
type Exposition struct {
	Source   string // pod or process
	Families map[string]*dto.MetricFamily
}

// ParseExposition reads the text form of /metrics.
func ParseExposition(source string, text []byte) (Exposition, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return Exposition{}, fmt.Errorf("parse the metrics of %s: %w", source, err)
	}
	return Exposition{Source: source, Families: families}, nil
}

// Gauge gives the value of a gauge for a rank, and whether the engine exports it.
func (e Exposition) Gauge(name, tpRank string) (float64, bool) {
	family := e.Families["sglang:"+name]
	if family == nil {
		return 0, false
	}
	for _, m := range family.Metric {
		if label(m, "tp_rank") == tpRank {
			return m.GetGauge().GetValue(), true
		}
	}
	return 0, false
}

// Ranks gives the (engine_type, tp_rank) pairs of the engine, from its running requests.
func (e Exposition) Ranks() [][2]string {
	var ranks [][2]string
	if family := e.Families["sglang:num_running_reqs"]; family != nil {
		for _, m := range family.Metric {
			ranks = append(ranks, [2]string{label(m, "engine_type"), label(m, "tp_rank")})
		}
	}
	slices.SortFunc(ranks, func(a, b [2]string) int { return strings.Compare(a[0]+a[1], b[0]+b[1]) })
	return slices.Compact(ranks)
}

func label(m *dto.Metric, name string) string {
	for _, pair := range m.GetLabel() {
		if pair.GetName() == name {
			return pair.GetValue()
		}
	}
	return ""
}

// queueColumns are the PD queues of the load table, in the order of a request's way.
var queueColumns = []struct{ title, gauge string }{
	{"BOOTSTRAP", "num_prefill_bootstrap_queue_reqs"},
	{"WAITING", "num_queue_reqs"},
	{"INFLIGHT", "num_prefill_inflight_queue_reqs"},
	{"PREALLOC", "num_decode_prealloc_queue_reqs"},
	{"TRANSFER", "num_decode_transfer_queue_reqs"},
}

// WriteLoadTable writes one line per rank: its utilization, running requests, KV usage and queues.
func WriteLoadTable(w io.Writer, expositions []Exposition) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(tw, "ENGINE_TYPE\tENGINE\tRANK\tUTILIZATION\tRUNNING\tTOKEN_USAGE\tTOKENS/S")
	for _, column := range queueColumns {
		fmt.Fprintf(tw, "\t%s", column.title)
	}
	fmt.Fprintln(tw)
	for _, e := range expositions {
		for _, rank := range e.Ranks() {
			cell := func(gauge string) string {
				v, ok := e.Gauge(gauge, rank[1])
				if !ok {
					return "-"
				}
				return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64)
			}
			utilization := cell("utilization")
			if utilization == "-1" {
				utilization = "-1 (none)"
			}
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s", rank[0], e.Source, rank[1], utilization, cell("num_running_reqs"), cell("token_usage"), cell("gen_throughput"))
			for _, column := range queueColumns {
				fmt.Fprintf(tw, "\t%s", cell(column.gauge))
			}
			fmt.Fprintln(tw)
		}
	}
	return tw.Flush()
}
