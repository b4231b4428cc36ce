package dashboard

import (
	"fmt"
	"slices"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	sdk "github.com/grafana/grafana-foundation-sdk/go/dashboard"

	"github.com/sluice-dev/sluice/engine/metrics"
)

// Further units.
const (
	days  = "d"
	bytes = "bytes"
	cores = "suffix: cores"
)

// operatorLabels are what readers of the operator's dashboard filter by: the operator, then whose objects.
var operatorLabels = []string{"job", "namespace", "inference_service"}

// operatorFamilies are those of an operator that its dashboard asks for. A test compares them with the operator's own table,
// which comes with the operator and is not imported here. Labels are those that queries name.
var operatorFamilies = map[string]*metrics.Family{
	"sluice_condition":                          {Kind: metrics.Gauge, Labels: []string{"kind", "namespace", "name", "inference_service", "pool", "type", "status", "reason"}},
	"sluice_pool_replicas":                      {Kind: metrics.Gauge, Labels: []string{"namespace", "inference_service", "pool", "state"}},
	"sluice_operator_plan_actions_total":        {Kind: metrics.Counter, Labels: []string{"action", "reason", "result"}},
	"sluice_operator_scaling_decisions_total":   {Kind: metrics.Counter, Labels: []string{"by", "direction"}},
	"sluice_operator_object_changes_total":      {Kind: metrics.Counter, Labels: []string{"kind", "change"}},
	"sluice_operator_events_total":              {Kind: metrics.Counter, Labels: []string{"type", "reason"}},
	"sluice_operator_polls_total":               {Kind: metrics.Counter, Labels: []string{"result"}},
	"sluice_operator_poll_seconds":              {Kind: metrics.Histogram},
	"sluice_operator_samples":                   {Kind: metrics.Gauge, Labels: []string{"state"}},
	"sluice_operator_sample_age_seconds":        {Kind: metrics.Gauge},
	"sluice_operator_scrapes_total":             {Kind: metrics.Counter, Labels: []string{"result"}},
	"sluice_operator_scrape_seconds":            {Kind: metrics.Histogram},
	"sluice_operator_prometheus_checks_total":   {Kind: metrics.Counter, Labels: []string{"result"}},
	"sluice_operator_missing_ranks":             {Kind: metrics.Gauge, Labels: []string{"namespace", "inference_service", "pool", "cause"}},
	"sluice_operator_frozen_ranks":              {Kind: metrics.Gauge, Labels: []string{"namespace", "inference_service", "pool"}},
	"sluice_operator_ledger_violations":         {Kind: metrics.Gauge, Labels: []string{"namespace", "inference_service", "pool", "law"}},
	"sluice_operator_kv_bytes":                  {Kind: metrics.Gauge, Labels: []string{"namespace", "inference_service", "side"}},
	"sluice_operator_kv_law_broken":             {Kind: metrics.Gauge, Labels: []string{"namespace", "inference_service"}},
	"sluice_operator_api_service_registered":    {Kind: metrics.Gauge, Labels: []string{"api_service"}},
	"sluice_operator_build_info":                {Kind: metrics.Gauge, Labels: []string{"version"}},
	"controller_runtime_reconcile_total":        {Kind: metrics.Counter, Labels: []string{"controller", "result"}},
	"controller_runtime_reconcile_errors_total": {Kind: metrics.Counter, Labels: []string{"controller"}},
	"controller_runtime_reconcile_time_seconds": {Kind: metrics.Histogram, Labels: []string{"controller"}},
	"controller_runtime_active_workers":         {Kind: metrics.Gauge, Labels: []string{"controller"}},
	"workqueue_depth":                           {Kind: metrics.Gauge, Labels: []string{"name"}},
	"workqueue_queue_duration_seconds":          {Kind: metrics.Histogram, Labels: []string{"name"}},
	"rest_client_requests_total":                {Kind: metrics.Counter, Labels: []string{"code", "method"}},
	"leader_election_master_status":             {Kind: metrics.Gauge, Labels: []string{"name"}},
	"process_resident_memory_bytes":             {Kind: metrics.Gauge},
	"process_cpu_seconds_total":                 {Kind: metrics.Counter},
	"go_goroutines":                             {Kind: metrics.Gauge},

	"sluice_operator_certificate_expiry_timestamp_seconds": {Kind: metrics.Gauge, Labels: []string{"certificate"}},
}

// OperatorOptions say how the operator's dashboard is built.
type OperatorOptions struct {
	UID   string
	Title string
	Tags  []string
	// Datasource is the uid of a Prometheus data source. Empty: the reader chooses one.
	Datasource string
}

// BuildOperator gives the dashboard of operators: whether services are as they should be, what was decided about them and why,
// how engines are observed, and how the operator itself does. It fails on a query that names a family outside of the table.
func BuildOperator(o OperatorOptions) (Dashboard, error) {
	if o.UID == "" || o.Title == "" {
		return Dashboard{}, fmt.Errorf("options: UID %q and Title %q must both be set", o.UID, o.Title)
	}
	source := common.DataSourceRef{Type: cog.ToPtr("prometheus"), Uid: cog.ToPtr(o.Datasource)}
	if o.Datasource == "" {
		source.Uid = cog.ToPtr("${datasource}")
	}
	q := &operatorQueries{}
	d := frame(o.UID, o.Title, o.Tags, "What the operator sees of all services, what it decides and why, and how it does itself.")
	var err error
	if d.Templating.List, err = q.variables(o, source); err != nil {
		return Dashboard{}, err
	}
	if d.Panels, err = layout(q.figures(), q.rows(), false, source); err != nil {
		return Dashboard{}, err
	}
	if len(q.missing) > 0 {
		return Dashboard{}, fmt.Errorf("not in the operator's table: %s", strings.Join(q.missing, ", "))
	}
	return *d, nil
}

// operatorQueries writes PromQL over the families of operators. Names that are not in the table are kept for the end of the
// build.
type operatorQueries struct{ missing []string }

// of selects series of a family, with the reader's choice of operator, and of namespace and service where it has them.
func (q *operatorQueries) of(name, suffix string, where ...string) string {
	f := operatorFamilies[name]
	if f == nil {
		q.missing = append(q.missing, name)
		f = &metrics.Family{}
	}
	var matchers []string
	for _, label := range operatorLabels {
		if label == "job" || slices.Contains(f.Labels, label) {
			matchers = append(matchers, fmt.Sprintf(`%s=~"$%s"`, label, label))
		}
	}
	return name + suffix + "{" + strings.Join(append(matchers, where...), ", ") + "}"
}

// rate gives the growth of a counter per second, added over everything but by.
func (q *operatorQueries) rate(name string, by []string, where ...string) string {
	return aggregate("sum", by, "rate("+q.of(name, "", where...)+"["+interval+"])")
}

// total adds what one operator, the leader, tells of objects.
func (q *operatorQueries) total(name string, by []string, where ...string) string {
	return aggregate("sum", by, q.of(name, "", where...))
}

// times are the lines of a histogram of durations.
func (q *operatorQueries) times(name string, by []string, legend string) []target {
	rate := func(suffix string, by []string) string {
		return aggregate("sum", by, "rate("+q.of(name, suffix)+"["+interval+"])")
	}
	return []target{
		{"histogram_quantile(0.99, " + rate("_bucket", append([]string{"le"}, by...)) + ")", strings.TrimSpace("P99 " + legend)},
		{"histogram_quantile(0.5, " + rate("_bucket", append([]string{"le"}, by...)) + ")", strings.TrimSpace("P50 " + legend)},
		{share(rate("_sum", by), rate("_count", by)), strings.TrimSpace("Avg " + legend)},
	}
}

func (q *operatorQueries) variables(o OperatorOptions, source common.DataSourceRef) ([]sdk.VariableModel, error) {
	var list []sdk.VariableModel
	if o.Datasource == "" {
		v, err := datasourceVariable()
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	for i, label := range operatorLabels {
		family := "sluice_operator_build_info"
		var chosen []string
		if i > 0 {
			family = "sluice_condition"
			for _, before := range operatorLabels[:i] {
				chosen = append(chosen, fmt.Sprintf(`%s=~"$%s"`, before, before))
			}
		}
		v, err := labelVariable(label, family+"{"+strings.Join(chosen, ", ")+"}", source)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

// figures are a line of single numbers.
func (q *operatorQueries) figures() []panel {
	figure := func(title, unit, expr, help string) panel {
		return panel{title: title, unit: unit, look: value, width: 4, height: 4, empty: "no operator is scraped", help: help, targets: []target{{expr, "all"}}}
	}
	services := `kind="InferenceService"`
	ready := func(where ...string) string {
		return "count(" + q.of("sluice_condition", "", append([]string{services, `type="Ready"`}, where...)...) + ")"
	}
	share := figure("Services Ready", ratio, "("+ready(`status="True"`)+" or 0 * "+ready()+")\n/\n"+ready(), "Part of the services whose condition Ready is True.")
	share.top = 1
	missing := figure("Ranks without Metrics", number, q.total("sluice_operator_missing_ranks", nil), "Ranks whose series do not arrive, whatever the cause.")
	missing.warn, missing.bad = 1, 10
	frozen := figure("Frozen Ranks", number, q.total("sluice_operator_frozen_ranks", nil), "Ranks that hold work and do none.")
	frozen.bad = 1
	failing := figure("Failing Reconciles", perSec, q.rate("controller_runtime_reconcile_errors_total", nil), "Reconciles that end in an error, per second.")
	failing.warn, failing.bad = 0.01, 1
	return []panel{
		figure("Services", number, ready(), "InferenceServices that the operator knows."),
		share, missing, frozen, failing,
		figure("Certificate", days, "(min("+q.of("sluice_operator_certificate_expiry_timestamp_seconds", "")+") - time()) / 86400", "Days until the first certificate of the metrics API ends. It is renewed when two thirds of its life are over."),
	}
}

func (q *operatorQueries) rows() []row {
	return []row{
		{"Services", q.servicePanels()},
		{"Decisions", q.decisionPanels()},
		{"Observation", q.observationPanels()},
		{"Controllers", q.controllerPanels()},
		{"Process", q.processPanels()},
	}
}

func (q *operatorQueries) servicePanels() []panel {
	return []panel{
		{
			title: "Conditions that Complain", unit: number, width: 24, empty: "nothing complains", look: stacked,
			help: "Services and pools with a condition that says that something is wrong, by condition and reason.",
			targets: []target{
				{aggregate("count", []string{"kind", "type", "reason"}, q.of("sluice_condition", "", `status="False"`, `type!~"Progressing|Degraded"`)), "{{kind}} {{type}} False: {{reason}}"},
				{aggregate("count", []string{"kind", "type", "reason"}, q.of("sluice_condition", "", `status="True"`, `type="Degraded"`)), "{{kind}} {{type}} True: {{reason}}"},
			},
		},
		{
			title: "Services that Are Not Ready", unit: number, empty: "every service is ready", help: "1 while the condition Ready of a service is not True.",
			targets: []target{{q.total("sluice_condition", []string{"namespace", "inference_service"}, `kind="InferenceService"`, `type="Ready"`, `status!="True"`), "{{namespace}}/{{inference_service}}"}},
		},
		{
			title: "Services that Change", unit: number, empty: "no service changes", help: "Services with replicas that are created, updated, drained or deleted.",
			targets: []target{{q.total("sluice_condition", []string{"reason"}, `kind="InferenceService"`, `type="Progressing"`, `status="True"`), "{{reason}}"}},
		},
		{
			title: "Replicas", unit: number, empty: "there is no pool", help: "Replicas of all pools: asked for, granted, with pods, ready, of the newest revision, leaving.",
			targets: []target{{q.total("sluice_pool_replicas", []string{"state"}), "{{state}}"}},
		},
		{
			title: "Replicas that Are Missing", unit: number, empty: "there is no pool", help: "What a pool asks for and does not have ready, of the pools that lack most.",
			targets: []target{{fmt.Sprintf("topk(10, %s - %s)", q.total("sluice_pool_replicas", []string{"namespace", "inference_service", "pool"}, `state="demand"`),
				q.total("sluice_pool_replicas", []string{"namespace", "inference_service", "pool"}, `state="ready"`)), "{{namespace}}/{{inference_service}} {{pool}}"}},
		},
	}
}

func (q *operatorQueries) decisionPanels() []panel {
	return []panel{
		{
			title: "Plan Actions", unit: perSec, look: stacked, help: "What plans decided about replicas, by action and reason; what the API server refused is marked.",
			targets: []target{
				{q.rate("sluice_operator_plan_actions_total", []string{"action", "reason"}, `action!="keep"`, `result="done"`), "{{action}}: {{reason}}"},
				{q.rate("sluice_operator_plan_actions_total", []string{"action", "reason"}, `result="refused"`), "refused {{action}}: {{reason}}"},
			},
		},
		{
			title: "Plans without an Action", unit: perSec, help: "Plans that keep all replicas: because nothing is to do, or because something is waited for.",
			targets: []target{{q.rate("sluice_operator_plan_actions_total", []string{"reason"}, `action="keep"`), "{{reason}}"}},
		},
		{
			title: "Scaling Decisions", unit: perSec, look: stacked, empty: "no pool with autoscaling changed its demand", help: "Changes of pools' demand, by who made them and where they went.",
			targets: []target{{q.rate("sluice_operator_scaling_decisions_total", []string{"by", "direction"}), "{{by}} {{direction}}"}},
		},
		{
			title: "Objects Written", unit: perSec, look: stacked, help: "Objects that were made, changed, put right or deleted, and writes that failed. 0 while nothing changes.",
			targets: []target{{q.rate("sluice_operator_object_changes_total", []string{"kind", "change"}, `change!="unchanged"`), "{{kind}} {{change}}"}},
		},
		{
			title: "Events", unit: perSec, look: stacked, help: "Events that were recorded, by type and reason.",
			targets: []target{{q.rate("sluice_operator_events_total", []string{"type", "reason"}), "{{type}} {{reason}}"}},
		},
		{
			title: "Objects Compared", unit: perSec, help: "Objects that were looked at and were as they should be.",
			targets: []target{{q.rate("sluice_operator_object_changes_total", []string{"kind"}, `change="unchanged"`), "{{kind}}"}},
		},
	}
}

func (q *operatorQueries) observationPanels() []panel {
	const off = "no engine is scraped by the operator: --scrape-interval is 0, or no engine has started"
	const ofPool = "{{namespace}}/{{inference_service}} {{pool}}"
	pools := []string{"namespace", "inference_service", "pool"}
	missing := panel{
		title: "Ranks without Metrics, by Cause", unit: number, look: stacked, empty: off, help: "Ranks whose series do not arrive, by the likely cause.",
		targets: []target{{q.total("sluice_operator_missing_ranks", []string{"cause"}), "{{cause}}"}},
	}
	return []panel{
		{title: "Polls", unit: perSec, look: stacked, help: "Polls of engines for their load, by result.", targets: []target{{q.rate("sluice_operator_polls_total", []string{"result"}), "{{result}}"}}},
		{title: "Time of a Poll", unit: seconds, empty: "no engine is polled", help: "Duration of polls of engines for their load.", targets: q.times("sluice_operator_poll_seconds", nil, "")},
		{title: "Samples", unit: number, look: stacked, help: "Leader pods by the state of their newest sample.", targets: []target{{aggregate("max", []string{"state"}, q.of("sluice_operator_samples", "")), "{{state}}"}}},
		{title: "Age of the Oldest Fresh Sample", unit: seconds, help: "How old what status and autoscalers read may be.", targets: []target{{"max(" + q.of("sluice_operator_sample_age_seconds", "") + ")", "oldest"}}},
		{title: "Scrapes by the Operator", unit: perSec, look: stacked, empty: off, help: "Scrapes of engines, as the proof that their metrics are there, by result.", targets: []target{{q.rate("sluice_operator_scrapes_total", []string{"result"}), "{{result}}"}}},
		{title: "Time of a Scrape", unit: seconds, empty: off, help: "Duration of the operator's scrapes of engines.", targets: q.times("sluice_operator_scrape_seconds", nil, "")},
		missing,
		{title: "Ranks without Metrics, by Pool", unit: number, empty: off, help: "The pools that lack most.", targets: []target{{"topk(10, " + q.total("sluice_operator_missing_ranks", pools) + ")", ofPool}}},
		{title: "Frozen Ranks by Pool", unit: number, empty: off, help: "Ranks that hold work and do none.", targets: []target{{q.total("sluice_operator_frozen_ranks", pools), ofPool}}},
		{title: "Questions to Prometheus", unit: perSec, look: stacked, empty: off, help: "Pools that Prometheus was asked about, by result.", targets: []target{{q.rate("sluice_operator_prometheus_checks_total", []string{"result"}), "{{result}}"}}},
		{title: "Broken Laws", unit: number, empty: off, help: "Breaches of the laws of the ledger that living engines count. Anything but 0 is a fault of an engine.", targets: []target{{q.total("sluice_operator_ledger_violations", []string{"law"}), "{{law}}"}}},
		{
			title: "KV Sent and Not Received", unit: bytes, empty: "no service with prefill and decode pools was judged", below: true,
			help: "Bytes of KV that prefill engines of a service sent and decode engines did not receive, since its set of pods was last another. A law that is broken stands at 1.",
			targets: []target{
				{q.total("sluice_operator_kv_bytes", []string{"namespace", "inference_service"}, `side="sent"`) + "\n-\n" + q.total("sluice_operator_kv_bytes", []string{"namespace", "inference_service"}, `side="received"`), "{{namespace}}/{{inference_service}}"},
				{q.total("sluice_operator_kv_law_broken", []string{"namespace", "inference_service"}), "broken {{namespace}}/{{inference_service}}"},
			},
		},
	}
}

func (q *operatorQueries) controllerPanels() []panel {
	return []panel{
		{title: "Reconciles", unit: perSec, look: stacked, help: "Reconciles by controller and result.", targets: []target{{q.rate("controller_runtime_reconcile_total", []string{"controller", "result"}), "{{controller}} {{result}}"}}},
		{title: "Time of a Reconcile", unit: seconds, help: "Duration of reconciles, by controller.", targets: q.times("controller_runtime_reconcile_time_seconds", []string{"controller"}, "{{controller}}")},
		{title: "Waiting Objects", unit: number, help: "Objects that wait to be reconciled, by queue.", targets: []target{{q.total("workqueue_depth", []string{"name"}), "{{name}}"}}},
		{title: "Wait for a Reconcile", unit: seconds, help: "How long objects waited, by queue.", targets: q.times("workqueue_queue_duration_seconds", []string{"name"}, "{{name}}")},
		{title: "Busy Workers", unit: number, help: "Workers that reconcile now, by controller.", targets: []target{{q.total("controller_runtime_active_workers", []string{"controller"}), "{{controller}}"}}},
		{title: "Requests to the API Server", unit: perSec, look: stacked, help: "By method and status code. While nothing changes there are only reads.", targets: []target{{q.rate("rest_client_requests_total", []string{"method", "code"}), "{{method}} {{code}}"}}},
	}
}

func (q *operatorQueries) processPanels() []panel {
	return []panel{
		{title: "Leader", unit: number, empty: "the operator runs without --leader-elect", help: "1 on the operator that leads.", targets: []target{{q.of("leader_election_master_status", ""), "{{instance}}"}}},
		{title: "Registered with the Cluster", unit: number, top: 1, empty: "the metrics API is off", help: "1 while an APIService of the metrics API points to an operator of the release.", targets: []target{{aggregate("min", []string{"api_service"}, q.of("sluice_operator_api_service_registered", "")), "{{api_service}}"}}},
		{title: "Memory", unit: bytes, help: "Resident memory of each operator.", targets: []target{{q.of("process_resident_memory_bytes", ""), "{{instance}}"}}},
		{title: "Processor", unit: cores, help: "Processor time of each operator.", targets: []target{{"rate(" + q.of("process_cpu_seconds_total", "") + "[" + interval + "])", "{{instance}}"}}},
		{title: "Goroutines", unit: number, help: "Goroutines of each operator.", targets: []target{{q.of("go_goroutines", ""), "{{instance}}"}}},
		{title: "Versions", unit: number, help: "Operators by version; two during an upgrade.", targets: []target{{aggregate("count", []string{"version"}, q.of("sluice_operator_build_info", "")), "{{version}}"}}},
	}
}
