package pmtu

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/fault"
)

// wire has the sockets for a tunnel's probes.
type wire struct {
	out    *net.UDPConn
	in     *net.IPConn
	routes *netlink.Handle
	gone   chan struct{} // closed when receive must end
	ended  chan struct{}
}

// reply is an answer to a probe.
type reply struct {
	from     netip.Addr // the peer's address inside the tunnel
	sequence uint16
}

// open opens the sockets, and receives replies until the wire is closed.
func (r *run) open() (*wire, error) {
	w := &wire{gone: make(chan struct{}), ended: make(chan struct{})}
	local := r.tunnel.Local
	if !local.IsValid() {
		local = netip.IPv4Unspecified()
	}
	inside := r.tunnel.Address
	err := r.p.cfg.Enter(func() (err error) {
		if w.out, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(local, 0))); err != nil {
			return err
		}
		if err := dontFragment(w.out); err != nil {
			return err
		}
		if w.in, err = net.ListenIP("ip4:icmp", &net.IPAddr{IP: inside.AsSlice()}); err != nil {
			return err
		}
		w.routes, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		close(w.ended)
		w.close()
		return nil, fmt.Errorf("sockets for probes: %w", err)
	}
	id := r.id
	go fault.Contained("overlay/pmtu", func() {
		defer close(w.ended)
		w.receive(id, r.answers)
	})()
	return w, nil
}

// dontFragment has packets never fragmented, whatever path MTU the kernel knows (IP_PMTUDISC_PROBE of ip(7)).
func dontFragment(c syscall.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
	}); err != nil {
		return err
	}
	return failed
}

// failed reports whether the receiving goroutine has ended.
func (w *wire) failed() bool {
	select {
	case <-w.ended:
		return true
	default:
		return false
	}
}

func (w *wire) send(to netip.Addr, port uint16, payload []byte) error {
	_, err := w.out.WriteToUDPAddrPort(payload, netip.AddrPortFrom(to, port))
	return err
}

// kernelMTU returns the path MTU that the kernel remembers from routers' messages; 0: none.
func (w *wire) kernelMTU(to netip.Addr) int {
	routes, err := w.routes.RouteGet(to.AsSlice())
	if err != nil || len(routes) == 0 {
		return 0
	}
	return routes[0].MTU
}

// receive passes on replies. Other hosts may send echo replies too; they are ignored by their sequence numbers.
func (w *wire) receive(id uint16, to chan<- reply) {
	buffer := make([]byte, 60+icmpHeader) // the longest IPv4 header; the rest of a message is dropped
	for {
		n, from, err := w.in.ReadFromIP(buffer)
		if err != nil { // the socket is closed or broken
			return
		}
		sequence, ok := answer(buffer[:n], id)
		if !ok {
			continue
		}
		source, _ := netip.AddrFromSlice(from.IP)
		select {
		case to <- reply{source.Unmap(), sequence}:
		case <-w.gone:
			return
		}
	}
}

func (w *wire) close() {
	close(w.gone)
	if w.out != nil {
		w.out.Close()
	}
	if w.in != nil {
		w.in.Close()
	}
	if w.routes != nil {
		w.routes.Close()
	}
	<-w.ended
}
