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

// cryptLink implements wireguard-go's tun.Device on the TUN link. Only packets to this node's pods leave the tunnel;
// WireGuard has checked their source addresses.
type cryptLink struct {
	*carrier
	events   chan tun.Event // no event is ever sent
	linkGone func()         // called when the link is gone
}

// File implements tun.Device.
func (l *cryptLink) File() *os.File { return l.link }

// Read implements tun.Device.
func (l *cryptLink) Read(buffers [][]byte, sizes []int, offset int) (int, error) {
	room := make([][]byte, len(buffers))
	for i := range buffers {
		room[i] = buffers[i][offset:]
	}
	got, err := l.readBatch(room, sizes[:0])
	if err != nil {
		l.linkGone() // another program deleted the link
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
			if _, to, ok := addressesOf(packet); !ok || !inside(to, own) {
				continue
			}
			if _, err := unix.Write(int(fd), packet); errors.Is(err, unix.EBADFD) || errors.Is(err, unix.EBADF) {
				failed = err
				return true
			} // a packet that the link does not take is lost, as on any link
		}
		return true
	})
	if err = errors.Join(err, failed); err != nil {
		l.linkGone()
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

// cryptWire implements wireguard-go's conn.Bind on the UDP socket. It is bound to the node's address, the only one from
// which other nodes accept packets.
type cryptWire struct {
	*carrier
	used bool // by the device, which calls Open and Close under a lock
}

// Open implements conn.Bind. The socket is there already.
func (w *cryptWire) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	w.used = true
	return []conn.ReceiveFunc{w.receive}, port, nil
}

// receive waits for a packet and reads all that are there.
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
		if err != nil { // such as an ICMP error about an unreachable node
			continue
		}
		for i := range messages[:n] {
			sizes[i] = messages[i].N
			if a, ok := messages[i].Addr.(*net.UDPAddr); ok {
				at := a.AddrPort()
				from[i] = peerEndpoint(netip.AddrPortFrom(at.Addr().Unmap(), at.Port()))
			}
		}
		return n, nil
	}
}

// Send implements conn.Bind.
func (w *cryptWire) Send(buffers [][]byte, to conn.Endpoint) error {
	at, ok := to.(peerEndpoint)
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
	return peerEndpoint(at), err
}

// Close implements conn.Bind, which wakes the reader. The device calls it before Open too.
func (w *cryptWire) Close() error {
	if !w.used {
		return nil
	}
	return w.wire.Close()
}

// SetMark implements conn.Bind; the tunnel's packets carry no mark.
func (w *cryptWire) SetMark(uint32) error { return nil }

// BatchSize implements conn.Bind.
func (w *cryptWire) BatchSize() int { return batch }

// peerEndpoint is the address and port of a peer.
type peerEndpoint netip.AddrPort

// ClearSrc implements conn.Endpoint, as the methods below do.
func (s peerEndpoint) ClearSrc() {}

func (s peerEndpoint) SrcToString() string { return "" }

func (s peerEndpoint) DstToString() string { return netip.AddrPort(s).String() }

func (s peerEndpoint) DstToBytes() []byte {
	b, _ := netip.AddrPort(s).MarshalBinary() // cannot fail
	return b
}

func (s peerEndpoint) DstIP() netip.Addr { return netip.AddrPort(s).Addr() }

func (s peerEndpoint) SrcIP() netip.Addr { return netip.Addr{} }
