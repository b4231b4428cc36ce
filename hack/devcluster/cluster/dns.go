package cluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sluice-dev/sluice/hack/devcluster/controlplane"
	"github.com/sluice-dev/sluice/hack/devcluster/node"
)

const (
	// dnsServiceNumber is the number of the name server's address in the Service network.
	dnsServiceNumber = 10
	// dnsName is the name of the name server's objects.
	dnsName = "kube-dns"
	// dnsUser is the name that the name server's certificate carries.
	dnsUser = "system:coredns"
)

// ensureDNSService makes the Service through which pods reach the name server, which is a program of the host
// and no pod, and lets that program read what it answers from.
func (c *Cluster) ensureDNSService(ctx context.Context, plane controlplane.Config, machine node.Config) error {
	client, err := adminClient(plane)
	if err != nil {
		return err
	}
	meta := metav1.ObjectMeta{Name: dnsName, Namespace: metav1.NamespaceSystem}
	service := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{ClusterIP: machine.DNS.String(), Ports: []corev1.ServicePort{
		{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, TargetPort: intstr.FromInt32(node.DNSPort)},
		{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: 53, TargetPort: intstr.FromInt32(node.DNSPort)},
	}}}
	read := metav1.ObjectMeta{Name: dnsUser}
	role := &rbacv1.ClusterRole{ObjectMeta: read, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"services", "namespaces", "pods"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{discoveryv1.GroupName}, Resources: []string{"endpointslices"}, Verbs: []string{"list", "watch"}},
	}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: read,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: dnsUser},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: dnsUser}},
	}
	slices := client.DiscoveryV1().EndpointSlices(meta.Namespace)
	for _, create := range []func() error{
		func() error {
			// A second creation would be refused for its address, not for its name.
			_, err := client.CoreV1().Services(meta.Namespace).Get(ctx, dnsName, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				_, err = client.CoreV1().Services(meta.Namespace).Create(ctx, service, metav1.CreateOptions{})
			}
			return err
		},
		func() error {
			_, err := client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
			return err
		},
		func() error {
			_, err := client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
			return err
		},
		func() error {
			_, err := slices.Create(ctx, dnsEndpoints(meta, machine), metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				// The host's address may have changed.
				_, err = slices.Update(ctx, dnsEndpoints(meta, machine), metav1.UpdateOptions{})
			}
			return err
		},
	} {
		if err := create(); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("make the Service of the name server: %w", err)
		}
	}
	return nil
}

// dnsEndpoints leads the Service to the program on the node.
func dnsEndpoints(meta metav1.ObjectMeta, machine node.Config) *discoveryv1.EndpointSlice {
	meta.Labels = map[string]string{discoveryv1.LabelServiceName: dnsName}
	port := func(name string, protocol corev1.Protocol) discoveryv1.EndpointPort {
		number := int32(node.DNSPort)
		return discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &number}
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  meta,
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{machine.Address.String()}}},
		Ports:       []discoveryv1.EndpointPort{port("dns", corev1.ProtocolUDP), port("dns-tcp", corev1.ProtocolTCP)},
	}
}
