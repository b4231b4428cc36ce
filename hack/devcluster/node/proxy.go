package node

import (
	"encoding/json"
	"fmt"
)

// proxyConfig renders kube-proxy's configuration as JSON, which is YAML too. Connection tracking limits are
// left as the host has them.
func (c Config) proxyConfig() ([]byte, error) {
	data, err := json.MarshalIndent(map[string]any{
		"apiVersion":         "kubeproxy.config.k8s.io/v1alpha1",
		"kind":               "KubeProxyConfiguration",
		"mode":               "iptables",
		"hostnameOverride":   c.Name,
		"clientConnection":   map[string]any{"kubeconfig": c.ProxyKubeconfig},
		"clusterCIDR":        c.Pods.String(),
		"healthzBindAddress": "127.0.0.1:10256",
		"metricsBindAddress": "127.0.0.1:10249",
		"iptables":           map[string]any{"minSyncPeriod": "100ms"},
		"conntrack": map[string]any{
			"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
		},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("render kube-proxy's configuration: %w", err)
	}
	return append(data, '\n'), nil
}

// ProxyArgs returns kube-proxy's command line.
func (c Config) ProxyArgs() []string { return []string{"--config=" + c.ProxyFile()} }
