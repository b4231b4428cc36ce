package controlplane

// etcd listens on Unix sockets alone: they need no free port and the permissions of Config.Dir guard them. etcd
// takes the part after the scheme as a file name relative to its working directory, and insists on a port in it.
const (
	etcdClientURL = "unix://etcd-client:0"
	etcdPeerURL   = "unix://etcd-peer:0"
)

// EtcdArgs returns etcd's command line. It must run in Dir.
//
// etcd does not wait for the disk: a development cluster is recreated, not recovered, after a power cut.
func (c Config) EtcdArgs() []string {
	const name = "devcluster"
	return []string{
		"--name=" + name,
		"--data-dir=" + c.Path("etcd"),
		"--listen-client-urls=" + etcdClientURL,
		"--advertise-client-urls=" + etcdClientURL,
		"--listen-peer-urls=" + etcdPeerURL,
		"--initial-advertise-peer-urls=" + etcdPeerURL,
		"--initial-cluster=" + name + "=" + etcdPeerURL,
		"--unsafe-no-fsync",
		"--log-level=warn",
	}
}
