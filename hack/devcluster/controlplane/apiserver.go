package controlplane

import "strconv"

// frontProxyUser is the name under which the API server calls aggregated API servers. They learn from the
// ConfigMap extension-apiserver-authentication to believe what it says about users.
const frontProxyUser = "front-proxy-client"

// APIServerArgs returns kube-apiserver's command line. It must run in Dir, where etcd's socket is.
func (c Config) APIServerArgs() []string {
	args := []string{
		"--etcd-servers=" + etcdClientURL,
		"--bind-address=" + c.Address.String(),
		"--advertise-address=" + c.Address.String(),
		"--secure-port=" + strconv.Itoa(c.Port),
		// The caller may hold the port with a socket of its own until the server has it.
		"--permit-port-sharing=true",
		"--tls-cert-file=" + c.CertPath("apiserver.crt"),
		"--tls-private-key-file=" + c.CertPath("apiserver.key"),
		"--client-ca-file=" + c.CertPath(FileCA),
		"--anonymous-auth=false",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--profiling=false",
		"--service-cluster-ip-range=" + c.ServiceRange.String(),

		"--service-account-issuer=https://kubernetes.default.svc." + Domain,
		"--service-account-key-file=" + c.CertPath("service-account.pub"),
		"--service-account-signing-key-file=" + c.CertPath("service-account.key"),

		// Aggregated APIs: requests go straight to the pods behind their Service.
		"--enable-aggregator-routing=true",
		"--proxy-client-cert-file=" + c.CertPath("front-proxy-client.crt"),
		"--proxy-client-key-file=" + c.CertPath("front-proxy-client.key"),
		"--requestheader-client-ca-file=" + c.CertPath("front-proxy-ca.crt"),
		"--requestheader-allowed-names=" + frontProxyUser,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",

		// Logs and exec: the kubelet's certificate is issued for the node's address.
		"--kubelet-client-certificate=" + c.CertPath("apiserver-kubelet-client.crt"),
		"--kubelet-client-key=" + c.CertPath("apiserver-kubelet-client.key"),
		"--kubelet-certificate-authority=" + c.CertPath(FileCA),
		"--kubelet-preferred-address-types=InternalIP",
	}
	if !c.ServiceAccounts {
		args = append(args, "--disable-admission-plugins=ServiceAccount")
	}
	return args
}
