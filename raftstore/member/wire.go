package member

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/balsahq/balsa/fault"
)

// Bounds of the memory and connections that a client without the key can take. A table of 5,000 members is about 1.5 MB.
const (
	maxStreams       = 64
	maxStreamsOfOne  = 8
	maxStreamBytes   = 4 << 20  // of one incoming stream
	maxStreamsBytes  = 8 << 20  // of all incoming streams together
	freeStreamBytes  = 64 << 10 // of each stream, which do not count towards maxStreamsBytes
	maxPacket        = 64 << 10
	socketReadBuffer = 1 << 20
)

var errStreamTooLong = errors.New("member: gossip stream is too long")

// wire is memberlist's transport over UDP and TCP. It bounds every stream and packet and closes all sockets at Shutdown. Packets without the
// cluster's label are dropped before memory is allocated for them.
type wire struct {
	log   logger
	label []byte // first bytes of every packet

	udp     *net.UDPConn
	tcp     *net.TCPListener
	packets chan *memberlist.Packet
	streams chan net.Conn
	held    atomic.Int64 // bytes of incoming streams beyond freeStreamBytes each

	ctx    context.Context // ends the dials; cancelled by Shutdown
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	conns  map[*stream]struct{}
	perIP  map[netip.Addr]int
	closed bool
}

// newWire returns a wire that listens. addr is "" for all addresses; port 0 takes a free one.
func newWire(log logger, clusterID, addr string, port int) (*wire, error) {
	w := &wire{
		log: log, label: append([]byte{labelMagic, byte(len(clusterID))}, clusterID...),
		packets: make(chan *memberlist.Packet), streams: make(chan net.Conn),
		conns: map[*stream]struct{}{}, perIP: map[netip.Addr]int{},
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	for try := 0; ; try++ {
		err := w.listen(addr, port)
		if err == nil {
			break
		}
		if port != 0 || try == 9 { // a free TCP port may be taken as UDP
			return nil, fmt.Errorf("member: listen for gossip: %w", err)
		}
	}
	_ = w.udp.SetReadBuffer(socketReadBuffer) // best effort: the kernel may cap it
	w.wg.Go(func() { fault.KeepDo(w.ctx, unit, func(context.Context) { w.readPackets() }) })
	w.wg.Go(func() { fault.KeepDo(w.ctx, unit, func(context.Context) { w.accept() }) })
	return w, nil
}

const labelMagic = 244 // memberlist's hasLabelMsg

func (w *wire) listen(addr string, port int) (err error) {
	w.tcp, err = net.ListenTCP("tcp", &net.TCPAddr{IP: net.ParseIP(addr), Port: port})
	if err != nil {
		return err
	}
	got := w.tcp.Addr().(*net.TCPAddr).Port
	w.udp, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(addr), Port: got})
	if err != nil {
		return errors.Join(err, w.tcp.Close())
	}
	return nil
}

func (w *wire) port() int { return w.tcp.Addr().(*net.TCPAddr).Port }

// FinalAdvertiseAddr implements memberlist.Transport.
func (w *wire) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	if port == 0 {
		port = w.port()
	}
	addr := net.ParseIP(ip)
	if addr == nil {
		addr = w.tcp.Addr().(*net.TCPAddr).IP
	}
	if addr.IsUnspecified() {
		var err error
		if addr, err = globalAddr(); err != nil {
			return nil, 0, err
		}
	}
	if v4 := addr.To4(); v4 != nil {
		addr = v4
	}
	return addr, port, nil
}

// globalAddr returns the machine's first global unicast address, IPv4 before IPv6.
func globalAddr() (net.IP, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var v6 net.IP
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		switch {
		case !ok || !n.IP.IsGlobalUnicast():
		case n.IP.To4() != nil:
			return n.IP, nil
		case v6 == nil:
			v6 = n.IP
		}
	}
	if v6 == nil {
		return nil, errors.New("member: this machine has no address to advertise: set one")
	}
	return v6, nil
}

// WriteTo implements memberlist.Transport.
func (w *wire) WriteTo(b []byte, addr string) (time.Time, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return time.Time{}, err
	}
	_, err = w.udp.WriteToUDPAddrPort(b, to)
	return time.Now(), err
}

// PacketCh implements memberlist.Transport.
func (w *wire) PacketCh() <-chan *memberlist.Packet { return w.packets }

// StreamCh implements memberlist.Transport.
func (w *wire) StreamCh() <-chan net.Conn { return w.streams }

// DialTimeout implements memberlist.Transport.
func (w *wire) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: timeout}
	conn, err := d.DialContext(w.ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if s := w.track(conn, outgoing); s != nil {
		return s, nil
	}
	return nil, net.ErrClosed
}

// Shutdown implements memberlist.Transport: it closes every socket and joins its goroutines.
func (w *wire) Shutdown() error {
	w.mu.Lock()
	w.closed = true
	var open []*stream
	for s := range w.conns {
		open = append(open, s)
	}
	w.mu.Unlock()
	w.cancel()
	err := errors.Join(w.udp.Close(), w.tcp.Close())
	for _, s := range open {
		_ = s.Close() // the only error is that it is closed already
	}
	w.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (w *wire) readPackets() {
	buf := make([]byte, maxPacket)
	for {
		n, from, err := w.udp.ReadFromUDPAddrPort(buf)
		at := time.Now()
		if w.ctx.Err() != nil {
			return
		}
		if err != nil { // an ICMP answer to an earlier packet
			w.log.once(slog.LevelDebug, "udp read", "gossip: cannot read a packet, reading goes on", "err", err)
			select { // the next read may fail at once too
			case <-time.After(10 * time.Millisecond):
			case <-w.ctx.Done():
			}
			continue
		}
		if n < len(w.label) || string(buf[:len(w.label)]) != string(w.label) {
			w.log.once(slog.LevelWarn, "label\x00"+from.Addr().String(), "gossip: refused a packet that is not of this cluster", "from", from.Addr())
			continue
		}
		p := &memberlist.Packet{Buf: append([]byte(nil), buf[:n]...), From: net.UDPAddrFromAddrPort(from), Timestamp: at}
		select {
		case w.packets <- p:
		case <-w.ctx.Done():
			return
		}
	}
}

func (w *wire) accept() {
	for {
		conn, err := w.tcp.Accept()
		if err != nil {
			if w.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			w.log.once(slog.LevelWarn, "accept", "gossip: cannot accept a connection, it is tried again", "err", err)
			select { // a lack of file descriptors passes
			case <-time.After(100 * time.Millisecond):
				continue
			case <-w.ctx.Done():
				return
			}
		}
		s := w.track(conn, incoming)
		if s == nil {
			continue
		}
		select {
		case w.streams <- s:
		case <-w.ctx.Done():
			_ = s.Close()
		}
	}
}

// direction says which side made a stream.
type direction int

const (
	outgoing direction = iota
	incoming
)

// track counts a connection. When there are too many it closes the connection and returns nil.
func (w *wire) track(conn net.Conn, dir direction) *stream {
	s := &stream{Conn: conn, wire: w, dir: dir, ip: remoteIP(conn)}
	w.mu.Lock()
	refuse := w.closed || dir == incoming && (len(w.conns) >= maxStreams || w.perIP[s.ip] >= maxStreamsOfOne)
	if !refuse {
		w.conns[s] = struct{}{}
		if dir == incoming {
			w.perIP[s.ip]++
		}
	}
	w.mu.Unlock()
	if refuse {
		_ = conn.Close()
		w.log.once(slog.LevelWarn, "streams\x00"+s.ip.String(), "gossip: refused a stream, too many are open", "from", s.ip)
		return nil
	}
	return s
}

func (w *wire) untrack(s *stream) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, s)
	if s.dir == incoming {
		if w.perIP[s.ip]--; w.perIP[s.ip] <= 0 {
			delete(w.perIP, s.ip)
		}
	}
}

func remoteIP(conn net.Conn) netip.Addr {
	ap, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap()
}

// stream is a TCP connection that is counted. memberlist reads a whole message before it can check that the sender has the key. So the
// bytes of incoming streams are bounded, each and in sum.
type stream struct {
	net.Conn
	wire *wire
	dir  direction
	ip   netip.Addr
	once sync.Once

	read  int64        // bytes; used by the one goroutine that reads
	drawn atomic.Int64 // bytes that count in wire.held
}

func (s *stream) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if s.dir == outgoing || n <= 0 {
		return n, err
	}
	if s.read += int64(n); s.read > freeStreamBytes {
		s.drawn.Add(int64(n))
		if sum := s.wire.held.Add(int64(n)); sum > maxStreamsBytes || s.read > maxStreamBytes {
			s.wire.log.once(slog.LevelWarn, "bytes\x00"+s.ip.String(), "gossip: closed a stream that sent too many bytes", "from", s.ip, "bytes", s.read)
			return 0, errStreamTooLong
		}
	}
	return n, err
}

// Close implements net.Conn. It may be called several times.
func (s *stream) Close() error {
	err := net.ErrClosed
	s.once.Do(func() {
		s.wire.held.Add(-s.drawn.Load())
		s.wire.untrack(s)
		err = s.Conn.Close()
	})
	return err
}

var _ memberlist.Transport = (*wire)(nil)

func hostPort(ip net.IP, port uint16) string {
	return net.JoinHostPort(ip.String(), strconv.Itoa(int(port)))
}
