package trial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// Reach gives a base URL under which a Service of the cluster answers from this machine: its cluster address where that
// can be dialled, else a forwarded port to one of its pods. stop ends the forwarding.
func (t *Trial) Reach(ctx context.Context, namespace, service string) (base string, stop func(), err error) {
	var svc corev1.Service
	if err := t.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: service}, &svc); err != nil {
		return "", nil, err
	}
	if len(svc.Spec.Ports) == 0 {
		return "", nil, fmt.Errorf("service %s/%s has no port", namespace, service)
	}
	addr := net.JoinHostPort(svc.Spec.ClusterIP, strconv.Itoa(int(svc.Spec.Ports[0].Port)))
	dialer := net.Dialer{Timeout: time.Second}
	if conn, err := dialer.DialContext(ctx, "tcp", addr); err == nil {
		conn.Close()
		return "http://" + addr, func() {}, nil
	}
	var pods corev1.PodList
	if err := t.Client.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels(svc.Spec.Selector)); err != nil {
		return "", nil, err
	}
	for _, pod := range pods.Items {
		if pod.Status.Phase == corev1.PodRunning {
			return t.forward(ctx, namespace, pod.Name, svc.Spec.Ports[0].TargetPort.IntValue())
		}
	}
	return "", nil, fmt.Errorf("service %s/%s has no running pod", namespace, service)
}

func (t *Trial) forward(ctx context.Context, namespace, pod string, port int) (string, func(), error) {
	if port == 0 {
		port = v1alpha1.DefaultRouterPort
	}
	clientset, err := kubernetes.NewForConfig(t.Config)
	if err != nil {
		return "", nil, err
	}
	transport, upgrader, err := spdy.RoundTripperFor(t.Config)
	if err != nil {
		return "", nil, err
	}
	target := clientset.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("portforward").URL()
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, target)
	ready, end, failed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	forwarder, err := portforward.New(dialer, []string{fmt.Sprintf("0:%d", port)}, end, ready, io.Discard, io.Discard)
	if err != nil {
		return "", nil, err
	}
	go func() { failed <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-failed:
		return "", nil, fmt.Errorf("forward a port to pod %s/%s: %w", namespace, pod, errors.Join(err, errors.New("the connection ended")))
	case <-ctx.Done():
		close(end)
		return "", nil, ctx.Err()
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		close(end)
		return "", nil, err
	}
	return fmt.Sprintf("http://127.0.0.1:%d", ports[0].Local), func() { close(end) }, nil
}

// PodGet does a GET on the http port of an engine pod through the API server, for example of /metrics.
func (t *Trial) PodGet(ctx context.Context, pod *corev1.Pod, path string) ([]byte, error) {
	clientset, err := kubernetes.NewForConfig(t.Config)
	if err != nil {
		return nil, err
	}
	return clientset.CoreV1().RESTClient().Get().Namespace(pod.Namespace).Resource("pods").
		Name(fmt.Sprintf("%s:%d", pod.Name, v1alpha1.DefaultEnginePort)).SubResource("proxy").Suffix(path).DoRaw(ctx)
}
