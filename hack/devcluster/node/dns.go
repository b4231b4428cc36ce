package node

import (
	"fmt"
	"os"
	"strings"

	"github.com/sluice-dev/sluice/hack/devcluster/controlplane"
)

// DNSPort is where the name server listens on the node's address. The Service of the cluster's DNS leads there.
const DNSPort = 10053

// dnsConfig renders the name server's Corefile. Answers are not kept: a pod that has gone is gone at once.
func (c Config) dnsConfig() []byte {
	var out strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }
	line(".:%d {", DNSPort)
	line("    bind %s", c.Address)
	line("    errors")
	line("    kubernetes %s in-addr.arpa ip6.arpa {", controlplane.Domain)
	line("        kubeconfig %s", c.DNSKubeconfig)
	line("        fallthrough in-addr.arpa ip6.arpa")
	line("        ttl 0")
	line("    }")
	if c.ForwardDNS != "" {
		line("    forward . %s", c.ForwardDNS)
	}
	line("}")
	return []byte(out.String())
}

// DNSArgs returns the name server's command line.
func (c Config) DNSArgs() []string { return []string{"-conf", c.DNSFile()} }

// HostResolver returns the host's resolv.conf, or "" if it names no server.
func HostResolver() string {
	const path = "/etc/resolv.conf"
	data, err := os.ReadFile(path)
	if err != nil || !namesServer(string(data)) {
		return ""
	}
	return path
}

// namesServer reports whether a resolv.conf has a line "nameserver ADDRESS".
func namesServer(resolvConf string) (named bool) {
	for _, line := range strings.Split(resolvConf, "\n") {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == "nameserver" {
			return true
		}
	}
	return false
}
