//go:build !linux

package disagg

import "net"

// readVector reads into a only: elsewhere than on Linux one more system call per page does no harm.
func readVector(conn net.Conn, a, _ []byte) (n int, err error) { return conn.Read(a) }
