package apiserver

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// reservation holds a TCP port of an IPv4 address for a server that shares ports (SO_REUSEPORT). The socket is
// bound and never listens: nobody else gets the port, and no connection comes here.
type reservation struct {
	port int
	fd   int
}

// reserve takes a free port.
func reserve(address net.IP) (reservation, error) {
	ipv4 := address.To4()
	if ipv4 == nil {
		return reservation{}, fmt.Errorf("reserve a port: %s is not an IPv4 address", address)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return reservation{}, fmt.Errorf("reserve a port: %w", err)
	}
	port, err := bindFree(fd, [4]byte(ipv4))
	if err != nil {
		return reservation{}, errors.Join(fmt.Errorf("reserve a port of %s: %w", address, err), unix.Close(fd))
	}
	return reservation{port: port, fd: fd}, nil
}

func bindFree(fd int, address [4]byte) (port int, err error) {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return 0, err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: address}); err != nil {
		return 0, err
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return 0, err
	}
	return name.(*unix.SockaddrInet4).Port, nil
}

// release gives the port up.
func (r reservation) release() error { return unix.Close(r.fd) }
