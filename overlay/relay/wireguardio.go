package relay

import (
	"errors"
	"net"
	"net/netip"
	"os"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/tun"
)

// cryptLink is the TUN link as wireguard-go wants it. What comes out of the tunnel goes to this node's pods and nowhere
// else; whose pods may have sent it, WireGuard has looked at.
type cryptLink struct {
	*carrier
	events chan tun.Event // nothing ever comes
	over   func()         // told when the link is gone
}

// File implements tun.Device.
func (l *cryptLink) File() *os.File { return l.link }

// Read implements tun.Device.
func (l *cryptLink) Read(buffers [][]byte, sizes []int, offset int) (int, error) {
	room := make([][]byte, len(buffers))
	for i := range buffers {
		room[i] = buffers[i][offset:]
	}
	got, err := l.take(room, sizes[:0])
	if err != nil {
		l.over() // the link was deleted under us
		return 0, os.ErrClosed
	}
	return len(got), nil
}

// Write implements tun.Device.
func (l *cryptLink) Write(buffers [][]byte, offset int) (int, error) {
	own := l.table.Load().own
	var failed error
	err := l.raw.Write(func(fd uintptr) bool {
		for _, b := range buffers {
			packet := b[offset:]
			if _, to, ok := ends(packet); !ok || !inside(to, own) {
				continue
			}
			if _, err := unix.Write(int(fd), packet); errors.Is(err, unix.EBADFD) || errors.Is(err, unix.EBADF) {
				failed = err
				return true
			} // one that the link does not take is lost, as on any link
		}
		return true
	})
	if err = errors.Join(err, failed); err != nil {
		l.over()
		return 0, os.ErrClosed
	}
	return len(buffers), nil
}

// MTU implements tun.Device.
func (l *cryptLink) MTU() (int, error) { return l.mtu, nil }

// Name implements tun.Device.
func (l *cryptLink) Name() (string, error) { return l.link.Name(), nil }

// Events implements tun.Device.
func (l *cryptLink) Events() <-chan tun.Event { return l.events }

// Close implements tun.Device.
func (l *cryptLink) Close() error {
	l.once.Do(func() {
		_ = l.link.Close()
		close(l.events)
	})
	return nil
}

// BatchSize implements tun.Device.
func (l *cryptLink) BatchSize() int { return batch }

// cryptWire is the UDP socket as wireguard-go wants it. It is bound to the node's address, which alone others let in.
type cryptWire struct {
	*carrier
	used bool // by the device, which calls Open and Close under a lock
}

// Open implements conn.Bind. The socket is there already.
func (w *cryptWire) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	w.used = true
	return []conn.ReceiveFunc{w.receive}, port, nil
}

// receive takes the packets that there are, and waits for the first.
func (w *cryptWire) receive(packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
	messages := make([]ipv4.Message, len(packets))
	for i := range messages {
		messages[i].Buffers = packets[i : i+1]
	}
	for {
		n, err := w.batches().ReadBatch(messages, 0)
		if errors.Is(err, net.ErrClosed) {
			return 0, net.ErrClosed
		}
		if err != nil { // such as what an unreachable node's router said
			continue
		}
		for i := range messages[:n] {
			sizes[i] = messages[i].N
			if a, ok := messages[i].Addr.(*net.UDPAddr); ok {
				at := a.AddrPort()
				from[i] = station(netip.AddrPortFrom(at.Addr().Unmap(), at.Port()))
			}
		}
		return n, nil
	}
}

// Send implements conn.Bind.
func (w *cryptWire) Send(buffers [][]byte, to conn.Endpoint) error {
	at, ok := to.(station)
	if !ok {
		return conn.ErrWrongEndpointType
	}
	messages := make([]ipv4.Message, len(buffers))
	for i, b := range buffers {
		messages[i].Buffers, messages[i].Addr = [][]byte{b}, net.UDPAddrFromAddrPort(netip.AddrPort(at))
	}
	return send(w.batches(), messages)
}

// ParseEndpoint implements conn.Bind.
func (w *cryptWire) ParseEndpoint(text string) (conn.Endpoint, error) {
	at, err := netip.ParseAddrPort(text)
	return station(at), err
}

// Close implements conn.Bind, which wakes the reader. The device calls it before Open too.
func (w *cryptWire) Close() error {
	if !w.used {
		return nil
	}
	return w.wire.Close()
}

// SetMark implements conn.Bind; packets of ours have no mark.
func (w *cryptWire) SetMark(uint32) error { return nil }

// BatchSize implements conn.Bind.
func (w *cryptWire) BatchSize() int { return batch }

// station is where a peer is.
type station netip.AddrPort

// ClearSrc implements conn.Endpoint, as the methods below do.
func (s station) ClearSrc() {}

func (s station) SrcToString() string { return "" }

func (s station) DstToString() string { return netip.AddrPort(s).String() }

func (s station) DstToBytes() []byte {
	b, _ := netip.AddrPort(s).MarshalBinary() // cannot fail
	return b
}

func (s station) DstIP() netip.Addr { return netip.AddrPort(s).Addr() }

func (s station) SrcIP() netip.Addr { return netip.Addr{} }
