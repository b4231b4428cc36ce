package observe

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// promServer answers like Prometheus: queries from a real database by the real engine, targets as given.
type promServer struct {
	*httptest.Server
	db          *tsdb.DB
	engine      *promql.Engine
	at          time.Time
	token       string
	scrapePools []string // nil: a server that has no such endpoint
	page        bool     // a server that answers paths it has not with a page
	targets     []map[string]any
}

func newPromServer(t *testing.T) *promServer {
	t.Helper()
	db, err := tsdb.Open(t.TempDir(), nil, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &promServer{db: db, at: epoch, engine: promql.NewEngine(promql.EngineOpts{MaxSamples: 1 << 20, Timeout: time.Minute, LookbackDelta: 5 * time.Minute})}
	answer := func(w http.ResponseWriter, data any) {
		_ = json.NewEncoder(w).Encode(map[string]any{"status": "success", "data": data})
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/api/v1/query", func(w http.ResponseWriter, request *http.Request) {
		if p.token != "" && request.Header.Get("Authorization") != "Bearer "+p.token {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		q, err := p.engine.NewInstantQuery(request.Context(), p.db, nil, request.FormValue("query"), p.at)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(map[string]any{"status": "error", "errorType": "bad_data", "error": err.Error()})
			return
		}
		defer q.Close()
		result := q.Exec(request.Context())
		vector, err := result.Vector()
		if err != nil {
			t.Errorf("%s: %v", request.FormValue("query"), err)
		}
		rows := make([]any, 0, len(vector))
		for _, sample := range vector {
			rows = append(rows, map[string]any{"metric": sample.Metric.Map(), "value": []any{float64(sample.T) / 1000, formatFloat(sample.F)}})
		}
		answer(w, map[string]any{"resultType": "vector", "result": rows})
	})
	mux.HandleFunc("/api/v1/scrape_pools", func(w http.ResponseWriter, request *http.Request) {
		if p.page {
			_, _ = w.Write([]byte("<!doctype html>"))
			return
		}
		if p.scrapePools == nil {
			http.NotFound(w, request)
			return
		}
		answer(w, map[string]any{"scrapePools": p.scrapePools})
	})
	mux.HandleFunc("/api/v1/targets", func(w http.ResponseWriter, request *http.Request) {
		if request.FormValue("state") != "active" || request.FormValue("scrapePool") != p.scrapePools[0] {
			t.Errorf("asked for targets with %s", request.URL.RawQuery)
		}
		answer(w, map[string]any{"activeTargets": p.targets})
	})
	p.Server = httptest.NewServer(mux)
	t.Cleanup(func() {
		p.Close()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func formatFloat(v float64) string {
	text, _ := json.Marshal(v)
	return string(text)
}

// add stores one sample.
func (p *promServer) add(t *testing.T, at time.Time, name string, value float64, pairs ...string) {
	t.Helper()
	app := p.db.Appender(t.Context())
	if _, err := app.Append(0, labels.FromStrings(append([]string{"__name__", name}, pairs...)...), at.UnixMilli(), value); err != nil {
		t.Fatal(err)
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
}

// of are the labels of a pod's series.
func of(pod string, more ...string) []string {
	return append([]string{"namespace", "team-a", "pod", pod, "tenant", "acme", "inference_service", "chat", "pool", "decode", "engine_type", "decode", "replica", "0", "node_rank", "0", "revision", "r"}, more...)
}

// TestAsk: a database in which one pod's ranks are whole and another is down, beside neighbours with similar names.
func TestAsk(t *testing.T) {
	p := newPromServer(t)
	p.scrapePools = []string{"serviceMonitor/team-a/chat-decode/0", "serviceMonitor/team-a/chat-decode-2/0"}
	p.targets = []map[string]any{{"labels": map[string]string{"pod": "chat-decode-1-0"}, "lastError": "context deadline exceeded"}, {"labels": map[string]string{"pod": "chat-decode-0-0"}, "lastError": ""}}
	for _, name := range Required(v1alpha1.RoleDecode) {
		p.add(t, epoch.Add(-10*time.Second), name, 1, of("chat-decode-0-0", "tp_rank", "0", "pp_rank", "0", "dp_rank", "0")...)
		p.add(t, epoch.Add(-10*time.Second), name, 1, of("chat-decode-0-0", "tp_rank", "0", "pp_rank", "1", "dp_rank", "0", "priority", "3")...)
		p.add(t, epoch.Add(-10*time.Second), name, 1, of("chat-decode-2-0-0", "tp_rank", "0", "pp_rank", "0")...)
		p.add(t, epoch.Add(-10*time.Second), name, 1, "namespace", "team-b", "pod", "chat-decode-0-0", "tp_rank", "0", "pp_rank", "0")
	}
	p.add(t, epoch.Add(-10*time.Second), familyRunning, 1, of("chat-decode-3-0")...)
	p.add(t, epoch.Add(-10*time.Second), "up", 1, of("chat-decode-0-0", "tp_rank", "all")...)
	p.add(t, epoch.Add(-10*time.Second), "up", 0, of("chat-decode-1-0", "tp_rank", "all")...)
	p.add(t, epoch.Add(-10*time.Second), "up", 1, of("chat-decode-2-0-0", "tp_rank", "all")...)

	client, err := NewPrometheus(PrometheusConfig{URL: p.URL})
	if err != nil {
		t.Fatal(err)
	}
	now := epoch.Add(time.Hour) // the operator's clock is another
	got := client.Ask(t.Context(), key("chat-decode"), v1alpha1.RoleDecode, now)
	if got.Err != nil {
		t.Fatal(got.Err)
	}
	families := map[string]bool{}
	for _, name := range Required(v1alpha1.RoleDecode) {
		families[name] = true
	}
	rank := StoredRank{Families: families, Newest: now.Add(-10 * time.Second), Labels: map[string]string{
		"namespace": "team-a", "tenant": "acme", "inference_service": "chat", "pool": "decode", "engine_type": "decode", "replica": "0", "node_rank": "0", "revision": "r",
	}}
	want := &Stored{
		Taken: now, ScrapePools: true, Monitored: true,
		Up:       map[string]StoredUp{"chat-decode-0-0": {Up: true, Newest: now.Add(-10 * time.Second)}, "chat-decode-1-0": {LastError: "context deadline exceeded", Newest: now.Add(-10 * time.Second)}},
		Ranks:    map[string]map[RankID]StoredRank{"chat-decode-0-0": {{}: rank, {PP: 1}: rank}},
		Unranked: map[string]bool{"chat-decode-3-0": true},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateApproxTime(time.Millisecond)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	p.scrapePools = []string{"serviceMonitor/team-a/chat-decode-2/0"}
	ups := map[string]StoredUp{"chat-decode-0-0": {Up: true, Newest: now.Add(-10 * time.Second)}, "chat-decode-1-0": {Newest: now.Add(-10 * time.Second)}}
	s := client.Ask(t.Context(), key("chat-decode"), v1alpha1.RoleDecode, now)
	if diff := cmp.Diff(ups, s.Up, cmpopts.EquateApproxTime(time.Millisecond)); diff != "" || s.Err != nil || !s.ScrapePools || s.Monitored {
		t.Errorf("a monitor that is not taken: %+v (-want +got):\n%s", s, diff)
	}
	p.scrapePools = nil
	if s := client.Ask(t.Context(), key("chat-decode"), v1alpha1.RoleDecode, now); s.Err != nil || s.ScrapePools || len(s.Up) != 2 {
		t.Errorf("a server that does not know its monitors: %+v", s)
	}
	p.page = true
	if s := client.Ask(t.Context(), key("chat-decode"), v1alpha1.RoleDecode, now); s.Err != nil || s.ScrapePools || len(s.Up) != 2 {
		t.Errorf("a front end that has a page for every path: %+v", s)
	}
}

// TestPrometheusAccess: a token is read from its file anew, and what is wrong is said in short and stable words.
func TestPrometheusAccess(t *testing.T) {
	p := newPromServer(t)
	p.token = "two"
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := NewPrometheus(PrometheusConfig{URL: p.URL, BearerTokenFile: file})
	if err != nil {
		t.Fatal(err)
	}
	ask := func() error { return client.Ask(t.Context(), key("x"), v1alpha1.RoleDecode, epoch).Err }
	if err := ask(); err == nil || !strings.HasPrefix(err.Error(), "prometheus refuses: ") {
		t.Errorf("with a wrong token: %v", err)
	}
	if err := os.WriteFile(file, []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ask(); err != nil {
		t.Errorf("with the right token: %v", err)
	}
	p.Close()
	first, second := ask(), ask()
	if first == nil || first.Error() != second.Error() || !strings.HasPrefix(first.Error(), "prometheus cannot be reached: ") {
		t.Errorf("without a server: %v, then %v", first, second)
	}
	for _, tc := range []struct {
		cfg  PrometheusConfig
		want string
	}{
		{PrometheusConfig{URL: "prometheus:9090"}, `--prometheus-url "prometheus:9090" is no URL`},
		{PrometheusConfig{URL: "http://x", BearerTokenFile: "/nowhere"}, "--prometheus-bearer-token-file: "},
		{PrometheusConfig{URL: "https://x", CAFile: "/nowhere"}, "--prometheus-ca-file /nowhere: "},
	} {
		if _, err := NewPrometheus(tc.cfg); err == nil || !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("%+v: %v, want %s", tc.cfg, err, tc.want)
		}
	}
}

// TestStoredDigest: what only ages is no news.
func TestStoredDigest(t *testing.T) {
	at := func(taken, newest time.Duration, up bool) *Stored {
		return &Stored{
			Taken: epoch.Add(taken), Up: map[string]StoredUp{"a": {Up: up}},
			Ranks: map[string]map[RankID]StoredRank{"a": {{}: {Newest: epoch.Add(newest)}}},
		}
	}
	base := at(0, 0, true).digest()
	if at(time.Minute, time.Minute, true).digest() != base || at(time.Minute, 0, true).digest() != base {
		t.Error("age is news")
	}
	if at(time.Hour, 0, true).digest() == base || at(0, 0, false).digest() == base || (&Stored{Err: errors.New("x")}).digest() == base {
		t.Error("staleness, up and errors are no news")
	}
}

// TestDownSince: a target is down since the first answer of those in a row that say so.
func TestDownSince(t *testing.T) {
	at := func(after time.Duration, up bool) *Stored {
		return &Stored{Taken: epoch.Add(after), Up: map[string]StoredUp{"a": {Up: up}}}
	}
	failed := &Stored{Taken: epoch, Err: errors.New("x")}
	was := at(0, false)
	was.follow(nil)
	for _, tc := range []struct {
		name   string
		before *Stored
		want   StoredUp
	}{
		{"first answer", nil, StoredUp{Down: epoch.Add(time.Minute)}},
		{"up before", at(0, true), StoredUp{Down: epoch.Add(time.Minute)}},
		{"no answer before", failed, StoredUp{Down: epoch.Add(time.Minute)}},
		{"down before", was, StoredUp{Down: epoch}},
	} {
		now := at(time.Minute, false)
		now.follow(tc.before)
		if now.Up["a"] != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, now.Up["a"], tc.want)
		}
	}
	if up := at(time.Minute, true); func() bool { up.follow(was); return !up.Up["a"].Down.IsZero() }() {
		t.Error("a target that is up is down since some time")
	}
}

// TestSeveralTargets: of several series of one pod those count that are still scraped.
func TestSeveralTargets(t *testing.T) {
	type series struct {
		job string
		up  float64
		ago time.Duration
	}
	for _, tc := range []struct {
		name   string
		reason string
		series []series
		want   StoredUp
	}{
		{"One", "the usual case", []series{{"a", 1, 5 * time.Second}}, StoredUp{Up: true, Newest: epoch.Add(-5 * time.Second)}},
		{"Left", "what scraped it before found it up", []series{{"a", 1, 2 * time.Minute}, {"b", 0, 5 * time.Second}}, StoredUp{Newest: epoch.Add(-5 * time.Second)}},
		{"LeftDown", "or down", []series{{"a", 0, 2 * time.Minute}, {"b", 1, 5 * time.Second}}, StoredUp{Up: true, Newest: epoch.Add(-5 * time.Second)}},
		{"Two", "one of two Prometheus gets through", []series{{"a", 1, 30 * time.Second}, {"b", 0, 5 * time.Second}}, StoredUp{Up: true, Newest: epoch.Add(-5 * time.Second)}},
	} {
		p := newPromServer(t)
		for _, s := range tc.series {
			p.add(t, epoch.Add(-s.ago), "up", s.up, of("chat-decode-0-0", "job", s.job)...)
		}
		client, err := NewPrometheus(PrometheusConfig{URL: p.URL})
		if err != nil {
			t.Fatal(err)
		}
		s := client.Ask(t.Context(), key("chat-decode"), v1alpha1.RoleDecode, epoch)
		if diff := cmp.Diff(map[string]StoredUp{"chat-decode-0-0": tc.want}, s.Up, cmpopts.EquateApproxTime(time.Millisecond)); diff != "" || s.Err != nil {
			t.Errorf("%s: error %v, %s (-want +got):\n%s", tc.name, s.Err, tc.reason, diff)
		}
	}
}

// TestUnmonitored follows answers 15 s apart, with the newest scrape of a target, and says after which of them it counts as
// forgotten.
func TestUnmonitored(t *testing.T) {
	type answer struct {
		says   string        // taken, not, nothing (no list of monitors), fails
		newest time.Duration // since the epoch
	}
	for _, tc := range []struct {
		name    string
		reason  string
		answers []answer
		want    []bool
	}{
		{"Lost", "the last samples stay for minutes", []answer{{"taken", 0}, {"not", 14 * time.Second}, {"not", 14 * time.Second}, {"taken", 44 * time.Second}}, []bool{false, true, true, false}},
		{"LostUnseen", "a failure between does not hide it", []answer{{"taken", 0}, {"fails", 0}, {"not", 29 * time.Second}, {"fails", 0}, {"not", 29 * time.Second}}, []bool{false, false, true, false, true}},
		{"Another", "scraped by a configuration of somebody's own since before", []answer{{"not", -time.Minute}, {"not", 10 * time.Second}, {"not", 25 * time.Second}}, []bool{false, false, false}},
		{"Moved", "one of somebody's own takes over", []answer{{"taken", 0}, {"not", 14 * time.Second}, {"not", 29 * time.Second}}, []bool{false, true, false}},
		{"FoundLost", "a new operator finds old samples", []answer{{"not", -3 * time.Minute}, {"not", -3 * time.Minute}}, []bool{true, true}},
		{"FoundFresh", "a new operator cannot tell until they are old", []answer{{"not", -100 * time.Second}, {"not", -100 * time.Second}, {"not", -100 * time.Second}}, []bool{false, false, true}},
		{"NoList", "a server that does not know its monitors", []answer{{"nothing", 0}, {"nothing", -time.Hour}}, []bool{false, false}},
	} {
		var before *Stored
		var got []bool
		for i, a := range tc.answers {
			s := &Stored{Taken: epoch.Add(time.Duration(i) * 15 * time.Second), ScrapePools: a.says == "taken" || a.says == "not", Monitored: a.says == "taken"}
			if a.says == "fails" {
				s.Err = errors.New("x")
			} else {
				s.Up = map[string]StoredUp{"a": {Up: true, Newest: epoch.Add(a.newest)}}
			}
			s.follow(before)
			got = append(got, s.Err == nil && s.forgotten(s.Up["a"]))
			before = s
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: %s (-want +got):\n%s", tc.name, tc.reason, diff)
		}
	}
}

// TestOfMonitor: a pool's monitor is told from those of others by its whole name.
func TestOfMonitor(t *testing.T) {
	for name, want := range map[string]bool{
		"serviceMonitor/team-a/chat-decode/0": true, "podMonitor/team-a/chat-decode/1": true,
		"serviceMonitor/team-a/chat-decode-2/0": false, "serviceMonitor/team-b/chat-decode/0": false, "probe/team-a/chat-decode/0": false,
		"serviceMonitor/team-a/chat-decode": false, "serviceMonitor/team-a/chat-decode/0/0": false, "kubernetes-pods": false,
	} {
		if got := ofMonitor(name, key("chat-decode")); got != want {
			t.Errorf("%s: %t, want %t", name, got, want)
		}
	}
}

// TestScraperAsks: the scraper asks Prometheus about each pool, and tells when the answer changes.
func TestScraperAsks(t *testing.T) {
	p := newPromServer(t)
	client, err := NewPrometheus(PrometheusConfig{URL: p.URL})
	if err != nil {
		t.Fatal(err)
	}
	server := metricsServer(t, func() (int, []byte) { return 200, engineText(t, v1alpha1.RoleDecode) })
	r := newProofRig(t, client, leader(t, "pool-0-0", server.URL, decodePod))
	r.eventually(time.Second, func() string {
		if stored := r.proofs.Pool(key("pool")).Stored; stored == nil || stored.Err != nil {
			return "not asked yet"
		}
		return ""
	})
}
