// Package layers holds the import rules of the tree as data. Its test applies them to every package, through dependencies
// where a rule says so, checks that the linter's depguard section says the same, and that the reading orders in
// engine/doc.go and controllers/doc.go name the packages that exist. It knows nothing of what the packages do.
package layers

import "strings"

// Module is the path of the main module.
const Module = "github.com/sluice-dev/sluice"

// Rule says which imports some packages may not have.
type Rule struct {
	Name string

	// Dirs are the folders, relative to the module, whose packages the rule binds, with everything below them.
	Dirs []string
	// Except are folders below Dirs that the rule does not bind.
	Except []string

	// Deny are import path prefixes; a path is denied when its longest match among Deny and Allow is in Deny.
	Deny []string
	// Allow are exceptions to Deny.
	Allow []string

	// Transitive also looks at the dependencies of the dependencies. Tests are never looked at through dependencies.
	Transitive bool

	// Why is what a reader of the error needs to know.
	Why string
}

// Rules is the whole list.
func Rules() []Rule {
	in := func(dirs ...string) []string {
		paths := make([]string, len(dirs))
		for i, dir := range dirs {
			paths[i] = Module + "/" + dir
		}
		return paths
	}
	return []Rule{
		{
			Name: "engine-without-kubernetes", Dirs: []string{"engine", "gpu", "cmd/engine"},
			Deny: []string{"k8s.io", "sigs.k8s.io"}, Transitive: true,
			Why: "the engine runs without a cluster; what it must know of one arrives as flags",
		},
		{
			Name: "operator-reads-wire-types-only", Dirs: []string{"api", "controllers", "cmd/operator"},
			Deny: in("engine", "gpu", "router"), Allow: in("engine/loads", "engine/metrics", "router/demand"),
			Why: "the operator speaks to engines over /v1/loads and knows the table of metric families, nothing else",
		},
		{
			Name: "router-reads-wire-types-only", Dirs: []string{"router", "cmd/router"},
			Deny: in("engine", "gpu", "controllers"), Allow: in("engine/loads"),
			Why: "the router speaks HTTP to engines and reads labels of pods, nothing else",
		},
		{
			Name: "plugin-looks-from-outside", Dirs: []string{"plugin", "cmd/kubectl-sluice"},
			Deny: in("engine", "gpu", "router", "controllers"), Allow: in("engine/loads", "engine/metrics", "controllers/plan"),
			Why: "the plugin sees what a user may see: objects, and what engines and routers say over HTTP; of the operator it shares pure names and layouts",
		},
		{
			Name: "diagnosis-is-pure", Dirs: []string{"plugin/diagnosis", "plugin/view", "plugin/trail", "plugin/scaling"},
			Deny: append(in("plugin/cluster", "plugin/reach", "plugin/sample"), "context", "os", "net", "math/rand", "k8s.io/client-go", "sigs.k8s.io/controller-runtime"),
			Why:  "a conclusion, a table and a drawing are functions of their arguments: no client, context, clock or randomness",
		},
		{
			Name: "dashboards-know-the-table", Dirs: []string{"monitoring/dashboard"},
			Deny: append(in("engine", "gpu", "router", "controllers", "api"), "k8s.io", "sigs.k8s.io", "net/http", "github.com/prometheus"), Allow: in("engine/metrics"),
			Why: "a dashboard is built from the table of metric families; who applies it is somebody else's business",
		},
		{
			Name: "bench-knows-a-url", Dirs: []string{"bench", "cmd/bench"},
			Deny: append(in("engine", "gpu", "router", "controllers", "api"), "k8s.io", "github.com/prometheus"),
			Why:  "a load generator sees a server as its clients do; one that shared code with the server would share its mistakes",
		},
		{
			Name: "plan-is-pure", Dirs: []string{"controllers/plan"},
			Deny: []string{
				"context", "log", "net", "os", "math/rand", "k8s.io/client-go", "k8s.io/klog",
				"github.com/go-logr", "sigs.k8s.io/controller-runtime/pkg/client", "sigs.k8s.io/controller-runtime/pkg/log",
				"sigs.k8s.io/controller-runtime/pkg/manager", "sigs.k8s.io/controller-runtime/pkg/reconcile",
			},
			Why: "a plan is a function of its arguments: no client, context, clock, log or randomness",
		},
		{
			Name: "semantics-is-data", Dirs: []string{"controllers/semantics"},
			Deny:  append(in("controllers"), "context", "log", "net", "os", "math/rand", "k8s.io/client-go", "github.com/go-logr", "github.com/prometheus", "sigs.k8s.io/controller-runtime"),
			Allow: in("controllers/semantics"),
			Why:   "what a number means depends on nobody who reads it: rows and functions of values, no client, clock or sample store",
		},
		{
			Name: "operator-series-know-no-controller", Dirs: []string{"controllers/metrics"},
			Deny: append(in("controllers"), "net/http"), Allow: in("controllers/metrics", "controllers/owned", "controllers/plan"),
			Why: "the operator's table and counters are below the controllers that count with them",
		},
		{
			Name: "gpu-knows-no-request", Dirs: []string{"gpu"},
			Deny: in(""), Allow: in("gpu"),
			Why: "a device computes on buffers; requests, schedulers and models are above it",
		},
		{
			Name: "kvcache-is-host-data", Dirs: []string{"engine/kvcache"},
			Deny: append(in("gpu", "engine"), "github.com/prometheus"), Allow: in("engine/kvcache"),
			Why: "the KV ledger moves page numbers: no tensors, no metrics, no requests",
		},
		{
			Name: "scheduler-moves-ids", Dirs: []string{"engine/scheduler"},
			Deny: append(in("gpu", "engine/runner", "engine/model", "engine/server", "engine/metrics", "engine/trace", "engine/rank", "engine/tokenizer"),
				"net/http", "google.golang.org/grpc", "github.com/prometheus"),
			Why: "the scheduler decides over ids and pages; tensors, HTTP and series belong to others",
		},
		{
			Name: "node-moves-bytes", Dirs: []string{"engine/node"},
			Deny: append(in("gpu", "engine"), "net/http", "os/exec", "google.golang.org/grpc"), Allow: in("engine/node"),
			Why: "nodes meet, start and end together; what they start is bytes to them",
		},
		{
			Name: "dp-places-requests", Dirs: []string{"engine/dp"},
			Deny: append(in("gpu", "engine/runner", "engine/model", "engine/server", "engine/scheduler", "engine/metrics", "engine/disagg", "engine/tokenizer"),
				"net/http", "os/exec", "google.golang.org/grpc"),
			Why: "the DP controller chooses among clients of ranks; what a rank is made of belongs to engine/rank",
		},
		{
			Name: "disagg-is-host-data", Dirs: []string{"engine/disagg"},
			Deny: append(in("gpu", "engine/runner", "engine/model", "engine/server", "engine/scheduler", "engine/metrics", "engine/rank"), "github.com/prometheus"),
			Why:  "a transfer moves bytes of pages between peers; it knows neither tensors nor batches",
		},
		{
			Name: "grammar-is-bytes", Dirs: []string{"engine/grammar"},
			Deny: append(in("gpu", "engine"), "net/http", "google.golang.org/grpc", "github.com/prometheus"), Allow: in("engine/grammar"),
			Why: "a grammar is bytes in, token masks out; tokenizers, requests and schedulers belong to others",
		},
		{
			Name: "parallel-moves-numbers", Dirs: []string{"engine/parallel"},
			Deny: append(in("gpu", "engine"), "google.golang.org/grpc", "github.com/prometheus"), Allow: in("engine/parallel"),
			Why: "the ranks of a world exchange numbers and bytes; tensors, requests and decisions belong to others",
		},
		{
			Name: "plain-data", Dirs: []string{"engine/request", "engine/loads", "engine/ledger", "engine/scheduler/report", "router/demand"},
			Deny:  []string{Module, "github.com", "google.golang.org", "golang.org/x", "k8s.io", "net/http"},
			Allow: in("engine/request", "engine/loads", "engine/ledger"),
			Why:   "values that cross processes depend on the standard library alone",
		},
		{
			Name: "series-in-one-place", Dirs: []string{"engine", "router", "gpu"},
			Except: []string{"engine/metrics", "router/metrics"},
			Deny:   []string{"github.com/prometheus"},
			Why:    "only engine/metrics and router/metrics hold series; others emit typed events or fill a snapshot",
		},
		{
			Name: "spans-in-one-place", Dirs: []string{"engine", "router", "gpu", "controllers"},
			Except: []string{"engine/trace"},
			Deny:   []string{"go.opentelemetry.io"},
			Why:    "only engine/trace makes spans, from the ledger",
		},
		{
			Name: "trace-knows-the-ledger", Dirs: []string{"engine/trace"}, Except: []string{"engine/trace/tracetest"},
			Deny:  append(in("gpu", "engine"), "github.com/prometheus", "google.golang.org/grpc"),
			Allow: in("engine/trace", "engine/ledger", "engine/request"),
			Why:   "spans are made of requests and the times of their stages; who queues, computes or serves them belongs to others",
		},
		{
			Name: "product-without-hack", Dirs: []string{"api", "bench", "controllers", "engine", "gpu", "monitoring", "plugin", "router", "cmd"},
			Deny: in("hack", "test"),
			Why:  "the product does not depend on how it is developed",
		},
	}
}

// Binds reports whether the rule binds the package in a folder relative to the module.
func (r Rule) Binds(dir string) bool {
	return longest(dir, r.Dirs) > 0 && longest(dir, r.Except) == 0
}

// Denies reports whether the rule forbids an import path.
func (r Rule) Denies(path string) bool {
	deny := longest(path, r.Deny)
	return deny > 0 && deny > longest(path, r.Allow)
}

// longest gives the length of the longest prefix of path, in whole elements, among prefixes; 0 when none matches.
func longest(path string, prefixes []string) int {
	best := 0
	for _, prefix := range prefixes {
		prefix = strings.TrimSuffix(prefix, "/")
		if (path == prefix || strings.HasPrefix(path, prefix+"/")) && len(prefix) > best {
			best = len(prefix)
		}
	}
	return best
}
