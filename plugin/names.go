package plugin

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

// ServiceNames lists the services of the namespace, for completion.
func (p *Plugin) ServiceNames(ctx context.Context) ([]string, error) {
	services, err := p.Cluster.Services(ctx, p.Cluster.Namespace)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(services))
	for _, service := range services {
		names = append(names, service.Name)
	}
	return names, nil
}

// PoolNames lists the pools of a service, for completion.
func (p *Plugin) PoolNames(ctx context.Context, name string) ([]string, error) {
	service, err := p.Cluster.Service(ctx, name)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(service.Spec.Pools))
	for _, pool := range service.Spec.Pools {
		names = append(names, pool.Name)
	}
	return names, nil
}

// Namespaces lists the namespaces, for completion.
func (p *Plugin) Namespaces(ctx context.Context) ([]string, error) {
	var list corev1.NamespaceList
	if err := p.Cluster.Client.List(ctx, &list); err != nil {
		return nil, p.Cluster.Explain(err, "list namespaces", "")
	}
	names := make([]string, 0, len(list.Items))
	for _, namespace := range list.Items {
		names = append(names, namespace.Name)
	}
	return names, nil
}
