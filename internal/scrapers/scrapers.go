package scrapers

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	// Most is how many scrapes of one process are answered at once: a few Prometheus servers, the operator and people.
	Most = 8

	// MostOfOne is how many of them one address has: another always finds a place unless most/MostOfOne addresses are at it.
	MostOfOne = 2

	// patience is how long a scraper that does not say how long it waits may take to read an answer, and maxPatience what it
	// may say.
	patience    = 10 * time.Second
	maxPatience = time.Minute

	// timeoutHeader is where Prometheus tells for how many seconds it waits.
	timeoutHeader = "X-Prometheus-Scrape-Timeout-Seconds"
)

// places are what scrapers take while they are answered.
//
// Invariants: taken is the sum of byHost; 0 <= taken <= most; 0 < byHost[host] <= MostOfOne.
type places struct {
	most int

	mu     sync.Mutex
	taken  int
	byHost map[string]int
}

// take gives a place to a host, or says why there is none.
func (p *places) take(host string) (refusal string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.taken >= p.most:
		return fmt.Sprintf("%d scrapes are being answered, which is the most at once", p.most)
	case p.byHost[host] >= MostOfOne:
		return fmt.Sprintf("%d scrapes of %s are being answered, which is the most of one address at once", MostOfOne, host)
	}
	p.taken++
	p.byHost[host]++
	return ""
}

func (p *places) leave(host string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.byHost[host]--; p.byHost[host] == 0 {
		delete(p.byHost, host)
	}
}

// hostOf is the address without the port that a request came from.
func hostOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// Limit serves next to at most so many at once, and to MostOfOne of one address; others get 503 and are told to try again. Who has not taken the whole answer by
// the time at which its scraper gives up is cut off, so that the answer's memory is free again.
func Limit(next http.Handler, most int) http.Handler {
	places := &places{most: most, byHost: map[string]int{}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Not every server can. The deadline is of the connection, so it is by the operating system's clock.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(patienceOf(r)))
		host := hostOf(r)
		if refusal := places.take(host); refusal != "" {
			w.Header().Set("Retry-After", "1")
			http.Error(w, refusal+": try again in a second, and look for scrapers that ask and do not read", http.StatusServiceUnavailable)
			return
		}
		defer places.leave(host)
		next.ServeHTTP(w, r)
	})
}

// patienceOf is how long a scraper waits for its answer.
func patienceOf(r *http.Request) time.Duration {
	seconds, err := strconv.ParseFloat(r.Header.Get(timeoutHeader), 64)
	if err != nil || !(seconds > 0) {
		return patience
	}
	return time.Duration(min(seconds, maxPatience.Seconds()) * float64(time.Second))
}
