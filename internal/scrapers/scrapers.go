package scrapers

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

const (
	// Most is how many scrapes of one process are answered at once: a few Prometheus servers, the operator and people.
	Most = 8

	// patience is how long a scraper that does not say how long it waits may take to read an answer, and maxPatience what it
	// may say.
	patience    = 10 * time.Second
	maxPatience = time.Minute

	// timeoutHeader is where Prometheus tells for how many seconds it waits.
	timeoutHeader = "X-Prometheus-Scrape-Timeout-Seconds"
)

// Limit serves next to at most so many at once; others get 503 and are told to try again. Who has not taken the whole answer by
// the time at which its scraper gives up is cut off, so that the answer's memory is free again.
func Limit(next http.Handler, most int) http.Handler {
	places := make(chan struct{}, most)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Not every server can. The deadline is of the connection, so it is by the operating system's clock.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(patienceOf(r)))
		select {
		case places <- struct{}{}:
		default:
			w.Header().Set("Retry-After", "1")
			http.Error(w, fmt.Sprintf("%d scrapes are being answered, which is the most at once: try again in a second, and look for scrapers that ask and do not read", most),
				http.StatusServiceUnavailable)
			return
		}
		defer func() { <-places }()
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
