package peer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/balsahq/balsa/raftstore/peer/peerpb"
)

var errTimeout = os.ErrDeadlineExceeded

// whoami answers Ping with the caller's common name as an error.
type whoami struct {
	peerpb.UnimplementedPeersServer
}

func (whoami) Ping(ctx context.Context, _ *peerpb.PingRequest) (*peerpb.PingReply, error) {
	p, _ := peer.FromContext(ctx)
	info := p.AuthInfo.(credentials.TLSInfo)
	name := "nobody"
	if len(info.State.VerifiedChains) > 0 {
		name = info.State.VerifiedChains[0][0].Subject.CommonName
	}
	return nil, status.Error(codes.AlreadyExists, name)
}

// serveBoth runs an HTTP and a gRPC server on m's port.
func serveBoth(t testing.TB, m *member) {
	t.Helper()
	web := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		Began(r.Context())
		defer Ended(r.Context())
		if user, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
			if err := Proved(r.Context(), user); err != nil {
				http.Error(rw, err.Error(), http.StatusTooManyRequests)
				return
			}
		}
		if r.URL.Path == "/watch" {
			rw.(http.Flusher).Flush()
			<-r.Context().Done()
		}
		_, _ = io.WriteString(rw, r.Proto)
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
			_, _ = io.WriteString(rw, " "+r.TLS.PeerCertificates[0].Subject.CommonName)
		}
	}), ReadHeaderTimeout: time.Second, ConnContext: ConnContext}
	must(t, http2.ConfigureServer(web, &http2.Server{}))
	g := grpc.NewServer(grpc.Creds(ServerCredentials()), grpc.ConnectionTimeout(time.Second))
	peerpb.RegisterPeersServer(g, whoami{})
	var wg sync.WaitGroup
	wg.Go(func() { _ = web.Serve(m.port.REST()) })
	wg.Go(func() { _ = g.Serve(m.port.GRPC()) })
	t.Cleanup(func() { _ = web.Close(); g.Stop(); wg.Wait() })
}

func clientTLS(m *member, certs ...*tls.Certificate) *tls.Config {
	c := &tls.Config{RootCAs: m.w.ca.pool, ServerName: ServerName(m.id)}
	for _, x := range certs {
		c.Certificates = append(c.Certificates, *x)
	}
	return c
}

func get(t testing.TB, m *member, conf *tls.Config, h2 bool) string {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: h2}
	if !h2 {
		tr.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	defer tr.CloseIdleConnections()
	addr, _ := m.w.resolve(m.id)
	resp, err := (&http.Client{Transport: tr, Timeout: time.Minute}).Get("https://" + addr)
	must(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	return string(b)
}

func TestRESTByBothVersionsOfHTTP(t *testing.T) {
	m := newWorld(t).join()
	serveBoth(t, m)
	admin := m.w.ca.issue("admin", "system:masters")
	foreign := newAuthority(t).issue("mallory", "system:masters")
	for _, c := range []struct {
		cert *tls.Certificate
		h2   bool
		want string
	}{
		{nil, true, "HTTP/2.0"}, {nil, false, "HTTP/1.1"}, {admin, true, "HTTP/2.0 admin"}, {admin, false, "HTTP/1.1 admin"},
		{foreign, true, "HTTP/2.0 mallory"}, // the authenticator's affair
	} {
		var certs []*tls.Certificate
		if c.cert != nil {
			certs = append(certs, c.cert)
		}
		conf := clientTLS(m)
		if c.cert != nil { // whatever the server's list of authorities says
			conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certs[0], nil }
		}
		if got := get(t, m, conf, c.h2); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func ping(t testing.TB, m *member, conf *tls.Config) error {
	t.Helper()
	addr, _ := m.w.resolve(m.id)
	cc, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	must(t, err)
	defer cc.Close()
	_, err = peerpb.NewPeersClient(cc).Ping(within(t, time.Minute), &peerpb.PingRequest{})
	return err
}

func TestGRPCShowsTheVerifiedCertificate(t *testing.T) {
	m := newWorld(t).join()
	serveBoth(t, m)
	if err := ping(t, m, clientTLS(m, m.w.ca.issue("admin", "system:masters"))); status.Convert(err).Message() != "admin" {
		t.Error(err)
	}
	if err := ping(t, m, clientTLS(m)); status.Convert(err).Message() != "nobody" {
		t.Error(err)
	}
	expired := m.w.ca.issue("admin", "system:masters", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) })
	for name, bad := range map[string]*tls.Certificate{"foreign": newAuthority(t).issue("admin", "system:masters"), "expired": expired} {
		conf := clientTLS(m)
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return bad, nil }
		if err := ping(t, m, conf); status.Code(err) != codes.Unavailable {
			t.Errorf("%s certificate: %v", name, err)
		}
	}
}

func TestWhereEachOfferGoes(t *testing.T) {
	m := newWorld(t).join()
	addr, _ := m.w.resolve(m.id)
	accepted := make(chan string, 1)
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	for name, l := range map[string]net.Listener{"rest": m.port.REST(), "grpc": m.port.GRPC()} {
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				if !c.(*tls.Conn).ConnectionState().HandshakeComplete {
					t.Error("handshake not done")
				}
				accepted <- name
				_ = c.Close()
			}
		})
		t.Cleanup(func() { _ = l.Close() })
	}
	own := make(chan struct{}, 1)
	m.port.Handle("test/1", func(c *tls.Conn) { own <- struct{}{}; _ = c.Close() })
	for _, c := range []struct {
		offer []string
		got   string
		where string
	}{
		{nil, "", "rest"}, {[]string{"http/1.1"}, "http/1.1", "rest"}, {[]string{"h2", "http/1.1"}, "h2", "rest"},
		{[]string{"http/1.1", "h2"}, "h2", "rest"}, {[]string{"h2"}, "h2", "grpc"},
	} {
		conf := clientTLS(m)
		conf.NextProtos = c.offer
		conn, err := tls.Dial("tcp", addr, conf)
		must(t, err)
		if got := conn.ConnectionState().NegotiatedProtocol; got != c.got {
			t.Errorf("%q: agreed on %q", c.offer, got)
		}
		if where := <-accepted; where != c.where {
			t.Errorf("%q went to %s", c.offer, where)
		}
		_ = conn.Close()
	}
	conf := clientTLS(m, m.w.ca.issue("admin", "system:masters"))
	conf.NextProtos = []string{"test/1"}
	conn, err := tls.Dial("tcp", addr, conf)
	must(t, err)
	<-own
	_ = conn.Close()
}

// handshakes measures n of them, one after the other, from one address.
func handshakes(t testing.TB, m *member, n int, from string) []time.Duration {
	t.Helper()
	addr, _ := m.w.resolve(m.id)
	d := &tls.Dialer{NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}, Config: clientTLS(m)}
	var out []time.Duration
	for range n {
		begin := time.Now()
		c, err := d.DialContext(within(t, time.Minute), "tcp", addr)
		must(t, err)
		out = append(out, time.Since(begin))
		_ = c.Close()
	}
	slices.Sort(out)
	return out
}

func TestAddressesThatConnectionsCountBy(t *testing.T) {
	if v6 := remoteIP(addressed{nil, "[2001:db8::1:2:3:4]:5"}); v6.String() != "2001:db8::" {
		t.Errorf("IPv6 counted as %v", v6)
	}
	if v4 := remoteIP(addressed{nil, "[::ffff:10.0.0.1]:5"}); v4.String() != "10.0.0.1" {
		t.Errorf("mapped IPv4 counted as %v", v4)
	}
}

type addressed struct {
	net.Conn
	addr string
}

func (a addressed) RemoteAddr() net.Addr { return textAddr(a.addr) }

type textAddr string

func (textAddr) Network() string  { return "tcp" }
func (a textAddr) String() string { return string(a) }

func TestGarbageOnThePort(t *testing.T) {
	m := newWorld(t).join()
	serveBoth(t, m)
	addr, _ := m.w.resolve(m.id)
	for _, garbage := range []string{"GET / HTTP/1.1\r\n\r\n", "\x00\x00\x00", "SSH-2.0-x\r\n", "\x16\x03\x01\xff\xff\x01\xff\xff\xff"} {
		c, err := net.Dial("tcp", addr)
		must(t, err)
		_, _ = io.WriteString(c, garbage)
		if tcp := c.(*net.TCPConn); tcp.CloseWrite() != nil {
			t.Error("write side")
		}
		closedSoon(t, c)
		_ = c.Close()
	}
	if got := get(t, m, clientTLS(m), true); got != "HTTP/2.0" {
		t.Error(got)
	}
	eventually(t, "logged", func() bool { return m.log.count("refused: handshake") > 0 })
	if n := m.log.count("refused: handshake"); n != 1 {
		t.Errorf("logged %d times", n)
	}
}

func TestCertificateOfThePortIsTakenPerHandshake(t *testing.T) {
	m := newWorld(t).join()
	addr, _ := m.w.resolve(m.id)
	shown := func() string {
		conf := clientTLS(m)
		c, err := tls.Dial("tcp", addr, conf)
		must(t, err)
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	first := shown()
	m.setCert(m.w.ca.server(m.id))
	if shown() == first {
		t.Error("the old certificate is shown after renewal")
	}
}

func TestLogLimitForgetsAndIsBounded(t *testing.T) {
	l := newLogLimit(nil)
	now := time.Now()
	first := logKey{"10.0.0.1", "x"}
	if _, ok := l.admit(first, now); !ok {
		t.Error("the first was not logged")
	}
	for range 9 {
		if _, ok := l.admit(first, now.Add(time.Second)); ok {
			t.Error("logged twice a minute")
		}
	}
	for i := range 2 * logKinds {
		l.admit(logKey{textAddr(rune(i)).String(), "y"}, now)
	}
	if len(l.last) > logKinds {
		t.Errorf("%d remembered", len(l.last))
	}
	if n, ok := l.admit(first, now.Add(logEvery)); !ok || n != 9 {
		t.Errorf("after a minute: %d, %v", n, ok)
	}
	if _, ok := l.admit(logKey{"new", "y"}, now.Add(2*logEvery)); !ok {
		t.Error("old ones were not forgotten")
	}
}

// An authority that REST believes opens no other door, whatever its certificates say.
func TestOtherAuthoritiesAreForRESTAlone(t *testing.T) {
	w := newWorld(t)
	m, other := w.join(), newAuthority(t)
	both := x509.NewCertPool()
	both.AddCert(w.ca.cert)
	both.AddCert(other.cert)
	m.stopPort()
	m.listen("127.0.0.1:0", func(c *PortConfig) {
		c.Hints, c.MaxAnonymousPerIP = func() *x509.CertPool { return both }, 1
	})
	serveBoth(t, m)
	m.Serve(handler{})
	serveVotes(t, m)
	jane := other.issue("jane", "devs")
	for range 3 { // more than MaxAnonymousPerIP
		if got := get(t, m, clientTLS(m, jane), true); got != "HTTP/2.0 jane" {
			t.Errorf("REST sees %q", got)
		}
	}
	if err := ping(t, m, clientTLS(m, other.issue("admin", "system:masters"))); status.Code(err) != codes.Unavailable {
		t.Errorf("gRPC: %v", err)
	}
	stranger := w.join()
	stranger.setCert(other.server(stranger.id))
	raftErr, peerErr := ask(t, stranger, m)
	if !errors.Is(raftErr, ErrRefused) || !errors.Is(peerErr, ErrRefused) {
		t.Errorf("a peer of another authority: %v\n%v", raftErr, peerErr)
	}
}

// TestClientsKeepToThePortsVersionAndCipherSuites tries clients of one version and suite each. Members are not concerned.
func TestClientsKeepToThePortsVersionAndCipherSuites(t *testing.T) {
	const aes128, aes256 = tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
	for _, tt := range []struct {
		name    string
		edit    func(*PortConfig)
		version uint16
		suite   uint16
		alpn    []string
		want    bool
	}{
		{"1.1 by default", func(*PortConfig) {}, tls.VersionTLS11, tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, nil, false},
		{"1.2 by default", func(*PortConfig) {}, tls.VersionTLS12, aes256, nil, true},
		{"1.2 where 1.3 is demanded", func(c *PortConfig) { c.MinVersion = tls.VersionTLS13 }, tls.VersionTLS12, aes128, nil, false},
		{"1.3 where 1.3 is demanded", func(c *PortConfig) { c.MinVersion = tls.VersionTLS13 }, tls.VersionTLS13, 0, []string{"h2", "http/1.1"}, true},
		{"gRPC with 1.2 where 1.3 is demanded", func(c *PortConfig) { c.MinVersion = tls.VersionTLS13 }, tls.VersionTLS12, aes128, []string{"h2"}, false},
		{"a suite that is listed", func(c *PortConfig) { c.CipherSuites = []uint16{aes128} }, tls.VersionTLS12, aes128, []string{"h2", "http/1.1"}, true},
		{"a suite that is not", func(c *PortConfig) { c.CipherSuites = []uint16{aes128} }, tls.VersionTLS12, aes256, []string{"h2", "http/1.1"}, false},
		{"gRPC with a suite that is not", func(c *PortConfig) { c.CipherSuites = []uint16{aes128} }, tls.VersionTLS12, aes256, []string{"h2"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newWorld(t).join()
			m.stopPort()
			m.listen("127.0.0.1:0", tt.edit)
			conf := clientTLS(m)
			conf.MinVersion, conf.MaxVersion, conf.NextProtos = tt.version, tt.version, tt.alpn
			if tt.suite != 0 {
				conf.CipherSuites = []uint16{tt.suite}
			}
			addr, _ := m.w.resolve(m.id)
			c, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Minute}, "tcp", addr, conf)
			if err == nil {
				_ = c.Close()
			}
			if (err == nil) != tt.want {
				t.Errorf("handshake: %v", err)
			}
		})
	}
}
