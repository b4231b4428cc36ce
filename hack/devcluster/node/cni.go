package node

import (
	"encoding/json"
	"fmt"
	"net"
)

// cniConfig renders the pod network: a routed link of its own for each pod, so that all traffic, also between
// pods of this node, passes the host's network stack and kube-proxy's rules without a bridge; host ports; and
// permission to forward where the host's default forbids it.
func (c Config) cniConfig() ([]byte, error) {
	gateway, err := firstAddress(c.Pods)
	if err != nil {
		return nil, fmt.Errorf("render the pod network: %w", err)
	}
	data, err := json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0",
		"name":       Network,
		"plugins": []map[string]any{
			{
				"type":   "ptp",
				"ipMasq": true,
				"ipam": map[string]any{
					"type":    "host-local",
					"dataDir": c.path("cni"),
					"ranges":  [][]map[string]string{{{"subnet": c.Pods.String(), "gateway": gateway.String()}}},
					"routes":  []map[string]string{{"dst": "0.0.0.0/0"}},
				},
			},
			{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}},
			{"type": "firewall", "backend": "iptables"},
		},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("render the pod network: %w", err)
	}
	return append(data, '\n'), nil
}

// firstAddress returns the first usable address of an IPv4 network.
func firstAddress(network net.IPNet) (net.IP, error) {
	base := network.IP.To4()
	if base == nil {
		return nil, fmt.Errorf("network %s is not IPv4", network.String())
	}
	return net.IPv4(base[0], base[1], base[2], base[3]+1).To4(), nil
}
