// Package membertest owns a network in memory for gossip in tests: it loses,
// delays and cuts, and works in the fake time of testing/synctest. A transport
// that was shut down is like a machine without power: nothing answers.
package membertest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// Network joins transports by address. The zero value is not usable: use New.
type Network struct {
	mu        sync.Mutex
	hosts     map[string]*Transport
	cut       func(from, to string) bool
	loss      float64
	delay     time.Duration
	rand      *rand.Rand
	packets   int
	lastAlloc int
}

// New returns a network that loses nothing; seed decides what Lose loses.
func New(seed uint64) *Network {
	return &Network{hosts: map[string]*Transport{}, rand: rand.New(rand.NewPCG(seed, seed))}
}

// Cut drops the messages from one host to another for which the function returns true; nil heals. Hosts are ip:port.
func (n *Network) Cut(cut func(from, to string) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = cut
}

// Lose drops this share of the packets (not of streams), and delays the rest and
// every dial.
func (n *Network) Lose(share float64, delay time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.loss, n.delay = share, delay
}

// Packets returns how many packets were sent since the network was made.
func (n *Network) Packets() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.packets
}

// Transport attaches a host at ip:port, or at a free address when addr is "".
func (n *Network) Transport(addr string) *Transport {
	n.mu.Lock()
	defer n.mu.Unlock()
	if addr == "" {
		n.lastAlloc++
		addr = fmt.Sprintf("10.0.%d.%d:7946", n.lastAlloc/250, n.lastAlloc%250+1)
	}
	t := &Transport{net: n, addr: addr, packets: make(chan *memberlist.Packet, 1024), streams: make(chan net.Conn, 64), down: make(chan struct{})}
	n.hosts[addr] = t
	return t
}

// route returns the host at to when something from one to the other arrives.
func (n *Network) route(from, to string, packet bool) (*Transport, time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if packet {
		n.packets++
	}
	if n.cut != nil && n.cut(from, to) || packet && n.rand.Float64() < n.loss {
		return nil, n.delay
	}
	return n.hosts[to], n.delay
}

// Transport implements memberlist.Transport.
type Transport struct {
	net     *Network
	addr    string
	packets chan *memberlist.Packet
	streams chan net.Conn
	down    chan struct{}
	once    sync.Once
	mu      sync.Mutex
	conns   []net.Conn
}

// Addr returns the host's ip:port.
func (t *Transport) Addr() string { return t.addr }

// FinalAdvertiseAddr implements memberlist.Transport.
func (t *Transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	host, port, err := net.SplitHostPort(t.addr)
	if err != nil {
		return nil, 0, err
	}
	number, err := strconv.Atoi(port)
	return net.ParseIP(host).To4(), number, err
}

type address string

func (address) Network() string  { return "mem" }
func (a address) String() string { return string(a) }

// WriteTo implements memberlist.Transport.
func (t *Transport) WriteTo(b []byte, addr string) (time.Time, error) {
	to, delay := t.net.route(t.addr, addr, true)
	if to != nil {
		p := &memberlist.Packet{Buf: append([]byte(nil), b...), From: address(t.addr)}
		if delay == 0 {
			to.receive(p)
		} else {
			time.AfterFunc(delay, func() { to.receive(p) })
		}
	}
	return time.Now(), nil
}

func (t *Transport) receive(p *memberlist.Packet) {
	select {
	case <-t.down:
		return
	default:
	}
	p.Timestamp = time.Now()
	select {
	case t.packets <- p:
	default: // a full socket drops
	}
}

// PacketCh implements memberlist.Transport.
func (t *Transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements memberlist.Transport.
func (t *Transport) StreamCh() <-chan net.Conn { return t.streams }

var errTimeout = errors.New("membertest: dial timed out")

// DialTimeout implements memberlist.Transport. A dial to a host that is gone or cut off takes the whole timeout.
func (t *Transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	to, delay := t.net.route(t.addr, addr, false)
	if to == nil || to.isDown() {
		delay = timeout
	}
	select {
	case <-time.After(delay):
	case <-t.down:
		return nil, net.ErrClosed
	}
	if to == nil || to.isDown() {
		return nil, errTimeout
	}
	here, there := net.Pipe()
	t.keep(here)
	to.keep(there)
	select {
	case to.streams <- there:
		return here, nil
	default:
		return nil, errors.Join(errTimeout, here.Close(), there.Close())
	}
}

func (t *Transport) isDown() bool {
	select {
	case <-t.down:
		return true
	default:
		return false
	}
}

func (t *Transport) keep(c net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conns = append(t.conns, c)
	if len(t.conns) > 64 { // the oldest are long over: their deadline has passed
		_ = t.conns[0].Close()
		t.conns = t.conns[1:]
	}
}

// Shutdown implements memberlist.Transport.
func (t *Transport) Shutdown() error {
	t.once.Do(func() {
		close(t.down)
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, c := range t.conns {
			_ = c.Close()
		}
	})
	return nil
}

var _ memberlist.Transport = (*Transport)(nil)
