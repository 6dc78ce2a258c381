package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// saying is a resolver's handler that gives every name one address.
func saying(ip string, ttl uint32) dns.HandlerFunc {
	return func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(r)
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: ttl}, A: net.ParseIP(ip)}}
		_ = w.WriteMsg(m)
	}
}

// silent never answers.
func silent(dns.ResponseWriter, *dns.Msg) {}

func serverOf(upstreams ...string) *Server {
	return NewServer(Config{Zone: testZone(), Upstreams: func() []string { return upstreams }, Logger: slog.New(slog.DiscardHandler)})
}

// served runs a server on a port of loopback.
func served(t testing.TB, upstreams ...string) (*Server, string) {
	t.Helper()
	return servedOf(t, Config{Zone: testZone(), Upstreams: func() []string { return upstreams }, Logger: slog.New(slog.DiscardHandler)})
}

// ownHost is an address of loopback that no other process of the machine has ports of: a port that is free for datagrams is
// free for connections too, and is still free when it is opened again.
func ownHost() netip.Addr {
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, byte(64 + pid>>16&63), byte(pid >> 8), byte(pid)})
}

// servedOf runs a server of a configuration on a port of loopback.
func servedOf(t testing.TB, cfg Config) (*Server, string) {
	t.Helper()
	probe, err := net.ListenPacket("udp", netip.AddrPortFrom(ownHost(), 0).String())
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(probe.LocalAddr().String())
	probe.Close()
	cfg.Listen = []netip.AddrPort{at}
	s := NewServer(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	select {
	case <-s.Ready():
	case err := <-ended:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
	return s, at.String()
}

// first is the text of the first record of an answer, or its code.
func first(m *dns.Msg) string {
	if m == nil {
		return "nothing"
	}
	if len(m.Answer) == 0 {
		return dns.RcodeToString[m.Rcode]
	}
	return short(m.Answer[0])
}

func TestResolverThatHangsIsNotWaitedFor(t *testing.T) {
	var hung atomic.Int32
	hanging := resolver(t, func(dns.ResponseWriter, *dns.Msg) { hung.Add(1) })
	s := serverOf(hanging, resolver(t, saying("192.0.2.7", 60)))
	if got := first(s.Reply(t.Context(), ask("one.example."))); got != "192.0.2.7" {
		t.Fatalf("answer %s", got)
	}
	eventually(t, "the resolver that hangs was asked", func() bool { return hung.Load() > 0 })
	// It has lost its place until it answers again.
	eventually(t, "the resolver is known to be slow", func() bool {
		return s.forward.resolvers.list("x.", nil)[1] == hanging
	})
	const more = 20
	for i := range more {
		if got := first(s.Reply(t.Context(), ask(fmt.Sprintf("n%d.example.", i)))); got != "192.0.2.7" {
			t.Fatalf("answer %s", got)
		}
	}
	if n := hung.Load(); n > more/2 { // now and then the other may be slow too, on a busy machine
		t.Errorf("the resolver that hangs was asked %d times", n)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("waited in vain: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestResolverThatRefusesIsPassedOver(t *testing.T) {
	refusing := resolver(t, func(w dns.ResponseWriter, r *dns.Msg) {
		_ = w.WriteMsg(new(dns.Msg).SetRcode(r, dns.RcodeRefused))
	})
	if got := first(serverOf(refusing, resolver(t, saying("192.0.2.7", 60))).Reply(t.Context(), ask("one.example."))); got != "192.0.2.7" {
		t.Errorf("answer %s", got)
	}
	if got := first(serverOf(refusing).Reply(t.Context(), ask("one.example."))); got != "SERVFAIL" {
		t.Errorf("answer %s", got)
	}
}

// TestAnswersToOtherQuestionsAreIgnored: a datagram that guesses the port but not the question is not believed.
func TestAnswersToOtherQuestionsAreIgnored(t *testing.T) {
	liar := resolver(t, func(w dns.ResponseWriter, r *dns.Msg) {
		_, _ = w.Write([]byte("nonsense"))
		for _, change := range []func(*dns.Msg){func(m *dns.Msg) { m.Id++ }, func(m *dns.Msg) { m.Question[0].Name = "other.example." }, func(m *dns.Msg) { m.Response = false }} {
			lie := new(dns.Msg)
			lie.SetReply(r)
			lie.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IPv4(6, 6, 6, 6)}}
			change(lie)
			_ = w.WriteMsg(lie)
		}
		saying("192.0.2.7", 60)(w, r)
	})
	if got := first(serverOf(liar).Reply(t.Context(), ask("one.example."))); got != "192.0.2.7" {
		t.Errorf("answer %s", got)
	}
}

func TestStaleAnswersBridgeAnOutage(t *testing.T) {
	var down atomic.Bool
	var asked atomic.Int32
	s := serverOf(resolver(t, func(w dns.ResponseWriter, r *dns.Msg) {
		asked.Add(1)
		if down.Load() {
			_ = w.WriteMsg(new(dns.Msg).SetRcode(r, dns.RcodeServerFailure))
			return
		}
		saying("192.0.2.7", 20)(w, r)
	}))
	now := time.Unix(1000, 0)
	s.forward.now = func() time.Time { return now }
	s.Reply(t.Context(), ask("one.example."))
	down.Store(true)
	now = now.Add(time.Minute)
	var before int32
	for range 2 {
		before = asked.Load()
		if m := s.Reply(t.Context(), ask("one.example.")); first(m) != "192.0.2.7" || m.Answer[0].Header().Ttl != staleTTL {
			t.Fatalf("answer while the resolver is down: %v", m)
		}
		s.forward.running.Wait() // on a busy machine it may be asked once more than it has to be
	}
	if n := asked.Load(); before < 1+rounds || n != before {
		t.Errorf("the resolver was asked %d times, then %d: it failed a moment ago", before, n)
	}
	if got := first(s.Reply(t.Context(), ask("two.example."))); got != "SERVFAIL" {
		t.Errorf("a name nobody knows: %s", got)
	}
	now = now.Add(2 * staleFor)
	if got := first(s.Reply(t.Context(), ask("one.example."))); got != "SERVFAIL" {
		t.Errorf("after hours: %s", got)
	}
	down.Store(false)
	now = now.Add(time.Minute)
	if got := first(s.Reply(t.Context(), ask("one.example."))); got != "192.0.2.7" {
		t.Errorf("after the outage: %s", got)
	}
}

func TestStaleAnswersBridgeSilence(t *testing.T) {
	var down atomic.Bool
	s := serverOf(resolver(t, func(w dns.ResponseWriter, r *dns.Msg) {
		if !down.Load() {
			saying("192.0.2.7", 20)(w, r)
		}
	}))
	var now atomic.Int64
	s.forward.now = func() time.Time { return time.Unix(now.Load(), 0) }
	s.Reply(t.Context(), ask("one.example."))
	down.Store(true)
	now.Add(60)
	if got := first(s.Reply(t.Context(), ask("one.example."))); got != "192.0.2.7" {
		t.Errorf("answer %s", got)
	}
	s.forward.running.Wait()
}

func TestTheSameQuestionIsAskedOnce(t *testing.T) {
	var asked atomic.Int32
	release := make(chan struct{})
	s := serverOf(resolver(t, func(w dns.ResponseWriter, r *dns.Msg) {
		if asked.Add(1) == 1 {
			<-release
		}
		saying("192.0.2.7", 60)(w, r)
	}))
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if got := first(s.Reply(t.Context(), ask("One.example."))); got != "192.0.2.7" {
				t.Errorf("answer %s", got)
			}
		})
	}
	eventually(t, "all wait", func() bool {
		s.forward.mu.Lock()
		defer s.forward.mu.Unlock()
		return s.forward.waiting == 50 || s.forward.waiting == 0
	})
	close(release)
	wg.Wait()
	if n := asked.Load(); n > rounds { // the second round may have begun
		t.Errorf("the resolver was asked %d times", n)
	}
}

func TestStubDomainsAndResolversCanBeNamed(t *testing.T) {
	hosts, corp, deep, all := resolver(t, saying("192.0.2.1", 60)), resolver(t, saying("192.0.2.2", 60)), resolver(t, saying("192.0.2.3", 60)), resolver(t, saying("192.0.2.4", 60))
	s := serverOf(hosts)
	check := func(name, want string) {
		t.Helper()
		if got := first(s.Reply(t.Context(), ask(name))); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	check("www.corp.example.", "192.0.2.1")
	settings, err := ParseSettings(map[string]string{StubDomainsKey: fmt.Sprintf(`{"Corp.example": [%q], "deep.corp.example.": [%q], "2.0.192.in-addr.arpa": [%q]}`, corp, deep, corp)}, "cluster.local", nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Set(settings)
	check("www.CORP.example.", "192.0.2.2")
	check("corp.example.", "192.0.2.2")
	check("www.deep.corp.example.", "192.0.2.3")
	check("notcorp.example.", "192.0.2.1")
	check("7.2.0.192.in-addr.arpa.", "192.0.2.2")
	check("web.default.svc.cluster.local.", "10.96.0.20")
	if settings, err = ParseSettings(map[string]string{UpstreamsKey: fmt.Sprintf(`[%q]`, all)}, "cluster.local", nil); err != nil {
		t.Fatal(err)
	}
	s.Set(settings)
	check("www.corp.example.", "192.0.2.4")
	s.Set(Settings{})
	check("www.corp.example.", "192.0.2.1")
}

func TestSettingsThatCannotBeFollowed(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("10.96.0.10")}
	for data, want := range map[[2]string]string{
		{StubDomainsKey, `{"a.example": "192.0.2.1"}`}:                   "is not JSON like",
		{StubDomainsKey, `{"a.example": ["ns.example"]}`}:                "neither an address",
		{StubDomainsKey, `{"a.example": []}`}:                            "has no resolver",
		{StubDomainsKey, `{"": ["192.0.2.1"]}`}:                          "is no domain",
		{StubDomainsKey, `{"a..example": ["192.0.2.1"]}`}:                "is no domain",
		{StubDomainsKey, `{"x.Cluster.local": ["192.0.2.1"]}`}:           "in the cluster's domain",
		{StubDomainsKey, `{"a.example": ["10.96.0.10:53"]}`}:             "would forward questions to itself",
		{UpstreamsKey, `8.8.8.8`}:                                        "is not JSON like",
		{UpstreamsKey, `["8.8.8.8", "x"]`}:                               "neither an address",
		{UpstreamsKey, `["10.96.0.10"]`}:                                 "would forward questions to itself",
		{UpstreamsKey, `["1.1.1.1"` + strings.Repeat(`,"::1"`, 8) + `]`}: "at most 8",
	} {
		if _, err := ParseSettings(map[string]string{data[0]: data[1]}, "cluster.local", own); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s %s: error %v, want %q", data[0], data[1], err, want)
		}
	}
	s, err := ParseSettings(map[string]string{UpstreamsKey: `["192.0.2.1", "[2001:db8::1]:5353"]`, "other": "x"}, "cluster.local", own)
	if err != nil || !slices.Equal(s.Upstreams, []string{"192.0.2.1:53", "[2001:db8::1]:5353"}) {
		t.Errorf("%v %v", s, err)
	}
}

func TestCacheIsBounded(t *testing.T) {
	c, now := newCache(), time.Unix(1000, 0)
	answer := func(size int) *dns.Msg {
		m := &dns.Msg{}
		for range size {
			m.Answer = append(m.Answer, &dns.TXT{Hdr: dns.RR_Header{Name: "x.", Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 60}, Txt: []string{strings.Repeat("x", 250)}})
		}
		return m
	}
	question := func(i int) dns.Question {
		return dns.Question{Name: fmt.Sprintf("n%d.", i), Qtype: dns.TypeA, Qclass: 1}
	}
	for _, size := range []int{1, 20} {
		for i := range 2 * cacheEntries {
			c.put(question(i), answer(size), now)
			c.get(question(0), now)
			c.fail(question(-i), now)
		}
		if c.bytes > cacheBytes || len(c.entries) > cacheEntries || c.order.Len() != len(c.entries) {
			t.Errorf("%d answers with %d bytes kept", len(c.entries), c.bytes)
		}
		if c.get(question(0), now).msg == nil {
			t.Error("what is asked for again and again was forgotten")
		}
	}
	c.put(question(1), answer(100), now)
	if c.get(question(1), now).msg != nil && len(c.get(question(1), now).msg.Answer) == 100 {
		t.Error("a very large answer is kept")
	}
	c.clear()
	if c.bytes != 0 || len(c.entries) != 0 {
		t.Errorf("%d bytes left", c.bytes)
	}
}

func TestNegativeAnswersAreKeptAsLongAsTheySay(t *testing.T) {
	soa := func(ttl, minimum uint32) *dns.Msg {
		return &dns.Msg{Ns: []dns.RR{&dns.SOA{Hdr: dns.RR_Header{Ttl: ttl}, Minttl: minimum}}}
	}
	for want, m := range map[time.Duration]*dns.Msg{7 * time.Second: soa(600, 7), 9 * time.Second: soa(9, 600), cacheTTL: soa(600, 600), 0: soa(0, 600), noSOATTL: {}} {
		if got := lifetime(m); got != want {
			t.Errorf("%v: kept %v, want %v", m.Ns, got, want)
		}
	}
}
