package peer

import "net"

// Loopback reports whether a host (name or address, without port) is this machine for sure. Between such hosts peers may do
// without a secret.
func Loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
