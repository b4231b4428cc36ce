package footprint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"time"
)

// ownedLinks returns the names of the host's network links with an address of the pod network: the host's ends
// of the pods' links, which carry the pods' gateway address.
func ownedLinks(pods net.IPNet) ([]string, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network links: %w", err)
	}
	var found []string
	for _, link := range interfaces {
		addresses, err := link.Addrs()
		if err != nil {
			continue // It went away meanwhile.
		}
		for _, address := range addresses {
			if network, ok := address.(*net.IPNet); ok && pods.Contains(network.IP) {
				found = append(found, link.Name)
				break
			}
		}
	}
	return found, nil
}

// removeLinks waits until the kernel has removed the links of namespaces that are gone, and removes the others.
func removeLinks(ctx context.Context, pods net.IPNet) error {
	deadline, cancel := context.WithTimeout(ctx, linkWait)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		links, err := ownedLinks(pods)
		if err != nil || len(links) == 0 {
			return err
		}
		select {
		case <-ticker.C:
			continue
		case <-deadline.Done():
		}
		var errs []error
		for _, link := range links {
			output, err := exec.CommandContext(ctx, "ip", "link", "delete", link).CombinedOutput()
			if err != nil && !strings.Contains(string(output), "Cannot find device") {
				errs = append(errs, fmt.Errorf("remove network link %s: %w: %s", link, err, strings.TrimSpace(string(output))))
			}
		}
		return errors.Join(errs...)
	}
}
