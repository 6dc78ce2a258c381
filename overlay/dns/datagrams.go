package dns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/fault"
)

const (
	// smallPacket has room for nearly every question; largestPacket for every one that is read.
	smallPacket   = 512
	largestPacket = 4096
	// receiveBuffer is the size of the kernel's receive buffer in bytes; it holds a burst until the reader catches up.
	receiveBuffer = 1 << 20
	readRetry     = 100 * time.Millisecond
)

// datagrams serves one UDP socket.
type datagrams struct {
	server *Server
	conn   *net.UDPConn
	lines  *clientQueues
	pool   sync.Pool // of *[smallPacket]byte
}

func newDatagrams(s *Server, conn *net.UDPConn) *datagrams {
	d := &datagrams{server: s, conn: conn, lines: newClientQueues()}
	d.pool.New = func() any { return new([smallPacket]byte) }
	if raw, err := conn.SyscallConn(); err == nil {
		// SO_RCVBUFFORCE needs CAP_NET_ADMIN; without it the kernel's default size stays.
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
		})
	}
	return d
}

// run serves until ctx ends, and closes the socket.
func (d *datagrams) run(ctx context.Context) error {
	var workers sync.WaitGroup
	var later sync.WaitGroup // answers that wait for resolvers
	for range max(2, runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for {
				p, ok := d.lines.dequeue()
				if !ok {
					return
				}
				_ = fault.Do("overlay/dns", func() {
					fault.Point("overlay/dns")
					d.answer(ctx, p, &later)
				})
			}
		})
	}
	stop := context.AfterFunc(ctx, func() { _ = d.conn.SetReadDeadline(time.Unix(1, 0)) })
	err := d.read(ctx)
	stop()
	d.lines.close()
	workers.Wait()
	later.Wait()
	return errors.Join(err, d.conn.Close())
}

// read enqueues the datagrams that arrive. It does nothing else, so that in a flood the kernel drops few datagrams of other
// clients.
func (d *datagrams) read(ctx context.Context) error {
	again := time.NewTimer(0)
	defer again.Stop()
	large := make([]byte, largestPacket+1)
	for {
		n, from, err := d.conn.ReadFromUDPAddrPort(large)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded):
			return err
		case err != nil: // the socket reports an ICMP error about an answer sent earlier
			d.server.cfg.Logger.Debug("DNS socket: an answer did not reach its client", "err", err)
			again.Reset(readRetry)
			select {
			case <-again.C:
			case <-ctx.Done():
			}
			continue
		case n < headerSize || n > largestPacket:
			continue
		}
		p := packet{from: from}
		if n <= smallPacket {
			p.buffer = d.pool.Get().(*[smallPacket]byte)
			p.data = p.buffer[:n]
			copy(p.data, large)
		} else {
			p.data = append([]byte(nil), large[:n]...)
		}
		if !d.lines.enqueue(p) {
			d.free(p)
		}
	}
}

func (d *datagrams) free(p packet) {
	if p.buffer != nil {
		d.pool.Put(p.buffer)
	}
}

// answer sends the answers that need no resolver at once. Other questions wait in goroutines of their own, counted by
// later.
func (d *datagrams) answer(ctx context.Context, p packet, later *sync.WaitGroup) {
	r, m := parse(p.data)
	d.free(p)
	if r == nil {
		d.send(p.from, m, smallPacket)
		return
	}
	s, size := d.server, datagramSize(r)
	m, ask := s.begin(r)
	if ask.Name == "" {
		d.send(p.from, m, size)
		return
	}
	client := p.from.Addr().Unmap()
	answer, known, err := s.forward.cached(ask)
	if !known {
		if err = s.forward.admit(client); err == nil {
			later.Go(fault.Contained("overlay/dns", func() {
				defer s.forward.leave(client)
				answer, err := s.forward.askResolvers(ctx, ask)
				s.finish(m, ask, answer, err)
				d.send(p.from, m, size)
			}))
			return
		}
		answer, err = s.forward.stale(ask, err)
	}
	s.finish(m, ask, answer, err)
	d.send(p.from, m, size)
}

func (d *datagrams) send(to netip.AddrPort, m *dns.Msg, size int) {
	if m == nil {
		return
	}
	wire, err := pack(m, size)
	if err == nil {
		_, err = d.conn.WriteToUDPAddrPort(wire, to)
	}
	if err != nil {
		d.server.cfg.Logger.Debug("cannot send a DNS answer", "to", to.String(), "err", err)
	}
}
