package peer

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// keepAlive is the interval of TCP's probes on idle connections.
	keepAlive = 5 * time.Second
	// unacked is how long sent bytes may stay unacknowledged, or the receiver's window closed, before the kernel ends the connection.
	// Without it, TCP would wait for its grown retransmission timer after a network partition has healed.
	unacked = 5 * time.Second
)

// tuneSocket is a net.Dialer's Control.
func tuneSocket(_, _ string, raw syscall.RawConn) error {
	var err error
	ctl := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacked.Milliseconds()))
	})
	if ctl != nil {
		return ctl
	}
	return err
}

// tuneConn sets on an accepted connection what tuneSocket sets on a dialed one. It ignores connections that are not TCP and kernels
// without the option.
func tuneConn(conn net.Conn) {
	sys, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := sys.SyscallConn(); err == nil {
		_ = tuneSocket("", "", raw)
	}
}
