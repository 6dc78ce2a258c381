package tunnel

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/tunnel/mux"
	"github.com/balsahq/balsa/raftstore/peer"
)

// world is a server's one port with a Tunnel behind it, and the authority of its cluster.
type world struct {
	t       *testing.T
	ca      *pki.Authority
	tunnel  *Tunnel
	addr    string
	direct  atomic.Pointer[DialFunc]
	removed sync.Map // names of nodes that are none any more
}

func newWorld(t *testing.T, settings ...func(*Config)) *world {
	t.Helper()
	w := &world{t: t}
	var err error
	w.ca, err = pki.Open(pki.Config{Dir: t.TempDir(), IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, ServiceIP: net.IPv4(10, 96, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	w.dialBy(func(ctx context.Context, network, address string) (net.Conn, error) {
		<-ctx.Done() // a firewall that drops
		return nil, ctx.Err()
	})
	cfg := Config{
		HeadStart: 20 * time.Millisecond, Networks: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("10.96.0.0/16")},
		Identify: w.identify, Logger: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			return (*w.direct.Load())(ctx, network, address)
		},
	}
	for _, s := range settings {
		s(&cfg)
	}
	if w.tunnel, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port, err := peer.NewPort(peer.PortConfig{
		Listener: l, Certificate: w.ca.Serving().GetCertificate, Roots: func() *x509.CertPool { return w.ca.Pool() }, Logger: cfg.Logger,
	})
	if err != nil {
		t.Fatal(err)
	}
	port.Handle(ALPN, w.tunnel.Serve)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- port.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	w.addr = l.Addr().String()
	return w
}

func (w *world) dialBy(d DialFunc) { w.direct.Store(&d) }

// identify is what control/cluster does with its records.
func (w *world) identify(c *x509.Certificate) (string, error) {
	name, ok := strings.CutPrefix(c.Subject.CommonName, "system:node:")
	if _, gone := w.removed.Load(name); gone || !ok {
		return "", fmt.Errorf("%q is no node", c.Subject.CommonName)
	}
	return name, nil
}

// certificate is a client certificate of the cluster.
func (w *world) certificate(name string) *tls.Certificate {
	w.t.Helper()
	leaf, err := w.ca.NodeClient(name)
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := leaf.GetCertificate(nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// shake connects to the port as a node does.
func (w *world) shake(cert *tls.Certificate) (*tls.Conn, error) {
	c, err := tls.Dial("tcp", w.addr, &tls.Config{
		NextProtos: []string{ALPN}, RootCAs: w.ca.Pool(), ServerName: "127.0.0.1",
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil },
	})
	if err == nil {
		w.t.Cleanup(func() { c.Close() })
	}
	return c, err
}

// node is a connected one, until the test ends or stop is called; ended gets why.
func (w *world) node(name string, dial func(context.Context, string) (net.Conn, error)) (stop func(), ended chan error) {
	w.t.Helper()
	before := w.tunnel.node(name)
	c, err := w.shake(w.certificate(name))
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended = make(chan error, 1)
	var over sync.WaitGroup
	over.Go(func() { ended <- mux.Carry(ctx, mux.CarryConfig{Conn: c, Dial: dial}) })
	stop = func() { cancel(); over.Wait() }
	w.t.Cleanup(stop)
	w.eventually(name+" is connected", func() bool { n := w.tunnel.node(name); return n != nil && n != before })
	return stop, ended
}

func (w *world) eventually(what string, cond func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); runtime.Gosched() {
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: still not so", what)
		}
	}
}

// saying is a node's dial that reaches a speaker of one line, which names the node and the target.
func saying(name string) func(context.Context, string) (net.Conn, error) {
	return func(_ context.Context, target string) (net.Conn, error) {
		a, b := net.Pipe()
		go func() {
			fmt.Fprintf(b, "%s %s", name, target)
			b.Close()
		}()
		return a, nil
	}
}

func heard(c net.Conn, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	defer c.Close()
	text, err := io.ReadAll(c)
	if err != nil {
		return "error: " + err.Error()
	}
	return string(text)
}

func expect(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestUnreachableNodesAreReachedByTheirConnections(t *testing.T) {
	w := newWorld(t)
	w.node("a", saying("a"))
	w.node("b", saying("b"))
	for range 2 {
		expect(t, heard(w.tunnel.Kubelet(t.Context(), "a", "192.0.2.1:10250", nil)), "a kubelet")
		expect(t, heard(w.tunnel.Kubelet(t.Context(), "b", "192.0.2.1:10250", nil)), "b kubelet") // the same address, another node
		expect(t, heard(w.tunnel.Node(t.Context(), "b", "10.244.2.9:80")), "b 10.244.2.9:80")
		expect(t, heard(w.tunnel.Cluster(t.Context(), "tcp", "10.96.0.80:443", func(context.Context, netip.Addr) []string { return []string{"gone", "b"} })), "b 10.96.0.80:443")
	}
	if got := heard(w.tunnel.Cluster(t.Context(), "tcp", "10.96.0.80:443", nil)); !strings.HasSuffix(got, " 10.96.0.80:443") {
		t.Errorf("a Service whose endpoints are anywhere: %q", got)
	}
	// A pod of a node that is not connected is reached by another one, which is on the pods' network; its own API is not.
	if got := heard(w.tunnel.Node(t.Context(), "c", "10.244.3.9:80")); !strings.HasSuffix(got, " 10.244.3.9:80") {
		t.Errorf("a pod of a node that is not connected: %q", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := w.tunnel.Kubelet(ctx, "c", "192.0.2.3:10250", nil); !errors.Is(err, ErrNotConnected) || !strings.Contains(err.Error(), "node c is not connected to this server") {
		t.Errorf("a node that is not connected: %v", err)
	}
}

func TestTheDirectWayIsTakenWhereThereIsOneAndNotWaitedForTwice(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Memory, c.HeadStart = time.Hour, time.Minute }) // the direct way is quick or refused
	w.node("a", saying("a"))
	var tried atomic.Int32
	w.dialBy(func(context.Context, string, string) (net.Conn, error) {
		tried.Add(1)
		return saying("direct")(t.Context(), "way")
	})
	expect(t, heard(w.tunnel.Kubelet(t.Context(), "a", "192.0.2.1:10250", nil)), "direct way")
	w.dialBy(func(context.Context, string, string) (net.Conn, error) {
		tried.Add(1)
		return nil, errors.New("refused")
	})
	for range 5 {
		expect(t, heard(w.tunnel.Kubelet(t.Context(), "a", "192.0.2.1:10250", nil)), "a kubelet")
	}
	if n := tried.Load(); n != 2 {
		t.Errorf("the direct way was tried %d times, want once while it worked and once when it did not", n)
	}
	// Other networks than the cluster's are nobody's affair.
	w.dialBy(func(context.Context, string, string) (net.Conn, error) { return saying("direct")(t.Context(), "way") })
	expect(t, heard(w.tunnel.Cluster(t.Context(), "tcp", "203.0.113.9:443", nil)), "direct way")
	expect(t, heard(w.tunnel.Cluster(t.Context(), "tcp", "hooks.example.com:443", nil)), "direct way")
}

func TestAVerdictIsLookedAtAgain(t *testing.T) {
	now := time.Now()
	v := verdict{}.failed(now, time.Minute)
	if !v.barred(now.Add(59*time.Second)) || v.barred(now.Add(61*time.Second)) {
		t.Errorf("first: %+v", v)
	}
	for range 10 {
		v = v.failed(now, time.Minute)
	}
	if v.wait != 10*time.Minute {
		t.Errorf("it grows to %v", v.wait)
	}
	w := newWorld(t, func(c *Config) { c.Memory = time.Millisecond })
	w.node("a", saying("a"))
	expect(t, heard(w.tunnel.Kubelet(t.Context(), "a", "192.0.2.1:10250", nil)), "a kubelet")
	w.dialBy(func(context.Context, string, string) (net.Conn, error) { return saying("direct")(t.Context(), "way") })
	w.eventually("the direct way is taken again", func() bool {
		return heard(w.tunnel.Kubelet(t.Context(), "a", "192.0.2.1:10250", nil)) == "direct way"
	})
}

func TestModes(t *testing.T) {
	direct := func(context.Context, string, string) (net.Conn, error) { return saying("direct")(t.Context(), "way") }
	t.Run("always", func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.Mode = Always })
		w.dialBy(direct)
		w.node("a", saying("a"))
		expect(t, heard(w.tunnel.Kubelet(t.Context(), "a", "192.0.2.1:10250", nil)), "a kubelet")
		if _, err := w.tunnel.Kubelet(t.Context(), "b", "192.0.2.1:10250", nil); !errors.Is(err, ErrNotConnected) {
			t.Errorf("%v", err)
		}
	})
	t.Run("never", func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.Mode = Never })
		w.dialBy(direct)
		c, err := w.shake(w.certificate("a"))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var over sync.WaitGroup
		over.Go(func() { _ = mux.Carry(ctx, mux.CarryConfig{Conn: c, Dial: saying("a")}) })
		defer over.Wait()
		defer stop()
		w.eventually("the node is alive", func() bool { alive, _ := w.tunnel.Alive("a"); return alive })
		expect(t, heard(w.tunnel.Kubelet(t.Context(), "a", "192.0.2.1:10250", nil)), "direct way")
		expect(t, heard(w.tunnel.Cluster(t.Context(), "tcp", "10.96.0.80:443", nil)), "direct way")
	})
	t.Run("a server that is a node", func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.Mode, c.Self, c.Inside = Always, "me", true })
		w.dialBy(direct)
		w.node("a", saying("a"))
		expect(t, heard(w.tunnel.Kubelet(t.Context(), "me", "192.0.2.9:10250", nil)), "direct way")
		expect(t, heard(w.tunnel.Node(t.Context(), "me", "10.244.9.9:80")), "direct way")
		expect(t, heard(w.tunnel.Node(t.Context(), "a", "10.244.1.9:80")), "a 10.244.1.9:80")
		mine := func(context.Context, netip.Addr) []string { return []string{"a", "me"} }
		expect(t, heard(w.tunnel.Cluster(t.Context(), "tcp", "10.96.0.80:443", mine)), "direct way")
	})
	t.Run("a server in the pods' network", func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.Self, c.Inside, c.HeadStart = "me", true, 2*time.Second })
		w.node("a", saying("a"))
		expect(t, heard(w.tunnel.Node(t.Context(), "a", "10.244.1.9:80")), "a 10.244.1.9:80") // drops: by the node
		w.dialBy(direct)
		expect(t, heard(w.tunnel.Cluster(t.Context(), "tcp", "10.96.0.80:443", nil)), "direct way")
	})
}

func TestWhoIsConnectedIsWhatTheCertificateSays(t *testing.T) {
	w := newWorld(t)
	// Without a certificate of the cluster, or with one that is no node's, nobody gets in.
	if c, err := w.shake(&tls.Certificate{}); err == nil {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("without a certificate something is said")
		}
	}
	other := newWorld(t)
	if c, err := w.shake(other.certificate("a")); err == nil {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("to the certificate of another cluster something is said")
		}
	}
	admin, err := w.ca.Admin().GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := w.shake(admin)
	if err != nil {
		t.Fatal(err)
	}
	var bye mux.Bye
	if err := mux.Carry(t.Context(), mux.CarryConfig{Conn: c, Dial: saying("admin")}); !errors.As(err, &bye) || !strings.Contains(err.Error(), "is no node") {
		t.Errorf("somebody who is no node hears %v", err)
	}
	// One who says that he is b in every other way is still a: the connection of b stays what it is.
	w.node("a", saying("a"))
	w.node("b", saying("b"))
	if got := strings.Join(w.tunnel.Connected(), " "); got != "a b" {
		t.Errorf("connected: %q", got)
	}
	expect(t, heard(w.tunnel.Kubelet(t.Context(), "b", "192.0.2.1:10250", nil)), "b kubelet")
	// A node that is removed is not asked any more, though its connection stands.
	w.removed.Store("b", true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if got := heard(w.tunnel.Kubelet(ctx, "b", "192.0.2.1:10250", nil)); !strings.HasPrefix(got, "error") {
		t.Errorf("a removed node: %q", got)
	}
	w.eventually("the removed node is not connected", func() bool { return w.tunnel.node("b") == nil })
}

func TestTheNewestConnectionOfANodeCounts(t *testing.T) {
	w := newWorld(t)
	_, ended := w.node("a", saying("old"))
	w.node("a", saying("new"))
	var bye mux.Bye
	if err := <-ended; !errors.As(err, &bye) {
		t.Errorf("the old one hears %v", err)
	}
	expect(t, heard(w.tunnel.Kubelet(t.Context(), "a", "192.0.2.1:10250", nil)), "new kubelet")
	if got := len(w.tunnel.Connected()); got != 1 {
		t.Errorf("%d are connected", got)
	}
}

func TestANodeThatGoesIsNotConnectedAndWhatItRefusesIsSaid(t *testing.T) {
	w := newWorld(t)
	stop, _ := w.node("a", func(context.Context, string) (net.Conn, error) { return nil, errors.New("connection refused") })
	if got := heard(w.tunnel.Node(t.Context(), "a", "10.244.1.9:81")); got != "error: node a: connection refused" {
		t.Error(got)
	}
	stop()
	w.eventually("it is not connected", func() bool { return len(w.tunnel.Connected()) == 0 })
}

// TestTheKubeletIsVerifiedThroughTheTunnel: TLS inside ends at the kubelet, and who is not it is refused, at the address
// of the Node as well as behind the node's connection.
func TestTheKubeletIsVerifiedThroughTheTunnel(t *testing.T) {
	w := newWorld(t)
	serve := func(name string) net.Addr {
		leaf, err := w.ca.NodeServing(name, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := leaf.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, "kubelet of "+name) }))
		s.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}}
		s.StartTLS()
		t.Cleanup(s.Close)
		return s.Listener.Addr()
	}
	to := func(a net.Addr) func(context.Context, string) (net.Conn, error) {
		return func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", a.String())
		}
	}
	// Another machine has the node's address here: a stranger with a good certificate of his own.
	stranger := serve("stranger")
	w.dialBy(func(ctx context.Context, _, _ string) (net.Conn, error) { return to(stranger)(ctx, "") })
	w.node("edge", to(serve("edge")))
	get := func(name string) (string, error) {
		verified := &tls.Config{RootCAs: w.ca.Pool(), ServerName: "127.0.0.1", VerifyConnection: func(s tls.ConnectionState) error {
			if got := s.PeerCertificates[0].Subject.CommonName; got != "system:node:"+name {
				return fmt.Errorf("it is %s", got)
			}
			return nil
		}}
		prove := func(ctx context.Context, c net.Conn) error { return tls.Client(c, verified).HandshakeContext(ctx) }
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: verified, DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return w.tunnel.Kubelet(ctx, name, "192.0.2.1:10250", prove)
		}}}
		answer, err := client.Get("https://127.0.0.1/")
		if err != nil {
			return "", err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		return string(text), err
	}
	if got, err := get("edge"); err != nil || got != "kubelet of edge" {
		t.Errorf("%q, %v", got, err)
	}
	// A node that carries to somebody else's kubelet does not pass for its own.
	w.node("liar", to(stranger))
	if got, err := get("liar"); err == nil || !strings.Contains(err.Error(), "it is system:node:stranger") {
		t.Errorf("%q, %v", got, err)
	}
}

// TestFloods: a node that sends what it may not is cut off, and the others are not held up.
func TestFloods(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxStreams = 8 })
	w.node("good", saying("good"))
	for name, raw := range map[string]string{"garbage": strings.Repeat("GET / HTTP/1.1\r\n", 1<<16), "streams": strings.Repeat("\x03\x00\x01\x00\x00\x00\x01x", 1<<16)} {
		c, err := w.shake(w.certificate(name))
		if err != nil {
			t.Fatal(err)
		}
		w.eventually(name+" is connected", func() bool { return w.tunnel.node(name) != nil })
		_, _ = io.WriteString(c, raw)
		w.eventually(name+" is cut off", func() bool { return w.tunnel.node(name) == nil })
	}
	var open []net.Conn
	hold := func(context.Context, string) (net.Conn, error) { a, _ := net.Pipe(); return a, nil }
	w.node("full", hold)
	for range 8 {
		c, err := w.tunnel.Kubelet(t.Context(), "full", "192.0.2.1:10250", nil)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := w.tunnel.Kubelet(ctx, "full", "192.0.2.1:10250", nil); err == nil || !strings.Contains(err.Error(), "too many") {
		t.Errorf("the ninth of eight: %v", err)
	}
	expect(t, heard(w.tunnel.Kubelet(t.Context(), "good", "192.0.2.1:10250", nil)), "good kubelet")
	for _, c := range open {
		c.Close()
	}
	w.eventually("there is room again", func() bool { return w.tunnel.node("full").Streams() == 0 })
}

// TestIdleNodesAreCheap reports what a connected node that carries nothing costs both ends together, and bounds it.
func TestIdleNodesAreCheap(t *testing.T) {
	w := newWorld(t)
	w.node("first", saying("first"))
	measure := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	const nodes = 200
	certificate := w.certificate("many")
	w.tunnel.cfg.Identify = func() func(*x509.Certificate) (string, error) {
		var n atomic.Int32
		return func(*x509.Certificate) (string, error) { return fmt.Sprintf("node-%d", n.Add(1)), nil }
	}()
	before := measure()
	for range nodes {
		c, err := w.shake(certificate)
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		all.Go(func() { mux.Carry(context.Background(), mux.CarryConfig{Conn: c, Dial: saying("x")}) })
		t.Cleanup(func() { c.Close(); all.Wait() })
	}
	w.eventually("all are connected", func() bool { return len(w.tunnel.Connected()) == nodes+1 })
	each := int64(measure()-before) / nodes
	t.Logf("%d bytes of heap and stacks a connected node, both ends together", each)
	if each > 200<<10 {
		t.Errorf("%d bytes", each)
	}
}
