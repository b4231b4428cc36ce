// Command hello is the workload of the dev cluster's own tests: a server that answers over HTTP, fetches what it
// is told to, and stands for an aggregated API over TLS.
//
//	hello serve       serve HTTP on :8080 and the API group hello.sluice.dev over HTTPS on :8443
//	hello say TEXT    print TEXT (for exec)
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/hack/devcluster/pki"
)

// group is the API group that is served over TLS.
var group = metav1.GroupVersion{Group: "hello.sluice.dev", Version: "v1"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "hello:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "say":
		fmt.Println(args[1])
		return nil
	case len(args) == 1 && args[0] == "serve":
		return serve(ctx)
	}
	return errors.New("usage: hello serve | hello say TEXT")
}

func serve(ctx context.Context) error {
	certificate, err := selfSigned()
	if err != nil {
		return err
	}
	plain := &http.Server{Addr: ":8080", Handler: pages(), ReadHeaderTimeout: 5 * time.Second}
	secure := &http.Server{
		Addr: ":8443", Handler: api(), ReadHeaderTimeout: 5 * time.Second,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
	}
	ended := make(chan error, 2)
	go func() { ended <- plain.ListenAndServe() }()
	go func() { ended <- secure.ListenAndServeTLS("", "") }()
	log.Print("hello is serving")
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return errors.Join(plain.Close(), secure.Close())
	}
}

// pages answers with the pod's name, and fetches a page for whoever wants to know what a pod can reach.
func pages() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /name", func(w http.ResponseWriter, _ *http.Request) {
		name, err := os.Hostname()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, name)
	})
	mux.HandleFunc("GET /fetch", func(w http.ResponseWriter, r *http.Request) {
		request, err := http.NewRequestWithContext(r.Context(), http.MethodGet, r.URL.Query().Get("url"), nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		// Each fetch connects anew, so that it shows what a new connection reaches.
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
		response, err := client.Do(request)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer func() { _ = response.Body.Close() }()
		w.WriteHeader(response.StatusCode)
		_, _ = io.Copy(w, response.Body)
	})
	return mux
}

// api serves the discovery document of the group, whose only resource does not exist but can be listed.
func api() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /apis/hello.sluice.dev/v1", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: group.String(),
			APIResources: []metav1.APIResource{{Name: "greetings", SingularName: "greeting", Kind: "Greeting", Verbs: metav1.Verbs{"list"}}},
		})
	})
	mux.HandleFunc("GET /apis/hello.sluice.dev/v1/greetings", func(w http.ResponseWriter, r *http.Request) {
		// The front proxy says who asks.
		writeJSON(w, map[string]string{"kind": "GreetingList", "apiVersion": group.String(), "user": r.Header.Get("X-Remote-User")})
	})
	return mux
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}

func selfSigned() (tls.Certificate, error) {
	now := time.Now()
	authority, err := pki.NewAuthority("hello", now)
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := authority.Issue(pki.Subject{CommonName: "hello", DNSNames: []string{"hello"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}}, now)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
}
