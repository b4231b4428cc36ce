package cluster

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sluice-dev/sluice/hack/devcluster/controlplane"
)

// requestTimeout bounds one request to the API server while it is being waited for.
const requestTimeout = 5 * time.Second

// maxRestarts is how often a program is started again while something is being waited for.
const maxRestarts = 3

// adminClient returns a client that may do everything.
func adminClient(plane controlplane.Config) (kubernetes.Interface, error) {
	config, err := plane.RESTConfig(controlplane.UserAdmin)
	if err != nil {
		return nil, err
	}
	config.Timeout = requestTimeout
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for the cluster: %w", err)
	}
	return client, nil
}

// waitServer waits until the API server can be used.
func (c *Cluster) waitServer(ctx context.Context, plane controlplane.Config, programs []component) error {
	client, err := adminClient(plane)
	if err != nil {
		return err
	}
	return c.waitFor(ctx, "the API server", programs, func(ctx context.Context) error {
		return controlplane.Ready(ctx, client)
	})
}

// waitNode waits until the node has said after since that it is ready for pods, and the controllers have begun.
func (c *Cluster) waitNode(ctx context.Context, plane controlplane.Config, since time.Time, programs []component) error {
	client, err := adminClient(plane)
	if err != nil {
		return err
	}
	return c.waitFor(ctx, "the node", programs, func(ctx context.Context) error {
		if err := nodeReady(ctx, client, c.nodeName(), since); err != nil {
			return err
		}
		_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// waitFor polls ready until it returns nil. Meanwhile it starts programs that have ended again: some give up when
// others are slow to come. It fails, with the end of its log, when one has ended too often.
func (c *Cluster) waitFor(ctx context.Context, what string, programs []component, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	var refusal error
	restarts := map[string]int{}
	err := poll(ctx, func() (bool, error) {
		for _, program := range programs {
			ended := c.died(program.name)
			if ended == nil {
				continue
			}
			if restarts[program.name] == maxRestarts {
				return false, ended
			}
			restarts[program.name]++
			if _, err := c.ensure(ctx, program); err != nil {
				return false, err
			}
			c.logf("%s had ended: started it again", program.name)
		}
		refusal = ready(ctx)
		return refusal == nil, nil
	})
	if err == nil {
		return nil
	}
	if refusal != nil {
		return fmt.Errorf("wait for %s: %w (last: %w)", what, err, refusal)
	}
	return fmt.Errorf("wait for %s: %w", what, err)
}

// nodeReady returns nil if the node's last word is that it is ready and came after since, and otherwise why not.
// What a node said before its kubelet was restarted proves nothing.
func nodeReady(ctx context.Context, client kubernetes.Interface, name string, since time.Time) error {
	found, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read node %s: %w", name, err)
	}
	for _, condition := range found.Status.Conditions {
		if condition.Type != corev1.NodeReady {
			continue
		}
		// The API has times in whole seconds.
		if condition.LastHeartbeatTime.Time.Before(since.Truncate(time.Second)) {
			return fmt.Errorf("node %s has not reported since %s", name, since.Format(time.TimeOnly))
		}
		if condition.Status == corev1.ConditionTrue {
			return nil
		}
		return fmt.Errorf("node %s is not ready: %s", name, condition.Message)
	}
	return fmt.Errorf("node %s has not reported yet", name)
}
