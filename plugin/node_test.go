package plugin_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// node plays the kubelet for the API server: port-forwards to servers of the test, and logs.
type node struct {
	server *httptest.Server

	mu    sync.Mutex
	ports map[string]http.Handler // by NAMESPACE/POD:PORT
	logs  map[string]string       // by NAMESPACE/POD
	open  map[string]*httptest.Server
	most  int // tunnels that were open at once
	now   int
	hold  chan struct{} // closed: answers go on; nil: they are not held
}

func startNode() *node {
	n := &node{ports: map[string]http.Handler{}, logs: map[string]string{}, open: map[string]*httptest.Server{}}
	n.server = httptest.NewTLSServer(n)
	return n
}

func (n *node) stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.open {
		s.CloseClientConnections()
		s.Close()
	}
	n.server.CloseClientConnections()
	n.server.Close()
}

func (n *node) port() int32 {
	u, _ := url.Parse(n.server.URL)
	port, _ := strconv.ParseInt(u.Port(), 10, 32)
	return int32(port)
}

// serve makes a handler answer on a port of a pod.
func (n *node) serve(namespace, pod string, port int32, handler http.Handler) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name := fmt.Sprintf("%s/%s:%d", namespace, pod, port)
	if old := n.open[name]; old != nil {
		old.CloseClientConnections()
		old.Close()
	}
	n.open[name] = httptest.NewServer(handler)
}

func (n *node) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(parts) == 3 && parts[0] == "portForward":
		n.forward(w, r, parts[1]+"/"+parts[2])
	case len(parts) == 4 && parts[0] == "containerLogs":
		n.mu.Lock()
		text := n.logs[parts[1]+"/"+parts[2]]
		n.mu.Unlock()
		_, _ = io.WriteString(w, text)
		if r.URL.Query().Get("follow") == "true" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
	default:
		http.NotFound(w, r)
	}
}

func (n *node) forward(w http.ResponseWriter, r *http.Request, pod string) {
	n.mu.Lock()
	n.now++
	n.most = max(n.most, n.now)
	hold := n.hold
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.now--
	}()
	if _, err := httpstream.Handshake(r, w, []string{"portforward.k8s.io"}); err != nil {
		return
	}
	streams := make(chan httpstream.Stream, 16)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		streams <- s
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close()
	failures := map[string]httpstream.Stream{}
	for {
		select {
		case <-conn.CloseChan():
			return
		case s := <-streams:
			id := s.Headers().Get(corev1.PortForwardRequestIDHeader)
			if s.Headers().Get(corev1.StreamType) == corev1.StreamTypeError {
				failures[id] = s
				continue
			}
			go n.pipe(pod+":"+s.Headers().Get(corev1.PortHeader), s, failures[id], hold)
		}
	}
}

func (n *node) pipe(name string, data, failure httpstream.Stream, hold chan struct{}) {
	defer failure.Close()
	if hold != nil {
		<-hold
	}
	n.mu.Lock()
	server := n.open[name]
	n.mu.Unlock()
	if server == nil {
		fmt.Fprintf(failure, "dial tcp4 127.0.0.1: connect: connection refused")
		return
	}
	to, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		fmt.Fprint(failure, err)
		return
	}
	defer to.Close()
	go func() {
		_, _ = io.Copy(to, data)
		_ = to.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(data, to)
	_ = data.Close()
}
