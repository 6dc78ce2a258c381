package dns

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// from is a client on loopback with an address of its own.
func from(t *testing.T, ip, to string) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(ip)}}).Dial("udp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// exchange asks until there is an answer, as clients do.
func exchange(t *testing.T, c net.Conn, name string) *dns.Msg {
	t.Helper()
	conn := &dns.Conn{Conn: c, UDPSize: packetSize}
	for range 5 {
		m := ask(name)
		if err := conn.WriteMsg(m); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(2 * time.Second))
		for {
			answer, err := conn.ReadMsg()
			if err != nil {
				break
			}
			if answer.Id == m.Id {
				return answer
			}
		}
	}
	return nil
}

// TestHangingResolversDelayNoOthers: one client asks for more names than may wait, of resolvers that never answer. Names of
// the cluster are answered, cached ones too, and other clients get answers from other resolvers.
func TestHangingResolversDelayNoOthers(t *testing.T) {
	s, at := served(t, resolver(t, silent))
	s.Set(Settings{Stubs: map[string][]string{"good.": {resolver(t, saying("192.0.2.7", 60))}}})
	flood, other := from(t, "127.0.0.2", at), from(t, "127.0.0.3", at)
	asked := 0
	crowd := func() { // again and again: none waits for longer than some seconds
		t.Helper()
		eventually(t, "the client has as many questions waiting as it may", func() bool {
			for range waitersOfOne {
				asked++
				raw, err := ask(fmt.Sprintf("n%d.bad.", asked)).Pack()
				if err != nil {
					t.Fatal(err)
				}
				if _, err := flood.Write(raw); err != nil {
					t.Fatal(err)
				}
			}
			s.forward.mu.Lock()
			defer s.forward.mu.Unlock()
			return s.forward.waiting == waitersOfOne
		})
	}
	crowd()
	if got := first(exchange(t, flood, "web.default.svc.cluster.local.")); got != "10.96.0.20" {
		t.Errorf("a name of the cluster: %s", got)
	}
	if got := first(exchange(t, other, "www.good.")); got != "192.0.2.7" {
		t.Errorf("another client: %s", got)
	}
	if got := first(exchange(t, flood, "www.good.")); got != "192.0.2.7" {
		t.Errorf("what is cached: %s", got)
	}
	tries := 0
	eventually(t, "one more of the client is refused", func() bool { // while its others wait, which is not for long
		tries++
		crowd()
		return first(exchange(t, flood, fmt.Sprintf("n%d.good.", tries))) == "SERVFAIL"
	})
}

// TestClientsHaveTheirTurn: however much one sends, another's next datagram is at most one turn away.
func TestClientsHaveTheirTurn(t *testing.T) {
	l := newClientQueues()
	a, b := netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("10.0.0.2:1")
	taken := 0
	for range 10 * clientPackets {
		if l.enqueue(packet{from: a}) {
			taken++
		}
	}
	if taken != clientPackets {
		t.Errorf("%d datagrams of one client wait, %d may", taken, clientPackets)
	}
	for round := range 3 {
		if !l.enqueue(packet{from: b}) {
			t.Fatal("no room for another client")
		}
		for turn := 0; ; turn++ {
			p, ok := l.dequeue()
			if !ok || turn > 1 {
				t.Fatalf("round %d: not the other client's turn after %d", round, turn)
			}
			if p.from == b {
				break
			}
		}
	}
	for i := range 2 * allPackets {
		l.enqueue(packet{from: netip.AddrPortFrom(netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}), 1)})
	}
	if l.size != allPackets {
		t.Errorf("%d datagrams wait, at most %d may", l.size, allPackets)
	}
	for n := l.size; n > 0; n-- {
		l.dequeue()
	}
	if len(l.byFrom) != 0 || len(l.turns)-l.first != 0 {
		t.Errorf("lines left: %d, %d", len(l.byFrom), len(l.turns))
	}
	l.close()
	if _, ok := l.dequeue(); ok {
		t.Error("something is there after the end")
	}
}

// TestMalformedDatagrams sends what is no question; the server lives and answers the next.
func TestMalformedDatagrams(t *testing.T) {
	_, at := served(t)
	c := from(t, "127.0.0.2", at)
	good, err := ask("web.default.svc.cluster.local.").Pack()
	if err != nil {
		t.Fatal(err)
	}
	for n := range good {
		_, _ = c.Write(good[:n])
		flipped := append([]byte(nil), good...)
		flipped[n] ^= 0xff
		_, _ = c.Write(flipped)
	}
	_, _ = c.Write(make([]byte, largestPacket+100))
	if got := first(exchange(t, c, "web.default.svc.cluster.local.")); got != "10.96.0.20" {
		t.Errorf("answer %s", got)
	}
	for name, change := range map[string]func(*dns.Msg){
		"FORMERR": func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) },
		"NOTIMP":  func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate },
		"REFUSED": func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS },
		"BADVERS": func(m *dns.Msg) { m.SetEdns0(1232, false).IsEdns0().SetVersion(1) },
	} {
		m := ask("web.default.svc.cluster.local.")
		change(m)
		for _, network := range []string{"udp", "tcp"} {
			answer, _, err := (&dns.Client{Net: network, Timeout: 10 * time.Second}).Exchange(m, at)
			if err != nil || dns.RcodeToString[answer.Rcode] != name && !(name == "BADVERS" && answer.Rcode == dns.RcodeBadVers) {
				t.Errorf("%s by %s: %v %v", name, network, answer, err)
			}
		}
	}
}

func TestConnectionsOfOneClientAreBounded(t *testing.T) {
	_, at := served(t)
	dial := func(ip string) net.Conn {
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}).Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	for range 2 * connectionsOfOne {
		dial("127.0.0.2")
	}
	conn := &dns.Conn{Conn: dial("127.0.0.3")}
	if err := conn.WriteMsg(ask("web.default.svc.cluster.local.")); err != nil {
		t.Fatal(err)
	}
	if m, err := conn.ReadMsg(); err != nil || first(m) != "10.96.0.20" {
		t.Errorf("another client: %v %v", m, err)
	}
}

// BenchmarkDatagrams asks over sockets, many clients at once; with DNS_SERVER set to an address, another server than ours,
// of which the name DNS_NAME is asked, for comparison.
func BenchmarkDatagrams(b *testing.B) {
	at, name := os.Getenv("DNS_SERVER"), os.Getenv("DNS_NAME")
	if at == "" {
		s, own := served(b)
		at, name = own, "web.default.svc.cluster.local."
		defer s.forward.running.Wait()
	}
	raw, err := ask(name).Pack()
	if err != nil {
		b.Fatal(err)
	}
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		c, err := net.Dial("udp", at)
		if err != nil {
			b.Error(err)
			return
		}
		defer c.Close()
		answer := make([]byte, packetSize)
		for pb.Next() {
			for {
				_, _ = c.Write(raw)
				_ = c.SetReadDeadline(time.Now().Add(time.Second))
				if n, err := c.Read(answer); err == nil && n > len(raw) {
					break
				}
			}
		}
	})
}

func BenchmarkReply(b *testing.B) {
	s := serverOf()
	raw, err := ask("web.default.svc.cluster.local.").Pack()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		r, _ := parse(raw)
		if _, err := pack(s.Reply(b.Context(), r), datagramSize(r)); err != nil {
			b.Fatal(err)
		}
	}
}
