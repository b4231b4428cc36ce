package proxy

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-dev/sluice/router/demand"
	"github.com/sluice-dev/sluice/router/discovery"
)

// TestKeys: which key opens which route, and that none is needed where none is set.
func TestKeys(t *testing.T) {
	const none, user, admin = "", "Bearer u", "Bearer a"
	type route struct{ method, path string }
	var (
		answers = []route{{http.MethodPost, routeCompletions}, {http.MethodPost, routeChat}, {http.MethodPost, routeGenerate}, {http.MethodPost, routeTokenize}, {http.MethodGet, routeModels}, {http.MethodGet, routeModels + "/m"}}
		inside  = []route{{http.MethodGet, "/workers"}, {http.MethodGet, debugRequestsRoute}, {http.MethodGet, debugRequestsRoute + "/x"}}
		open    = []route{{http.MethodGet, "/health"}, {http.MethodGet, "/ready"}, {http.MethodGet, "/metrics"}, {http.MethodGet, "/metrics/"}, {http.MethodGet, "/nothing"}}
	)
	for _, c := range []struct {
		name, apiKey, adminKey string
		answers, inside        []string // the headers that pass
	}{
		{"no key is set", "", "", []string{none, user, admin}, []string{none, user, admin}},
		{"the user's key opens all where it is the only one", "u", "", []string{user}, []string{user}},
		{"each key opens its own", "u", "a", []string{user}, []string{admin}},
		{"the answers may be open", "", "a", []string{none, user, admin}, []string{admin}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEngine(t, &rooms{open: map[int64]*meetingRoom{}}, discovery.Unified, "u")
			rt := newRouter(t, routerOptions{engines: []*engine{e}, config: func(cfg *Config) {
				cfg.APIKey, cfg.AdminAPIKey, cfg.DebugRequests = c.apiKey, c.adminKey, 10
				cfg.Metrics = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
			}})
			check := func(routes []route, passing []string) {
				t.Helper()
				for _, r := range routes {
					for _, key := range []string{none, user, admin} {
						header := http.Header{"Content-Type": {"application/json"}}
						if key != none {
							header.Set("Authorization", key)
						}
						got := rt.do(t.Context(), r.method, r.path, "{}", header)
						if want := slices.Contains(passing, key); (got.Status != http.StatusUnauthorized) != want {
							t.Errorf("%s %s with %q: status %d, want it to pass: %v", r.method, r.path, key, got.Status, want)
						}
					}
				}
			}
			check(answers, c.answers)
			check(inside, c.inside)
			check(open, []string{none, user, admin})
		})
	}
}

// TestKeyIsNotLeftOut: a request without its key reaches no engine, and counts as one that the client got wrong.
func TestKeyIsNotLeftOut(t *testing.T) {
	e := newEngine(t, &rooms{open: map[int64]*meetingRoom{}}, discovery.Unified, "u")
	rt := newRouter(t, routerOptions{engines: []*engine{e}, config: func(cfg *Config) { cfg.APIKey = "u" }})
	got := rt.post(routeGenerate, "{}")
	if got.Status != http.StatusUnauthorized || !strings.Contains(got.Body, `"code":"invalid_api_key"`) {
		t.Errorf("answered %d, %s", got.Status, got.Body)
	}
	rt.settled()
	rt.seen.mu.Lock()
	defer rt.seen.mu.Unlock()
	if len(rt.seen.finished) != 1 || rt.seen.finished[0] != "/generate 401 client_error" {
		t.Errorf("counted as %v", rt.seen.finished)
	}
}

// TestOwnRoutesAreRead: what the router tells of itself takes GET and HEAD, and says so to others.
func TestOwnRoutesAreRead(t *testing.T) {
	rt := newRouter(t, routerOptions{config: func(cfg *Config) {
		cfg.DebugRequests = 10
		cfg.Metrics = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	}})
	for _, path := range []string{"/health", "/ready", "/metrics", "/metrics/", "/workers", demand.Path, debugRequestsRoute, debugRequestsRoute + "/x"} {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, "BREW"} {
			w := httptest.NewRecorder()
			rt.proxy.ServeHTTP(w, httptest.NewRequest(method, path, nil))
			refused := method != http.MethodGet && method != http.MethodHead
			allow := ""
			if refused {
				allow = "GET, HEAD"
			}
			if got := w.Code == http.StatusMethodNotAllowed; got != refused || w.Header().Get("Allow") != allow {
				t.Errorf("%s %s: status %d, Allow %q", method, path, w.Code, w.Header().Get("Allow"))
			}
		}
	}
}
