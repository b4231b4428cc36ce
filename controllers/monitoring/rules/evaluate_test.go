package rules

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	promrules "github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

// epoch is when the series of a test begin.
var epoch = time.Unix(1_800_000_000, 0)

// where says whose series a test loads.
type where struct{ namespace, tenant, service string }

var here = where{"team-a", "acme", "chat"}

// load is what a test puts into Prometheus: a series a line, "POOL/REPLICA NAME{LABELS} VALUES" for engines and
// "router NAME{LABELS} VALUES" for routers, in Prometheus's notation of values: 1+2x3 is 1, 3, 5, 7 and _ is none.
type load struct {
	step  time.Duration // between values
	lines string
}

// repeated is NaN several times, which Prometheus's notation can't say.
var repeated = regexp.MustCompile(`NaNx\d+`)

// series gives the lines as Prometheus would have them in the namespace, of the tenant and service of w.
func (l load) series(t *testing.T, w where, respell bool) map[string][]parser.SequenceValue {
	t.Helper()
	all := map[string][]parser.SequenceValue{}
	for line := range strings.Lines(l.lines) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		target, desc, _ := strings.Cut(line, " ")
		desc = repeated.ReplaceAllStringFunc(desc, func(nan string) string {
			n, _ := strconv.Atoi(nan[4:])
			return strings.TrimSpace(strings.Repeat("NaN ", n+1))
		})
		metric, values, err := parser.ParseSeriesDesc(strings.TrimSpace(desc))
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		b := labels.NewBuilder(metric)
		b.Set("namespace", w.namespace).Set("tenant", w.tenant).Set("inference_service", w.service)
		pool, replica, isEngine := strings.Cut(target, "/")
		b.Set("instance", target).Set("pod", w.service+"-"+strings.ReplaceAll(target, "/", "-")+"-0")
		if isEngine {
			kind := strings.TrimRight(pool, "0123456789")
			b.Set("pool", pool).Set("engine_type", kind).Set("replica", replica).Set("revision", "abc").Set("node_rank", "0")
		}
		if !isEngine {
			b.Set("pool", "router").Set("engine_type", "router").Set("replica", w.service+"-router-x").Set("dp_rank", "all")
		}
		if respell {
			b.Set(labels.MetricName, strings.ReplaceAll(metric.Get(labels.MetricName), ":", "_"))
		}
		key := b.Labels().String()
		if _, twice := all[key]; twice {
			t.Fatalf("series %s is there twice", key)
		}
		all[key] = values
	}
	return all
}

// fired is one alert that fires at the end.
type fired struct {
	Name    string
	Labels  map[string]string // those of the scope left out
	Summary string
}

// prometheus is a database with rules over it.
type prometheus struct {
	db     *tsdb.DB
	engine *promql.Engine
}

func newPrometheus(t *testing.T) *prometheus {
	t.Helper()
	options := tsdb.DefaultOptions()
	options.StripeSize, options.WALSegmentSize = 256, -1 // little memory, and nothing to come back to
	options.RetentionDuration = (30 * 24 * time.Hour).Milliseconds()
	// Rules run when the load is there already, and the head takes nothing older than half a block.
	options.MinBlockDuration, options.MaxBlockDuration = options.RetentionDuration, options.RetentionDuration
	db, err := tsdb.Open(t.TempDir(), slog.New(slog.DiscardHandler), nil, options, nil)
	if err != nil {
		t.Fatal(err)
	}
	db.DisableCompactions()
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return &prometheus{db: db, engine: promql.NewEngine(promql.EngineOpts{MaxSamples: 50_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute})}
}

// append puts series into the database and gives the time of the last value.
func (p *prometheus) append(t *testing.T, step time.Duration, all map[string][]parser.SequenceValue) (end time.Time) {
	t.Helper()
	end = epoch
	longest := 0
	for _, values := range all {
		longest = max(longest, len(values))
	}
	names := slices.Sorted(maps.Keys(all))
	sets := make([]labels.Labels, len(names))
	refs := make([]storage.SeriesRef, len(names))
	for i, name := range names {
		var err error
		if sets[i], err = parser.ParseMetric(name); err != nil {
			t.Fatal(err)
		}
	}
	app := p.db.Appender(t.Context())
	for at := range longest {
		end = epoch.Add(time.Duration(at) * step)
		for i, name := range names {
			if at >= len(all[name]) || all[name][at].Omitted {
				continue
			}
			ref, err := app.Append(refs[i], sets[i], end.UnixMilli(), all[name][at].Value)
			if err != nil {
				t.Fatal(err)
			}
			refs[i] = ref
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	return end
}

// group makes Prometheus's own group of rules.
func (p *prometheus) group(t *testing.T, name string, list []monitoringv1.Rule) (*promrules.Group, []promrules.Rule) {
	t.Helper()
	var made []promrules.Rule
	for _, r := range list {
		expr, err := parser.ParseExpr(r.Expr.String())
		if err != nil {
			t.Fatalf("%s%s: %v in\n%s", r.Record, r.Alert, err, r.Expr.String())
		}
		if r.Record != "" {
			made = append(made, promrules.NewRecordingRule(r.Record, expr, labels.FromMap(r.Labels)))
			continue
		}
		var wait model.Duration
		if r.For != nil {
			if wait, err = model.ParseDuration(string(*r.For)); err != nil {
				t.Fatal(err)
			}
		}
		made = append(made, promrules.NewAlertingRule(r.Alert, expr, time.Duration(wait), 0, labels.FromMap(r.Labels), labels.FromMap(r.Annotations),
			labels.EmptyLabels(), "", true, slog.New(slog.DiscardHandler)))
	}
	return promrules.NewGroup(promrules.GroupOptions{
		Name: name, File: "test", Interval: time.Minute, Rules: made,
		Opts: &promrules.ManagerOptions{
			ExternalURL: &url.URL{}, QueryFunc: promrules.EngineQueryFunc(p.engine, p.db), Appendable: p.db, Queryable: p.db,
			Context: t.Context(), Logger: slog.New(slog.DiscardHandler), NotifyFunc: func(context.Context, string, ...*promrules.Alert) {},
		},
	}), made
}

// evaluate runs the rules again and again from a time to another and gives what fires at the end. Every rule must be healthy.
func (p *prometheus) evaluate(t *testing.T, rule *monitoringv1.PrometheusRule, from, to time.Time, every time.Duration) []fired {
	t.Helper()
	var groups []*promrules.Group
	var all []promrules.Rule
	for _, g := range rule.Spec.Groups {
		group, made := p.group(t, g.Name, g.Rules)
		groups, all = append(groups, group), append(all, made...)
	}
	for at := from; !at.After(to); at = at.Add(every) {
		for _, g := range groups {
			g.Eval(t.Context(), at)
		}
	}
	var list []fired
	for _, r := range all {
		if err := r.LastError(); err != nil {
			t.Errorf("rule %s: %v", r.Name(), err)
		}
		alerting, is := r.(*promrules.AlertingRule)
		if !is {
			continue
		}
		for _, a := range alerting.ActiveAlerts() {
			if a.State != promrules.StateFiring {
				continue
			}
			given := a.Labels.Map()
			for name, want := range map[string]string{"namespace": here.namespace, "tenant": here.tenant, "inference_service": here.service} {
				if given[name] != want {
					t.Errorf("alert %s has %s=%q, want %q", r.Name(), name, given[name], want)
				}
				delete(given, name)
			}
			delete(given, labels.AlertName)
			list = append(list, fired{r.Name(), given, a.Annotations.Get("summary")})
		}
	}
	slices.SortFunc(list, func(a, b fired) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return list
}

// instant asks at one time and gives the numbers by their labels, those of the scope left out.
func (p *prometheus) instant(t *testing.T, query string, at time.Time) map[string]float64 {
	t.Helper()
	q, err := p.engine.NewInstantQuery(t.Context(), p.db, nil, query, at)
	if err != nil {
		t.Fatalf("%v in\n%s", err, query)
	}
	defer q.Close()
	result := q.Exec(t.Context())
	vector, err := result.Vector()
	if err != nil {
		t.Fatalf("%v in\n%s", err, query)
	}
	numbers := map[string]float64{}
	for _, s := range vector {
		rest := labels.NewBuilder(s.Metric).Del("namespace", "tenant", "inference_service").Labels().String()
		if _, twice := numbers[rest]; twice {
			t.Errorf("%s: %s is there twice", query, rest)
		}
		numbers[rest] = math.Round(s.F*1e6) / 1e6
	}
	return numbers
}
