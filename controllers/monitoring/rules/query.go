package rules

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-dev/sluice/controllers/semantics"
)

// The labels that monitors put on every series of a service; rules put them on everything that they make.
const (
	labelNamespace = "namespace"
	labelTenant    = "tenant"
	labelService   = "inference_service"
)

var (
	// byPool tells pools apart. A pool has one engine_type.
	byPool = []string{"pool", "engine_type"}
	// byReplica tells replicas apart. Ranks and pods of one replica have the same values; the successor of a replica with
	// a new template has another revision.
	byReplica = []string{"pool", "engine_type", "replica", "revision"}
	// byDP tells data-parallel ranks apart, which have requests and memory of their own.
	byDP = append(slices.Clone(byReplica), "dp_rank")
)

// routerFamilies are those of a router that rules ask for; a test compares them with the router's own table.
var routerFamilies = map[string]bool{
	"sluice_router_requests_total":     true,
	"sluice_router_in_flight_requests": true,
	"sluice_router_engines":            true,
}

// scope writes expressions over the series of one service.
type scope struct {
	namespace, tenant, service string

	faults []string // what was asked of families and cannot be
}

// labels are those of the scope, for what is made of its series.
func (s *scope) labels(more map[string]string) map[string]string {
	all := map[string]string{labelNamespace: s.namespace, labelTenant: s.tenant, labelService: s.service}
	for name, value := range more {
		all[name] = value
	}
	return all
}

func (s *scope) matchers(where []string) string {
	return strings.Join(append([]string{
		labelNamespace + "=" + strconv.Quote(s.namespace), labelTenant + "=" + strconv.Quote(s.tenant), labelService + "=" + strconv.Quote(s.service),
	}, where...), ", ")
}

// recorded selects series that a recording rule of this service makes.
func (s *scope) recorded(name string, where ...string) string {
	return name + "{" + s.matchers(where) + "}"
}

// router selects series of the router.
func (s *scope) router(name string, where ...string) string {
	if !routerFamilies[name] {
		s.faults = append(s.faults, name+" is not in the router's table")
	}
	return name + "{" + s.matchers(where) + "}"
}

// targets selects Prometheus's own series up of engines, not of the router.
func (s *scope) targets(where ...string) string {
	return "up{" + s.matchers(append([]string{`engine_type!~"|router"`}, where...)) + "}"
}

// family finds the row of a family in the registry; what may be done with it is what the row says.
func (s *scope) family(name string, kinds ...semantics.Kind) semantics.Number {
	n, ok := semantics.Lookup(semantics.FromMetrics, name)
	switch {
	case !ok:
		s.faults = append(s.faults, name+" is not in the registry")
		return semantics.Number{Name: name}
	case !slices.Contains(kinds, n.Kind):
		s.faults = append(s.faults, fmt.Sprintf("%s is a %s", name, n.Kind))
	}
	return n
}

// selector selects series of a family with a suffix such as _bucket, under both spellings of its name, and the totals
// alone where the series of single priorities repeat them.
func (s *scope) selector(n semantics.Number, suffix string, where []string) string {
	if n.Copies != semantics.NoRanks {
		where = append([]string{`priority=""`}, where...)
	}
	name := n.Name + suffix
	if prefix, rest, ok := strings.Cut(name, ":"); ok {
		return "{" + fmt.Sprintf(`__name__=~"%s[:_]%s", `, prefix, rest) + s.matchers(where) + "}"
	}
	return name + "{" + s.matchers(where) + "}"
}

// once takes series that several ranks of a replica tell alike only once, and keeps apart what the registry says may be
// added. What each rank has for itself, and what a process tells that is alone, is taken as it is.
func (s *scope) once(n semantics.Number, expr string, more ...string) string {
	if n.Copies != semantics.Repeated {
		return expr
	}
	return aggregate("max", slices.Concat(byDP, n.Labels, more), expr)
}

// sum adds a gauge of requests, tokens or the like over everything but by.
func (s *scope) sum(name string, by []string, where ...string) string {
	n := s.family(name, semantics.Gauge, semantics.Counter)
	if n.Ranks != semantics.Sum && n.Copies != semantics.NoRanks || n.Replicas != semantics.Sum {
		s.faults = append(s.faults, name+" does not add up")
	}
	return aggregate("sum", by, s.once(n, s.selector(n, "", where)))
}

// level gives a gauge that must not be added, as every data-parallel rank tells it, without sentinels. Where the gauge keeps
// its last value while nothing runs, it reads 0 then.
func (s *scope) level(name string) string {
	n := s.family(name, semantics.Gauge)
	expr := aggregate("max", byDP, s.selector(n, "", nil)+" >= 0")
	if n.WhenIdle != semantics.Kept {
		return expr
	}
	return fmt.Sprintf("(%s\nand\n%s > 0\nor\n%s * 0)", expr, s.held(), expr)
}

// held is how many requests a data-parallel rank runs and has waiting.
func (s *scope) held() string {
	return "(" + s.sum("sglang:num_running_reqs", byDP) + " + " + s.sum("sglang:num_queue_reqs", byDP) + ")"
}

// rate gives the growth of a counter per second within a window, added over everything but by.
func (s *scope) rate(name, suffix, window string, by []string, where ...string) string {
	return s.grown("rate", name, suffix, window, by, where)
}

// increase gives the growth of a counter within a window.
func (s *scope) increase(name, suffix, window string, by []string, where ...string) string {
	return s.grown("increase", name, suffix, window, by, where)
}

func (s *scope) grown(function, name, suffix, window string, by, where []string) string {
	kind, more := semantics.Counter, []string(nil)
	if suffix != "" {
		kind = semantics.Histogram
	}
	if suffix == "_bucket" {
		more = []string{"le"}
	}
	n := s.family(name, kind)
	return aggregate("sum", by, s.once(n, fmt.Sprintf("%s(%s[%s])", function, s.selector(n, suffix, where), window), more...))
}

// quotient divides; it is absent where the denominator is 0.
func quotient(part, whole string) string { return fmt.Sprintf("%s\n/\n(%s > 0)", part, whole) }

func aggregate(operator string, by []string, expr string) string {
	if len(by) == 0 {
		return operator + "(" + expr + ")"
	}
	return fmt.Sprintf("%s by (%s) (%s)", operator, strings.Join(by, ", "), expr)
}

// err says what was asked of families and cannot be.
func (s *scope) err() error {
	if len(s.faults) == 0 {
		return nil
	}
	return fmt.Errorf("rules ask for what is not there: %s", strings.Join(s.faults, "; "))
}

// number writes a number as PromQL does.
func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
