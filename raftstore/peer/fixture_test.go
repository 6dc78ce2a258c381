package peer

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"log/slog"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// authority is a small CA.
type authority struct {
	t    testing.TB
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &authority{t: t, key: key, cert: cert, pool: pool}
}

// issue makes a certificate; edit changes its template.
func (a *authority) issue(cn, org string, edit ...func(*x509.Certificate)) *tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(a.t, err)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	must(a.t, err)
	tmpl := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: cn, Organization: []string{org}},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if id, ok := strings.CutPrefix(cn, namePrefix); ok {
		tmpl.DNSNames = []string{ServerName(id)}
	}
	for _, e := range edit {
		e(tmpl)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	must(a.t, err)
	leaf, err := x509.ParseCertificate(der)
	must(a.t, err)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func (a *authority) server(id string, edit ...func(*x509.Certificate)) *tls.Certificate {
	return a.issue(CommonName(id), Organization, edit...)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		<-tick.C
	}
}

// logText collects log lines.
type logText struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logText) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), s)
}

// world is a set of servers on loopback with one CA and one cluster.
type world struct {
	t       testing.TB
	ca      *authority
	cluster string

	mu    sync.Mutex
	addrs map[string]string
}

func newWorld(t testing.TB) *world {
	return &world{t: t, ca: newAuthority(t), cluster: newID(), addrs: map[string]string{}}
}

func (w *world) resolve(id string) (string, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a, ok := w.addrs[id]
	return a, ok
}

func (w *world) move(id, addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addrs[id] = addr
}

// member is one server: a network and its port.
type member struct {
	*Network
	w    *world
	id   string
	port *Port
	log  *logText

	mu       sync.Mutex
	cert     *tls.Certificate
	stopPort func()
	stopNet  func()
}

// join starts a server; edit changes its configuration.
func (w *world) join(edit ...func(*Config)) *member {
	w.t.Helper()
	m := &member{w: w, id: newID(), log: &logText{}}
	m.cert = w.ca.server(m.id)
	cfg := Config{
		ServerID: m.id, ClusterID: w.cluster, Certificate: m.certificate,
		Roots: func() *x509.CertPool { return w.ca.pool }, Resolve: w.resolve,
		Logger: slog.New(slog.NewTextHandler(m.log, nil)),
		// A busy machine takes its time: what a peer answers is the point of most tests, and not when.
		DialTimeout: 20 * time.Second, HeartbeatTimeout: 20 * time.Second,
	}
	for _, e := range edit {
		e(&cfg)
	}
	var err error
	m.Network, err = New(cfg)
	must(w.t, err)
	m.stopNet = start(w.t, m.Network.Run)
	m.listen("127.0.0.1:0")
	w.t.Cleanup(func() { m.stopPort(); m.stopNet() })
	return m
}

func (m *member) certificate() (*tls.Certificate, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cert, nil
}

func (m *member) setCert(c *tls.Certificate) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cert = c
}

// listen opens a port for the member, and makes it known. Where it opens one again that it had, a connection of another
// process may have it for a moment.
func (m *member) listen(addr string, edit ...func(*PortConfig)) {
	m.w.t.Helper()
	var l net.Listener
	var err error
	eventually(m.w.t, "listening at "+addr, func() bool {
		l, err = net.Listen("tcp", addr)
		return err == nil
	})
	cfg := PortConfig{
		Listener:    l,
		Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return m.certificate() },
		Roots:       func() *x509.CertPool { return m.w.ca.pool },
		Logger:      slog.New(slog.NewTextHandler(m.log, nil)),
	}
	for _, e := range edit {
		e(&cfg)
	}
	m.port, err = NewPort(cfg)
	must(m.w.t, err)
	m.Attach(m.port)
	m.stopPort = start(m.w.t, m.port.Run)
	m.w.move(m.id, l.Addr().String())
}

// start runs run and gives a function that stops it and waits, any number of times.
func start(t testing.TB, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

type (
	raftAppend   = raft.AppendEntriesRequest
	raftAppended = raft.AppendEntriesResponse
)

func raftID(m *member) raft.ServerID { return raft.ServerID(m.id) }

// quiet is a connection that takes deadlines and nothing else.
func quiet(t testing.TB) *conn {
	a, b := net.Pipe()
	t.Cleanup(func() { _ = a.Close(); _ = b.Close() })
	return &conn{Conn: tls.Client(a, &tls.Config{})}
}
