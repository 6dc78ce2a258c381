package speaker

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/overlay/host"
)

// maxPacket is longer than any ARP packet or neighbour message that matters; longer ones are truncated.
const maxPacket = 512

// link is the part of a link of this host that speakers need.
type link struct {
	index int
	name  string
	mac   string     // six bytes
	from  netip.Addr // link-local IPv6 address; the zero value is none
}

// speaker answers on one link for addresses of one family. One goroutine calls its methods; the goroutine of run answers.
type speaker struct {
	link link
	v4   bool
	conn *packet.Conn
	held atomic.Pointer[map[netip.Addr]struct{}]
	ears events

	groups int // descriptor of the socket that is in the groups of IPv6 addresses
	ended  chan struct{}
	err    error // valid once ended is closed
}

// events are called from a speaker's goroutine and must not block.
type events struct {
	claim func(a netip.Addr, by net.HardwareAddr) // another host claims the address
	ended func()                                  // the speaker cannot go on
}

// newSpeaker opens a speaker without addresses.
func newSpeaker(ns host.Namespace, l link, v4 bool, tell events) (*speaker, error) {
	s := &speaker{link: l, v4: v4, ears: tell, groups: -1, ended: make(chan struct{})}
	s.held.Store(&map[netip.Addr]struct{}{})
	protocol := unix.ETH_P_IPV6
	if v4 {
		protocol = unix.ETH_P_ARP
	}
	filter, err := bpf.Assemble([]bpf.Instruction{bpf.RetConstant{Val: reject}})
	if err != nil {
		return nil, err
	}
	err = ns.Do(func() (err error) {
		if !v4 {
			if s.groups, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
				return err
			}
		}
		s.conn, err = packet.Listen(&net.Interface{Index: l.index, Name: l.name, HardwareAddr: net.HardwareAddr(l.mac)},
			packet.Datagram, protocol, &packet.Config{Filter: filter})
		return err
	})
	if err == nil {
		err = s.ignoreOwn()
	}
	if err != nil {
		s.release()
		return nil, fmt.Errorf("answer on %s: %w", l.name, err)
	}
	go fault.Contained("overlay/speaker", s.run)()
	return s, nil
}

// ignoreOwn tells the socket not to receive packets that this host sends itself.
func (s *speaker) ignoreOwn() error {
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
	})
	return errors.Join(err, failed)
}

func (s *speaker) release() {
	if s.conn != nil {
		s.conn.Close()
	}
	if s.groups >= 0 {
		unix.Close(s.groups)
	}
}

// close ends the speaker and waits for its goroutine.
func (s *speaker) close() {
	s.release()
	<-s.ended
}

// setAddresses replaces the addresses, which are sorted, for which the speaker answers.
func (s *speaker) setAddresses(addresses []netip.Addr) error {
	now := make(map[netip.Addr]struct{}, len(addresses))
	for _, a := range addresses {
		now[a] = struct{}{}
	}
	make, before := ndpFilter, *s.held.Load()
	if s.v4 {
		make = arpFilter
	}
	filter, err := make(addresses)
	if err != nil {
		return err
	}
	s.held.Store(&now)
	if err := s.conn.SetBPF(filter); err != nil {
		return fmt.Errorf("filter on %s: %w", s.link.name, err)
	}
	if s.v4 {
		return nil
	}
	return s.joinGroups(before, now)
}

// joinGroups joins and leaves multicast groups. Two addresses can have the same group, which a socket can join only once.
func (s *speaker) joinGroups(before, now map[netip.Addr]struct{}) error {
	groups := func(of map[netip.Addr]struct{}) map[netip.Addr]bool {
		out := map[netip.Addr]bool{}
		for a := range of {
			out[solicitedNode(a)] = true
		}
		return out
	}
	var errs []error
	set := func(g netip.Addr, option int) {
		request := &unix.IPv6Mreq{Multiaddr: g.As16(), Interface: uint32(s.link.index)}
		if err := unix.SetsockoptIPv6Mreq(s.groups, unix.IPPROTO_IPV6, option, request); err != nil && err != unix.EADDRINUSE && err != unix.EADDRNOTAVAIL {
			errs = append(errs, fmt.Errorf("group %s on %s: %w", g, s.link.name, err))
		}
	}
	old, wanted := groups(before), groups(now)
	for g := range wanted {
		if !old[g] {
			set(g, unix.IPV6_JOIN_GROUP)
		}
	}
	for g := range old {
		if !wanted[g] {
			set(g, unix.IPV6_LEAVE_GROUP)
		}
	}
	return errors.Join(errs...)
}

// announce claims the address: it tells all neighbours that this link has it.
func (s *speaker) announce(a netip.Addr) error {
	if !s.v4 {
		return s.send(advertise(s.source(a), allNodes, a, net.HardwareAddr(s.link.mac), flagOverride), groupMAC(allNodes))
	}
	broadcast := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	mine := net.HardwareAddr(s.link.mac)
	// Some neighbours update their entry on a request and some on a reply (RFC 5944, section 4.6).
	question := arpPacket{op: arpRequest, senderMAC: mine, sender: a, targetMAC: make(net.HardwareAddr, 6), target: a}
	answer := arpPacket{op: arpReply, senderMAC: mine, sender: a, targetMAC: broadcast, target: a}
	return errors.Join(s.send(question.bytes(), broadcast), s.send(answer.bytes(), broadcast))
}

func (s *speaker) source(a netip.Addr) netip.Addr {
	if s.link.from.IsValid() {
		return s.link.from
	}
	return a
}

func (s *speaker) send(b []byte, to net.HardwareAddr) error {
	_, err := s.conn.WriteTo(b, &packet.Addr{HardwareAddr: to})
	return err
}

// run answers until the speaker is closed.
func (s *speaker) run() {
	defer close(s.ended)
	buffer := make([]byte, maxPacket)
	for {
		n, from, err := s.conn.ReadFrom(buffer)
		switch {
		case errors.Is(err, unix.ENETDOWN): // reported once when the link goes down; it may come up again
			continue
		case err != nil:
			s.err = err
			s.ears.ended()
			return
		}
		_ = fault.Do("overlay/speaker", func() {
			fault.Point("overlay/speaker")
			if s.v4 {
				s.onARP(buffer[:n])
			} else if a, ok := from.(*packet.Addr); ok {
				s.onNDP(buffer[:n], a.HardwareAddr)
			}
		})
	}
}

func (s *speaker) onARP(b []byte) {
	p, ok := parseARP(b)
	if !ok {
		return
	}
	mine := net.HardwareAddr(s.link.mac)
	held := *s.held.Load()
	if _, ok := held[p.sender]; ok && string(p.senderMAC) != s.link.mac {
		s.ears.claim(p.sender, net.HardwareAddr(string(p.senderMAC)))
		return
	}
	if _, ok := held[p.target]; ok && p.op == arpRequest {
		answer := arpPacket{op: arpReply, senderMAC: mine, sender: p.target, targetMAC: p.senderMAC, target: p.sender}
		_ = s.send(answer.bytes(), p.senderMAC) // a host without an answer asks again
	}
}

func (s *speaker) onNDP(b []byte, from net.HardwareAddr) {
	m, ok := parseNDP(b)
	if !ok || len(from) != 6 {
		return
	}
	if _, ok := (*s.held.Load())[m.target]; !ok {
		return
	}
	mine := net.HardwareAddr(s.link.mac)
	switch {
	case m.kind == advertisement:
		if string(from) != s.link.mac {
			s.ears.claim(m.target, net.HardwareAddr(string(from)))
		}
	case m.hasSource:
		_ = s.send(advertise(s.source(m.target), m.source, m.target, mine, flagSolicited|flagOverride), from)
	default:
		_ = s.send(advertise(s.source(m.target), allNodes, m.target, mine, flagOverride), groupMAC(allNodes))
	}
}

// holds tells whether the speaker answers for the address.
func (s *speaker) holds(a netip.Addr) bool {
	_, ok := (*s.held.Load())[a]
	return ok
}
