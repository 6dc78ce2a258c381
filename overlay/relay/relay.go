package relay

import (
	"context"
	"crypto/ecdh"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/routes"
)

const (
	retry = time.Second
	// receiveBuffer is the size of the socket's receive buffer in the kernel, in bytes.
	receiveBuffer = 4 << 20
)

// Config configures a Relay.
type Config struct {
	// Enter runs a function in the network namespace; sockets and links that it opens are there.
	Enter func(func() error) error
	// Link opens the TUN link; reads and writes of the file are single packets.
	Link func() (*os.File, error)
	// Key is this node's WireGuard private key; nil if the tunnel is not encrypted.
	Key    *ecdh.PrivateKey
	Logger *slog.Logger
}

// Relay carries packets between a TUN link and other nodes.
type Relay struct {
	cfg   Config
	wake  chan struct{}
	table atomic.Pointer[table]

	mu     sync.Mutex
	tunnel *routes.Tunnel
}

// New returns a Relay that does nothing before Run.
func New(cfg Config) *Relay { return &Relay{cfg: cfg, wake: make(chan struct{}, 1)} }

// Set sets the tunnel. With nil, or a tunnel whose packets the kernel carries, the relay is idle. Set does not block.
func (r *Relay) Set(t *routes.Tunnel) {
	if t != nil && !t.Relayed {
		t = nil
	}
	r.mu.Lock()
	r.tunnel = t
	r.mu.Unlock()
	if t != nil {
		r.table.Store(newTable(t))
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Relay) wanted() (t *routes.Tunnel, ends endpoint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t = r.tunnel; t == nil {
		return nil, endpoint{}
	}
	return t, endpoint{local: t.Local, port: t.Port, mtu: t.MTU, encrypted: t.Encrypted}
}

// endpoint is the link, address and port for which a carrier is made.
type endpoint struct {
	local     netip.Addr
	port, mtu int
	encrypted bool
}

// packetCarrier carries packets from when it is opened until it is stopped.
type packetCarrier interface {
	update(t *routes.Tunnel) error // sets the other nodes
	done() <-chan struct{}         // closed when it carries no packets any more
	stop()                         // waits until everything is closed
}

// Run carries packets while there is a tunnel to carry, until ctx ends.
func (r *Relay) Run(ctx context.Context) error {
	var current packetCarrier
	var at endpoint
	stop := func() {
		if current != nil {
			current.stop()
			current = nil
		}
	}
	defer stop()
	again := time.NewTimer(retry)
	defer again.Stop()
	failed := ""
	for {
		tunnel, want := r.wanted()
		ok := tunnel != nil
		if current != nil && (!ok || want != at) {
			stop()
		}
		if ok && current == nil {
			c, err := r.open(want)
			if err == nil {
				current, at = c, want
			}
			r.logOnce(&failed, err)
		}
		var ended <-chan struct{}
		if current != nil {
			ended = current.done()
			r.logOnce(&failed, current.update(tunnel))
		} else if ok {
			again.Reset(retry)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.wake:
		case <-again.C:
		case <-ended: // another program deleted the link
			stop()
			r.pause(ctx, again)
		}
	}
}

// logOnce logs a failure, unless it was the last one logged.
func (r *Relay) logOnce(before *string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != *before {
		r.cfg.Logger.Warn("cannot open the tunnel; packets to other nodes are lost until a later attempt succeeds", "err", err)
	}
	*before = text
}

func (r *Relay) pause(ctx context.Context, t *time.Timer) {
	t.Reset(retry / 10)
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

var errNoKey = errors.New("this node has no WireGuard key")

// open starts a packetCarrier.
func (r *Relay) open(at endpoint) (packetCarrier, error) {
	if at.encrypted && r.cfg.Key == nil {
		return nil, errNoKey
	}
	c := &carrier{table: &r.table, mtu: at.mtu, v4: !at.local.Is6(), ended: make(chan struct{})}
	err := r.cfg.Enter(func() (err error) {
		network, address := "udp4", netip.AddrPortFrom(at.local, uint16(at.port))
		if !c.v4 {
			network = "udp6"
		} else if !at.local.IsValid() {
			address = netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(at.port))
		}
		if c.wire, err = net.ListenUDP(network, net.UDPAddrFromAddrPort(address)); err != nil {
			return fmt.Errorf("UDP port of the tunnel: %w", err)
		}
		if err = configureSocket(c.wire, c.v4); err == nil {
			c.link, err = r.cfg.Link()
		}
		if err != nil {
			c.wire.Close()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if c.raw, err = c.link.SyscallConn(); err != nil {
		c.link.Close()
		c.wire.Close()
		return nil, err
	}
	r.cfg.Logger.Info("the tunnel is open; this process carries packets to other nodes", "link", c.link.Name(), "port", at.port, "encrypted", at.encrypted)
	if at.encrypted {
		return openCrypt(r, c, at)
	}
	c.start()
	return c, nil
}

// configureSocket enlarges the socket's buffer, and lets its packets be fragmented on the path: pods know the MTU already.
func configureSocket(conn syscall.Conn, v4 bool) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
		if v4 {
			failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
		} else {
			failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DONT)
		}
	}); err != nil {
		return err
	}
	return failed
}
