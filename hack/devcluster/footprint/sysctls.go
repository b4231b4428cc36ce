package footprint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// sysctls are the kernel settings that kubelet, kube-proxy and the CNI plugins change.
func sysctls() []string {
	return []string{
		"kernel/keys/root_maxbytes",
		"kernel/keys/root_maxkeys",
		"kernel/panic",
		"kernel/panic_on_oops",
		"net/bridge/bridge-nf-call-iptables",
		"net/ipv4/conf/all/route_localnet",
		"net/ipv4/ip_forward",
		"vm/overcommit_memory",
		"vm/panic_on_oom",
	}
}

// readSysctls returns the values of those settings that this kernel has.
func readSysctls() map[string]string {
	values := map[string]string{}
	for _, path := range sysctls() {
		if data, err := os.ReadFile(filepath.Join("/proc/sys", path)); err == nil {
			values[path] = strings.TrimSpace(string(data))
		}
	}
	return values
}

// changedSysctls returns the settings of before whose value now differs, with their value now.
func changedSysctls(before, now map[string]string) map[string]string {
	changed := map[string]string{}
	for path, value := range before {
		if current, ok := now[path]; ok && current != value {
			changed[path] = current
		}
	}
	return changed
}

// restoreSysctls writes back the values of before.
func restoreSysctls(before map[string]string) error {
	var errs []error
	for path := range changedSysctls(before, readSysctls()) {
		if err := os.WriteFile(filepath.Join("/proc/sys", path), []byte(before[path]), 0o644); err != nil {
			errs = append(errs, fmt.Errorf("restore the kernel setting %s=%s: %w", path, before[path], err))
		}
	}
	return errors.Join(errs...)
}
