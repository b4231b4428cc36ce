package node

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"
)

// EnsureServiceRoute lets this host call Services where it has no default route, as a machine that is offline.
// The kernel refuses a connection to an address without a route before kube-proxy's rules can redirect it, so such
// a host gets a route for the Services that only has to exist.
func EnsureServiceRoute(ctx context.Context, address net.IP, services net.IPNet) error {
	// No packet is sent: connecting a UDP socket only asks for a route.
	connection, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: services.IP, Port: 9})
	if err == nil {
		return connection.Close()
	}
	output, err := exec.CommandContext(ctx, "ip", "route", "replace", services.String(), "dev", "lo", "src", address.String()).CombinedOutput()
	if err != nil {
		return fmt.Errorf("add a route for Services: %w: %s", err, strings.TrimSpace(string(output)))
	}
	return nil
}
