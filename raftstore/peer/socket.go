package peer

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// keepAlive is the interval of TCP's own probes on idle connections.
	keepAlive = 5 * time.Second
	// unacked is how long sent bytes may stay unacknowledged, or the other's
	// window shut, before the kernel ends a peer's connection. After a cut
	// heals, TCP would otherwise sleep through its grown retransmission timer.
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

// tuneConn does for an accepted connection what tuneSocket does for a dialed
// one. Connections that are not TCP, and kernels without the option, go without.
func tuneConn(conn net.Conn) {
	sys, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := sys.SyscallConn(); err == nil {
		_ = tuneSocket("", "", raw)
	}
}
