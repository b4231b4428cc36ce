// Package apiserver runs a real Kubernetes API server with its etcd, and nothing else, for tests.
//
// It works for any user, takes no fixed port, and any number may run at once. There is no controller and no
// node: a Deployment makes no pods, a deleted namespace stays in Terminating, owner references collect nothing,
// and service accounts are not given to pods. CustomResourceDefinitions, defaulting, CEL validation, subresources, RBAC,
// watches and API aggregation are all real.
//
//	server, err := apiserver.Start(ctx, apiserver.Options{})
//	if err != nil { ... }
//	defer server.Stop()
//	client, err := kubernetes.NewForConfig(server.Config)
//
// It must not know what is tested. Callers: integration tests; start one in TestMain and share it.
package apiserver
