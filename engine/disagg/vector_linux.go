package disagg

import (
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// readVector reads into a and then b with one system call, and gives the bytes read, at least one.
func readVector(conn net.Conn, a, b []byte) (n int, err error) {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return conn.Read(a)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0, err
	}
	pieces := [][]byte{a, b}
	var errRead error
	err = raw.Read(func(fd uintptr) (done bool) {
		for {
			n, errRead = unix.Readv(int(fd), pieces)
			if errRead != unix.EINTR {
				return errRead != unix.EAGAIN
			}
		}
	})
	switch {
	case err != nil:
		return 0, err
	case errRead != nil:
		return 0, errRead
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}
