package dashboard

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	sdk "github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	textpanel "github.com/grafana/grafana-foundation-sdk/go/text"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/metrics"
	routermetrics "github.com/sluice-dev/sluice/router/metrics"
)

// tenant are options as the operator may choose them.
func tenant() Options {
	return Options{
		UID: "sluice-team-a", Title: "team-a", Datasource: "prom-1", TTFT: 1, ITL: 0.1,
		Fixed:  []Matcher{{"namespace", "team-a"}, {"tenant", `a"b\`}},
		Router: []string{"inference_service"}, Docs: "https://docs.example/",
		Filters: []string{"inference_service", "pool", "replica"}, Replica: []string{"inference_service", "pool", "replica"},
	}
}

func build(t *testing.T, o Options) Dashboard {
	t.Helper()
	d, err := Build(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// built is a dashboard and what it was built with.
type built struct {
	Dashboard
	options Options
}

// boards are all that can be built: for everybody, for a tenant, and a tenant's by subject.
func boards(t *testing.T) map[string]built {
	t.Helper()
	all := map[string]built{"standalone": {build(t, Standalone()), Standalone()}, "tenant": {build(t, tenant()), tenant()}}
	for _, s := range Subjects() {
		d, err := BuildSubject(tenant(), s)
		if err != nil {
			t.Fatalf("%s: %v", s.Key, err)
		}
		all[s.Key] = built{d, tenant()}
	}
	return all
}

// flat gives all panels, also those of closed rows.
func flat(d Dashboard) (panels []sdk.Panel, rows []sdk.RowPanel) {
	for _, p := range d.Panels {
		if p.Panel != nil {
			panels = append(panels, *p.Panel)
			continue
		}
		rows = append(rows, *p.RowPanel)
		panels = append(panels, p.RowPanel.Panels...)
	}
	return panels, rows
}

func exprs(t *testing.T, p sdk.Panel) (list []string) {
	t.Helper()
	for _, target := range p.Targets {
		q, ok := target.(prometheus.Dataquery)
		if !ok {
			t.Fatalf("panel %s: a target is a %T", *p.Title, target)
		}
		list = append(list, q.Expr)
	}
	return list
}

func TestCheckedInDashboard(t *testing.T) {
	const file = "../grafana/dashboards/sglang-dashboard.json"
	want, err := json.MarshalIndent(build(t, Standalone()), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want)+"\n", string(got)); diff != "" {
		t.Errorf("%s is not what Build makes; run make generate (-want +got):\n%s", file, diff)
	}
}

// TestSchema: what is written reads back as Grafana's types have it, every field known and none missing.
func TestSchema(t *testing.T) {
	plugins.RegisterDefaultPlugins()
	for name, board := range boards(t) {
		text, err := json.Marshal(board.Dashboard)
		if err != nil {
			t.Fatal(err)
		}
		var d Dashboard
		// Without faults the error is an empty list.
		if err := d.UnmarshalJSONStrict(text); err != nil && err.Error() != "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOriginalPanels: who knows SGLang's dashboard finds its panels where they were.
func TestOriginalPanels(t *testing.T) {
	type place struct {
		ID    uint32
		X, Y  uint32
		Type  string
		Title string
	}
	want := []place{
		{14, 0, 0, "timeseries", "End-to-End Request Latency"},
		{17, 12, 0, "heatmap", "End-to-End Request Latency(s) Heatmap"},
		{20, 0, 8, "timeseries", "Time-To-First-Token Latency"},
		{19, 12, 8, "heatmap", "Time-To-First-Token Seconds Heatmap"},
		{7, 0, 16, "timeseries", "Num Running Requests"},
		{18, 12, 16, "timeseries", "Token Generation Throughput (Tokens / S)"},
		{11, 0, 24, "timeseries", "Cache Hit Rate"},
		{8, 12, 24, "timeseries", "Number Queued Requests"},
	}
	d := build(t, Standalone())
	var got []place
	for _, p := range d.Panels[:len(want)] {
		got = append(got, place{*p.Panel.Id, p.Panel.GridPos.X, p.Panel.GridPos.Y, p.Panel.Type, *p.Panel.Title})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("panels (-want +got):\n%s", diff)
	}
	if *d.Uid != "sglang-dashboard" || *d.Title != "SGLang Dashboard" {
		t.Errorf("uid %s, title %s", *d.Uid, *d.Title)
	}
}

// TestGrid: ids are unique, panels lie within the grid and not on each other, and each says what it shows and why it may be
// empty.
func TestGrid(t *testing.T) {
	for name, board := range boards(t) {
		panels, rows := flat(board.Dashboard)
		ids, taken := map[uint32]string{}, map[[2]uint32]string{}
		occupy := func(id uint32, title string, pos sdk.GridPos) {
			if other, used := ids[id]; used {
				t.Errorf("%s: id %d is that of %s and of %s", name, id, other, title)
			}
			ids[id] = title
			if pos.W == 0 || pos.H == 0 || pos.X+pos.W > 24 {
				t.Errorf("%s: %s lies outside of the grid: %+v", name, title, pos)
			}
			for x := pos.X; x < pos.X+pos.W; x++ {
				for y := pos.Y; y < pos.Y+pos.H; y++ {
					if other, used := taken[[2]uint32{x, y}]; used {
						t.Fatalf("%s: %s and %s overlap at %d,%d", name, other, title, x, y)
					}
					taken[[2]uint32{x, y}] = title
				}
			}
		}
		for _, r := range rows {
			occupy(r.Id, *r.Title, *r.GridPos)
		}
		for _, p := range panels {
			occupy(*p.Id, *p.Title, *p.GridPos)
			if p.Type == "text" {
				if len(p.Targets) > 0 {
					t.Errorf("%s: panel %s of words asks something", name, *p.Title)
				}
				continue
			}
			defaults := p.FieldConfig.Defaults
			if defaults.NoValue == nil || *defaults.NoValue == "" {
				t.Errorf("%s: panel %s does not say why it may be empty", name, *p.Title)
			}
			if unit := defaults.Unit; p.Type != "heatmap" && (unit == nil || *unit == "") {
				t.Errorf("%s: panel %s has no unit", name, *p.Title)
			}
			if len(p.Targets) == 0 {
				t.Errorf("%s: panel %s asks nothing", name, *p.Title)
			}
		}
	}
}

var choice = regexp.MustCompile(`\$[a-z_]+`)

// TestQueries: every query is PromQL, selects only families of the table, accepts both spellings, and carries the fixed
// matchers and the reader's choices.
func TestQueries(t *testing.T) {
	for name, board := range boards(t) {
		d, o := board.Dashboard, board.options
		panels, _ := flat(d)
		offered := map[string]bool{"$__rate_interval": true, "$datasource": true}
		for _, v := range d.Templating.List {
			offered["$"+v.Name] = true
		}
		for _, p := range panels {
			for _, expr := range exprs(t, p) {
				for _, c := range choice.FindAllString(expr, -1) {
					if !offered[c] {
						t.Errorf("%s, %s: %s is not a variable", name, *p.Title, c)
					}
				}
				checkQuery(t, name+", "+*p.Title, expr, o)
			}
		}
	}
}

// unshown are families that the dashboard does not ask for, and why.
var unshown = map[string]string{}

// TestEveryFamilyIsShown: who adds a family says where one sees it.
func TestEveryFamilyIsShown(t *testing.T) {
	shown := map[string]bool{}
	panels, _ := flat(build(t, Standalone()))
	for _, p := range panels {
		for _, expr := range exprs(t, p) {
			parsed, err := parser.ParseExpr(strings.ReplaceAll(expr, interval, "1m"))
			if err != nil {
				t.Fatal(err)
			}
			parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
				if selector, ok := node.(*parser.VectorSelector); ok {
					if f, _ := selected(selector.LabelMatchers); f != nil {
						shown[f.Name] = true
					}
				}
				return nil
			})
		}
	}
	for _, f := range slices.Concat(metrics.Families(), router()) {
		if shown[f.Name] == (unshown[f.Name] != "") {
			t.Errorf("family %s: shown %t, reason not to %q; give it a panel in monitoring/dashboard or a reason here", f.Name, shown[f.Name], unshown[f.Name])
		}
	}
}

// TestSubjects: the set of dashboards has the panels of the single one, each family of the table among them, and each dashboard
// its own name and place.
func TestSubjects(t *testing.T) {
	all := boards(t)
	single, _ := flat(all["standalone"].Dashboard)
	here, uids := map[string]bool{}, map[string]bool{}
	for _, s := range Subjects() {
		d := all[s.Key].Dashboard
		if len(*d.Uid) > 40 || uids[*d.Uid] || !strings.HasSuffix(*d.Uid, "-"+s.Key) || len(s.Key) > 12 {
			t.Errorf("%s has the uid %s", s.Key, *d.Uid)
		}
		uids[*d.Uid] = true
		if *d.Title != s.Title+" / team-a" || *d.Description == "" {
			t.Errorf("%s: title %s, description %s", s.Key, *d.Title, *d.Description)
		}
		panels, _ := flat(d)
		for _, p := range panels {
			here[*p.Title] = true
		}
	}
	for _, p := range single {
		if !here[*p.Title] {
			t.Errorf("no dashboard of the set has the panel %s", *p.Title)
		}
	}
}

// TestPaths: the dashboard goes the ways of docs/diagnosis.md, in their order, and its links lead there.
func TestPaths(t *testing.T) {
	text, err := os.ReadFile("../../docs/diagnosis.md")
	if err != nil {
		t.Fatal(err)
	}
	var ways, anchors []string
	for _, h := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(string(text), -1) {
		ways = append(ways, h[1])
		anchors = append(anchors, regexp.MustCompile(`[^a-z0-9-]`).ReplaceAllString(strings.ReplaceAll(strings.ToLower(h[1]), " ", "-"), ""))
	}
	if len(ways) < 6 || ways[0] != "The order in which to read" {
		t.Fatalf("docs/diagnosis.md begins with %q", ways)
	}
	for i, p := range paths {
		if p.anchor != anchors[i+1] || !strings.HasSuffix(p.title, ways[i+1]) {
			t.Errorf("path %d is %s (%s), the page has %s (%s)", i+1, p.title, p.anchor, ways[i+1], anchors[i+1])
		}
	}
	panels, _ := flat(boards(t)["diagnosis"].Dashboard)
	links := 0
	for _, p := range panels {
		if o, ok := p.Options.(*textpanel.Options); ok && strings.Contains(o.Content, "](https://docs.example/diagnosis.md#") {
			links++
		}
	}
	if links != 1+len(paths) {
		t.Errorf("%d panels of words link to the page, want %d", links, 1+len(paths))
	}
}

func TestPanelThatIsNotThere(t *testing.T) {
	q := &queries{options: Standalone()}
	_ = pick(q, original(q), "Nothing")
	if err := q.err(); err == nil || !strings.Contains(err.Error(), "panel Nothing") {
		t.Errorf("%v, want an error that names the panel", err)
	}
}

func checkQuery(t *testing.T, where, expr string, o Options) {
	t.Helper()
	parsed, err := parser.ParseExpr(strings.ReplaceAll(expr, interval, "1m"))
	if err != nil {
		t.Errorf("%s: %v in\n%s", where, err, expr)
		return
	}
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		f, source := selected(selector.LabelMatchers)
		if f == nil {
			t.Errorf("%s: %s selects no family of the table under both spellings", where, selector)
			return nil
		}
		have := map[string]string{}
		for _, m := range selector.LabelMatchers {
			if have[m.Name] == "" || m.Type != labels.MatchNotEqual { // a query may leave out a value of what readers filter by
				have[m.Name] = m.Type.String() + m.Value
			}
		}
		for _, m := range o.Fixed {
			if have[m.Label] != "="+m.Value {
				t.Errorf("%s: %s has %s%s, want =%s", where, selector, m.Label, have[m.Label], m.Value)
			}
		}
		want := append([]string{}, o.Filters...)
		switch source {
		case fromRouter:
			want = slices.DeleteFunc(want, func(label string) bool { return slices.Contains(o.Replica, label) && !slices.Contains(o.Router, label) })
		case metrics.FromScheduler:
			want = append(append(want, modelLabels...), rankLabels...)
			if have[priority] == "" {
				t.Errorf("%s: %s takes totals and priorities together", where, selector)
			}
		case metrics.FromCache:
			want = append(want, rankLabels...)
		case metrics.FromFront:
			want = append(want, modelLabels...)
		}
		for _, label := range want {
			if !slices.ContainsFunc(selector.LabelMatchers, func(m *labels.Matcher) bool {
				return m.Name == label && m.Type == labels.MatchRegexp && m.Value == "$"+label
			}) {
				t.Errorf("%s: %s does not filter by %s", where, selector, label)
			}
		}
		return nil
	})
}

// router gives the table of the router in the engine's words.
func router() (families []*metrics.Family) {
	kinds := map[routermetrics.Kind]metrics.Kind{routermetrics.Counter: metrics.Counter, routermetrics.Gauge: metrics.Gauge, routermetrics.Histogram: metrics.Histogram}
	for _, f := range routermetrics.Families() {
		families = append(families, &metrics.Family{Name: f.Name, Kind: kinds[f.Kind], Labels: f.Labels, Source: fromRouter})
	}
	return families
}

func TestRouterFamilies(t *testing.T) {
	want := map[string]*metrics.Family{}
	for _, f := range router() {
		want[f.Name] = &metrics.Family{Kind: f.Kind, Labels: f.Labels}
	}
	if diff := cmp.Diff(want, routerFamilies); diff != "" {
		t.Errorf("families of router/metrics and those here (-want +got):\n%s", diff)
	}
}

// selected finds the family that a selector takes, which must match it under each of its spellings and nothing else.
func selected(matchers []*labels.Matcher) (*metrics.Family, metrics.Source) {
	for _, m := range matchers {
		if m.Name != labels.MetricName {
			continue
		}
		for _, f := range slices.Concat(metrics.Families(), router()) {
			for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
				if suffix != "" && f.Kind != metrics.Histogram {
					continue
				}
				name := f.Name + suffix
				if m.Matches(name) && m.Matches(strings.ReplaceAll(name, ":", "_")) && !m.Matches(name+"x") {
					return f, f.Source
				}
			}
		}
	}
	return nil, 0
}

func TestOptionsThatDoNotFit(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"no uid":                      func(o *Options) { o.UID = "" },
		"no labels of a replica":      func(o *Options) { o.Replica = nil },
		"a filter twice":              func(o *Options) { o.Filters = []string{"pool", "pool"} },
		"a filter that always is one": func(o *Options) { o.Filters = []string{"model_name"} },
		"a filter that is no label":   func(o *Options) { o.Filters = []string{"a-b"} },
		"fixed and a filter":          func(o *Options) { o.Fixed = []Matcher{{"instance", "x"}} },
		"a fixed one that is no label": func(o *Options) {
			o.Fixed = []Matcher{{`x="",y`, "x"}}
		},
		"a target between bounds": func(o *Options) { o.TTFT = 0.7 },
	} {
		o := Standalone()
		change(&o)
		if _, err := Build(o); err == nil || !strings.HasPrefix(err.Error(), "options: ") {
			t.Errorf("%s: %v, want an error about options", name, err)
		}
	}
}

func TestFamilyOutsideOfTheTable(t *testing.T) {
	q := &queries{options: Standalone()}
	_ = q.rate("sglang:nothing_total", nil)
	if err := q.err(); err == nil || !strings.Contains(err.Error(), "sglang:nothing_total") {
		t.Errorf("%v, want an error that names the family", err)
	}
}

func TestSelectors(t *testing.T) {
	q := &queries{options: Options{Replica: []string{"pod"}}}
	for _, tc := range []struct{ name, reason, got, want string }{
		{
			"a gauge of ranks", "copies of ranks are one, data-parallel ranks are added",
			q.total("sglang:num_queue_reqs", []string{"pod"}),
			`sum by (pod) (max by (pod, model_name, engine_type, dp_rank) ({__name__=~"sglang[:_]num_queue_reqs", model_name=~"$model_name", engine_type=~"$engine_type", dp_rank=~"$dp_rank", tp_rank=~"$tp_rank", pp_rank=~"$pp_rank", priority=""}))`,
		},
		{
			"a gauge by priority", "priorities stay apart where copies become one",
			q.total("sglang:num_queue_reqs", []string{"priority"}, `priority!=""`),
			`sum by (priority) (max by (pod, model_name, engine_type, dp_rank, priority) ({__name__=~"sglang[:_]num_queue_reqs", model_name=~"$model_name", engine_type=~"$engine_type", dp_rank=~"$dp_rank", tp_rank=~"$tp_rank", pp_rank=~"$pp_rank", priority!=""}))`,
		},
		{
			"a counter of the prefix cache", "it has ranks and no model",
			q.rate("sglang:evicted_tokens_total", nil),
			`sum(max by (pod, cache_type, dp_rank) (rate({__name__=~"sglang[:_]evicted_tokens_total", dp_rank=~"$dp_rank", tp_rank=~"$tp_rank", pp_rank=~"$pp_rank"}[$__rate_interval])))`,
		},
		{
			"a counter of the API process", "it has no ranks",
			q.rate("sglang:num_requests_total", nil),
			`sum(rate({__name__=~"sglang[:_]num_requests_total", model_name=~"$model_name", engine_type=~"$engine_type"}[$__rate_interval]))`,
		},
		{
			"a name without a colon", "it has one spelling",
			q.total("sluice_ledger_violations_total", []string{"law"}),
			`sum by (law) (sluice_ledger_violations_total{})`,
		},
		{
			"a whole bound", "Prometheus 3 stores 1 as 1.0",
			q.within(1, "sglang:time_to_first_token_seconds", nil),
			`sum(rate({__name__=~"sglang[:_]time_to_first_token_seconds_bucket", model_name=~"$model_name", engine_type=~"$engine_type", le=~"1(\\.0)?"}[$__rate_interval]))
/
(sum(rate({__name__=~"sglang[:_]time_to_first_token_seconds_count", model_name=~"$model_name", engine_type=~"$engine_type"}[$__rate_interval])) > 0)`,
		},
	} {
		if tc.got != tc.want {
			t.Errorf("%s (%s):\ngot  %s\nwant %s", tc.name, tc.reason, tc.got, tc.want)
		}
	}
}

// TestWords: titles, helps and what is shown instead of data have the words of the contract, and no others for the same.
func TestWords(t *testing.T) {
	// "handshake" is the name of a lap and says nothing that "bootstrap" does not; memory is counted in tokens and pages.
	other := regexp.MustCompile(`(?i)\b(slots?|handshakes?|shaken|preempt(ed|ion)s?|blocks?|time to first byte)\b`)
	panels, rows := flat(build(t, Standalone()))
	for _, p := range panels {
		for _, text := range []*string{p.Title, p.Description, p.FieldConfig.Defaults.NoValue} {
			if text != nil && other.MatchString(*text) {
				t.Errorf("panel %q says %q", *p.Title, other.FindString(*text))
			}
		}
	}
	for _, r := range rows {
		if other.MatchString(*r.Title) {
			t.Errorf("row %q", *r.Title)
		}
	}
	for _, f := range metrics.Families() {
		if other.MatchString(f.Help) {
			t.Errorf("the help of %s says %q", f.Name, other.FindString(f.Help))
		}
	}
}

// TestEveryStageIsSpokenOf: "Requests by Stage" has a series of every stage of a scheduler, or says why there is none.
func TestEveryStageIsSpokenOf(t *testing.T) {
	panels, _ := flat(build(t, Standalone()))
	at := slices.IndexFunc(panels, func(p sdk.Panel) bool { return *p.Title == "Requests by Stage" })
	if at < 0 {
		t.Fatal("there is no such panel")
	}
	said := *panels[at].Description
	for _, stage := range ledger.Stages() {
		schedulers := slices.DeleteFunc(slices.Clone(stage.Forms), func(f ledger.Form) bool {
			return f == ledger.APIServer || f == ledger.DPController || slices.Contains(stage.Observed, f)
		})
		if stage.Stage == ledger.StageDone || stage.Parent != ledger.StageNone || stage.Detail || len(schedulers) == 0 {
			continue
		}
		if !strings.Contains(said, stage.Name) {
			t.Errorf("%s has no samples on %v, and the panel does not speak of it", stage.Name, schedulers)
		}
	}
}
