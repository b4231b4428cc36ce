package footprint

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
)

// ownedRoutes returns the host's routes that are exactly for the Services, as networks.
func ownedRoutes(services net.IPNet) ([]string, error) {
	data, err := os.ReadFile("/proc/net/route")
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return routesFor(string(data), services), nil
}

// routesFor reads /proc/net/route, whose second and eighth columns are network and mask as hexadecimal numbers
// in the byte order of the machine.
func routesFor(table string, services net.IPNet) []string {
	var found []string
	for _, line := range strings.Split(table, "\n") {
		fields := strings.Fields(line)
		if len(fields) < 8 {
			continue
		}
		network, networkErr := parseAddress(fields[1])
		mask, maskErr := parseAddress(fields[7])
		if networkErr == nil && maskErr == nil && network.Equal(services.IP) && net.IPMask(mask).String() == services.Mask.String() {
			found = append(found, services.String())
		}
	}
	return found
}

func parseAddress(text string) (net.IP, error) {
	data, err := hex.DecodeString(text)
	if err != nil || len(data) != net.IPv4len {
		return nil, fmt.Errorf("address %q is not 8 hexadecimal digits", text)
	}
	address := make(net.IP, net.IPv4len)
	binary.NativeEndian.PutUint32(address, binary.BigEndian.Uint32(data))
	return address, nil
}

// removeRoutes removes the routes that are exactly for the Services.
func removeRoutes(ctx context.Context, services net.IPNet) error {
	routes, err := ownedRoutes(services)
	if err != nil {
		return err
	}
	var errs []error
	for _, route := range routes {
		output, err := exec.CommandContext(ctx, "ip", "route", "delete", route).CombinedOutput()
		if err != nil {
			errs = append(errs, fmt.Errorf("remove the route %s: %w: %s", route, err, strings.TrimSpace(string(output))))
		}
	}
	return errors.Join(errs...)
}
