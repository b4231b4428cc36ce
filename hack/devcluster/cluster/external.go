package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sluice-dev/sluice/hack/devcluster/controlplane"
)

// External is a cluster that the user already has, named by KUBECONFIG.
type External struct {
	// Kubeconfig is the value of KUBECONFIG.
	Kubeconfig string
	// Server is the address of its API server.
	Server string
}

// FindExternal returns the cluster that a value of KUBECONFIG names. It is nil if the value is empty or names the
// kubeconfig of c itself: exporting that must not change what the commands do.
func (c *Cluster) FindExternal(kubeconfig string) (*External, error) {
	if kubeconfig == "" || same(kubeconfig, c.KubeconfigPath()) {
		return nil, nil
	}
	rules := &clientcmd.ClientConfigLoadingRules{Precedence: filepath.SplitList(kubeconfig)}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("use the cluster that KUBECONFIG=%s names (unset it to use the dev cluster): %w", kubeconfig, err)
	}
	return &External{Kubeconfig: kubeconfig, Server: config.Host}, nil
}

// Check returns an error unless the cluster answers.
func (e *External) Check(ctx context.Context) error {
	rules := &clientcmd.ClientConfigLoadingRules{Precedence: filepath.SplitList(e.Kubeconfig)}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err == nil {
		config.Timeout = 10 * time.Second
		var client kubernetes.Interface
		if client, err = kubernetes.NewForConfig(config); err == nil {
			err = controlplane.Ready(ctx, client)
		}
	}
	if err != nil {
		return fmt.Errorf("the cluster that KUBECONFIG=%s names does not answer (unset it to use the dev cluster): %w", e.Kubeconfig, err)
	}
	return nil
}

// same reports whether two paths name the same file, existing or not.
func same(a, b string) (same bool) {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	first, err := os.Stat(a)
	if err != nil {
		return false
	}
	second, err := os.Stat(b)
	return err == nil && os.SameFile(first, second)
}
