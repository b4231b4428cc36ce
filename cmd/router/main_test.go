package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sluice-dev/sluice/router/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second

func TestFlags(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nonexistent")
	for _, tc := range []struct {
		name string
		args []string
		err  string
	}{
		{"nothing", nil, "no engines: give --service and --namespace, or --prefill and --decode, or --worker"},
		{"prefill alone", []string{"--prefill", "http://a:1,2"}, "--prefill and --decode belong together"},
		{"both ways", []string{"--service", "chat", "--worker", "http://a:1"}, "--service finds engines by itself"},
		{"bad engine", []string{"--worker", "a:1"}, `--worker: engine "a:1": want http://host:port`},
		{"twice", []string{"--worker", "http://a:1", "--worker", "http://a:1"}, "engine http://a:1 is given twice: name it once"},
		{"bad policy", []string{"--worker", "http://a:1", "--policy", "best"}, `--policy: policy "best": want least-load or round-robin`},
		{"bad retries", []string{"--worker", "http://a:1", "--max-retries", "-1"}, "--max-retries is -1: give 0 for none, or more"},
		{"bad body limit", []string{"--worker", "http://a:1", "--max-body-bytes", "0"}, "--max-body-bytes is 0: give 1 to 1099511627776"},
		{"huge body limit", []string{"--worker", "http://a:1", "--max-body-bytes", "9223372036854775807"}, "--max-body-bytes is 9223372036854775807: give 1 to"},
		{"bad time-out", []string{"--worker", "http://a:1", "--dial-timeout", "0s"}, "--dial-timeout is 0s: give more than 0s"},
		{"negative wait", []string{"--worker", "http://a:1", "--queue-timeout", "-1s"}, "--queue-timeout is -1s: give 0s for none"},
		{"no unit", []string{"--worker", "http://a:1", "--read-timeout", "5"}, "missing unit in duration \"5\": see sluice-router --help"},
		{"bad interval", []string{"--worker", "http://a:1", "--health-interval", "0s"}, "--health-interval is 0s: give more than 0s"},
		{"nobody may wait", []string{"--worker", "http://a:1", "--max-waiting", "0"}, "--max-waiting is 0: give 1 or more"},
		{"bad wake-up", []string{"--worker", "http://a:1", "--wake-timeout", "-1s"}, "--wake-timeout is -1s: give 0s where no pool may be empty, or for example 5m"},
		{"bad drain", []string{"--worker", "http://a:1", "--drain-timeout", "-1s"}, "--drain-timeout is -1s: give 0s or more"},
		{"bad acceptance", []string{"--worker", "http://a:1", "--drain-accept", "-1s"}, "--drain-accept is -1s: give 0s or more"},
		{"bad quarantine", []string{"--worker", "http://a:1", "--quarantine", "0s"}, "--quarantine is 0s: give more than 0s"},
		{"bad port", []string{"--worker", "http://a:1", "--port", "99999"}, "--port is 99999: give a port from 1 to 65535, or 0 for a free one"},
		{"bad host", []string{"--worker", "http://a:1", "--host", "999.9.9.9"}, "--host and --port"},
		{"no cluster", []string{"--service", "chat"}, "find the Kubernetes API (--kubeconfig)"},
		{"argument", []string{"serve"}, "unknown command"},
	} {
		c := command(slog.New(slog.DiscardHandler))
		c.SetArgs(tc.args)
		err := c.ExecuteContext(t.Context())
		if err == nil || !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: error %v, want %q", tc.name, err, tc.err)
		}
	}
}

func TestKeys(t *testing.T) {
	env := map[string]string{keyVariable: "env-user", adminKeyVariable: "env-admin"}
	for _, tc := range []struct {
		name        string
		flags       proxy.Config
		user, admin string
	}{
		{"flags win", proxy.Config{APIKey: "user", AdminAPIKey: "admin"}, "user", "admin"},
		{"the environment has both", proxy.Config{}, "env-user", "env-admin"},
		{"or what is left", proxy.Config{APIKey: "user"}, "user", "env-admin"},
	} {
		o := options{proxy: tc.flags}
		if o.keys(func(name string) string { return env[name] }); o.proxy.APIKey != tc.user || o.proxy.AdminAPIKey != tc.admin {
			t.Errorf("%s: %q and %q", tc.name, o.proxy.APIKey, o.proxy.AdminAPIKey)
		}
	}
}

// TestDrain ends the router while an answer streams: health checks fail at once, new requests are still served for a
// moment, the stream is whole, and the program ends without an error.
func TestDrain(t *testing.T) {
	goOn := make(chan struct{})
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/generate" {
			fmt.Fprint(w, "one\n")
			w.(http.Flusher).Flush()
			<-goOn
			fmt.Fprint(w, "two\n")
		}
	}))
	defer engine.Close()
	addresses := make(chan net.Addr, 1)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	o := options{
		host: "127.0.0.1", worker: []string{engine.URL}, healthInterval: 10 * time.Millisecond, policy: "least-load", quarantine: time.Second,
		maxWaiting: 10, drainAccept: 100 * time.Millisecond, drainTimeout: patience, listening: func(a net.Addr) { addresses <- a },
	}
	o.proxy.MaxBodyBytes, o.proxy.ReadTimeout, o.proxy.WriteTimeout, o.proxy.DialTimeout, o.proxy.QueueTimeout = 1000, patience, patience, patience, patience
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, o, slog.New(slog.DiscardHandler)) }()
	url := "http://" + (<-addresses).String()

	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	resp, err := client.Post(url+"/generate", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer := bufio.NewReader(resp.Body)
	if line, err := answer.ReadString('\n'); line != "one\n" {
		t.Fatalf("first line %q, %v", line, err)
	}
	stop()
	limit := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for draining := false; !draining; {
		if health, err := client.Get(url + "/health"); err == nil {
			draining = health.StatusCode == http.StatusServiceUnavailable
			health.Body.Close()
		} else {
			draining = true // past --drain-accept
		}
		select {
		case <-tick.C:
		case err := <-ended:
			t.Fatalf("ended before its request: %v", err)
		case <-limit:
			t.Fatal("health checks do not fail")
		}
	}
	close(goOn)
	rest, err := io.ReadAll(answer)
	if d := cmp.Diff("two\n", string(rest)); d != "" || err != nil {
		t.Errorf("rest of the answer: %v (-want +got):\n%s", err, d)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("did not end")
	}
}

// TestDrainTimeout ends a router whose request never does.
func TestDrainTimeout(t *testing.T) {
	began := make(chan struct{})
	engine := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/generate" {
			io.Copy(io.Discard, r.Body) // so that the end of the client is noticed
			close(began)
			<-r.Context().Done()
		}
	}))
	defer engine.Close()
	addresses := make(chan net.Addr, 1)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	o := options{
		host: "127.0.0.1", worker: []string{engine.URL}, healthInterval: 10 * time.Millisecond, policy: "round-robin", quarantine: time.Second,
		maxWaiting: 10, drainAccept: time.Millisecond, drainTimeout: 50 * time.Millisecond, listening: func(a net.Addr) { addresses <- a },
	}
	o.proxy.MaxBodyBytes, o.proxy.ReadTimeout, o.proxy.WriteTimeout, o.proxy.DialTimeout, o.proxy.QueueTimeout = 1000, patience, patience, patience, patience
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, o, slog.New(slog.DiscardHandler)) }()
	url := "http://" + (<-addresses).String()
	transport := &http.Transport{DisableKeepAlives: true}
	failed := make(chan error, 1)
	go func() {
		resp, err := (&http.Client{Transport: transport}).Post(url+"/generate", "application/json", strings.NewReader("{}"))
		if err == nil {
			resp.Body.Close()
		}
		failed <- err
	}()
	<-began
	stop()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "--drain-timeout") {
		t.Errorf("ended with %v, want an error that names --drain-timeout", err)
	}
	if err := <-failed; err == nil {
		t.Error("the client got an answer")
	}
}
