package server

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sluice-dev/sluice/engine/rank"
)

var elementNumber = regexp.MustCompile(`\[\d+\]`)

// TestReferenceFields: the reference names the fields that each route reads, and no others.
func TestReferenceFields(t *testing.T) {
	const (
		schema  = `"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{}}}`
		session = `"session_params":{"id":"s"}`
	)
	bodies := map[string][]string{
		"/v1/completions":      {`{"prompt":[1],` + schema + `,` + session + `,"stream_options":{},"rid":"a"}`},
		"/v1/chat/completions": {`{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"user","content":"a"}],` + schema + `,` + session + `}`, `{"messages":[{"role":"user"}]}`},
		"/generate":            {`{"text":"a",` + session + `,"sampling_params":{` + schema + `}}`, `{"input_ids":[1]}`},
	}
	for _, route := range Reference() {
		seen := map[string]bool{}
		for _, mode := range []rank.Mode{rank.ModeUnified, rank.ModeDecode} {
			b := newBench(t, func(c *Config, _ *scriptedRank) { c.Rank.Disagg.Mode, c.ProfilerDir = mode, t.TempDir() })
			b.fieldSeen = func(path string) { seen[elementNumber.ReplaceAllString(path, "[]")] = true }
			for _, body := range append(bodies[route.Pattern], `{}`) {
				body = strings.TrimSuffix(body, "}") + `,"bootstrap_room":1,"bootstrap_host":"h"}`
				b.call(route.Methods[len(route.Methods)-1], route.Pattern, strings.Replace(body, "{,", "{", 1))
			}
			_, _ = b.profiles.Stop() // that of /start_profile; the other routes started none
		}
		want := map[string]bool{}
		for _, f := range route.Body {
			if want[f.Name] {
				t.Errorf("%s: %s is described twice", route.Pattern, f.Name)
			}
			want[f.Name] = true
		}
		if diff := cmp.Diff(slices.Sorted(maps.Keys(seen)), slices.Sorted(maps.Keys(want))); diff != "" {
			t.Errorf("%s: (-read +described)\n%s", route.Pattern, diff)
		}
	}
}

// TestReferenceRoutes: every route is described, and nothing else is.
func TestReferenceRoutes(t *testing.T) {
	texts := routeTexts()
	for _, route := range Reference() {
		if route.Does == "" || route.Key == "" || len(route.Methods) == 0 {
			t.Errorf("%s is not described: %+v", route.Pattern, route)
		}
		delete(texts, route.Pattern)
	}
	for pattern := range texts {
		t.Errorf("%s is described, but does not exist", pattern)
	}
	for _, route := range Reference() {
		for _, f := range append(route.Body, route.Query...) {
			if f.Name == "" || f.Meaning == "" || !strings.HasSuffix(f.Meaning, ".") && !strings.HasSuffix(f.Meaning, "…") {
				t.Errorf("%s: %s: %q is no sentence", route.Pattern, f.Name, f.Meaning)
			}
		}
	}
}

// TestErrorCodes: every word that the code can send is described.
func TestErrorCodes(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	described := map[string]bool{}
	for _, e := range ErrorCodes() {
		described[e.Code] = true
		if http.StatusText(e.Status) == "" && e.Status != statusClientClosed {
			t.Errorf("%s has status %d", e.Code, e.Status)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) == 0 || !strings.HasPrefix(spec.Names[0].Name, "code") {
			return true
		}
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil || !described[value] {
			t.Errorf("%s (%s) is not described: %v", spec.Names[0], fmt.Sprint(value), err)
		}
		return true
	})
}

// TestParameters: a route whose parameters are fixed takes those of the reference and no other, and each once but for those that
// may be repeated; the rest leaves alone what it doesn't know.
func TestParameters(t *testing.T) {
	b := newBench(t, nil)
	lenient := []string{
		"/v1/completions", "/v1/chat/completions", "/generate", "/v1/models", "/v1/models/{model}", "/v1/tokenize", "/v1/detokenize",
		"/health", "/health_generate", "/server_info", "/get_server_info", "/model_info", "/get_model_info", "/weight_version",
	}
	fixed := parameters()
	for _, route := range Reference() {
		known, strict := fixed[route.Pattern]
		if strict == slices.Contains(lenient, route.Pattern) {
			t.Errorf("%s has fixed parameters: %t", route.Pattern, strict)
		}
		var want, got []string
		for _, p := range route.Query {
			want = append(want, p.Name)
		}
		for _, p := range known {
			got = append(got, p.Name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: parameters of the reference and of the route (-want +got):\n%s", route.Pattern, diff)
		}
		if strings.HasPrefix(route.Pattern, "/metrics") { // the bench has none
			continue
		}
		refused := func(query string) bool {
			w := b.call(route.Methods[0], strings.NewReplacer("{model}", "m", "{rid}", "r").Replace(route.Pattern)+"?"+query, "")
			return w.Code == http.StatusBadRequest && strings.Contains(w.Body.String(), "the query of the URL")
		}
		if refused("slowset=5") != strict {
			t.Errorf("%s refuses an unknown parameter: %t", route.Pattern, !strict)
		}
		for _, p := range known {
			if refused(p.Name+"=&"+p.Name+"=") == p.Many || refused(p.Name+"=") {
				t.Errorf("%s: %s comes twice, or once, and may it: %t", route.Pattern, p.Name, p.Many)
			}
		}
	}
}
