package policy

import (
	"encoding/binary"
	"flag"
	"fmt"
	"hash/crc32"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"

	"github.com/balsahq/balsa/overlay/policy/plan"
	"github.com/balsahq/balsa/overlay/policy/policytest"
)

var (
	runs = flag.Int("policy-runs", 3, "worlds of policies that TestMatrix makes")
	seed = flag.Uint64("policy-seed", 1, "the first world that TestMatrix makes")
)

// ports are those that are listened at, in every pod and outside.
var ports = []struct {
	protocol v1.Protocol
	number   int32
}{{v1.ProtocolTCP, 80}, {v1.ProtocolTCP, 81}, {v1.ProtocolTCP, 53}, {v1.ProtocolUDP, 53}, {v1.ProtocolUDP, 80}, {v1.ProtocolSCTP, 80}}

// probe is a flow and the socket by which it is tried.
type probe struct {
	policytest.Flow
	from, to *place
	source   uint16
	fd       int
	passed   bool
}

// TestMatrix: what real packets find between real pods is what the oracle says of the policies.
func TestMatrix(t *testing.T) {
	w := newWorld(t, 8, 3)
	m := &matrix{world: w, arrived: map[[2]netip.AddrPort]bool{}}
	m.listen()
	w.start()
	// The watches see one policy that selects nobody; worlds are put beside it.
	w.policy("unused", "unused", "", networking.NetworkPolicySpec{})
	w.eventually("watches begun", func() bool {
		w.engine.mu.Lock()
		defer w.engine.mu.Unlock()
		return w.engine.listed == listed{true, true}
	})
	m.warmUp()
	policies, probes, denied := 0, 0, 0
	for i := range *runs {
		s := *seed + uint64(i)
		count := 1 + policytest.Seeded(s)(24)
		if i == 1 {
			count = 400 // many at once
		}
		cluster := m.throw(s, count)
		tried := m.try(cluster, inTheEnd)
		for _, p := range tried {
			if !p.passed {
				denied++
			}
			if want := cluster.Allows(p.Flow); p.passed != want {
				t.Errorf("world %d: %+v: passed %t, the policies say %t", s, p.Flow, p.passed, want)
			}
		}
		policies, probes = policies+len(cluster.Policies), probes+len(tried)
		if t.Failed() {
			t.Fatalf("%s\n%s", cluster, w.rules())
		}
	}
	t.Logf("%d policies in %d worlds: %d connections tried, %d of them denied, no wrong verdict", policies, *runs, probes, denied)
}

type matrix struct {
	*world
	mu      sync.Mutex
	arrived map[[2]netip.AddrPort]bool // SCTP packets, from and to
	before  *policytest.World
	flows   int
}

// throw makes a world of policies about the pods there are, and has the engine know it.
func (m *matrix) throw(seed uint64, count int) *policytest.World {
	d := policytest.Seeded(seed)
	cluster := &policytest.World{}
	for i := range 3 {
		cluster.Namespaces = append(cluster.Namespaces, d.Namespace(fmt.Sprint("ns", i)))
	}
	for i, name := range slices.Sorted(maps.Keys(m.places)) {
		if name == "outside" {
			continue
		}
		pod := d.Pod(fmt.Sprint("ns", i%3), name, m.places[name].address[:]...)
		if m.places[name].elsewhere {
			pod.Spec.NodeName = "elsewhere"
		}
		cluster.Pods = append(cluster.Pods, pod)
	}
	for i := range count {
		cluster.Policies = append(cluster.Policies, d.Policy(fmt.Sprint("ns", i%3), fmt.Sprint("np", i)))
	}
	m.engine.change(func(s *plan.State) bool {
		if m.before != nil {
			for _, np := range m.before.Policies {
				s.DeletePolicy(np.Namespace, np.Name)
			}
		}
		for _, n := range cluster.Namespaces {
			s.SetNamespace(n.Name, n.Labels)
		}
		for _, p := range cluster.Pods {
			told, _ := plan.PodOf(p, policytest.Node)
			s.SetPod(told)
		}
		for _, np := range cluster.Policies {
			s.SetPolicy(plan.Compile(np))
		}
		return true
	})
	m.before = cluster
	m.settled()
	return cluster
}

// listen answers everywhere at all ports: every datagram gets an answer; connections are accepted by the kernel.
func (m *matrix) listen() {
	m.t.Helper()
	for _, p := range m.places {
		for _, address := range p.address {
			err := p.Do(func() error {
				for _, at := range ports {
					if err := m.listenAt(address, at.protocol, at.number); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				m.t.Fatal(err)
			}
		}
	}
}

func (m *matrix) listenAt(address string, protocol v1.Protocol, port int32) error {
	at := net.JoinHostPort(address, fmt.Sprint(port))
	switch protocol {
	case v1.ProtocolTCP:
		l, err := net.Listen("tcp", at)
		if err != nil {
			return err
		}
		m.serving(l, func() bool {
			c, err := l.Accept()
			if err == nil {
				_ = c.(*net.TCPConn).SetLinger(0)
				c.Close()
			}
			return err == nil
		})
	case v1.ProtocolUDP:
		l, err := net.ListenPacket("udp", at)
		if err != nil {
			return err
		}
		buffer := make([]byte, 64)
		m.serving(l, func() bool {
			_, from, err := l.ReadFrom(buffer)
			if err == nil {
				_, _ = l.WriteTo([]byte("here"), from)
			}
			return err == nil
		})
	case v1.ProtocolSCTP: // raw: kernels without SCTP judge it all the same
		network := "ip4:132"
		if netip.MustParseAddr(address).Is6() {
			network = "ip6:132"
		}
		l, err := net.ListenPacket(network, address)
		if err != nil {
			return err
		}
		buffer := make([]byte, 256)
		m.serving(l, func() bool {
			n, from, err := l.ReadFrom(buffer)
			if err == nil && n >= 4 {
				source, _ := netip.AddrFromSlice(from.(*net.IPAddr).IP)
				m.mu.Lock()
				m.arrived[[2]netip.AddrPort{netip.AddrPortFrom(source.Unmap(), binary.BigEndian.Uint16(buffer)),
					netip.AddrPortFrom(netip.MustParseAddr(address), binary.BigEndian.Uint16(buffer[2:]))}] = true
				m.mu.Unlock()
			}
			return err == nil
		})
	}
	return nil
}

// serving calls one until it says that it is over; the end of the test closes what it waits for.
func (m *matrix) serving(l interface{ Close() error }, one func() bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for one() {
		}
	}()
	m.t.Cleanup(func() {
		l.Close()
		<-done
	})
}

// warmUp has everybody know their neighbours: datagrams to those who are not known may be lost.
func (m *matrix) warmUp() {
	m.t.Helper()
	m.eventually("everything passes without policies", func() bool {
		lost := func(p *probe) bool { return !p.passed }
		return !slices.ContainsFunc(m.try(&policytest.World{}, 3*time.Second), lost)
	})
}

// try sends everything from everywhere to everywhere through the node, and waits for what is allowed, but not beyond the limit.
func (m *matrix) try(cluster *policytest.World, limit time.Duration) []*probe {
	m.t.Helper()
	var list []*probe
	for _, from := range m.places {
		mine := m.probesFrom(from)
		if err := from.Do(func() error { return send(mine) }); err != nil {
			m.t.Fatal(err)
		}
		list = append(list, mine...)
	}
	defer func() {
		for _, p := range list {
			_ = unix.SetsockoptLinger(p.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
			unix.Close(p.fd)
		}
	}()
	waiting := slices.DeleteFunc(slices.Clone(list), func(p *probe) bool { return !cluster.Allows(p.Flow) })
	deadline := time.Now().Add(limit)
	for len(waiting) > 0 && time.Now().Before(deadline) {
		m.collect(list, 10)
		waiting = slices.DeleteFunc(waiting, func(p *probe) bool { return p.passed })
	}
	m.collect(list, 30) // what is wrong may take as long as what is right
	return list
}

func (m *matrix) probesFrom(from *place) []*probe {
	var list []*probe
	for _, to := range m.places {
		if to == from || from.elsewhere && to.elsewhere {
			continue
		}
		for family := range from.address {
			for _, at := range ports {
				// No two flows have one source port, or the second would be known to the kernel.
				m.flows++
				list = append(list, &probe{from: from, to: to, source: uint16(10000 + m.flows%50000), Flow: policytest.Flow{
					From: netip.MustParseAddr(from.address[family]), To: netip.MustParseAddr(to.address[family]),
					Protocol: at.protocol, Port: at.number}})
			}
		}
	}
	return list
}

// send makes the sockets of probes, in the namespace of the caller, and sends what begins each flow.
func send(list []*probe) error {
	for _, p := range list {
		kind, protocol := unix.SOCK_STREAM, 0
		source, to := p.source, uint16(p.Port)
		switch p.Protocol {
		case v1.ProtocolUDP:
			kind = unix.SOCK_DGRAM
		case v1.ProtocolSCTP:
			kind, protocol, source, to = unix.SOCK_RAW, unix.IPPROTO_SCTP, 0, 0
		}
		family := unix.AF_INET
		if p.From.Is6() {
			family = unix.AF_INET6
		}
		fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
		if err != nil {
			return err
		}
		p.fd = fd
		if err := unix.Bind(fd, sockaddr(p.From, source)); err != nil {
			return fmt.Errorf("bind %s: %w", p.From, err)
		}
		if err := unix.Connect(fd, sockaddr(p.To, to)); err != nil && err != unix.EINPROGRESS {
			return fmt.Errorf("connect %+v: %w", p.Flow, err)
		}
		switch p.Protocol {
		case v1.ProtocolUDP:
			_, err = unix.Write(fd, []byte("?"))
		case v1.ProtocolSCTP:
			_, err = unix.Write(fd, initChunk(p.source, uint16(p.Port)))
		}
		if err != nil && err != unix.EPERM {
			return fmt.Errorf("send %+v: %w", p.Flow, err)
		}
	}
	return nil
}

func sockaddr(a netip.Addr, port uint16) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Port: int(port), Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Port: int(port), Addr: a.As16()}
}

// initChunk is a packet that begins an SCTP association (RFC 9260, 3.3.2).
func initChunk(from, to uint16) []byte {
	b := binary.BigEndian.AppendUint16(nil, from)
	b = binary.BigEndian.AppendUint16(b, to)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)                                      // verification tag, checksum
	b = append(b, 1, 0, 0, 20, 0, 0, 0, 7, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 9) // INIT
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// collect finds which probes have passed; it waits for one more, for some milliseconds.
func (m *matrix) collect(list []*probe, wait int) {
	var polled []unix.PollFd
	var of []*probe
	for _, p := range list {
		switch {
		case p.passed:
		case p.Protocol == v1.ProtocolSCTP:
			m.mu.Lock()
			p.passed = m.arrived[[2]netip.AddrPort{netip.AddrPortFrom(p.From, p.source), netip.AddrPortFrom(p.To, uint16(p.Port))}]
			m.mu.Unlock()
		case p.Protocol == v1.ProtocolTCP:
			polled, of = append(polled, unix.PollFd{Fd: int32(p.fd), Events: unix.POLLOUT}), append(of, p)
		default:
			polled, of = append(polled, unix.PollFd{Fd: int32(p.fd), Events: unix.POLLIN}), append(of, p)
		}
	}
	if _, err := unix.Poll(polled, wait); err != nil && err != unix.EINTR {
		m.t.Fatal(err)
	}
	for i, f := range polled {
		of[i].passed = f.Revents != 0
	}
}
