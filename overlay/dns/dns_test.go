package dns

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func testZone() *Zone {
	z := NewZone("cluster.local", netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00::/64"))
	z.Set("default", "web", &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: v1.ServiceSpec{ClusterIP: "10.96.0.20", ClusterIPs: []string{"10.96.0.20", "fd00::20"},
			Ports: []v1.ServicePort{{Name: "http", Port: 80, Protocol: v1.ProtocolTCP}, {Name: "dns", Port: 53, Protocol: v1.ProtocolUDP}}},
	}, nil)
	z.Set("default", "plain", &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "plain"},
		Spec:       v1.ServiceSpec{ClusterIP: "10.96.0.21", Ports: []v1.ServicePort{{Port: 80}}},
	}, nil)
	for _, name := range []string{"shy", "open"} {
		not, port := false, int32(80)
		z.Set("default", name, &v1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec:       v1.ServiceSpec{ClusterIP: "None", PublishNotReadyAddresses: name == "open"},
		}, []*discovery.EndpointSlice{{
			Ports:     []discovery.EndpointPort{{Port: &port}},
			Endpoints: []discovery.Endpoint{{Addresses: []string{"10.244.0.9"}, Conditions: discovery.EndpointConditions{Ready: &not}}},
		}})
	}
	name, port, first, no := "http", int32(8080), "web-0", false
	z.Set("default", "head", &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "head"},
		Spec:       v1.ServiceSpec{ClusterIP: "None"},
	}, []*discovery.EndpointSlice{{
		Ports: []discovery.EndpointPort{{Name: &name, Port: &port}},
		Endpoints: []discovery.Endpoint{
			{Addresses: []string{"10.244.0.2"}, Hostname: &first},
			{Addresses: []string{"10.244.0.3"}},
			{Addresses: []string{"10.244.0.4"}, Conditions: discovery.EndpointConditions{Ready: &no}},
		},
	}})
	z.Set("other", "ext", &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "ext"},
		Spec:       v1.ServiceSpec{Type: v1.ServiceTypeExternalName, ExternalName: "www.example.com"},
	}, nil)
	z.Set("other", "alias", &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "alias"},
		Spec:       v1.ServiceSpec{Type: v1.ServiceTypeExternalName, ExternalName: "web.default.svc.cluster.local"},
	}, nil)
	for from, to := range map[string]string{"chain": "alias.other.svc.cluster.local", "loop": "LOOP.other.svc.cluster.local.", "dangling": "none.other.svc.cluster.local"} {
		z.Set("other", from, &v1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: from},
			Spec:       v1.ServiceSpec{Type: v1.ServiceTypeExternalName, ExternalName: to},
		}, nil)
	}
	return z
}

// short is a record without its owner, class and lifetime.
func short(rr dns.RR) string { return strings.TrimPrefix(rr.String(), rr.Header().String()) }

func TestNames(t *testing.T) {
	s := NewServer(Config{Zone: testZone(), Listen: []netip.AddrPort{netip.MustParseAddrPort("10.96.0.10:53")}, Upstreams: func() []string { return nil }})
	cases := []struct {
		name  string
		kind  uint16
		rcode int
		want  string // records, sorted
	}{
		{"web.default.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess, "10.96.0.20"},
		{"WEB.Default.svc.CLUSTER.local.", dns.TypeA, dns.RcodeSuccess, "10.96.0.20"},
		{"web.default.svc.cluster.local.", dns.TypeAAAA, dns.RcodeSuccess, "fd00::20"},
		{"web.default.svc.cluster.local.", dns.TypeMX, dns.RcodeSuccess, ""},
		{"web.default.svc.cluster.local.", dns.TypeSRV, dns.RcodeSuccess, "0 100 53 web.default.svc.cluster.local. 0 100 80 web.default.svc.cluster.local."},
		{"_http._tcp.web.default.svc.cluster.local.", dns.TypeSRV, dns.RcodeSuccess, "0 100 80 web.default.svc.cluster.local."},
		{"_http._tcp.web.default.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess, ""},
		{"_tcp.web.default.svc.cluster.local.", dns.TypeSRV, dns.RcodeSuccess, ""},
		{"_http._udp.web.default.svc.cluster.local.", dns.TypeSRV, dns.RcodeNameError, ""},
		{"head.default.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess, "10.244.0.2 10.244.0.3"},
		{"head.default.svc.cluster.local.", dns.TypeAAAA, dns.RcodeSuccess, ""},
		{"web-0.head.default.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess, "10.244.0.2"},
		{"10-244-0-3.head.default.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess, "10.244.0.3"},
		{"web-1.head.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, ""},
		{"_http._tcp.head.default.svc.cluster.local.", dns.TypeSRV, dns.RcodeSuccess,
			"0 100 8080 10-244-0-3.head.default.svc.cluster.local. 0 100 8080 web-0.head.default.svc.cluster.local."},
		{"ext.other.svc.cluster.local.", dns.TypeA, dns.RcodeServerFailure, "www.example.com."},
		{"ext.other.svc.cluster.local.", dns.TypeCNAME, dns.RcodeSuccess, "www.example.com."},
		{"ext.other.svc.cluster.local.", dns.TypeSRV, dns.RcodeSuccess, "www.example.com."},
		{"chain.other.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess, "10.96.0.20 alias.other.svc.cluster.local. web.default.svc.cluster.local."},
		{"dangling.other.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, "none.other.svc.cluster.local."},
		{"_._tcp.plain.default.svc.cluster.local.", dns.TypeSRV, dns.RcodeNameError, ""},
		{"_tcp.plain.default.svc.cluster.local.", dns.TypeSRV, dns.RcodeNameError, ""},
		{"plain.default.svc.cluster.local.", dns.TypeAAAA, dns.RcodeSuccess, ""},
		{"shy.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, ""},
		{"open.default.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess, "10.244.0.9"},
		{"10-244-0-9.open.default.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess, "10.244.0.9"},
		{"ns.dns.cluster.local.", dns.TypeA, dns.RcodeSuccess, "10.96.0.10"},
		{"ns.dns.cluster.local.", dns.TypeAAAA, dns.RcodeSuccess, ""},
		{"dns.cluster.local.", dns.TypeA, dns.RcodeSuccess, ""},
		{"fd00--9.default.pod.cluster.local.", dns.TypeAAAA, dns.RcodeSuccess, "fd00::9"},
		{"77.0.244.10.in-addr.arpa.", dns.TypePTR, dns.RcodeNameError, ""},
		{"7.0.97.10.in-addr.arpa.", dns.TypePTR, dns.RcodeNameError, ""},
		{"7.0.2.192.in-addr.arpa.", dns.TypePTR, dns.RcodeServerFailure, ""}, // not ours
		{"7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.", dns.TypePTR, dns.RcodeNameError, ""},
		{"alias.other.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess, "10.96.0.20 web.default.svc.cluster.local."},
		{"10-244-0-9.default.pod.cluster.local.", dns.TypeA, dns.RcodeSuccess, "10.244.0.9"},
		{"not-an-ip.default.pod.cluster.local.", dns.TypeA, dns.RcodeNameError, ""},
		{"20.0.96.10.in-addr.arpa.", dns.TypePTR, dns.RcodeSuccess, "web.default.svc.cluster.local."},
		{"2.0.244.10.in-addr.arpa.", dns.TypePTR, dns.RcodeSuccess, "web-0.head.default.svc.cluster.local."},
		{"0.2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.", dns.TypePTR, dns.RcodeSuccess, "web.default.svc.cluster.local."},
		{"default.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess, ""},
		{"nowhere.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, ""},
		{"svc.cluster.local.", dns.TypeA, dns.RcodeSuccess, ""},
		{"cluster.local.", dns.TypeNS, dns.RcodeSuccess, "ns.dns.cluster.local."},
		{"dns-version.cluster.local.", dns.TypeTXT, dns.RcodeSuccess, `"1.1.0"`},
		{"a.web.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, ""},
		{"nothing.cluster.local.", dns.TypeA, dns.RcodeNameError, ""},
		{"www.example.com.", dns.TypeA, dns.RcodeServerFailure, ""}, // there is no resolver to ask
	}
	for _, c := range cases {
		t.Run(c.name+" "+dns.TypeToString[c.kind], func(t *testing.T) {
			r := new(dns.Msg)
			r.SetQuestion(c.name, c.kind)
			m := s.Reply(t.Context(), r)
			var got []string
			for _, rr := range m.Answer {
				got = append(got, short(rr))
			}
			slices.Sort(got)
			if m.Rcode != c.rcode || strings.Join(got, " ") != c.want {
				t.Errorf("%s %q, want %s %q", dns.RcodeToString[m.Rcode], got, dns.RcodeToString[c.rcode], c.want)
			}
			if m.Authoritative && len(m.Answer) == 0 && (len(m.Ns) != 1 || m.Ns[0].Header().Rrtype != dns.TypeSOA) {
				t.Errorf("a no without start of authority: %v", m.Ns)
			}
		})
	}
}

func TestRemovedServicesHaveNoNames(t *testing.T) {
	z := testZone()
	for _, name := range []string{"default/web", "default/head", "default/plain", "default/shy", "default/open", "other/ext", "other/alias", "other/chain", "other/loop", "other/dangling"} {
		namespace, name, _ := strings.Cut(name, "/")
		z.Set(namespace, name, nil, nil)
	}
	if len(z.records)+len(z.namespaces)+len(z.addresses) != 0 {
		t.Errorf("left: %v %v %v", z.records, z.namespaces, z.addresses)
	}
}

// resolver is a DNS server of the test, on loopback.
func resolver(t *testing.T, answer dns.HandlerFunc) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", netip.AddrPortFrom(ownHost(), 0).String())
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", conn.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*dns.Server{{PacketConn: conn, Handler: answer}, {Listener: listener, Handler: answer}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() { _ = s.ActivateAndServe() }()
		<-started
		t.Cleanup(func() { _ = s.Shutdown() })
	}
	return conn.LocalAddr().String()
}

func ask(name string) *dns.Msg {
	r := new(dns.Msg)
	r.SetQuestion(name, dns.TypeA)
	return r
}

func TestOtherNamesAreForwardedAndCached(t *testing.T) {
	var asked atomic.Int32
	upstream := resolver(t, func(w dns.ResponseWriter, r *dns.Msg) {
		asked.Add(1)
		m := new(dns.Msg)
		m.SetReply(r)
		if _, tcp := w.RemoteAddr().(*net.TCPAddr); !tcp && r.Question[0].Name == "big.example." {
			m.Truncated = true
		} else {
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 300}, A: net.IPv4(192, 0, 2, 7)}}
		}
		_ = w.WriteMsg(m)
	})
	s := NewServer(Config{Zone: testZone(), Upstreams: func() []string { return []string{"127.0.0.1:1", upstream} }})
	now := time.Unix(1000, 0)
	s.forward.now = func() time.Time { return now }
	var before int32
	for range 3 {
		before = asked.Load()
		if m := s.Reply(t.Context(), ask("www.example.")); m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
			t.Fatalf("answer %v", m)
		}
		s.forward.running.Wait() // on a busy machine it may be asked once more than it has to be
	}
	if asked.Load() != before || before == 0 {
		t.Errorf("the resolver was asked %d times, then %d", before, asked.Load())
	}
	now = now.Add(10 * time.Second)
	if m := s.Reply(t.Context(), ask("WWW.example.")); m.Answer[0].Header().Ttl != 290 {
		t.Errorf("lifetime %d after ten seconds of 300", m.Answer[0].Header().Ttl)
	}
	now = now.Add(time.Minute)
	if s.Reply(t.Context(), ask("www.example.")); asked.Load() <= before {
		t.Errorf("the resolver was asked %d times after the answer expired, %d before", asked.Load(), before)
	}
	if m := s.Reply(t.Context(), ask("big.example.")); len(m.Answer) != 1 {
		t.Errorf("a truncated answer was not asked for again by TCP: %v", m)
	}
}

func TestLargeAnswersFitTheClient(t *testing.T) {
	z := NewZone("cluster.local")
	slice := &discovery.EndpointSlice{}
	for i := range 200 {
		slice.Endpoints = append(slice.Endpoints, discovery.Endpoint{Addresses: []string{fmt.Sprintf("10.244.1.%d", i)}})
	}
	z.Set("d", "s", &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "s"}, Spec: v1.ServiceSpec{ClusterIP: "None"}}, []*discovery.EndpointSlice{slice})
	_, at := servedOf(t, Config{Zone: z, Upstreams: func() []string { return nil }})
	small, _, err := (&dns.Client{Timeout: 10 * time.Second}).Exchange(ask("s.d.svc.cluster.local."), at)
	if err != nil || !small.Truncated {
		t.Errorf("by datagram: %v, truncated %t", err, small != nil && small.Truncated)
	}
	whole, _, err := (&dns.Client{Net: "tcp", Timeout: 10 * time.Second}).Exchange(ask("s.d.svc.cluster.local."), at)
	if err != nil || len(whole.Answer) != 200 {
		t.Errorf("by TCP: %v", err)
	}
}

func TestResolversLeaveOutOurselves(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte("# x\nnameserver 10.96.0.10\nsearch a b\nnameserver 192.0.2.53\nnameserver ::1\nnameserver x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Resolvers(path, []netip.Addr{netip.MustParseAddr("10.96.0.10")})
	if err != nil || fmt.Sprint(got) != "[192.0.2.53:53 [::1]:53]" {
		t.Errorf("resolvers %v (%v)", got, err)
	}
}

// FuzzReply feeds the server whatever a client may send; it must answer something that can be packed and fits, or nothing.
func FuzzReply(f *testing.F) {
	add := func(m *dns.Msg) {
		raw, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	for _, name := range []string{"web.default.svc.cluster.local.", "_http._tcp.head.default.svc.cluster.local.", "1.0.0.10.in-addr.arpa.", ".", "loop.other.svc.cluster.local.",
		"chain.other.svc.cluster.local.", "fd00--9.default.pod.cluster.local.", "1.0.244.10.in-addr.arpa.", "0.2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa."} {
		add(ask(name))
		m := ask(name)
		m.SetEdns0(512, true)
		add(m)
	}
	f.Add([]byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01")) // a name that points to itself
	s := NewServer(Config{Zone: testZone(), Upstreams: func() []string { return nil }})
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, m := parse(raw)
		size := smallPacket
		if r != nil {
			m, size = s.Reply(t.Context(), r), datagramSize(r)
		}
		if m == nil {
			return
		}
		wire, err := pack(m, size)
		if err != nil {
			t.Fatalf("answer to %v cannot be packed: %v", r, err)
		}
		if len(wire) > size {
			t.Fatalf("answer to %v has %d bytes, %d fit", r, len(wire), size)
		}
		if wire[0] != raw[0] || wire[1] != raw[1] || !m.Response {
			t.Fatalf("answer to %v does not belong to it", r)
		}
	})
}
