package reach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// Target is a port of a pod.
type Target struct {
	Namespace, Pod string
	Port           int32
}

// String gives NAMESPACE/POD:PORT.
func (t Target) String() string { return fmt.Sprintf("%s/%s:%d", t.Namespace, t.Pod, t.Port) }

// Limits bound what a command may do to the API server and how long it may wait.
type Limits struct {
	Tunnels int           // that are open at once
	Timeout time.Duration // of one request, with its tunnel
	Bytes   int64         // of one answer
}

// DefaultLimits are those of every command.
func DefaultLimits() Limits { return Limits{Tunnels: 8, Timeout: 10 * time.Second, Bytes: 64 << 20} }

// Pods asks pods. Safe for concurrent use.
type Pods struct {
	config *rest.Config
	client rest.Interface
	limits Limits
	token  string // bearer token of engines that have keys; "" sends none
	slots  chan struct{}
}

// New makes Pods. token is what engines with --api-key want to hear; empty for those without.
func New(config *rest.Config, token string, limits Limits) (*Pods, error) {
	config = rest.CopyConfig(config)
	config.Timeout = 0 // of a tunnel; requests have their own
	if config.Dial == nil {
		config.Dial = (&net.Dialer{Timeout: limits.Timeout}).DialContext
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return &Pods{config: config, client: client.CoreV1().RESTClient(), limits: limits, token: token, slots: make(chan struct{}, limits.Tunnels)}, nil
}

// StatusError is an answer other than 200.
type StatusError struct {
	Target Target
	Path   string
	Status int
	Body   string // its beginning, as one line
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("GET %s of %s: status %d: %s", e.Path, e.Target, e.Status, e.Body)
}

// Getter asks one pod while its tunnel is open.
type Getter func(path string) (body []byte, err error)

// Visit opens a tunnel to a pod, lets ask use it and closes it. It waits for one of the tunnels that may be open at once. ask
// runs in the calling goroutine; the time of each request is bounded, and all end when ctx does.
func (p *Pods) Visit(ctx context.Context, target Target, ask func(Getter) error) error {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-p.slots }()
	dialer, err := p.dialer(target)
	if err != nil {
		return fmt.Errorf("reach %s: %w", target, err)
	}
	opening, cancel := context.WithTimeout(ctx, p.limits.Timeout)
	defer cancel()
	t, err := open(opening, dialer)
	if err != nil {
		return p.failure(ctx, target, err)
	}
	defer t.close()
	transport := &http.Transport{
		DialContext:           func(context.Context, string, string) (net.Conn, error) { return t.connect(target.Port) },
		MaxConnsPerHost:       2,
		ResponseHeaderTimeout: p.limits.Timeout,
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{
		Transport:     transport,
		Timeout:       p.limits.Timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return ask(func(path string) ([]byte, error) { return p.get(ctx, client, target, path) })
}

// Get asks a pod one question.
func (p *Pods) Get(ctx context.Context, target Target, path string) (body []byte, err error) {
	err = p.Visit(ctx, target, func(get Getter) error {
		body, err = get(path)
		return err
	})
	return body, err
}

func (p *Pods) get(ctx context.Context, client *http.Client, target Target, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://pod"+path, nil)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", target, err)
	}
	if p.token != "" {
		request.Header.Set("Authorization", "Bearer "+p.token)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, p.failure(ctx, target, err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, p.limits.Bytes+1))
	switch {
	case err != nil:
		return nil, p.failure(ctx, target, err)
	case int64(len(body)) > p.limits.Bytes:
		return nil, fmt.Errorf("GET %s of %s: the answer is larger than %d bytes", path, target, p.limits.Bytes)
	case response.StatusCode != http.StatusOK:
		return nil, &StatusError{Target: target, Path: path, Status: response.StatusCode, Body: oneLine(body)}
	}
	return body, nil
}

// ErrForbidden says that the user may not open port-forwards to pods of a namespace.
var ErrForbidden = errors.New("forbidden")

// failure says what went wrong on the way to a pod and what to do about it.
func (p *Pods) failure(ctx context.Context, target Target, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	text := strings.ToLower(err.Error())
	var timeout net.Error
	switch {
	case strings.Contains(text, "forbidden"):
		return fmt.Errorf("reach pod %s: %w: ask for the right to create pods/portforward in namespace %s", target, ErrForbidden, target.Namespace)
	case strings.Contains(text, "connection refused"):
		return fmt.Errorf("reach pod %s: nobody listens on the port: the process starts or has ended; see kubectl logs -n %s %s", target, target.Namespace, target.Pod)
	case errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("reach pod %s: no answer within %s: see kubectl describe pod -n %s %s", target, p.limits.Timeout, target.Namespace, target.Pod)
	default:
		return fmt.Errorf("reach pod %s: %w", target, err)
	}
}

// dialer dials over a websocket, and over SPDY where an API server or a proxy before it can't.
func (p *Pods) dialer(target Target) (httpstream.Dialer, error) {
	url := p.client.Post().Resource("pods").Namespace(target.Namespace).Name(target.Pod).SubResource("portforward").URL()
	roundTripper, upgrader, err := spdy.RoundTripperFor(p.config)
	if err != nil {
		return nil, err
	}
	overSPDY := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: roundTripper}, http.MethodPost, url)
	overWebsocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, p.config)
	if err != nil {
		return nil, err
	}
	return portforward.NewFallbackDialerForStreaming(overWebsocket, overSPDY, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}

// oneLine gives the beginning of a body on one line.
func oneLine(body []byte) string {
	const limit = 300
	text := strings.Join(strings.Fields(string(body[:min(len(body), limit)])), " ")
	if text == "" {
		return "(no body)"
	}
	return text
}
