package layers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

const root = "../.."

// pkg is what `go list -json` tells of a package.
type pkg struct {
	ImportPath   string
	Dir          string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Deps         []string
	GoFiles      []string
}

func (p pkg) rel() string { return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, Module), "/") }

func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Imports,TestImports,XTestImports,Deps,GoFiles", "./...")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.Bytes())
	}
	var pkgs []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) < 10 {
		t.Fatalf("go list found only %d packages; the rules would hold for nothing", len(pkgs))
	}
	return pkgs
}

func violations(rules []Rule, pkgs []pkg) []string {
	var found []string
	for _, p := range pkgs {
		for _, rule := range rules {
			if !rule.Binds(p.rel()) {
				continue
			}
			paths := p.Imports
			if rule.Transitive {
				paths = p.Deps
			}
			for _, path := range paths {
				if rule.Denies(path) {
					found = append(found, fmt.Sprintf("%s imports %s; %s: %s", p.rel(), path, rule.Name, rule.Why))
				}
			}
		}
	}
	return found
}

func TestRules(t *testing.T) {
	pkgs := list(t)
	for _, v := range violations(Rules(), pkgs) {
		t.Error(v)
	}
	for _, rule := range Rules() {
		if !slices.ContainsFunc(pkgs, func(p pkg) bool { return rule.Binds(p.rel()) }) {
			t.Errorf("rule %s binds no package; the tree moved and the rule did not", rule.Name)
		}
	}
}

func TestRulesFindViolations(t *testing.T) {
	tests := []struct {
		name, reason string
		pkg          pkg
		want         []string
	}{
		{
			name: "deep", reason: "a transitive rule looks through dependencies",
			pkg:  pkg{ImportPath: Module + "/engine/server", Deps: []string{"fmt", "k8s.io/api/core/v1"}},
			want: []string{"engine-without-kubernetes"},
		},
		{
			name: "allowed", reason: "the longest match wins",
			pkg: pkg{ImportPath: Module + "/controllers/observe", Imports: []string{Module + "/engine/loads"}},
		},
		{
			name: "denied", reason: "the same prefix without the exception",
			pkg:  pkg{ImportPath: Module + "/controllers/observe", Imports: []string{Module + "/engine/scheduler"}},
			want: []string{"operator-reads-wire-types-only"},
		},
		{
			name: "elements", reason: "a prefix matches whole elements only",
			pkg: pkg{ImportPath: Module + "/controllers/plan", Imports: []string{"netip", "contexts"}},
		},
		{
			name: "except", reason: "a folder may be excepted",
			pkg: pkg{ImportPath: Module + "/engine/metrics", Imports: []string{"github.com/prometheus/client_golang/prometheus"}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, rule := range Rules() {
				if len(violations([]Rule{rule}, []pkg{tt.pkg})) > 0 {
					got = append(got, rule.Name)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}

// TestClocks finds readings of the clock where none may be: the request's ledger reads it once per transition, and a plan
// gets the time as an argument.
func TestClocks(t *testing.T) {
	bound := []string{"engine/scheduler", "engine/kvcache", "controllers/plan", "engine/request"}
	for _, p := range list(t) {
		if longest(p.rel(), bound) == 0 {
			continue
		}
		for _, name := range p.GoFiles {
			path := filepath.Join(p.Dir, name)
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains([]string{"Now", "Since", "Until", "Sleep"}, sel.Sel.Name) {
					t.Errorf("%s: time.%s; take a clock as an argument", fset.Position(sel.Pos()), sel.Sel.Name)
				}
				return true
			})
		}
	}
}

// depguard is the part of .golangci.yml that repeats the rules for editors.
type depguard struct {
	Files []string            `json:"files"`
	Deny  []map[string]string `json:"deny"`
	Allow []string            `json:"allow,omitempty"`
	Mode  string              `json:"list-mode"`
}

func TestDepguardSaysTheSame(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(root, ".golangci.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Linters struct {
			Settings struct {
				Depguard struct {
					Rules map[string]depguard `json:"rules"`
				} `json:"depguard"`
			} `json:"settings"`
		} `json:"linters"`
	}
	if err := yaml.Unmarshal(raw, &config); err != nil {
		t.Fatal(err)
	}
	want := map[string]depguard{}
	for _, rule := range Rules() {
		want[rule.Name] = guard(rule)
	}
	if diff := cmp.Diff(want, config.Linters.Settings.Depguard.Rules); diff != "" {
		out, err := yaml.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		t.Errorf(".golangci.yml differs from the rules (-want +got):\n%s\nlinters.settings.depguard.rules should be:\n%s", diff, out)
	}
}

func guard(rule Rule) depguard {
	g := depguard{Mode: "lax"}
	for _, dir := range rule.Dirs {
		g.Files = append(g.Files, "**/"+dir+"/**/*.go", "**/"+dir+"/*.go")
	}
	g.Files = append(g.Files, "!$test")
	for _, dir := range rule.Except {
		g.Files = append(g.Files, "!**/"+dir+"/**/*.go", "!**/"+dir+"/*.go")
	}
	for _, path := range rule.Deny {
		g.Deny = append(g.Deny, map[string]string{"pkg": strings.TrimSuffix(path, "/"), "desc": rule.Why})
	}
	for _, path := range rule.Allow {
		g.Allow = append(g.Allow, strings.TrimSuffix(path, "/"))
	}
	return g
}

var entry = regexp.MustCompile(`^//\s+\d+\.\s+([a-z0-9/]+)`)

// TestReadingOrder checks the numbered lists in doc.go: each names packages below its folder, each package that holds Go
// code at the first level is named, and the numbers count up.
func TestReadingOrder(t *testing.T) {
	pkgs := list(t)
	for _, top := range []string{"engine", "controllers"} {
		t.Run(top, func(t *testing.T) {
			raw, err := os.ReadFile(filepath.Join(root, top, "doc.go"))
			if err != nil {
				t.Fatal(err)
			}
			var named []string
			for _, line := range strings.Split(string(raw), "\n") {
				if m := entry.FindStringSubmatch(line); m != nil {
					named = append(named, m[1])
				}
			}
			var exist []string
			for _, p := range pkgs {
				if rest, ok := strings.CutPrefix(p.rel(), top+"/"); ok {
					first, _, _ := strings.Cut(rest, "/")
					exist = append(exist, first)
				}
			}
			slices.Sort(exist)
			exist = slices.Compact(exist)
			sorted := slices.Sorted(slices.Values(named))
			if diff := cmp.Diff(exist, sorted); diff != "" {
				t.Errorf("%s/doc.go: the reading order differs from the packages (-exist +named):\n%s", top, diff)
			}
		})
	}
}
