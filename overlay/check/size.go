package check

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/host"
)

const (
	// smallest is a packet that every network carries (RFC 791, RFC 8200 for IPv6).
	smallest, smallest6 = 576, 1280
	sizeWait            = 300 * time.Millisecond
	sizeTries           = 2
)

// sizes finds the largest packet that arrives. A size below the MTU of the pod's link is no fault when the sender gets an
// ICMP error (the kernel then knows the path MTU); a packet that disappears without an error is a fault.
func (p *probe) sizes(ctx context.Context, from host.Namespace, t Target, r *Result) error {
	c, err := dial(ctx, from, "udp", t.Address)
	if err != nil {
		return err
	}
	defer c.Close()
	conn, ok := c.(*net.UDPConn)
	if !ok {
		return errors.New("no datagram socket")
	}
	path := newPath(conn, t.Address.Addr())
	if err := path.forbidFragments(); err != nil {
		return err
	}
	send := func(size int) error {
		var err error
		for range sizeTries {
			if err = p.echo(conn, t, r, size-path.header, sizeWait); err == nil || errors.Is(err, syscall.EMSGSIZE) || ctx.Err() != nil {
				return err
			}
		}
		return err
	}
	r.Size = &Size{Link: p.opened.MTU}
	for size := p.opened.MTU; ; {
		err := send(size)
		if err == nil {
			r.Size.Passes = size
			return nil
		}
		known := path.mtu()
		if known <= 0 || known >= size {
			return p.search(send, size-1, path.smallest, r.Size)
		}
		size, r.Size.Learned = known, true
	}
}

// search finds, by bisection, the largest size up to high that passes, when larger packets disappear.
func (p *probe) search(send func(int) error, high, low int, s *Size) error {
	s.Learned = false
	if err := send(low); err != nil {
		return err
	}
	for low < high {
		middle := (low + high + 1) / 2
		if send(middle) == nil {
			low = middle
		} else {
			high = middle - 1
		}
	}
	s.Passes = low
	return fmt.Errorf("packets of more than %d bytes disappear", low)
}

// path is a connected socket, of whose path the kernel knows the MTU.
type path struct {
	conn             *net.UDPConn
	six              bool
	header, smallest int
}

func newPath(conn *net.UDPConn, to netip.Addr) path {
	if to.Unmap().Is6() {
		return path{conn, true, 48, smallest6}
	}
	return path{conn, false, 28, smallest}
}

func (p path) control(fn func(fd int) error) error {
	raw, err := p.conn.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	return errors.Join(raw.Control(func(fd uintptr) { inner = fn(int(fd)) }), inner)
}

func (p path) forbidFragments() error {
	return p.control(func(fd int) error {
		if p.six {
			return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
		}
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	})
}

// mtu returns the path MTU, 0 when it is not known.
func (p path) mtu() int {
	var value int
	_ = p.control(func(fd int) (err error) {
		if p.six {
			value, err = unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU)
		} else {
			value, err = unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU)
		}
		return err
	})
	return value
}
