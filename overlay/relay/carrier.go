package relay

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/overlay/routes"
)

// batch bounds the packets that one system call moves; readPause is the pause after a failed read.
const (
	batch     = 64
	readPause = 10 * time.Millisecond
)

// carrier moves packets between a link and a socket until one of them fails or is closed.
type carrier struct {
	table *atomic.Pointer[table]
	link  *os.File
	raw   syscall.RawConn // of link
	wire  *net.UDPConn
	v4    bool // the socket's family
	mtu   int
	once  sync.Once
	wait  sync.WaitGroup
	// ended is closed when the carrier carries no packets any more.
	ended chan struct{}
}

// wire moves several packets in one system call (recvmmsg(2), sendmmsg(2)).
type wire interface {
	ReadBatch(messages []ipv4.Message, flags int) (int, error)
	WriteBatch(messages []ipv4.Message, flags int) (int, error)
}

func (c *carrier) batches() wire {
	if c.v4 {
		return ipv4.NewPacketConn(c.wire)
	}
	return ipv6.NewPacketConn(c.wire)
}

func (c *carrier) start() {
	for _, part := range []func(){c.outward, c.inward} {
		c.wait.Go(func() {
			defer c.closeEnds() // the relay opens both ends anew
			_ = fault.Do("overlay/relay", part)
		})
	}
}

// closeEnds closes the link and the socket, which ends the goroutines.
func (c *carrier) closeEnds() {
	c.once.Do(func() {
		close(c.ended)
		c.wire.Close()
		c.link.Close()
	})
}

func (c *carrier) update(*routes.Tunnel) error { return nil } // it reads the routing table of the Relay

func (c *carrier) done() <-chan struct{} { return c.ended }

func (c *carrier) stop() {
	c.closeEnds()
	c.wait.Wait()
}

// buffers returns buffers for packets of a link with this MTU. Each is one byte longer than the MTU, so that larger packets
// are recognized.
func (c *carrier) buffers() [][]byte {
	out := make([][]byte, batch)
	for i := range out {
		out[i] = make([]byte, max(c.mtu, 1500)+1)
	}
	return out
}

// outward carries packets from the link to other nodes.
func (c *carrier) outward() {
	wire, buffers := c.batches(), c.buffers()
	messages := make([]ipv4.Message, batch)
	for i := range messages {
		messages[i].Buffers = make([][]byte, 1)
	}
	sizes := make([]int, 0, batch)
	for {
		sizes, err := c.readBatch(buffers, sizes[:0])
		if err != nil {
			return
		}
		t, n := c.table.Load(), 0
		for i, size := range sizes {
			packet := buffers[i][:size]
			if at := t.target(packet); at != nil {
				messages[n].Buffers[0], messages[n].Addr = packet, at
				n++
			}
		}
		if err := send(wire, messages[:n]); errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// send sends the packets in order. It skips a packet that cannot be sent, for instance to a node without a route.
func send(w wire, messages []ipv4.Message) error {
	for len(messages) > 0 {
		n, err := w.WriteBatch(messages, 0)
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil || n == 0 {
			n = max(n, 0) + 1
		}
		messages = messages[min(n, len(messages)):]
	}
	return nil
}

// readBatch waits for a packet of the link, reads all packets that are queued, and returns their sizes.
func (c *carrier) readBatch(buffers [][]byte, sizes []int) ([]int, error) {
	var failed error
	err := c.raw.Read(func(fd uintptr) bool {
		for len(sizes) < len(buffers) {
			n, err := unix.Read(int(fd), buffers[len(sizes)])
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case errors.Is(err, unix.EAGAIN):
				return len(sizes) > 0
			case err != nil:
				failed = err
				return true
			}
			sizes = append(sizes, n)
		}
		return true
	})
	if err == nil && len(sizes) == 0 {
		err = failed
	}
	return sizes, err
}

// inward carries packets of other nodes to the link.
func (c *carrier) inward() {
	wire, buffers := c.batches(), c.buffers()
	messages := make([]ipv4.Message, batch)
	for i := range messages {
		messages[i].Buffers = buffers[i : i+1]
	}
	for {
		n, err := wire.ReadBatch(messages, 0)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as an ICMP error about an unreachable node
			select { // pause, because the socket may go on failing
			case <-time.After(readPause):
			case <-c.ended:
				return
			}
			continue
		}
		if err := c.deliver(messages[:n]); err != nil {
			return
		}
	}
}

// deliver writes to the link those packets whose source pods are on the node that sent them.
func (c *carrier) deliver(messages []ipv4.Message) error {
	t := c.table.Load()
	var failed error
	err := c.raw.Write(func(fd uintptr) bool {
		for i := range messages {
			m := &messages[i]
			packet := m.Buffers[0][:m.N]
			from, ok := m.Addr.(*net.UDPAddr)
			if !ok || m.Flags&unix.MSG_TRUNC != 0 || !t.mayComeFrom(packet, from.AddrPort().Addr().Unmap()) {
				continue
			}
			if _, err := unix.Write(int(fd), packet); errors.Is(err, unix.EBADFD) || errors.Is(err, unix.EBADF) {
				failed = err
				return true
			} // a packet that the link does not take is lost, as on any link
		}
		return true
	})
	return errors.Join(err, failed)
}
