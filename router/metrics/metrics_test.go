package metrics

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/internal/scrapers"
	"github.com/sluice-dev/sluice/router/discovery"
	"github.com/sluice-dev/sluice/router/proxy"
)

var update = flag.Bool("update", false, "write testdata anew")

// quiet is a fleet.Listener that counts.
type quiet struct{ n int }

func (q *quiet) Changed(discovery.Engine, discovery.State, discovery.State) { q.n++ }
func (q *quiet) Quarantined(discovery.Engine)                               { q.n++ }
func (q *quiet) Picked(discovery.Engine)                                    { q.n++ }

func engine(role discovery.Role) discovery.Engine { return discovery.Engine{Role: role} }

// TestExposition compares everything that is exported, with a different value in every series that is touched.
func TestExposition(t *testing.T) {
	next := &quiet{}
	m := New(next)
	for i, route := range proxy.Routes() {
		for range i + 1 {
			m.Started(route)
		}
	}
	m.Finished("/generate", 200, proxy.OutcomeOK, 3*time.Second)
	m.Finished("/generate", 499, proxy.OutcomeClientClosed, time.Millisecond)
	m.Waited(40 * time.Millisecond)
	m.Forwarded("/generate", 70*time.Microsecond)
	m.FirstByte("/generate", 300*time.Millisecond)
	for i, reason := range proxy.RetryReasons() {
		for range i + 2 {
			m.Retried(reason)
		}
	}
	for i, role := range []discovery.Role{discovery.Prefill, discovery.Decode, discovery.Unified} {
		for range i + 1 {
			m.Changed(engine(role), "", discovery.StateNotReady)
			m.Changed(engine(role), "", discovery.StateNotReady)
			m.Changed(engine(role), discovery.StateNotReady, discovery.StateReady)
			m.Picked(engine(role))
			m.Picked(engine(role))
			m.Quarantined(engine(role))
		}
	}
	m.Changed(engine(discovery.Decode), discovery.StateReady, discovery.StateDraining)
	m.Changed(engine(discovery.Decode), discovery.StateDraining, "")
	m.Draining()
	m.Watch(func() map[discovery.Role]int {
		return map[discovery.Role]int{discovery.Prefill: 11, discovery.Decode: 12}
	})
	if want := 6*6 + 2; next.n != want {
		t.Errorf("the next listener heard %d events, want %d", next.n, want)
	}
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	var lines []string
	for line := range strings.Lines(w.Body.String()) {
		if strings.Contains(line, "sluice_router_") {
			lines = append(lines, line)
		}
	}
	got := strings.Join(lines, "")
	const path = "testdata/metrics"
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("exposition (-want +got), go test -update writes it anew:\n%s", d)
	}
	for _, f := range Families() {
		if !strings.Contains(got, "# HELP "+f.Name+" "+f.Help+"\n# TYPE "+f.Name+" "+string(f.Kind)+"\n") {
			t.Errorf("%s of the table is not exported", f.Name)
		}
		if (f.Kind == Histogram) != (f.Buckets != nil) || !slices.IsSorted(f.Buckets) {
			t.Errorf("%s has the buckets %v", f.Name, f.Buckets)
		}
	}
	if n := strings.Count(got, "# TYPE"); n != len(Families()) {
		t.Errorf("%d families are exported, the table has %d", n, len(Families()))
	}
}

// stuck is a scraper that takes nothing until the test lets it.
type stuck struct {
	*httptest.ResponseRecorder
	began chan<- struct{}
	goOn  <-chan struct{}
}

func (s stuck) Write(p []byte) (int, error) {
	select {
	case <-s.goOn:
	default:
		s.began <- struct{}{}
		<-s.goOn
	}
	return s.ResponseRecorder.Write(p)
}

// TestScrapesAtOnce: so many scrapers are answered at once; one more is told to come back.
func TestScrapesAtOnce(t *testing.T) {
	handler := New(nil).Handler()
	began, goOn := make(chan struct{}, 1000), make(chan struct{})
	var scrapes sync.WaitGroup
	for i := range scrapers.Most {
		scrapes.Go(func() {
			r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
			r.RemoteAddr = fmt.Sprintf("192.0.2.%d:1", 100+i/scrapers.MostOfOne)
			handler.ServeHTTP(stuck{httptest.NewRecorder(), began, goOn}, r)
		})
		<-began
	}
	w := httptest.NewRecorder()
	if handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil)); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("one more gets %d, %v", w.Code, w.Header())
	}
	close(goOn)
	scrapes.Wait()
}
