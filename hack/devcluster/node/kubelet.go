package node

import (
	"encoding/json"
	"fmt"

	"github.com/sluice-dev/sluice/hack/devcluster/controlplane"
)

// KubeletPort is where the kubelet listens on the node's address.
const KubeletPort = 10250

// maxPods is below the number of addresses of a /24 network.
const maxPods = 200

// kubeletConfig renders the kubelet's configuration as JSON, which is YAML too.
func (c Config) kubeletConfig() ([]byte, error) {
	config := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",

		"address":           c.Address.String(),
		"port":              KubeletPort,
		"readOnlyPort":      0,
		"healthzPort":       0,
		"tlsCertFile":       c.KubeletCert,
		"tlsPrivateKeyFile": c.KubeletKey,
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": c.CAPath},
		},
		"authorization": map[string]any{"mode": "Webhook"},

		"containerRuntimeEndpoint": "unix://" + c.ContainerdSocket(),
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               c.CgroupRoot,
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"podLogsDir":               c.path("pods"),
		"volumePluginDir":          c.path("volume-plugins"),
		"clusterDNS":               []string{c.DNS.String()},
		"clusterDomain":            controlplane.Domain,
		"maxPods":                  maxPods,

		// The disk is the developer's: nothing is evicted before it is almost full, and images stay.
		"evictionHard": map[string]string{
			"memory.available": "64Mi", "nodefs.available": "1%", "imagefs.available": "1%", "nodefs.inodesFree": "1%",
		},
		"imageGCHighThresholdPercent": 100,

		// Pods start and stop one after the other in tests; a slower default would only make people wait.
		"syncFrequency":             "10s",
		"nodeStatusUpdateFrequency": "5s",
		"serializeImagePulls":       false,
	}
	data, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("render the kubelet's configuration: %w", err)
	}
	return append(data, '\n'), nil
}

// KubeletArgs returns the kubelet's command line.
func (c Config) KubeletArgs() []string {
	return []string{
		"--config=" + c.KubeletFile(),
		"--kubeconfig=" + c.KubeletKubeconfig,
		"--root-dir=" + c.path("kubelet"),
		"--cert-dir=" + c.path("kubelet", "pki"),
		"--hostname-override=" + c.Name,
		"--node-ip=" + c.Address.String(),
	}
}
