package metrics

import (
	"fmt"
	nethttp "net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-dev/sluice/internal/scrapers"
)

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

// TestScrapesAtOnce: every format counts towards the scrapes that are answered at once; one more is told to come back.
func TestScrapesAtOnce(t *testing.T) {
	dir := t.TempDir()
	openStore(t, dir, "api").Counter(promptTokens, nil).Add(1)
	handler := Handler(newGatherer(t, dir))
	accepts := []string{"text/plain", "application/openmetrics-text", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"}
	began, goOn := make(chan struct{}, 100), make(chan struct{})
	var scrapes sync.WaitGroup
	for i := range scrapers.Most {
		w := stuck{httptest.NewRecorder(), began, goOn}
		scrapes.Go(func() {
			r := httptest.NewRequest(nethttp.MethodGet, "/metrics", nil)
			r.RemoteAddr = fmt.Sprintf("192.0.2.%d:1", 100+i/scrapers.MostOfOne)
			r.Header.Set("Accept", accepts[i%len(accepts)])
			handler.ServeHTTP(w, r)
			if w.Code != nethttp.StatusOK || w.Body.Len() == 0 {
				t.Errorf("a scraper that reads late gets %d and %d bytes", w.Code, w.Body.Len())
			}
		})
		<-began
	}
	ask := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(nethttp.MethodGet, "/metrics", nil))
		return w
	}
	if w := ask(); w.Code != nethttp.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), "try again") {
		t.Errorf("one more gets %d, %v, %s", w.Code, w.Header(), w.Body)
	}
	close(goOn)
	scrapes.Wait()
	if w := ask(); w.Code != nethttp.StatusOK {
		t.Errorf("afterwards: %d", w.Code)
	}
}
