package controlplane

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// readyPoll is how often an API server is asked whether it is ready.
const readyPoll = 100 * time.Millisecond

// RESTConfig returns the client configuration of a user of EnsureCredentials.
func (c Config) RESTConfig(user string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.KubeconfigPath(user))
	if err != nil {
		return nil, fmt.Errorf("load the kubeconfig of %s: %w", user, err)
	}
	return config, nil
}

// WaitReady returns once the API server behind config is ready and has made its first namespaces, or with the
// last refusal when ctx ends, or with the error that lost delivers, which says why the server will never come.
func WaitReady(ctx context.Context, config *rest.Config, lost <-chan error) error {
	config = rest.CopyConfig(config)
	config.Timeout = 5 * time.Second
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client for the API server: %w", err)
	}
	ticker := time.NewTicker(readyPoll)
	defer ticker.Stop()
	for {
		refusal := Ready(ctx, client)
		if refusal == nil {
			return nil
		}
		select {
		case err := <-lost:
			return err
		case <-ctx.Done():
			return fmt.Errorf("wait for the API server at %s: %w; its last answer: %w", config.Host, ctx.Err(), refusal)
		case <-ticker.C:
		}
	}
}

// Ready asks once whether the API server can be used, and says what is missing otherwise.
func Ready(ctx context.Context, client kubernetes.Interface) error {
	if err := client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); err != nil {
		return fmt.Errorf("ask /readyz: %w", err)
	}
	if _, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{}); err != nil {
		return fmt.Errorf("read the namespace %s: %w", metav1.NamespaceDefault, err)
	}
	return nil
}
