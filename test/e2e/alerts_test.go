//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/hack/trial"
)

// longestWait bounds the alerts whose whole `for` is waited out; longer ones could not fire in the time of a test.
const longestWait = 5 * time.Minute

// health is a service that is kept healthy under a small steady load while other things go on.
type health struct {
	base, ns string
	load     *trial.Load
	from     time.Time
}

// keepHealthy begins to send a request to service chat every second, or when the one before has ended.
func keepHealthy(t *testing.T, base, ns string) *health {
	router := reach(t, ns, "chat")
	pace := time.NewTicker(time.Second)
	t.Cleanup(pace.Stop)
	h := &health{base: base, ns: ns, from: time.Now(), load: trial.StartLoad(t.Context(), 1, func(ctx context.Context, n int) error {
		select {
		case <-pace.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		_, err := trial.Complete(ctx, router, trial.Completion{Model: "tiny", Prompt: fmt.Sprint("steady ", n%50), MaxTokens: 64, IgnoreEOS: true, Stream: true}, nil)
		return err
	})}
	t.Cleanup(func() { h.load.Stop() })
	return h
}

// check waits until every alert of the service that may fire within longestWait had the time to, and asserts that none did,
// at no moment since the beginning, and that Prometheus evaluated them all.
func (h *health) check(t *testing.T) {
	var longest time.Duration
	for _, alert := range h.alerts(t) {
		if alert.For <= longestWait {
			longest = max(longest, alert.For)
		}
		if alert.Health != "ok" {
			t.Errorf("alert %s is evaluated with %s: %s", alert.Name, alert.Health, alert.LastError)
		}
	}
	if longest < longestWait {
		t.Errorf("the longest wait of alerts up to %s is %s", longestWait, longest)
	}
	// An alert is pending from the first evaluation at which it holds; a new rule has one some seconds after it is there.
	hold := longest + 30*time.Second
	until(t, hold+time.Minute, "the waits of the alerts of a healthy service", func(context.Context) (string, bool, error) {
		if report := h.load.Now(); report.Failed() > 0 {
			return "", false, fmt.Errorf("the service was to be healthy: %s", report)
		}
		return "", time.Since(h.from) >= hold, nil
	})
	report := h.load.Stop()
	t.Logf("%s in %s", report, time.Since(h.from).Round(time.Second))
	for _, alert := range h.alerts(t) {
		if alert.State == "firing" {
			t.Errorf("alert %s of a healthy service fires", alert.Name)
		}
	}
	series, err := trial.Query(t.Context(), h.base, fmt.Sprintf(`count by (alertname, alertstate) (count_over_time(ALERTS{namespace=%q}[1h]))`, h.ns))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range series {
		if s.Labels["alertstate"] == "firing" {
			t.Errorf("alert %s of a healthy service has fired", s.Labels["alertname"])
		} else {
			t.Logf("alert %s of a healthy service was %s for a moment", s.Labels["alertname"], s.Labels["alertstate"])
		}
	}
}

// alerts gives the alerting rules of the service.
func (h *health) alerts(t *testing.T) (own []trial.Alert) {
	t.Helper()
	all, err := trial.Alerts(t.Context(), h.base)
	if err != nil {
		t.Fatal(err)
	}
	for _, alert := range all {
		if alert.Labels["namespace"] == h.ns {
			own = append(own, alert)
		}
	}
	if len(own) < 15 {
		t.Fatalf("%d alerting rules of %s, want at least 15", len(own), h.ns)
	}
	return own
}
